/* Nodes of torch's autograd for the outputs of a plan. */
#ifndef FRAMEFUSE_AUTOGRAD_H
#define FRAMEFUSE_AUTOGRAD_H

#include "base.h"

PyTypeObject *make_attach_type(PyObject *module);
bool is_attach(PyObject *object);
PyObject *saved_drop_py(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
