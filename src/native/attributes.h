/* Reads and sets attributes of Python's objects as numbers, and calls their methods.
 *
 * A function returns 0, or -1 with an error; `is_true` and `is_none` return 1 or 0 otherwise. An
 * attribute that is in a slot of the object (__slots__) is read and set there, without a search of
 * the object's type: that is what most of the time of an attribute is spent on.
 */
#ifndef TIDEMILL_ATTRIBUTES_H
#define TIDEMILL_ATTRIBUTES_H

#include "native.h"

/* The name of an attribute, and the slots in which the objects of two types have it. */
typedef struct {
    const char *ascii;
    PyObject *text;
    struct {
        PyTypeObject *type; /* NULL: none yet */
        PyObject *slot;     /* NULL: its objects have the attribute elsewhere, or not at all */
    } known[2];
    int next; /* which of them is replaced first */
} tm_attribute;

/* Declare the attributes of a file, a list of X(name), as s_name; intern their names. */
#define TM_DECLARE(name) static tm_attribute s_##name[1] = {{.ascii = #name}};
#define TM_INTERN(name) \
    if (!(s_##name->text = PyUnicode_InternFromString(s_##name->ascii))) return -1;

/* attributes.c */
extern descrgetfunc tm_get_slot;
extern descrsetfunc tm_set_slot;
/* Find the slot of a type, and note it. Return NULL, without an error, if there is none. */
PyObject *tm_find_slot(tm_attribute *name, PyTypeObject *type);

static inline PyObject *slot_of(tm_attribute *name, PyObject *of)
{
    PyTypeObject *type = Py_TYPE(of);
    if (name->known[0].type == type) return name->known[0].slot;
    if (name->known[1].type == type) return name->known[1].slot;
    return tm_find_slot(name, type);
}

static inline PyObject *get_attribute(PyObject *from, tm_attribute *name)
{
    PyObject *slot = slot_of(name, from);
    return slot ? tm_get_slot(slot, from, NULL) : PyObject_GetAttr(from, name->text);
}

static inline int set_attribute(PyObject *of, tm_attribute *name, PyObject *value)
{
    PyObject *slot = slot_of(name, of);
    return slot ? tm_set_slot(slot, of, value) : PyObject_SetAttr(of, name->text, value);
}

static inline int get_number(PyObject *from, tm_attribute *name, int64_t *to)
{
    PyObject *value = get_attribute(from, name);
    if (!value) return -1;
    *to = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return *to == -1 && PyErr_Occurred() ? -1 : 0;
}

static inline int set_number(PyObject *of, tm_attribute *name, int64_t value)
{
    PyObject *number = PyLong_FromLongLong(value);
    if (!number) return -1;
    int failed = set_attribute(of, name, number);
    Py_DECREF(number);
    return failed;
}

static inline int add_number(PyObject *of, tm_attribute *name, int64_t more)
{
    int64_t value;
    return get_number(of, name, &value) < 0 ? -1 : set_number(of, name, value + more);
}

/* Return whether an attribute is true; -1 with an error. */
static inline int is_true(PyObject *of, tm_attribute *name)
{
    PyObject *value = get_attribute(of, name);
    if (!value) return -1;
    int found = PyObject_IsTrue(value);
    Py_DECREF(value);
    return found;
}

static inline int is_none(PyObject *of, tm_attribute *name)
{
    PyObject *value = get_attribute(of, name);
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

static inline int call(PyObject *of, tm_attribute *name, PyObject *given)
{
    PyObject *result = PyObject_CallMethodObjArgs(of, name->text, given, NULL);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

static inline int call_with_number(PyObject *of, tm_attribute *name, int64_t given)
{
    PyObject *number = PyLong_FromLongLong(given);
    int failed = number ? call(of, name, number) : -1;
    Py_XDECREF(number);
    return failed;
}

#endif
