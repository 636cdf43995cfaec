/* Runs a launch step: packs addresses and numbers as the kernel takes them, and hands them to the driver on torch's current stream. */
#include "fields.h"
#include "plan.h"

#include <limits.h>

/* A kernel reads as many parameters as it has; behind its own Triton puts pointers to scratch memory, null for a kernel that asks for none. */
enum { SPARE = 4, ALIGNMENT = 16 };
enum { POINTER, INT64, INT32, REAL64, REAL32 };

/* ---- reading a LaunchStep ---- */

static int read_argument(PlanProgram *plan, PyObject *pair, struct LaunchArgument *out, int32_t device)
{
    static const char *const KINDS[] = {"pointer", "int64", "int32", "real64", "real32"};
    const char *kind;
    if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "si", &kind, &out->index))
        return wrong("an argument that is no pair", pair);
    out->kind = 255;
    for (uint8_t i = 0; i < 5; i++)
        if (strcmp(KINDS[i], kind) == 0)
            out->kind = i;
    if (out->kind == 255 || out->index < 0 || out->index >= (out->kind == POINTER ? plan->slot_count : plan->count))
        return wrong("an unknown kind of argument, or an index out of range,", pair);
    if (out->kind != POINTER || driver_is_stand_in())
        return 0;
    const Slot *slot = &plan->slots[out->index];
    return slot->device_type && slot->device_index == device ? 0 : wrong("memory of another device than the kernel's", pair);
}

static int read_arguments(PlanProgram *plan, PyObject *source, LaunchInfo *info)
{
    PyObject *tuple = field_tuple(source, "arguments");
    int status = tuple && (info->arguments = zeros((size_t)PyTuple_GET_SIZE(tuple), sizeof *info->arguments)) ? 0 : -1;
    if (status == 0 && PyTuple_GET_SIZE(tuple) > 4096)
        status = wrong("more than 4096 arguments", source);
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_GET_SIZE(tuple); i++)
        status = read_argument(plan, PyTuple_GET_ITEM(tuple, i), &info->arguments[info->argument_count++], info->device);
    Py_XDECREF(tuple);
    return status;
}

/* The step holds what is borrowed here. */
static int read_functions(PyObject *source, LaunchInfo *info)
{
    PyObject *function = PyObject_GetAttrString(source, "function"), *unaligned = PyObject_GetAttrString(source, "unaligned");
    info->aligned.function = function ? PyLong_AsUnsignedLongLong(function) : 0;
    info->make_unaligned = unaligned == Py_None ? NULL : unaligned;
    bool callable = !info->make_unaligned || PyCallable_Check(unaligned);
    Py_XDECREF(function);
    Py_XDECREF(unaligned);
    return PyErr_Occurred() ? -1 : callable && info->aligned.function ? 0 : wrong("no function", source);
}

int launch_read(PlanProgram *plan, PyObject *source, LaunchInfo *info)
{
    if (read_functions(source, info) < 0 || field_int(source, "extent", 0, plan->count, &info->extent) < 0
        || field_int(source, "blocks", 1, INT32_MAX, &info->blocks) < 0 || field_int(source, "threads", 1, 1025, &info->threads) < 0
        || field_int(source, "shared", 0, INT32_MAX, &info->aligned.shared) < 0 || field_int(source, "device", 0, INT32_MAX, &info->device) < 0)
        return -1;
    return read_arguments(plan, source, info) < 0 ? -1 : driver_ready(info->device);
}

bool launch_takes_slot(const struct LaunchArgument *argument) { return argument->kind == POINTER; }

/* ---- running it ---- */

/* The code for any pointers, of function 0 without one. The kernel may be compiled now: once, at the first pointer that asks for it. */
static const struct LaunchCode *unaligned_of(LaunchInfo *info)
{
    struct LaunchCode *code = &info->unaligned;
    if (!code->function && info->make_unaligned) {
        PyObject *made = PyObject_CallNoArgs(info->make_unaligned);
        unsigned long long function = 0;
        int shared = 0;
        if (made && PyTuple_Check(made) && PyArg_ParseTuple(made, "Ki", &function, &shared) && function && shared >= 0)
            *code = (struct LaunchCode){function, shared};
        else
            info->make_unaligned = NULL; /* it would fail again: each run that needs it declines */
        Py_XDECREF(made);
        PyErr_Clear();
    }
    return code;
}

/* One program takes `blocks` points of the axis; -1: more programs than a grid holds. */
static int64_t programs(const LaunchInfo *info, int64_t extent)
{
    int64_t count = extent <= 0 ? 0 : (extent - 1) / info->blocks + 1;
    return count <= INT_MAX ? count : -1;
}

static inline bool narrow(const LaunchInfo *info, int32_t i, const int64_t *numbers)
{
    int64_t number = numbers[info->arguments[i].index];
    return number == (int32_t)number;
}

bool launch_may(const PlanProgram *plan, const Frame *frame, LaunchInfo *info)
{
    bool aligned = true;
    if (programs(info, frame->numbers[info->extent]) < 0)
        return false;
    for (int32_t i = 0; i < info->argument_count; i++) {
        const struct LaunchArgument *argument = &info->arguments[i];
        if (argument->kind == INT32 && !narrow(info, i, frame->numbers))
            return false;
        int32_t slot = argument->index;
        while (argument->kind == POINTER && plan->slots[slot].place == VIEW)
            slot = plan->slots[slot].base;
        if (argument->kind == POINTER && frame->tensors[slot])
            aligned &= (uintptr_t)slot_data(plan, frame, argument->index) % ALIGNMENT == 0;
    }
    return aligned || unaligned_of(info)->function;
}

int launch_run(const PlanProgram *plan, Frame *frame, LaunchInfo *info)
{
    int64_t words[info->argument_count + 1], count = programs(info, frame->numbers[info->extent]);
    void *parameters[info->argument_count + SPARE], *none = NULL, *stream;
    uintptr_t together = 0;
    if (UNLIKELY(count <= 0))
        return count < 0 ? -1 : 0;
    for (int32_t i = 0; i < info->argument_count; i++) {
        const struct LaunchArgument *argument = &info->arguments[i];
        float single;
        parameters[i] = &words[i];
        switch (argument->kind) {
        case POINTER:
            words[i] = (int64_t)(uintptr_t)slot_data(plan, frame, argument->index);
            together |= (uintptr_t)words[i];
            break;
        case INT32: /* the low half stands first */
            if (UNLIKELY(!narrow(info, i, frame->numbers)))
                return -1;
            words[i] = frame->numbers[argument->index];
            break;
        case REAL32:
            single = (float)as_real(frame->numbers[argument->index]);
            memcpy(&words[i], &single, sizeof single);
            break;
        default:
            words[i] = frame->numbers[argument->index];
        }
    }
    for (int32_t i = 0; i < SPARE; i++)
        parameters[info->argument_count + i] = &none;
    const struct LaunchCode *code = LIKELY(together % ALIGNMENT == 0) ? &info->aligned : unaligned_of(info);
    if (UNLIKELY(!code->function || !abi_stream(info->device, &stream)))
        return -1;
    if (LIKELY(driver_launch(code->function, info->device, (unsigned)count, (unsigned)info->threads, (unsigned)code->shared, stream, parameters) == 0))
        return 0;
    frame->committed = true; /* the driver's error is the program's to see: running it again would hide it */
    return -1;
}

void launch_free(LaunchInfo *info)
{
    PyMem_Free(info->arguments);
    PyMem_Free(info);
}
