/* Doors: calls of a Python function itself that reach its Dispatch, which alone knows this file. */
#ifndef FRAMEFUSE_FRAME_HOOK_H
#define FRAMEFUSE_FRAME_HOOK_H

#include "base.h"

/* Which calls reach what is behind a door: those of its function, of this code, with a first argument of this address
   (an int) if there is one. */
typedef struct {
    PyObject *code, *first; /* owned, or NULL */
} Door;

/* How doors speak with what is behind them, which has a Door; told once, before any door is opened. */
typedef struct {
    PyObject *(*function)(PyObject *behind); /* borrowed; NULL for an object that no door can lead to */
    Door *(*door)(PyObject *behind);
    vectorcallfunc call;
    /* For a frame of `code` that has its arguments and has not started: its result, or `plain` and no exception to run
       the frame. */
    PyObject *(*frame)(PyObject *behind, PyObject *code, PyObject *const *bound, bool *plain);
} Behind;
void doors_lead_to(const Behind *behind);

PyObject *door_pass(PyObject *function); /* what to give to door_passed after the call */
void door_passed(PyObject *before);
void door_close(PyObject *behind);
PyObject *open_door_py(PyObject *module, PyObject *args);
PyObject *forget_first_py(PyObject *module, PyObject *args);
PyObject *behind_door_py(PyObject *module, PyObject *args);
PyObject *close_door_py(PyObject *module, PyObject *dispatch);
PyObject *watch_calls_py(PyObject *module, PyObject *args);

#endif
