/* Steps that a device repeats at once. */
#ifndef FRAMEFUSE_REPLAY_H
#define FRAMEFUSE_REPLAY_H

#include "base.h"

typedef struct Frame Frame;
typedef struct PlanProgram PlanProgram;

/* What some steps did for some numbers and addresses is there to be run again. */
typedef struct {
    int64_t *numbers; /* owned: the values of the region's numbers */
    char **addresses; /* owned: of the region's inputs */
    bool *copied;     /* owned: those whose address may be any */
    /* owned: called with the copied inputs; gives the outs, None for not now, NotImplemented for never again */
    PyObject *replay;
} Captured;

typedef struct {
    int32_t lead;  /* the first steps of the plan, which run in each call before it */
    int32_t steps; /* the plan's first, these included */
    bool *host;    /* owned: of each, whether it is run beside a replay as well */
    int32_t *inputs, input_count, *outs, out_count, *numbers, number_count; /* owned */
    PyObject *captures;                                                     /* owned: decides what is captured */
    bool asks;                                                              /* it wants to be asked again */
    Captured *captured;                                                     /* owned */
    int32_t captured_count;
} Region;

enum { REGION_PLAIN, REGION_DONE };
int region_read(PlanProgram *plan, PyObject *source); /* 0, or -1 with an exception */
/* DONE: what the region's steps give is in the frame; PLAIN: they are to be run; -1: as a step. */
int region_run(PlanProgram *plan, Frame *frame);
int region_traverse(const Region *region, visitproc visit, void *arg);
void region_clear(Region *region); /* lets go of all Python objects */
void region_free(Region *region);
PyObject *region_steps_py(PlanProgram *plan, PyObject *args);
PyObject *region_add_py(PlanProgram *plan, PyObject *args);

#endif
