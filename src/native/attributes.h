/* Reads and sets attributes of Python's objects as numbers, and calls their methods.
 *
 * A function returns 0, or -1 with an error; `is_true` and `is_none` return 1 or 0 otherwise.
 */
#ifndef TIDEMILL_ATTRIBUTES_H
#define TIDEMILL_ATTRIBUTES_H

#include "native.h"

static inline int get_number(PyObject *from, PyObject *name, int64_t *to)
{
    PyObject *value = PyObject_GetAttr(from, name);
    if (!value) return -1;
    *to = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return *to == -1 && PyErr_Occurred() ? -1 : 0;
}

static inline int set_number(PyObject *of, PyObject *name, int64_t value)
{
    PyObject *number = PyLong_FromLongLong(value);
    if (!number) return -1;
    int failed = PyObject_SetAttr(of, name, number);
    Py_DECREF(number);
    return failed;
}

static inline int add_number(PyObject *of, PyObject *name, int64_t more)
{
    int64_t value;
    return get_number(of, name, &value) < 0 ? -1 : set_number(of, name, value + more);
}

/* Return whether an attribute is true; -1 with an error. */
static inline int is_true(PyObject *of, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(of, name);
    if (!value) return -1;
    int found = PyObject_IsTrue(value);
    Py_DECREF(value);
    return found;
}

static inline int is_none(PyObject *of, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(of, name);
    if (!value) return -1;
    int found = value == Py_None;
    Py_DECREF(value);
    return found;
}

/* Return a new object of a named tuple's type without a call of its Python code.
 *
 * Args: `given` is a tuple that has the tuple of the fields; the reference is taken over. NULL: an
 * error was met before. */
static inline PyObject *tm_new_tuple(PyObject *type, PyObject *given)
{
    if (!given) return NULL;
    PyObject *result = NULL;
    if (PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)) {
        newfunc make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
        result = make((PyTypeObject *)type, given, NULL);
    } else {
        PyErr_SetString(PyExc_TypeError, "not the type of a named tuple");
    }
    Py_DECREF(given);
    return result;
}

static inline int call(PyObject *of, PyObject *name, PyObject *given)
{
    PyObject *result = PyObject_CallMethodObjArgs(of, name, given, NULL);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

static inline int call_with_number(PyObject *of, PyObject *name, int64_t given)
{
    PyObject *number = PyLong_FromLongLong(given);
    int failed = number ? call(of, name, number) : -1;
    Py_XDECREF(number);
    return failed;
}

#endif
