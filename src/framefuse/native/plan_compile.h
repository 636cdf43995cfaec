/* From the dataclasses of a plan to its compiled form. */
#ifndef FRAMEFUSE_PLAN_COMPILE_H
#define FRAMEFUSE_PLAN_COMPILE_H

#include "plan.h"

int plan_compile(PlanProgram *plan); /* 0, or -1 with an exception */
void plan_free(PlanProgram *plan);   /* what plan_compile has made */

#endif
