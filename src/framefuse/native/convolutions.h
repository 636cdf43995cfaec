/* Gradients of convolutions by torch's C interface. */
#ifndef FRAMEFUSE_CONVOLUTIONS_H
#define FRAMEFUSE_CONVOLUTIONS_H

#include "base.h"

/* whether it is torch's operator that gives them */
bool is_convolution_backward(PyObject *function);
/* What the operator gives for these positional arguments, as it would with gradient mode off; NULL without an exception
   where it is to be called itself. */
PyObject *convolution_backward(PyObject *operator, PyObject *const *args, Py_ssize_t count);

#endif
