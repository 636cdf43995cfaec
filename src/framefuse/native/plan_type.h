/* The Python type of a compiled plan. */
#ifndef FRAMEFUSE_PLAN_TYPE_H
#define FRAMEFUSE_PLAN_TYPE_H

#include "base.h"

extern PyTypeObject *PlanProgram_Type;
PyTypeObject *make_plan_type(PyObject *module);

#endif
