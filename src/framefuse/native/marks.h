/* What tells whether tensors are what they were. */
#ifndef FRAMEFUSE_MARKS_H
#define FRAMEFUSE_MARKS_H

#include "base.h"

PyObject *marks_of_py(PyObject *module, PyObject *const *tensors, Py_ssize_t count);

#endif
