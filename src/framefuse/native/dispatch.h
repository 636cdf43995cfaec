/* The compiled function: an object that binds a call, finds the entry whose guards hold and runs its plan. */
#ifndef FRAMEFUSE_DISPATCH_H
#define FRAMEFUSE_DISPATCH_H

#include "base.h"

PyTypeObject *make_dispatch_type(PyObject *module);
PyTypeObject *make_compiled_type(PyObject *module);
PyObject *bypass_py(PyObject *module, PyObject *on);

#endif
