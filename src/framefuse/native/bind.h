/* Arguments of a call in the order of the function's locals. */
#ifndef FRAMEFUSE_BIND_H
#define FRAMEFUSE_BIND_H

#include "base.h"

typedef struct {
    PyCodeObject *code; /* owned: the layout below is of this code object */
    int positional, positional_only, keyword_only, total;
    bool var_positional, var_keywords;
} Signature;

int signature_read(Signature *signature, PyCodeObject *code);

/* Fills `bound` (signature->total entries) with new references. `first` is prepended when not NULL.
   1 bound, 0 cannot be bound, -1 error. */
int bind_call(const Signature *signature, PyFunctionObject *function, PyObject *first, PyObject *const *args,
              Py_ssize_t nargs, PyObject *names, PyObject **bound);
PyObject *bound_names(PyObject *module, PyObject *code);

#endif
