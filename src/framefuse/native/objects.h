/* Relocatable object code that runs in this process: no linker is needed where an earlier process compiled. */
#ifndef FRAMEFUSE_OBJECTS_H
#define FRAMEFUSE_OBJECTS_H

#include "base.h"

PyTypeObject *make_loaded_objects_type(PyObject *module);

/* load_objects(objects, resolve, machine=this one): objects are pairs of a function's name and the bytes of an ELF
   object that defines it; resolve(name) gives the address of what one calls beyond. ValueError for an object that is
   damaged, or that has what kernels do not have. The code of another machine can be looked at. */
PyObject *load_objects_py(PyObject *module, PyObject *args);

#endif
