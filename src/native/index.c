/* Adds appended batches to the index of a segment.
 *
 * It works on the attributes of an IndexTable, whose method add does the same for appends of Python. It
 * knows neither files nor batches.
 */
#include "attributes.h"
#include "native.h"

#define RECENT 1024 /* batches that an index remembers */

#define NAMES(X) \
    X(_recent_positions) X(_recent_relatives) X(_since_entry) X(add) X(append) X(last_position) \
    X(last_relative) X(max_relative) X(max_timestamp) X(offsets) X(times)
NAMES(TM_DECLARE)

/* Append an entry to a bytearray. */
static int add_entry(PyObject *entries, const uint8_t *entry, Py_ssize_t size)
{
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)entry, size);
    PyObject *longer = bytes ? PySequence_InPlaceConcat(entries, bytes) : NULL;
    Py_XDECREF(bytes);
    Py_XDECREF(longer); /* the same object */
    return longer ? 0 : -1;
}

/* Add the entries that are due to both files of an index; see IndexTable.add. */
static int add_entries(PyObject *table, int64_t relative, int64_t position)
{
    uint8_t entry[TM_TIME_ENTRY];
    int64_t latest, of_latest;
    PyObject *offsets = get_attribute(table, s_offsets), *times = get_attribute(table, s_times);
    int failed = !offsets || !times || !PyByteArray_Check(times) ||
                 get_number(table, s_max_timestamp, &latest) < 0 ||
                 get_number(table, s_max_relative, &of_latest) < 0;
    if (!failed) {
        tm_put_big_endian(entry, (uint64_t)relative, 4);
        tm_put_big_endian(entry + 4, (uint64_t)position, 4);
        failed = add_entry(offsets, entry, TM_OFFSET_ENTRY) < 0;
    }
    Py_ssize_t size = failed ? 0 : PyByteArray_Size(times) / TM_TIME_ENTRY * TM_TIME_ENTRY;
    const uint8_t *last = size ? (const uint8_t *)PyByteArray_AsString(times) + size - TM_TIME_ENTRY : NULL;
    if (!failed && (!last || latest > (int64_t)tm_big_endian(last, 8))) {
        tm_put_big_endian(entry, (uint64_t)latest, 8);
        tm_put_big_endian(entry + 8, (uint64_t)of_latest, 4);
        failed = add_entry(times, entry, TM_TIME_ENTRY) < 0;
    }
    Py_XDECREF(offsets);
    Py_XDECREF(times);
    if (failed && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "an index is no bytearray");
    return failed ? -1 : 0;
}

/* Add a batch to the index; see IndexTable.add, which is called if batches are to be forgotten. */
int tm_index_batch(PyObject *table, int64_t relative, int64_t position, Py_ssize_t size,
                   int64_t latest, int64_t interval)
{
    int64_t since, known;
    if (get_number(table, s__since_entry, &since) < 0 ||
        get_number(table, s_max_timestamp, &known) < 0)
        return -1;
    PyObject *relatives = get_attribute(table, s__recent_relatives);
    Py_ssize_t recent = relatives ? PyObject_Size(relatives) : -1;
    int failed = recent < 0;
    if (!failed && recent >= RECENT) {
        PyObject *method = get_attribute(table, s_add), *result = NULL;
        if (method)
            result = PyObject_CallFunction(method, "LLnLL", (long long)relative, (long long)position,
                                           size, (long long)latest, (long long)interval);
        failed = !result;
        Py_XDECREF(method);
        Py_XDECREF(result);
    } else if (!failed) {
        PyObject *positions = get_attribute(table, s__recent_positions);
        failed = !positions;
        if (!failed && latest > known)
            failed = set_number(table, s_max_timestamp, latest) < 0 ||
                     set_number(table, s_max_relative, relative) < 0;
        if (!failed && since > interval) {
            failed = add_entries(table, relative, position) < 0;
            since = 0;
        }
        failed = failed || call_with_number(relatives, s_append, relative) < 0 ||
                 call_with_number(positions, s_append, position) < 0 ||
                 set_number(table, s__since_entry, since + size) < 0 ||
                 set_number(table, s_last_relative, relative) < 0 ||
                 set_number(table, s_last_position, position) < 0;
        Py_XDECREF(positions);
    }
    Py_XDECREF(relatives);
    return failed ? -1 : 0;
}

int tm_prepare_index_names(void)
{
    NAMES(TM_INTERN)
    return 0;
}
