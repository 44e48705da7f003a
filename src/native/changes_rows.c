/* Encodes rows that SQLite gave as tuples: of its change log, and of a snapshot. */
#include "changes.h"

#include <string.h>

/* Set the cells to the items of a tuple from a place on. */
static int take_items(const ChangeEncoder *e, PyObject *row, Py_ssize_t from, Cell *to)
{
    for (Py_ssize_t i = 0; i < e->count; i++) {
        PyObject *item = PyTuple_GetItem(row, from + i);
        if (item == NULL) return -1;
        to[i] = (Cell){.object = item};
    }
    return 0;
}

static int long_at(PyObject *row, Py_ssize_t place, long long *to)
{
    PyObject *item = PyTuple_GetItem(row, place);
    if (item == NULL) return -1;
    *to = PyLong_AsLongLong(item);
    return *to == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Encode a row (number, layout, operation, time, values). */
static int encode_logged(PyObject *encoders, PyObject *row, long long stamp_ms)
{
    enum { NUMBER, LAYOUT, OPERATION, TIME, VALUES };
    long long number;
    Moment moment = {.stamp_ms = stamp_ms, .snapshot = "false"};
    if (long_at(row, NUMBER, &number) < 0 || long_at(row, TIME, &moment.ts_ms) < 0) return -1;
    PyObject *layout = PyTuple_GetItem(row, LAYOUT);
    PyObject *found = layout ? PyDict_GetItemWithError(encoders, layout) : NULL;
    if (found == NULL) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_KeyError, "the layout has no encoder");
        return -1;
    }
    ChangeEncoder *e = tm_change_encoder(found);
    if (e == NULL) return -1;
    PyObject *operation = PyTuple_GetItem(row, OPERATION);
    const char *op = operation ? PyUnicode_AsUTF8AndSize(operation, NULL) : NULL;
    if (op == NULL) return -1;
    if (tm_put_more(e, ",\"change_id\":", (unsigned long long)number, "}", 1) < 0) return -1;
    switch (op[0]) {
    case 'c':
        if (take_items(e, row, VALUES, e->after) < 0) return -1;
        return tm_put_change(e, 'c', NULL, 0, e->after, &moment);
    case 'd':
        if (take_items(e, row, VALUES, e->before) < 0) return -1;
        return tm_put_change(e, 'd', e->before, 0, NULL, &moment);
    case 'u':
        if (take_items(e, row, VALUES, e->before) < 0) return -1;
        if (take_items(e, row, VALUES + e->count, e->after) < 0) return -1;
        return tm_put_change(e, 'u', e->before, 0, e->after, &moment);
    default:
        PyErr_SetString(PyExc_ValueError, "invalid operation");
        return -1;
    }
}

/* encode_changelog(encoders by layout, rows, time of processing) */
PyObject *tm_py_encode_changelog(PyObject *module, PyObject *args)
{
    PyObject *encoders, *rows;
    long long stamp_ms;
    if (!PyArg_ParseTuple(args, "OOL", &encoders, &rows, &stamp_ms)) return NULL;
    if (!PyDict_Check(encoders) || !PyList_Check(rows)) {
        PyErr_SetString(PyExc_TypeError, "a dict and a list are expected");
        return NULL;
    }
    long long records = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(rows); i++) {
        PyObject *row = PyList_GetItem(rows, i);
        if (!PyTuple_Check(row)) {
            PyErr_SetString(PyExc_TypeError, "a row is a tuple");
            return NULL;
        }
        int count = encode_logged(encoders, row, stamp_ms);
        if (count < 0) return NULL;
        records += count;
    }
    return PyLong_FromLongLong(records);
}

/* encode_rows(encoder, rows, time, end of the block source, time of processing) */
PyObject *tm_py_encode_rows(PyObject *module, PyObject *args)
{
    ChangeEncoder *e;
    Moment moment;
    PyObject *rows = tm_begin_rows(args, &e, &moment);
    if (rows == NULL) return NULL;
    long long records = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(rows); i++) {
        PyObject *row = PyList_GetItem(rows, i);
        if (!PyTuple_Check(row) || PyTuple_Size(row) != e->count) {
            PyErr_SetString(PyExc_TypeError, "a row is a tuple with a value of each column");
            return NULL;
        }
        if (take_items(e, row, 0, e->after) < 0) return NULL;
        int count = tm_put_change(e, 'r', NULL, 0, e->after, &moment);
        if (count < 0) return NULL;
        records += count;
    }
    return PyLong_FromLongLong(records);
}
