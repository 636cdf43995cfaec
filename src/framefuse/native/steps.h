/* One step of a plan: 0, or -1: declines, or ends the run with an exception. */
#ifndef FRAMEFUSE_STEPS_H
#define FRAMEFUSE_STEPS_H

#include "plan.h"

extern PyObject *Declined; /* what a run that declines raises where Python asked for it */

int step_run(PlanProgram *plan, Frame *frame, const Step *step, char **buffers);

static inline int numbers_between(const PlanProgram *plan, Frame *frame, int32_t from, int32_t to)
{
    for (int32_t i = from; i < to; i++)
        if (UNLIKELY(!number_run(&plan->numbers[i], frame->numbers)))
            return -1;
    return 0;
}

#endif
