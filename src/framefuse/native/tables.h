/* What native code knows by name, for a test that compares it with framefuse.ir.plan. */
#ifndef FRAMEFUSE_TABLES_H
#define FRAMEFUSE_TABLES_H

#include "base.h"

PyObject *tables_py(PyObject *module, PyObject *none);

#endif
