/* Torch's state of the thread, as a guard program compares it. */
#ifndef FRAMEFUSE_GUARD_STATE_H
#define FRAMEFUSE_GUARD_STATE_H

#include "guard_program.h"

int guard_state_parse(GuardSet *set, PyObject *state); /* 0, or -1 with an exception */
bool guard_state_agrees(GuardSet *set, const State *state);

#endif
