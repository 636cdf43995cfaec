/* The memory of a run: 0, or -1: declines. */
#ifndef FRAMEFUSE_MEMORY_H
#define FRAMEFUSE_MEMORY_H

#include "plan.h"

int memory_begin(const PlanProgram *plan, Frame *frame);                   /* the arenas whose size is known early */
int memory_reach(const PlanProgram *plan, Frame *frame, const Step *step); /* the others, as far as a step needs them */
/* gives them back; how many bytes they had */
size_t memory_end(const PlanProgram *plan, Frame *frame);
int memory_alloc(const PlanProgram *plan, Frame *frame, int32_t slot);     /* a fresh tensor */

#endif
