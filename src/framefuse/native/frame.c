/* Makes, frees and reads what one run of a plan works on. */

#include "frame.h"

#include "plan.h"
#include "torch_abi.h"

/* The kept inputs leave the frame. */
void frame_forget(const PlanProgram *plan, Frame *frame)
{
    PyObject *kept = frame->kept;
    frame->kept = NULL;
    for (int32_t i = 0; kept && i < plan->keep_count; i++)
        frame->tensors[plan->keep[i]] = NULL;
    Py_XDECREF(kept);
}

void frame_free(const PlanProgram *plan, Frame *frame)
{
    frame_forget(plan, frame);
    for (int32_t i = 0; frame->tensors && i < plan->slot_count; i++)
        Py_CLEAR(frame->tensors[i]);
    PyMem_Free(frame->numbers);
    if (frame->tensors)
        PyMem_Free(frame->tensors - 1);
    PyMem_Free(frame->data);
    PyMem_Free(frame->registers);
    PyMem_Free(frame->arenas);
    memset(frame, 0, sizeof *frame);
}

bool frame_make(const PlanProgram *plan, Frame *frame)
{
    memset(frame, 0, sizeof *frame);
    frame->plan = plan;
    frame->numbers = PyMem_Calloc((size_t)plan->count + 1, sizeof *frame->numbers);
    PyObject **tensors = PyMem_Calloc((size_t)plan->slot_count + 1, sizeof *tensors);
    frame->tensors = tensors ? tensors + 1 : NULL;
    frame->data = PyMem_Calloc((size_t)plan->slot_count + 1, sizeof *frame->data);
    frame->registers = PyMem_Calloc((size_t)plan->register_count + 1, sizeof *frame->registers);
    frame->arenas = PyMem_Calloc((size_t)plan->arena_count + 1, sizeof *frame->arenas);
    if (!frame->numbers || !frame->tensors || !frame->data || !frame->registers || !frame->arenas) {
        frame_free(plan, frame);
        return false;
    }
    memcpy(frame->numbers, plan->initial, (size_t)plan->count * sizeof *frame->numbers);
    return true;
}

PyObject *frame_tensor(Frame *frame, int32_t index)
{
    const PlanProgram *plan = frame->plan;
    const Slot *slot = &plan->slots[index];
    if (LIKELY(slot->place != ARENA && slot->place != VIEW)) {
        PyObject *tensor = frame->tensors[index];
        return tensor ? Py_NewRef(tensor) : PyErr_Format(PyExc_RuntimeError, "slot %d has no tensor now", index);
    }
    int64_t sizes[MAX_NDIM], strides[MAX_NDIM];
    gather(slot->sizes, slot->ndim, frame->numbers, sizes);
    gather(slot->strides, slot->ndim, frame->numbers, strides);
    return abi_over(slot_data(plan, frame, index), slot->ndim, sizes, strides, slot->dtype, slot->device_type,
                    slot->device_index);
}
