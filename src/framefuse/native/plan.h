/* The compiled form of a plan: slots, number instructions by the step after which they can run, and steps. */
#ifndef FRAMEFUSE_PLAN_H
#define FRAMEFUSE_PLAN_H

#include "border.h"

enum { INPUT, ARENA, FRESH, VIEW, CALL };
enum { ELEMENT = -1 }; /* in place of a dimension: the 64 bits of the one element */
enum { STEP_KERNEL, STEP_ALLOC, STEP_MATMUL, STEP_CALL, STEP_RELEASE, STEP_NUMBERS, STEP_LAUNCH };

typedef struct {
    uint8_t place;
    bool addressed; /* a kernel, a product or a view needs its address */
    bool kept;      /* an input whose object `PlanProgram.kept` holds */
    int32_t ndim;
    int32_t *sizes, *strides; /* numbers; owned, one block */
    int32_t base, offset;     /* slot or number; number or -1 */
    int32_t dtype, item_size, device_type, device_index;
    int32_t arena; /* of `PlanProgram.arenas`; -1: that of the CPU */
} Slot;

/* Where the temporaries of one device lie: a tensor of bytes from torch's allocator, another one for each run. */
typedef struct {
    int32_t number, device_type, device_index;
    bool late; /* its size depends on what a step binds */
} PlanArena;

typedef struct {
    Template *args; /* owned */
    int32_t arg_count, positional;
    bool straight; /* the arguments are the first inputs, in order */
    PyObject *function; /* borrowed from the plan */
    PyObject *names;    /* owned, NULL without keywords */
    struct CallOut { int32_t slot, depth; int32_t *path; } *outs; /* owned */
    int32_t out_count;
    struct CallBind { int32_t slot, dimension, number; } *binds;  /* owned; the dimension may be ELEMENT */
    int32_t bind_count;
    int32_t *normal; /* owned */
    int32_t normal_count;
    bool grad, keeps_mode, commits;
} CallInfo;

typedef struct {
    int32_t out, a, c, batch, m, n, k;
    int32_t a_strides[3], c_strides[3], out_strides[3];
    bool accumulate;
} MatmulInfo;

typedef struct {
    Kernel kernel;
    int32_t *buffers, *numbers; /* owned, one block */
    int32_t buffer_count, number_count;
    int32_t extent, work;
    bool parallel;
} KernelInfo;

/* The variants of a kernel's code: for pointers that are multiples of 16 and numbers that fit, for such pointers and any numbers, for all. */
enum { LAUNCH_FITTED, LAUNCH_ALIGNED, LAUNCH_ANY, LAUNCH_VARIANTS };

typedef struct {
    struct LaunchCode { uint64_t function; int32_t shared; bool refused; } codes[LAUNCH_VARIANTS]; /* function 0: none */
    PyObject *variant; /* borrowed from the plan: compiles those that are not there, or NULL */
    struct LaunchArgument { uint8_t kind; int32_t index; } *arguments; /* owned */
    struct LaunchFit { int32_t index; int64_t multiple, low, high; } *fits; /* owned: of numbers */
    int32_t argument_count, fit_count;
    int32_t extent, blocks, threads, device;
} LaunchInfo;

typedef struct {
    uint8_t kind;
    int32_t numbers_from, numbers_to; /* instructions that can run once this step has bound its numbers */
    int32_t slot;                     /* of an alloc step */
    int32_t *slots, slot_count;       /* owned; of a release step */
    Number *own;                      /* owned; of a numbers step */
    int32_t own_count;
    union {
        KernelInfo kernel;
        MatmulInfo matmul;
        CallInfo *call;     /* owned */
        LaunchInfo *launch; /* owned */
    } as;
} Step;

typedef struct {
    PyObject *function; /* borrowed from the plan */
    Template *args;     /* owned */
    int32_t arg_count;
} Finish;

/* Steps that a device repeats at once: what they did for some numbers and addresses is there to be run again. */
typedef struct {
    int64_t *numbers;   /* owned: the values of the region's numbers */
    char **addresses;   /* owned: of the region's inputs; */
    bool *copied;       /* owned: those whose address may be any */
    PyObject *replay;   /* owned: called with the copied inputs; gives the outs, None for not now, NotImplemented for never again */
} Captured;

typedef struct {
    int32_t steps;      /* the first of the plan */
    bool *host;         /* owned: of each, whether it is run beside a replay as well */
    int32_t *inputs, input_count, *outs, out_count, *numbers, number_count; /* owned */
    PyObject *captures; /* owned: decides what is captured */
    bool asks;          /* it wants to be asked again */
    Captured *captured; /* owned */
    int32_t captured_count;
} Region;

struct PlanProgram {
    PyObject_HEAD
    PyObject *plan; /* strong; holds the code of the kernels */
    PyObject *held; /* strong: the plan's parts, from which everything below borrows its Python objects */
    int32_t bound, count, arena_number;
    bool arena_late; /* its size depends on what a step binds */
    bool takes_arena;
    PlanArena *arenas; /* owned: those of other devices than the CPU */
    int32_t arena_count;
    bool any_late;    /* some arena's size is known late */
    size_t arena_bytes; /* the most that a run took */
    int64_t *initial; /* the constants among the numbers */
    Number *numbers;
    int32_t number_count, early_numbers; /* the first `early_numbers` run before the steps */
    Slot *slots;
    Step *steps;
    Finish *finish;
    Template result;
    Template *generators; /* owned: those whose state a declined run puts back */
    int32_t generator_count;
    int32_t slot_count, step_count, finish_count;
    int32_t *inputs, input_count;       /* guard registers of the first slots */
    int32_t *own, own_count;            /* owned: the inputs that a run takes itself */
    int32_t *keep, keep_count;          /* owned: the others, in the order of `kept`, ... */
    int32_t addressed_count;            /* ... first those whose address is needed */
    PyObject *kept;                     /* owned: a tuple of inputs, or NULL */
    uint64_t kept_at;                   /* the age of the guards when it was compared with their registers */
    bool bound_to_guards, swapped;
    int32_t *registers, register_count; /* guard registers that templates name */
    int32_t buffer_room, argument_room; /* the most that one kernel takes */
    Frame frame;
    char **buffers;
    uint64_t runs, declines;
    Region *region; /* owned, or NULL */
    bool attaches; /* a step makes an autograd node */
    bool dead;
};

int plan_compile(PlanProgram *plan);
void plan_free(PlanProgram *plan);
int rewind_save(const PlanProgram *plan, Frame *frame); /* 0, or -1 with an exception */
bool run_must_end(const Frame *frame); /* whether a run that failed ends with its exception, which is set then; else it declines */
void plan_rewind(const PlanProgram *plan, Frame *frame); /* drops the exception as well */
int matmul_run(const MatmulInfo *info, const int64_t *numbers, char *out, char *a, char *c, const Slot *slot); /* 0, or -1: declines */
int call_run(const PlanProgram *plan, Frame *frame, const CallInfo *call);                                   /* 0, or -1 with an exception */

/* ---- launch.c ---- */

int launch_read(PlanProgram *plan, PyObject *source, LaunchInfo *info);          /* 0, or -1 with an exception */
bool launch_may(const PlanProgram *plan, const Frame *frame, LaunchInfo *info);  /* whether it will not decline, as far as can be told by now */
int launch_run(const PlanProgram *plan, Frame *frame, LaunchInfo *info);         /* 0, or -1: declines, or ends the run with an exception */
bool launch_takes_slot(const struct LaunchArgument *argument);                   /* else a number */
void launch_free(LaunchInfo *info);

/* ---- replay.c ---- */

enum { REGION_PLAIN, REGION_DONE };
int region_read(PlanProgram *plan, PyObject *source);  /* 0, or -1 with an exception */
int region_run(PlanProgram *plan, Frame *frame);       /* DONE: what the region's steps give is in the frame; PLAIN: they are to be run; -1: as a step */
int region_traverse(const Region *region, visitproc visit, void *arg);
void region_clear(Region *region);                     /* lets go of all Python objects */
void region_free(Region *region);
PyObject *region_steps_py(PlanProgram *plan, PyObject *args);
PyObject *region_add_py(PlanProgram *plan, PyObject *args);

/* ---- plan.c ---- */

int plan_step(PlanProgram *plan, Frame *frame, const Step *step, char **buffers); /* 0, or -1: declines, or ends the run with an exception */
bool frame_make(const PlanProgram *plan, Frame *frame);
void frame_free(const PlanProgram *plan, Frame *frame);

/* ---- memory.c: 0, or -1: declines ---- */

int memory_begin(const PlanProgram *plan, Frame *frame);                     /* the arenas whose size is known before the steps */
int memory_reach(const PlanProgram *plan, Frame *frame, const Step *step);   /* the others, as far as a step needs them */
size_t memory_end(const PlanProgram *plan, Frame *frame);                    /* gives the arenas back; how many bytes they had */
int memory_alloc(const PlanProgram *plan, Frame *frame, int32_t slot);       /* a fresh tensor */

static inline const int64_t *gather(const int32_t *which, int32_t count, const int64_t *numbers, int64_t *to)
{
    for (int32_t i = 0; i < count; i++)
        to[i] = numbers[which[i]];
    return to;
}

static inline char *slot_data(const PlanProgram *plan, const Frame *frame, int32_t index)
{
    const Slot *slot = &plan->slots[index];
    if (slot->place == ARENA)
        return (LIKELY(slot->arena < 0) ? frame->arena.memory : frame->arenas[slot->arena].memory) + frame->numbers[slot->base];
    if (slot->place == VIEW)
        return slot_data(plan, frame, slot->base) + (slot->offset < 0 ? 0 : frame->numbers[slot->offset] * slot->item_size);
    return frame->data[index];
}

#endif
