/* Doors: calls of a Python function itself that reach its Dispatch. */
#ifndef FRAMEFUSE_FRAME_HOOK_H
#define FRAMEFUSE_FRAME_HOOK_H

#include "base.h"

PyObject *door_pass(PyObject *function); /* what to give to door_passed after the call */
void door_passed(PyObject *before);
void door_close(PyObject *dispatch);
PyObject *open_door_py(PyObject *module, PyObject *args);
PyObject *forget_first_py(PyObject *module, PyObject *args);
PyObject *behind_door_py(PyObject *module, PyObject *args);
PyObject *close_door_py(PyObject *module, PyObject *dispatch);
PyObject *watch_calls_py(PyObject *module, PyObject *args);

#endif
