/* Calls of exported libraries: tensors of Python go in and come out as capsules of DLPack. */
#ifndef FRAMEFUSE_EXPORTED_H
#define FRAMEFUSE_EXPORTED_H

#include "base.h"

/* run_exported(run, leading, tensors, count, torch, capsule_of, taken_of): calls the function at the address `run` with
   the addresses `leading`, then the tensors and room for `count` results; gives them as a list, or None where it fails.
   `torch` is None or its type of tensors, layout of dense ones, function that makes capsules of them and function that
   makes them of capsules, which is called where one of the tensors is torch's; `capsule_of` makes capsules of others,
   and `taken_of` what the caller gets where none is torch's. */
PyObject *run_exported_py(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
