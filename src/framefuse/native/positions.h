/* Whether positions lie in a dimension, before something is written there. */
#ifndef FRAMEFUSE_POSITIONS_H
#define FRAMEFUSE_POSITIONS_H

#include "base.h"

PyObject *positions_within_py(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
