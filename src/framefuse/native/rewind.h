/* What must not happen twice: draws of a generator that a declined run made, and calls that commit. */
#ifndef FRAMEFUSE_REWIND_H
#define FRAMEFUSE_REWIND_H

#include "plan.h"

int rewind_save(const PlanProgram *plan, Frame *frame);  /* 0, or -1 with an exception */
/* a run that failed ends with its exception, else it declines */
bool run_must_end(const Frame *frame);
void plan_rewind(const PlanProgram *plan, Frame *frame); /* drops the exception as well */

#endif
