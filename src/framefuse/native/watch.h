/* Changes of dicts as CPython 3.12 and later report them. */
#ifndef FRAMEFUSE_WATCH_H
#define FRAMEFUSE_WATCH_H

#include "guards.h"

bool watch_dict(PyObject *dict, GuardSet *set, int32_t index); /* false: it cannot be watched */
void watch_move(GuardSet *set, PyObject *dict, int32_t from, int32_t to); /* its index changed; -1: no longer watched */
void watch_forget(GuardSet *set);                                         /* all that the set watches */
PyObject *watch_open_py(PyObject *module, PyObject *trusted);

#endif
