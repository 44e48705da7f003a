/* The index of a segment that is written: its entries, and where recent batches begin.
 *
 * tidemill.log.disk.index has the format, and the functions for closed indexes. Knows neither files nor
 * batches. Offsets are relative to the base offset of the segment.
 */
#include "head.h"

#include <stddef.h>
#include <structmember.h>

#define RECENT 1024 /* batches that an index remembers, so that readers at the tail need no scan */
#define OFFSET_ENTRY 8
#define TIME_ENTRY 12

PyTypeObject *tm_index_type;

/* Return the last entry of a bytearray; NULL if it has none. */
static const uint8_t *last_entry(PyObject *entries, Py_ssize_t size)
{
    Py_ssize_t bytes = PyByteArray_Size(entries) / size * size;
    return bytes ? (const uint8_t *)PyByteArray_AsString(entries) + bytes - size : NULL;
}

static int append_entry(PyObject *entries, const uint8_t *entry, Py_ssize_t size)
{
    Py_ssize_t before = PyByteArray_Size(entries);
    if (PyByteArray_Resize(entries, before + size) < 0) return -1;
    memcpy(PyByteArray_AsString(entries) + before, entry, (size_t)size);
    return 0;
}

static int add_offset(tm_index *on, int64_t relative, int64_t position)
{
    uint8_t entry[OFFSET_ENTRY];
    if (relative < 0 || relative > INT32_MAX || position < 0 || position > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "an offset or a position is too large for an index");
        return -1;
    }
    tm_put_big_endian(entry, (uint64_t)relative, 4);
    tm_put_big_endian(entry + 4, (uint64_t)position, 4);
    return append_entry(on->offsets, entry, OFFSET_ENTRY);
}

static int add_time(tm_index *on)
{
    uint8_t entry[TIME_ENTRY];
    const uint8_t *last = last_entry(on->times, TIME_ENTRY);
    if (last && on->max_timestamp <= (int64_t)tm_big_endian(last, 8)) return 0;
    tm_put_big_endian(entry, (uint64_t)on->max_timestamp, 8);
    tm_put_big_endian(entry + 8, (uint64_t)on->max_relative, 4);
    return append_entry(on->times, entry, TIME_ENTRY);
}

static int remember(tm_index *on, int64_t relative, int64_t position)
{
    if (on->count == on->capacity) {
        size_t capacity = on->capacity ? 2 * on->capacity : 8;
        tm_recent *more = PyMem_Realloc(on->recent, capacity * sizeof *more);
        if (!more) {
            PyErr_NoMemory();
            return -1;
        }
        on->recent = more;
        on->capacity = capacity;
    }
    on->recent[on->count++] = (tm_recent){relative, position};
    if (on->count > RECENT) {
        on->count -= RECENT / 2;
        memmove(on->recent, on->recent + RECENT / 2, on->count * sizeof *on->recent);
    }
    return 0;
}

int tm_index_add(tm_index *on, int64_t relative, int64_t position, int64_t size, int64_t latest,
                 int64_t interval)
{
    if (latest > on->max_timestamp) {
        on->max_timestamp = latest;
        on->max_relative = relative;
    }
    if (on->since_entry > interval) {
        if (add_offset(on, relative, position) < 0 || add_time(on) < 0) return -1;
        on->since_entry = 0;
    }
    on->since_entry += size;
    on->last_relative = relative;
    on->last_position = position;
    return remember(on, relative, position);
}

/* Return whether there is no space for so many entries and the final one. */
int tm_index_is_full(const tm_index *on, int64_t more, int64_t most_bytes)
{
    return PyByteArray_Size(on->offsets) + (more + 1) * OFFSET_ENTRY > most_bytes ||
           PyByteArray_Size(on->times) + (more + 1) * TIME_ENTRY > most_bytes;
}

/* --- in Python --------------------------------------------------------------------------------- */

static PyObject *index_add(PyObject *self, PyObject *args)
{
    long long relative, position, size, latest, interval;
    if (!PyArg_ParseTuple(args, "LLLLL:add", &relative, &position, &size, &latest, &interval))
        return NULL;
    if (tm_index_add((tm_index *)self, relative, position, size, latest, interval) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *index_seal(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    tm_index *on = (tm_index *)self;
    if (on->last_relative < 0) Py_RETURN_NONE;
    const uint8_t *last = last_entry(on->offsets, OFFSET_ENTRY);
    if (!last || (int64_t)tm_big_endian(last, 4) < on->last_relative) {
        if (add_offset(on, on->last_relative, on->last_position) < 0) return NULL;
        on->since_entry = 0;
    }
    if (add_time(on) < 0) return NULL;
    Py_RETURN_NONE;
}

/* Return how many recent batches are before the first one whose field is not below `least`. */
static size_t count_below(const tm_index *on, int by_position, int64_t least)
{
    size_t low = 0, high = on->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const tm_recent *at = &on->recent[middle];
        if ((by_position ? at->position : at->relative) < least) low = middle + 1;
        else high = middle;
    }
    return low;
}

static PyObject *index_find_recent(PyObject *self, PyObject *args)
{
    tm_index *on = (tm_index *)self;
    long long relative, end;
    if (!PyArg_ParseTuple(args, "LL:find_recent", &relative, &end)) return NULL;
    size_t at = count_below(on, 0, relative);
    if (at == 0 || at == on->count) Py_RETURN_NONE;
    int64_t position = on->recent[at].position;
    int64_t next = at + 1 < on->count ? on->recent[at + 1].position : end;
    return Py_BuildValue("LL", (long long)position, (long long)(next - position));
}

static PyObject *index_batch_start(PyObject *self, PyObject *given)
{
    tm_index *on = (tm_index *)self;
    long long position = PyLong_AsLongLong(given);
    if (position == -1 && PyErr_Occurred()) return NULL;
    if (on->count && on->recent[0].position <= position)
        return PyLong_FromLongLong(on->recent[count_below(on, 1, position + 1) - 1].position);
    const uint8_t *entries = (const uint8_t *)PyByteArray_AsString(on->offsets);
    Py_ssize_t low = 0, high = PyByteArray_Size(on->offsets) / OFFSET_ENTRY;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if ((int64_t)tm_big_endian(entries + middle * OFFSET_ENTRY + 4, 4) <= position)
            low = middle + 1;
        else
            high = middle;
    }
    uint64_t found = low ? tm_big_endian(entries + (low - 1) * OFFSET_ENTRY + 4, 4) : 0;
    return PyLong_FromUnsignedLongLong(found);
}

/* Return positions and last offsets of the recent batches, as a list. */
static PyObject *index_recent(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    tm_index *on = (tm_index *)self;
    PyObject *list = PyList_New((Py_ssize_t)on->count);
    for (size_t i = 0; list && i < on->count; i++) {
        PyObject *one = Py_BuildValue("LL", (long long)on->recent[i].relative,
                                      (long long)on->recent[i].position);
        if (!one || PyList_SetItem(list, (Py_ssize_t)i, one) < 0) Py_CLEAR(list);
    }
    return list;
}

/* Return a new reference to a bytearray: the given one, or an empty one. */
static PyObject *entries_of(PyObject *given)
{
    if (given == Py_None) return PyByteArray_FromStringAndSize(NULL, 0);
    if (PyByteArray_Check(given)) return Py_NewRef(given);
    PyErr_SetString(PyExc_TypeError, "the entries of an index must be a bytearray");
    return NULL;
}

static PyObject *index_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *offsets = Py_None, *times = Py_None;
    if (!PyArg_ParseTuple(args, "|OO:IndexTable", &offsets, &times)) return NULL;
    tm_index *on = (tm_index *)PyType_GenericNew(type, args, NULL);
    if (!on) return NULL;
    if (!(on->offsets = entries_of(offsets)) || !(on->times = entries_of(times))) {
        Py_DECREF(on);
        return NULL;
    }
    on->written_offsets = PyByteArray_Size(on->offsets);
    on->written_times = PyByteArray_Size(on->times);
    const uint8_t *last = last_entry(on->offsets, OFFSET_ENTRY);
    on->last_relative = last ? (int32_t)tm_big_endian(last, 4) : -1;
    on->last_position = last ? (int32_t)tm_big_endian(last + 4, 4) : -1;
    const uint8_t *latest = last_entry(on->times, TIME_ENTRY);
    on->max_timestamp = latest ? (int64_t)tm_big_endian(latest, 8) : -1;
    on->max_relative = latest ? (int32_t)tm_big_endian(latest + 8, 4) : 0;
    return (PyObject *)on;
}

static void index_dealloc(PyObject *self)
{
    tm_index *on = (tm_index *)self;
    Py_XDECREF(on->offsets);
    Py_XDECREF(on->times);
    PyMem_Free(on->recent);
    tm_free_object(self);
}

#define MEMBER(type, name, flags) {#name, type, offsetof(tm_index, name), flags, NULL}
static PyMemberDef members[] = {
    MEMBER(T_OBJECT, offsets, READONLY),      MEMBER(T_OBJECT, times, READONLY),
    MEMBER(T_LONGLONG, last_relative, 0),     MEMBER(T_LONGLONG, last_position, 0),
    MEMBER(T_LONGLONG, max_timestamp, 0),     MEMBER(T_LONGLONG, max_relative, 0),
    MEMBER(T_LONGLONG, written_offsets, 0),   MEMBER(T_LONGLONG, written_times, 0),
    MEMBER(T_LONGLONG, since_entry, READONLY), {NULL, 0, 0, 0, NULL}};
static PyMethodDef methods[] = {
    {"add", index_add, METH_VARARGS, "Add a batch."},
    {"seal", index_seal, METH_NOARGS, "Add the final entries to both indexes."},
    {"find_recent", index_find_recent, METH_VARARGS, "Return position and size of a recent batch."},
    {"batch_start", index_batch_start, METH_O, "Return a position where a batch starts."},
    {"recent", index_recent, METH_NOARGS, "Return last offsets and positions of recent batches."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, index_new},         {Py_tp_dealloc, index_dealloc},
    {Py_tp_members, members},       {Py_tp_methods, methods},
    {Py_tp_doc, "The indexes of a segment that is written."}, {0, NULL},
};
static PyType_Spec spec = {
    .name = "tidemill._native.IndexTable",
    .basicsize = sizeof(tm_index),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

int tm_add_index(PyObject *module) { return tm_add_type(module, &spec, &tm_index_type); }
