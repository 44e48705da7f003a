/* Finds out where the objects of a type have an attribute; see attributes.h. */
#include "attributes.h"

descrgetfunc tm_get_slot;
descrsetfunc tm_set_slot;

int tm_prepare_slots(void)
{
    tm_get_slot = (descrgetfunc)PyType_GetSlot(&PyMemberDescr_Type, Py_tp_descr_get);
    tm_set_slot = (descrsetfunc)PyType_GetSlot(&PyMemberDescr_Type, Py_tp_descr_set);
    if (tm_get_slot && tm_set_slot) return 0;
    PyErr_SetString(PyExc_SystemError, "slots of this Python can't be read");
    return -1;
}

/* Return whether attributes of a type's objects are found in the usual way. */
static int is_usual(PyTypeObject *type)
{
    return PyType_GetSlot(type, Py_tp_getattro) == (void *)PyObject_GenericGetAttr &&
           PyType_GetSlot(type, Py_tp_setattro) == (void *)PyObject_GenericSetAttr;
}

PyObject *tm_find_slot(tm_attribute *name, PyTypeObject *type)
{
    PyObject *slot = is_usual(type) ? PyObject_GetAttr((PyObject *)type, name->text) : NULL;
    if (!slot) PyErr_Clear();
    if (slot && !Py_IS_TYPE(slot, &PyMemberDescr_Type)) Py_CLEAR(slot);
    int place = name->next;
    PyTypeObject *old_type = name->known[place].type;
    PyObject *old_slot = name->known[place].slot;
    name->known[place].type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    name->known[place].slot = slot;
    name->next = !place;
    Py_XDECREF((PyObject *)old_type);
    Py_XDECREF(old_slot);
    return slot;
}
