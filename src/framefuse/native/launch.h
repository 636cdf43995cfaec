/* A step that launches a kernel of a GPU. */
#ifndef FRAMEFUSE_LAUNCH_H
#define FRAMEFUSE_LAUNCH_H

#include "base.h"

typedef struct Frame Frame;
typedef struct PlanProgram PlanProgram;

/* The kinds of arguments, as LAUNCH_ARGUMENTS of framefuse.ir.plan. */
#define LAUNCH_ARGUMENTS(X) \
    X(POINTER, "pointer") X(INT64, "int64") X(INT32, "int32") X(REAL64, "real64") X(REAL32, "real32")

/* The variants of a kernel's code: for pointers that are multiples of 16 and numbers that fit, for such pointers and
   any numbers, for all. */
enum { LAUNCH_FITTED, LAUNCH_ALIGNED, LAUNCH_ANY, LAUNCH_VARIANTS };

typedef struct {
    struct LaunchCode {
        uint64_t function; /* 0: none */
        int32_t shared;
        bool refused;
    } codes[LAUNCH_VARIANTS];
    PyObject *variant; /* borrowed from the plan: compiles those that are not there, or NULL */
    struct LaunchArgument {
        uint8_t kind;
        int32_t index;
    } *arguments; /* owned */
    struct LaunchFit {
        int32_t index;
        int64_t multiple, low, high;
    } *fits; /* owned: of numbers */
    int32_t argument_count, fit_count;
    int32_t extent, blocks, threads, device;
} LaunchInfo;

int launch_read(PlanProgram *plan, PyObject *source, LaunchInfo *info); /* 0, or -1 with an exception */
/* Whether it will not decline, as far as can be told by now. */
bool launch_may(const PlanProgram *plan, const Frame *frame, LaunchInfo *info);
/* 0, or -1: declines, or ends the run with an exception */
int launch_run(const PlanProgram *plan, Frame *frame, LaunchInfo *info);
bool launch_takes_slot(const struct LaunchArgument *argument); /* else a number */
void launch_free(LaunchInfo *info);

#endif
