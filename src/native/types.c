/* Creates the types of the extension, and frees their objects. */
#include "native.h"

int tm_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **to)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromSpec(spec);
    int failed = !type || PyModule_AddType(module, type) < 0;
    if (to && !failed) *to = type;
    else Py_XDECREF((PyObject *)type);
    return failed ? -1 : 0;
}

int tm_add_class(PyObject *module, const char *name, const char *doc, size_t size, newfunc create,
                 destructor release, PyMethodDef *own, PyTypeObject **to)
{
    PyType_Slot parts[] = {{Py_tp_new, create},  {Py_tp_dealloc, release}, {Py_tp_methods, own},
                           {Py_tp_doc, (void *)doc}, {0, NULL}};
    PyType_Spec spec = {name, (int)size, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, parts};
    return tm_add_type(module, &spec, to);
}

void tm_free_object(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}
