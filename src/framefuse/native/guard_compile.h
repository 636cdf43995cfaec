/* From the tuples of a guard program to its compiled form. */
#ifndef FRAMEFUSE_GUARD_COMPILE_H
#define FRAMEFUSE_GUARD_COMPILE_H

#include "guard_program.h"

int guards_compile(GuardSet *set); /* 0, or -1 with an exception */

#endif
