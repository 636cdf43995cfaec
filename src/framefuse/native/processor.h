/* Which processor this is. */
#ifndef FRAMEFUSE_PROCESSOR_H
#define FRAMEFUSE_PROCESSOR_H

#include "base.h"

/* processor(): its name, and bytes that are equal where machine code of one process runs in the other; None where
   that is not known. */
PyObject *processor_py(PyObject *module, PyObject *Py_UNUSED(unused));

#endif
