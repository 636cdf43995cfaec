/* A step that calls a Python callable. */
#ifndef FRAMEFUSE_CALL_H
#define FRAMEFUSE_CALL_H

#include "template.h"

typedef struct PlanProgram PlanProgram;

enum { ELEMENT = -1 }; /* in place of a dimension: the 64 bits of the one element */

typedef struct {
    Template *args; /* owned */
    int32_t arg_count, positional;
    bool straight;      /* the arguments are the first inputs, in order */
    PyObject *function; /* borrowed from the plan */
    PyObject *names;    /* owned, NULL without keywords */
    PyObject *once;     /* owned, NULL where the call may be made again: a class whose instances keep it from that */
    struct CallOut {
        int32_t slot, depth;
        int32_t *path;
    } *outs; /* owned */
    int32_t out_count;
    struct CallBind {
        int32_t slot, dimension, number; /* the dimension may be ELEMENT */
    } *binds;                            /* owned */
    int32_t bind_count;
    int32_t *normal; /* owned */
    int32_t normal_count;
    bool grad, keeps_mode, commits;
    bool gradients_of_convolution; /* `function` gives them, with gradient mode off */
} CallInfo;

int call_run(const PlanProgram *plan, Frame *frame, const CallInfo *call); /* 0, or -1 with an exception */

#endif
