/* The driver of a GPU, which is looked for at its first use; -1 and NULL come with RuntimeError. */
#ifndef FRAMEFUSE_CUDA_H
#define FRAMEFUSE_CUDA_H

#include "base.h"

int driver_ready(int32_t device); /* 0: kernels can be loaded for the device and launched on it */
int driver_launch(uint64_t function, int32_t device, unsigned grid, unsigned threads, unsigned shared, void *stream,
                  void **parameters);
bool driver_is_stand_in(void); /* a test's, for which any memory will do */
PyObject *load_module_py(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *use_driver_py(PyObject *module, PyObject *path);

#endif
