/* Makes, frees and reads what one run of a plan works on. */

#include "frame.h"

#include "numbers.h"
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
    Py_CLEAR(frame->nans);
    Py_CLEAR(frame->raised);
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

int frame_keep_nan(Frame *frame, int32_t number, PyObject *object)
{
    PyObject *key = PyLong_FromLong(number);
    int status = key && (frame->nans || (frame->nans = PyDict_New())) ? PyDict_SetItem(frame->nans, key, object) : -1;
    Py_XDECREF(key);
    return status;
}

/* The first operand among those of `count` instructions that make the smaller or larger of two of this number, which
   is that operand where it is a NaN; -1: none of them does. */
static int32_t chosen(const Number *made, int32_t count, int32_t number)
{
    for (int32_t i = 0; i < count; i++)
        if (made[i].to == number && number_chooses(&made[i]))
            return made[i].left;
    return -1;
}

static PyObject *real_object(Frame *frame, int32_t number, double value)
{
    const PlanProgram *plan = frame->plan;
    int32_t left = chosen(plan->numbers, plan->number_count, number);
    for (int32_t i = 0; left < 0 && i < plan->step_count; i++)
        left = chosen(plan->steps[i].own, plan->steps[i].own_count, number);
    return left < 0 ? PyFloat_FromDouble(value) : frame_real(frame, left);
}

PyObject *frame_real(Frame *frame, int32_t number)
{
    double value = as_real(frame->numbers[number]);
    if (LIKELY(value == value))
        return PyFloat_FromDouble(value);
    PyObject *key = PyLong_FromLong(number), *known = NULL;
    if (key && frame->nans)
        known = Py_XNewRef(PyDict_GetItemWithError(frame->nans, key));
    Py_XDECREF(key);
    if (known || PyErr_Occurred())
        return known;
    PyObject *made = real_object(frame, number, value);
    if (made && frame_keep_nan(frame, number, made) < 0)
        Py_CLEAR(made);
    return made;
}
