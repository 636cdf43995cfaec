/* The Python type of a compiled guard program. */
#ifndef FRAMEFUSE_GUARD_SET_H
#define FRAMEFUSE_GUARD_SET_H

#include "base.h"

PyTypeObject *make_guard_set_type(PyObject *module);

#endif
