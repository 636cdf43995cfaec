/* The compiled form of a plan: slots, number instructions by the step after which they can run, and steps. */
#ifndef FRAMEFUSE_PLAN_H
#define FRAMEFUSE_PLAN_H

#include "call.h"
#include "frame.h"
#include "launch.h"
#include "matmul.h"
#include "numbers.h"
#include "replay.h"
#include "threads.h"
#include "torch_abi.h"

/* Where a slot's memory comes from, as PLACES of framefuse.ir.plan. */
#define SLOT_PLACES(X) X(INPUT, "input") X(ARENA, "arena") X(FRESH, "fresh") X(VIEW, "view") X(CALL, "call")
enum {
#define X(place, name) place,
    SLOT_PLACES(X)
#undef X
    PLACE_COUNT
};

/* The kinds of steps, by their classes in framefuse.ir.plan. */
#define STEP_KINDS(X) \
    X(STEP_KERNEL, "KernelStep") X(STEP_LAUNCH, "LaunchStep") X(STEP_ALLOC, "AllocStep") \
    X(STEP_MATMUL, "MatmulStep") X(STEP_CALL, "CallStep") X(STEP_RELEASE, "ReleaseStep") \
    X(STEP_NUMBERS, "NumbersStep")
enum {
#define X(kind, name) kind,
    STEP_KINDS(X)
#undef X
    STEP_COUNT
};

struct Slot {
    uint8_t place;
    bool addressed; /* a kernel, a product or a view needs its address */
    bool kept;      /* an input whose object `PlanProgram.kept` holds */
    int32_t ndim;
    int32_t *sizes, *strides; /* numbers; owned, one block */
    int32_t base, offset;     /* slot or number; number or -1 */
    int32_t dtype, item_size, device_type, device_index;
    int32_t arena; /* of `PlanProgram.arenas`; -1: that of the CPU */
};

/* Where the temporaries of one device lie: a tensor of bytes from torch's allocator, another one for each run. */
typedef struct {
    int32_t number, device_type, device_index;
    bool late; /* its size depends on what a step binds */
} PlanArena;

typedef struct {
    Kernel kernel;
    int32_t *buffers, *numbers; /* owned, one block */
    int32_t buffer_count, number_count;
    int32_t extent, work;
    bool parallel;
} KernelInfo;

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

struct PlanProgram {
    PyObject_HEAD
    PyObject *plan; /* strong; holds the code of the kernels */
    PyObject *better; /* owned: a list of what keeps code that took the place of other code, or NULL */
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
    ReadReal *reals;                    /* owned: the floats that the guards read into numbers */
    int32_t real_count;
    int32_t buffer_room, argument_room; /* the most that one kernel takes */
    Frame frame;
    char **buffers;
    uint64_t runs, declines;
    PyObject *declined; /* owned: the text of the first error for which a run declined, or NULL */
    Region *region; /* owned, or NULL */
    bool attaches; /* a step makes an autograd node */
    bool dead;
};

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
        return (LIKELY(slot->arena < 0) ? frame->arena.memory : frame->arenas[slot->arena].memory)
             + frame->numbers[slot->base];
    if (slot->place == VIEW)
        return slot_data(plan, frame, slot->base)
             + (slot->offset < 0 ? 0 : frame->numbers[slot->offset] * slot->item_size);
    return frame->data[index];
}

#endif
