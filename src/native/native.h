/* What the files of the extension share. */
#ifndef TIDEMILL_NATIVE_H
#define TIDEMILL_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

PyObject *tidemill_walk_records(PyObject *module, PyObject *args);

#endif
