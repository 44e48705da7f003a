/* The batches in the state of a producer.
 *
 * tidemill.log.partition.producers decides what can be appended, and says what the numbers mean.
 */
#include "head.h"

static PyTypeObject *stored_batch; /* the type of a batch */

int64_t tm_next_sequence(const tm_producer *entry)
{
    PyObject *batches = entry->batches;
    Py_ssize_t count = batches && PyList_Check(batches) ? PyList_Size(batches) : 0;
    PyObject *newest = count ? PyList_GetItem(batches, count - 1) : NULL;
    PyObject *sequence = newest ? PyTuple_GetItem(newest, 0) : NULL;
    int64_t last = sequence ? PyLong_AsLongLong(sequence) : -1;
    return last < 0 ? -1 : (last + 1) & INT32_MAX;
}

int tm_producer_add(tm_producer *entry, int64_t first_sequence, int64_t last_offset, int64_t delta,
                    int64_t timestamp)
{
    int64_t known = tm_next_sequence(entry) == first_sequence ? entry->known_sequences : 0;
    PyObject *stored = tm_new_tuple(
        stored_batch, Py_BuildValue("((LLLL))", (long long)((first_sequence + delta) & INT32_MAX),
                                    (long long)last_offset, (long long)delta, (long long)timestamp));
    int failed = !stored || !entry->batches || PyList_Append(entry->batches, stored) < 0;
    Py_XDECREF(stored);
    Py_ssize_t over = failed ? 0 : PyList_Size(entry->batches) - TM_WINDOW;
    if (failed || (over > 0 && PyList_SetSlice(entry->batches, 0, over, NULL) < 0)) return -1;
    entry->known_sequences = known + delta + 1;
    entry->last_offset = last_offset;
    return 0;
}

/* Give the type of a producer's batches, before the first one is added. */
PyObject *tm_py_prepare_producers(PyObject *module, PyObject *batch)
{
    if (!PyType_Check(batch) || !PyType_IsSubtype((PyTypeObject *)batch, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "not the type of a named tuple");
        return NULL;
    }
    Py_XDECREF((PyObject *)stored_batch);
    stored_batch = (PyTypeObject *)Py_NewRef(batch);
    Py_RETURN_NONE;
}
