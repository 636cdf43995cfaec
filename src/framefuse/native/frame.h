/* What one run of a plan works on. A plan owns one for its usual run; a run that finds it busy makes another. */
#ifndef FRAMEFUSE_FRAME_H
#define FRAMEFUSE_FRAME_H

#include "arena.h"
#include "template.h"

typedef struct PlanProgram PlanProgram;

/* The arena of a device other than the CPU: a tensor of bytes, which lives for one run. Torch's allocator gives its
   memory to whoever comes next on the same stream, where the launched kernels are done with it by then. */
typedef struct {
    PyObject *tensor; /* owned, or NULL */
    char *memory;
    int64_t size;
} DeviceArena;

struct Frame {
    const PlanProgram *plan; /* borrowed: the runner holds it */
    int64_t *numbers;
    /* NULL where the slot has no tensor object (arena, view) or is released; owned, but for kept inputs. One is free in
       front. */
    PyObject **tensors;
    PyObject *kept;       /* owned: the tuple of the kept inputs that stand in `tensors`, NULL: none stand there */
    char **data;          /* of each slot; valid from the slot's step on */
    PyObject **registers; /* owned: those that the plan's templates name, in the plan's own order */
    Arena arena;          /* owned, during a run */
    DeviceArena *arenas;  /* owned: those of other devices, in the plan's order */
    PyObject *states;     /* owned, during a run: the states of the plan's generators before it */
    PyObject *nans;       /* owned, during a run, or NULL: by number, the object that a NaN is */
    PyObject *raised;     /* owned, during a run, or NULL: under what the program is to run if this run declines */
    bool busy, committed; /* committed: something that must not happen twice has happened, or must be seen */
    bool behind;          /* and a step that must not run twice has ended */
};

bool frame_make(const PlanProgram *plan, Frame *frame);
void frame_free(const PlanProgram *plan, Frame *frame);
void frame_forget(const PlanProgram *plan, Frame *frame); /* the kept inputs leave it */
/* The slot as a tensor, a new reference; arena and view slots are wrapped for the occasion. */
PyObject *frame_tensor(Frame *frame, int32_t slot);
/* The number as a float, a new reference. A NaN is one object in the whole run: containers find it by that alone. */
PyObject *frame_real(Frame *frame, int32_t number);
int frame_keep_nan(Frame *frame, int32_t number, PyObject *object); /* 0, or -1 with an exception */

#endif
