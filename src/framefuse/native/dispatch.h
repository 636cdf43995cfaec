/* The compiled function: an object that binds a call, finds the entry whose guards hold and runs its plan. */
#ifndef FRAMEFUSE_DISPATCH_H
#define FRAMEFUSE_DISPATCH_H

#include "base.h"

PyTypeObject *make_dispatch_type(PyObject *module);
PyTypeObject *make_compiled_type(PyObject *module);
PyObject *bypass_py(PyObject *module, PyObject *on);
PyObject *dispatch_call(PyObject *dispatch, PyObject *const *args, size_t flags, PyObject *names);
PyObject *dispatch_function(PyObject *dispatch); /* borrowed; NULL for what is no Dispatch, or has an owner */

/* Which calls reach a Dispatch: those of its function, of this code, with a first argument of this address (an int) if
   there is one. */
typedef struct {
    PyObject *code, *first; /* owned, or NULL */
} Door;
Door *dispatch_door(PyObject *dispatch);

/* For a frame of `code` that has its arguments and has not started: its result, or `plain` and no exception to run the
   frame. */
PyObject *dispatch_frame(PyObject *dispatch, PyObject *code, PyObject *const *bound, bool *plain);

#endif
