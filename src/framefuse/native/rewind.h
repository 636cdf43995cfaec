/* What must not happen twice: draws of a generator that a declined run made, calls that commit, and a call of an
   operator of the program's that raised. */
#ifndef FRAMEFUSE_REWIND_H
#define FRAMEFUSE_REWIND_H

#include "plan.h"

int rewind_save(const PlanProgram *plan, Frame *frame);  /* 0, or -1 with an exception */
/* a run that failed ends with its exception, else it declines */
bool run_must_end(const Frame *frame);
void plan_rewind(const PlanProgram *plan, Frame *frame); /* drops the exception as well */

/* A step failed, with an exception; then the run declined; then the program runs in its place, between entering, which
   gives NULL where nothing is to be entered, and leaving. */
void rewind_raised(const PlanProgram *plan, Frame *frame, const Step *failed);
void rewind_declined(Frame *frame);
bool rewind_waits(void); /* whether there is something to enter */
PyObject *rewind_enter(void);
void rewind_leave(PyObject *mode);

#endif
