/* A run of a plan, and the inputs that it keeps from one to the next. */
#ifndef FRAMEFUSE_RUN_H
#define FRAMEFUSE_RUN_H

#include "base.h"
#include "numbers.h"

typedef struct PlanProgram PlanProgram;

enum { RUN_DECLINED, RUN_DONE };
#define AGE_UNKNOWN UINT64_MAX /* for `age`, that of the guards: any register may have changed */

/* RUN_DONE: *result is the value, or NULL with the exception that the program itself raised. RUN_DECLINED: no
   exception, call the original. */
int plan_run(PlanProgram *plan, PyObject *const *registers, const int64_t *numbers, uint64_t age, PyObject **result);
/* Once: the inputs to keep, and the floats among the guards' numbers, which becomes the plan's. 0, or -1 with an
   exception. */
int plan_keep(PlanProgram *plan, const bool *settled, ReadReal *reals, Py_ssize_t real_count);
void plan_forget(PlanProgram *plan);                   /* keeps no inputs until the next run; may run Python code */
bool plan_swapped(PlanProgram *plan);                  /* since it was asked last, a kept input was replaced */
Py_ssize_t plan_registers_needed(PlanProgram *plan);
Py_ssize_t plan_numbers_bound(PlanProgram *plan);

#endif
