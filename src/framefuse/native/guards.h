/* A compiled guard program as the dispatch sees it: what it asks, and the registers and numbers that a check leaves.

   A register is borrowed: an argument lives as long as its caller's call, an object below a long-lived dict as long as
   the dict is unchanged, and what `getattr` made is owned by the guard set until `guards_release`. A plan therefore
   takes its own references of the registers that it needs before it runs anything. Those that are settled, the
   parameters of a model, it keeps from call to call in one tuple, and takes another when a check has read one of their
   dicts again. */
#ifndef FRAMEFUSE_GUARDS_H
#define FRAMEFUSE_GUARDS_H

#include "numbers.h"
#include "torch_abi.h"

typedef struct GuardSet GuardSet;
typedef struct GuardOp GuardOp;
extern PyTypeObject *GuardSet_Type;

/* GUARDS_BUSY says that a check of this set is under way, so that its registers are in use; else the answer is the
   index of the instruction that failed, -1 for the global state. Never leaves an exception. */
#define GUARDS_HIT (-2)
#define GUARDS_BUSY (-3)
Py_ssize_t guards_check(GuardSet *set, PyObject *const *arguments, Py_ssize_t count, const State *state);
PyObject **guards_registers(GuardSet *set);
const int64_t *guards_numbers(GuardSet *set);
Py_ssize_t guards_register_count(GuardSet *set);
Py_ssize_t guards_number_count(GuardSet *set);
bool guards_need_state(GuardSet *set);
Py_ssize_t guards_reals(GuardSet *set, ReadReal *to); /* how many floats it reads; fills `to`, where not NULL */
const bool *guards_settled(GuardSet *set); /* of each register: it holds what it held while the age is the same */
uint64_t guards_age(GuardSet *set);
void guards_release(GuardSet *set); /* drops what getattr made, when the registers are no longer read */

/* ---- for the other files of guards ---- */

bool guard_op_run(GuardSet *set, const GuardOp *op, PyObject *const *arguments, Py_ssize_t count);
bool atoms_equal(PyObject *left, PyObject *right);
PyObject **closure_cell(PyObject *function, Py_ssize_t index); /* the place of its contents, NULL when there is none */

#endif
