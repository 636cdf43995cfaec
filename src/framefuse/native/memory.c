/* Gives a run its memory: fresh tensors, the arena of the CPU and one of each other device. */
#include "memory.h"

#include "arena.h"
#include "launch.h"
#include "plan.h"
#include "torch_abi.h"

/* Torch counts a size of zero as one in the strides of what it makes, where a product of sizes gives zero. The
   dimensions outside the empty one have stride 0 and lie first, in their own order; the others lie by falling
   strides. */
static void strides_of_empty(int32_t ndim, const int64_t *sizes, int64_t *strides)
{
    int32_t order[MAX_NDIM];
    for (int32_t i = 0; i < ndim; i++) {
        int32_t at = i;
        for (; at > 0 && strides[i] && strides[order[at - 1]] && strides[order[at - 1]] < strides[i]; at--)
            order[at] = order[at - 1];
        for (; at > 0 && !strides[i] && strides[order[at - 1]]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    int64_t stride = 1;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        strides[order[i]] = stride;
        stride *= sizes[order[i]] > 1 ? sizes[order[i]] : 1;
    }
}

int memory_alloc(const PlanProgram *plan, Frame *frame, int32_t index)
{
    const Slot *slot = &plan->slots[index];
    int64_t sizes[MAX_NDIM], strides[MAX_NDIM];
    bool empty = false;
    gather(slot->sizes, slot->ndim, frame->numbers, sizes);
    gather(slot->strides, slot->ndim, frame->numbers, strides);
    for (int32_t i = 0; i < slot->ndim; i++)
        empty |= sizes[i] == 0;
    if (UNLIKELY(empty))
        strides_of_empty(slot->ndim, sizes, strides);
    Py_CLEAR(frame->tensors[index]);
    frame->tensors[index] =
        abi_empty(slot->ndim, sizes, strides, slot->dtype, slot->device_type, slot->device_index, &frame->data[index]);
    return frame->tensors[index] ? 0 : -1;
}

/* ---- arenas ---- */

/* Makes the arena of a device so large at least, and keeps what is in it: the copy runs on the stream behind the
   kernels that wrote it. */
static int device_reach(const PlanProgram *plan, Frame *frame, int32_t which, int64_t bytes)
{
    const PlanArena *arena = &plan->arenas[which];
    DeviceArena *held = &frame->arenas[which];
    if (bytes <= held->size)
        return 0;
    char *memory;
    PyObject *tensor =
        abi_empty(1, &bytes, (int64_t[]){1}, abi.uint8, arena->device_type, arena->device_index, &memory);
    PyObject *copied = tensor && held->tensor ? abi_call("fill_front", (PyObject *[]){tensor, held->tensor}, 2) : NULL;
    if (!tensor || (held->tensor && !copied)) {
        Py_XDECREF(tensor);
        return -1;
    }
    Py_XDECREF(copied);
    Py_XSETREF(held->tensor, tensor);
    held->memory = memory, held->size = bytes;
    return 0;
}

static int reach(const PlanProgram *plan, Frame *frame, const Slot *slot, int64_t bytes)
{
    if (slot->arena >= 0)
        return device_reach(plan, frame, slot->arena, bytes);
    return arena_reach(&frame->arena, bytes) ? 0 : -1;
}

int memory_begin(const PlanProgram *plan, Frame *frame)
{
    for (int32_t i = 0; i < plan->arena_count; i++)
        if (!plan->arenas[i].late && device_reach(plan, frame, i, frame->numbers[plan->arenas[i].number]) < 0)
            return -1;
    return plan->arena_number < 0 || plan->arena_late || arena_reach(&frame->arena, frame->numbers[plan->arena_number])
               ? 0
               : -1;
}

/* Where an arena's size is known late, a slot grows it to its own end. */
static int reach_slot(const PlanProgram *plan, Frame *frame, int32_t index)
{
    const Slot *slot = &plan->slots[index];
    while (slot->place == VIEW)
        slot = &plan->slots[slot->base];
    if (slot->place != ARENA)
        return 0;
    int64_t end = 1;
    for (int32_t i = 0; i < slot->ndim; i++) {
        int64_t size = frame->numbers[slot->sizes[i]], last;
        if (size == 0)
            return reach(plan, frame, slot, frame->numbers[slot->base] + 1);
        if (__builtin_mul_overflow(size - 1, frame->numbers[slot->strides[i]], &last)
            || __builtin_add_overflow(end, last, &end))
            return -1;
    }
    if (__builtin_mul_overflow(end, slot->item_size, &end)
        || __builtin_add_overflow(end, frame->numbers[slot->base], &end))
        return -1;
    return reach(plan, frame, slot, end);
}

int memory_reach(const PlanProgram *plan, Frame *frame, const Step *step)
{
    int status = 0;
    if (step->kind == STEP_KERNEL)
        for (int32_t i = 0; i < step->as.kernel.buffer_count && status == 0; i++)
            status = reach_slot(plan, frame, step->as.kernel.buffers[i]);
    if (step->kind == STEP_MATMUL) {
        const int32_t slots[] = {step->as.matmul.out, step->as.matmul.a, step->as.matmul.c};
        for (int i = 0; i < 3 && status == 0; i++)
            status = reach_slot(plan, frame, slots[i]);
    }
    if (step->kind == STEP_LAUNCH)
        for (int32_t i = 0; i < step->as.launch->argument_count && status == 0; i++)
            if (launch_takes_slot(&step->as.launch->arguments[i]))
                status = reach_slot(plan, frame, step->as.launch->arguments[i].index);
    return status;
}

size_t memory_end(const PlanProgram *plan, Frame *frame)
{
    size_t bytes = frame->arena.needed;
    for (int32_t i = 0; i < plan->arena_count; i++) {
        bytes += (size_t)frame->arenas[i].size;
        Py_CLEAR(frame->arenas[i].tensor);
        frame->arenas[i] = (DeviceArena){NULL, NULL, 0};
    }
    if (frame->arena.memory)
        arena_return(&frame->arena);
    return bytes;
}
