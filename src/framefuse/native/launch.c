/* Runs a launch step: packs addresses and numbers as the kernel takes them, and hands them to the driver on torch's
   current stream. */
#include "launch.h"

#include <limits.h>

#include "cuda.h"
#include "fields.h"
#include "numbers.h"
#include "plan.h"
#include "torch_abi.h"

/* A kernel reads as many parameters as it has; behind its own Triton puts pointers to scratch memory, null for a
   kernel that asks for none. */
enum { SPARE = 4, ALIGNMENT = 16 };
enum {
#define X(kind, name) kind,
    LAUNCH_ARGUMENTS(X)
#undef X
    ARGUMENT_COUNT
};

/* ---- reading a LaunchStep ---- */

static int read_argument(PlanProgram *plan, PyObject *pair, struct LaunchArgument *out, int32_t device)
{
    static const char *const KINDS[ARGUMENT_COUNT] = {
#define X(kind, name) name,
        LAUNCH_ARGUMENTS(X)
#undef X
    };
    const char *kind;
    if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "si", &kind, &out->index))
        return wrong("an argument that is no pair", pair);
    out->kind = ARGUMENT_COUNT;
    for (uint8_t i = 0; i < ARGUMENT_COUNT; i++)
        if (strcmp(KINDS[i], kind) == 0)
            out->kind = i;
    if (out->kind == ARGUMENT_COUNT || out->index < 0
        || out->index >= (out->kind == POINTER ? plan->slot_count : plan->count))
        return wrong("an unknown kind of argument, or an index out of range,", pair);
    if (out->kind != POINTER || driver_is_stand_in())
        return 0;
    const Slot *slot = &plan->slots[out->index];
    return slot->device_type && slot->device_index == device
               ? 0
               : wrong("memory of another device than the kernel's", pair);
}

static int read_arguments(PlanProgram *plan, PyObject *source, LaunchInfo *info)
{
    PyObject *tuple = field_tuple(source, "arguments");
    int status = tuple && (info->arguments = zeros((size_t)PyTuple_GET_SIZE(tuple), sizeof *info->arguments)) ? 0 : -1;
    if (status == 0 && PyTuple_GET_SIZE(tuple) > 4096)
        status = wrong("more than 4096 arguments", source);
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_GET_SIZE(tuple); i++)
        status =
            read_argument(plan, PyTuple_GET_ITEM(tuple, i), &info->arguments[info->argument_count++], info->device);
    Py_XDECREF(tuple);
    return status;
}

static int read_fits(PlanProgram *plan, PyObject *source, LaunchInfo *info)
{
    PyObject *tuple = field_tuple(source, "fits");
    int status = tuple && (info->fits = zeros((size_t)PyTuple_GET_SIZE(tuple), sizeof *info->fits)) ? 0 : -1;
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *row = PyTuple_GET_ITEM(tuple, i);
        struct LaunchFit *out = &info->fits[info->fit_count++];
        long long multiple, low, high;
        if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "iLLL", &out->index, &multiple, &low, &high) || multiple < 1
            || out->index < 0 || out->index >= plan->count)
            status = wrong("a fit that is no number with its multiple and bounds", row);
        else
            out->multiple = multiple, out->low = low, out->high = high;
    }
    Py_XDECREF(tuple);
    return status;
}

/* The step holds what is borrowed here. */
static int read_functions(PyObject *source, LaunchInfo *info)
{
    PyObject *function = PyObject_GetAttrString(source, "function"),
             *variant = PyObject_GetAttrString(source, "variant");
    info->codes[LAUNCH_FITTED].function = function ? PyLong_AsUnsignedLongLong(function) : 0;
    info->variant = variant == Py_None ? NULL : variant;
    bool callable = !info->variant || PyCallable_Check(variant);
    Py_XDECREF(function);
    Py_XDECREF(variant);
    return PyErr_Occurred() ? -1 : callable && info->codes[LAUNCH_FITTED].function ? 0 : wrong("no function", source);
}

int launch_read(PlanProgram *plan, PyObject *source, LaunchInfo *info)
{
    if (read_functions(source, info) < 0 || field_int(source, "extent", 0, plan->count, &info->extent) < 0
        || field_int(source, "blocks", 1, INT32_MAX, &info->blocks) < 0
        || field_int(source, "threads", 1, 1025, &info->threads) < 0
        || field_int(source, "shared", 0, INT32_MAX, &info->codes[LAUNCH_FITTED].shared) < 0
        || field_int(source, "device", 0, INT32_MAX, &info->device) < 0)
        return -1;
    return read_arguments(plan, source, info) < 0 || read_fits(plan, source, info) < 0 ? -1
                                                                                       : driver_ready(info->device);
}

bool launch_takes_slot(const struct LaunchArgument *argument) { return argument->kind == POINTER; }

/* ---- running it ---- */

static inline bool fits(const LaunchInfo *info, const int64_t *numbers)
{
    for (int32_t i = 0; i < info->fit_count; i++) {
        const struct LaunchFit *fit = &info->fits[i];
        int64_t number = numbers[fit->index];
        if (number < fit->low || number > fit->high || number % fit->multiple)
            return false;
    }
    return true;
}

/* The code for these pointers and numbers, of function 0 without one, then with an exception. It may be compiled now:
   once, when it is first asked for. */
static const struct LaunchCode *code_for(LaunchInfo *info, bool aligned, const int64_t *numbers)
{
    int which = !aligned ? LAUNCH_ANY : fits(info, numbers) ? LAUNCH_FITTED : LAUNCH_ALIGNED;
    struct LaunchCode *code = &info->codes[which];
    if (UNLIKELY(!code->function) && info->variant && !code->refused) {
        PyObject *made = PyObject_CallOneArg(info->variant, aligned ? Py_True : Py_False);
        unsigned long long function = 0;
        int shared = 0;
        if (made && PyTuple_Check(made) && PyArg_ParseTuple(made, "Ki", &function, &shared) && function && shared >= 0)
            *code = (struct LaunchCode){function, shared, false};
        else
            code->refused = !PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_Exception); /* it would fail again */
        Py_XDECREF(made);
    }
    if (UNLIKELY(!code->function) && !PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "a kernel has no code for these sizes and addresses");
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
    return code_for(info, aligned, frame->numbers)->function;
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
    const struct LaunchCode *code = code_for(info, together % ALIGNMENT == 0, frame->numbers);
    if (UNLIKELY(!code->function || !abi_stream(info->device, &stream)))
        return -1;
    if (LIKELY(driver_launch(code->function, info->device, (unsigned)count, (unsigned)info->threads,
                             (unsigned)code->shared, stream, parameters)
               == 0))
        return 0;
    frame->committed = true; /* the driver's error is the program's to see: running it again would hide it */
    return -1;
}

void launch_free(LaunchInfo *info)
{
    PyMem_Free(info->arguments);
    PyMem_Free(info->fits);
    PyMem_Free(info);
}
