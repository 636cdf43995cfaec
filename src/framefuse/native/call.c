/* Runs a call step: builds the arguments, calls the Python callable with gradient mode as the step says, and takes
   the results into slots. */
#include "call.h"

#include "convolutions.h"
#include "plan.h"
#include "template.h"
#include "torch_abi.h"

enum { SMALL = 16 };

/* A tensor that the frame holds as an object is lent: the frame keeps its reference for the whole call. */
static inline PyObject *lent(const PlanProgram *plan, const Frame *frame, const Template *template)
{
    if (template->tag != TAG_TENSOR || plan->slots[template->index].place == ARENA
        || plan->slots[template->index].place == VIEW)
        return NULL;
    return frame->tensors[template->index];
}

/* The place in front of the arguments is free. */
static PyObject *call_with(const CallInfo *call, PyObject *const *args)
{
    bool before = abi_grad_enabled(), change = !call->keeps_mode && before != call->grad;
    if (change)
        abi_set_grad_enabled(call->grad);
    PyObject *result = NULL;
    if (call->gradients_of_convolution)
        result = convolution_backward(call->function, args, call->positional);
    if (!result && !PyErr_Occurred())
        result = PyObject_Vectorcall(call->function, args, (size_t)call->positional | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                     call->names);
    if (change)
        abi_set_grad_enabled(before);
    return result;
}

static PyObject *call_function(Frame *frame, const CallInfo *call)
{
    if (call->straight) /* a run has all its inputs from beginning to end */
        return call_with(call, frame->tensors);
    PyObject *small[SMALL + 1], *result = NULL;
    PyObject **args = call->arg_count <= SMALL ? small : PyMem_Malloc(((size_t)call->arg_count + 1) * sizeof *args);
    if (!args)
        return PyErr_NoMemory();
    int32_t made = 0;
    for (; made < call->arg_count; made++) {
        PyObject *arg = lent(frame->plan, frame, &call->args[made]);
        if (!arg && !(arg = template_build(&call->args[made], frame)))
            break;
        args[made + 1] = arg;
    }
    if (made == call->arg_count)
        result = call_with(call, args + 1);
    for (; made > 0; made--)
        if (!lent(frame->plan, frame, &call->args[made - 1]))
            Py_DECREF(args[made]);
    if (args != small)
        PyMem_Free(args);
    return result;
}

static PyObject *part_of(PyObject *result, const struct CallOut *out)
{
    PyObject *part = Py_NewRef(result);
    for (int32_t i = 0; i < out->depth && part; i++)
        Py_SETREF(part, PySequence_GetItem(part, out->path[i]));
    return part;
}

/* The layout that the slot says: the sizes must be those, and other strides are copied into it. */
static int normalise(const PlanProgram *plan, Frame *frame, int32_t index)
{
    const Slot *slot = &plan->slots[index];
    PyObject *tensor = frame->tensors[index];
    int64_t sizes[MAX_NDIM], strides[MAX_NDIM];
    gather(slot->sizes, slot->ndim, frame->numbers, sizes);
    gather(slot->strides, slot->ndim, frame->numbers, strides);
    uint64_t keys;
    int32_t dtype, device_type, device_index;
    Layout layout;
    if (!abi_keys(tensor, &keys) || !abi_element(tensor, &dtype, &device_type, &device_index)
        || !abi_layout(tensor, &layout))
        return -1;
    if (dtype != slot->dtype || device_type != slot->device_type
        || (slot->device_index >= 0 && device_index != slot->device_index) || layout.ndim != slot->ndim
        || memcmp(layout.sizes, sizes, (size_t)slot->ndim * sizeof *sizes))
        return -1;
    bool same = abi_plain(device_type, keys); /* a lazy conjugate or negative has to be computed */
    for (int32_t i = 0, empty = 0; i < slot->ndim && same && !empty; i++)
        empty = sizes[i] == 0, same = empty || sizes[i] == 1 || layout.strides[i] == strides[i];
    if (same)
        return 0;
    char *data;
    PyObject *copy = abi_empty(slot->ndim, sizes, strides, slot->dtype, slot->device_type, slot->device_index, &data);
    PyObject *done = copy ? abi_call("copy", (PyObject *[]){copy, tensor}, 2) : NULL;
    if (!done) {
        Py_XDECREF(copy);
        return -1;
    }
    Py_DECREF(done);
    Py_SETREF(frame->tensors[index], copy);
    return 0;
}

static int take_sizes(Frame *frame, const CallInfo *call)
{
    for (int32_t i = 0; i < call->bind_count; i++) {
        Layout layout;
        PyObject *tensor = frame->tensors[call->binds[i].slot];
        char *data;
        if (call->binds[i].dimension == ELEMENT) {
            if (!tensor || !abi_data(tensor, &data))
                return -1;
            memcpy(&frame->numbers[call->binds[i].number], data, sizeof(int64_t));
            continue;
        }
        if (!tensor || !abi_layout(tensor, &layout) || call->binds[i].dimension >= layout.ndim)
            return -1;
        frame->numbers[call->binds[i].number] = layout.sizes[call->binds[i].dimension];
    }
    return 0;
}

/* A result is not what the plan was made for: the call declines, or says so behind a step that cannot run twice. */
static int unlike(const Frame *frame, const CallInfo *call)
{
    if (frame->committed && !PyErr_Occurred())
        PyErr_Format(PyExc_RuntimeError, "what %R gives is not as it was when the code was compiled", call->function);
    return -1;
}

int call_run(const PlanProgram *plan, Frame *frame, const CallInfo *call)
{
    PyObject *result = call_function(frame, call);
    if (!result)
        return -1;
    for (int32_t i = 0; i < call->out_count; i++) {
        PyObject *part = part_of(result, &call->outs[i]);
        if (!part || !abi_is_tensor(part)) {
            unlike(frame, call);
            Py_XDECREF(part);
            Py_DECREF(result);
            return -1;
        }
        Py_XSETREF(frame->tensors[call->outs[i].slot], part);
    }
    Py_DECREF(result);
    if (take_sizes(frame, call) < 0)
        return -1;
    for (int32_t i = 0; i < call->normal_count; i++)
        if (!frame->tensors[call->normal[i]] || normalise(plan, frame, call->normal[i]) < 0)
            return unlike(frame, call);
    for (int32_t i = 0; i < call->out_count; i++) {
        int32_t slot = call->outs[i].slot;
        if (plan->slots[slot].addressed && !abi_data(frame->tensors[slot], &frame->data[slot])) {
            PyErr_Clear(); /* a sparse or opaque tensor: no kernel reads it, another call may */
            frame->data[slot] = NULL;
        }
    }
    return 0;
}
