/* Runs the first steps of a plan as one: what a device has captured of them for the numbers and addresses at hand is
   replayed, where there is something.

   What is captured, and how it is replayed, Python decides (framefuse.runtime.captures); here is what each call
   needs: finding the capture that fits. */
#include "replay.h"

#include "fields.h"
#include "frame.h"
#include "memory.h"
#include "plan.h"
#include "steps.h"
#include "torch_abi.h"

/* ---- reading a Region ---- */

static int read_host(PyObject *source, Region *region)
{
    int32_t *steps = NULL, count = 0;
    int status = field_indices(source, "host", region->steps, &steps, &count);
    if (status == 0 && !(region->host = zeros((size_t)region->steps, sizeof *region->host)))
        status = -1;
    for (int32_t i = 0; status == 0 && i < count; i++)
        region->host[steps[i]] = true;
    PyMem_Free(steps);
    return status;
}

static int read_region(PlanProgram *plan, PyObject *source, Region *region)
{
    if (field_int(source, "steps", 1, plan->step_count + 1, &region->steps) < 0
        || field_int(source, "lead", 0, region->steps, &region->lead) < 0 || read_host(source, region) < 0
        || field_indices(source, "inputs", plan->slot_count, &region->inputs, &region->input_count) < 0
        || field_indices(source, "outs", plan->slot_count, &region->outs, &region->out_count) < 0
        || field_indices(source, "numbers", plan->count, &region->numbers, &region->number_count) < 0)
        return -1;
    for (int32_t i = 0; i < region->out_count; i++)
        if (plan->slots[region->outs[i]].place != FRESH && plan->slots[region->outs[i]].place != CALL)
            return wrong("an out that is no tensor of its own", source);
    region->asks = true;
    region->captures = PyObject_GetAttrString(source, "captures");
    return !region->captures                    ? -1
           : PyCallable_Check(region->captures) ? 0
                                                : wrong("captures that cannot be called", source);
}

int region_read(PlanProgram *plan, PyObject *source)
{
    PyObject *region = PyObject_GetAttrString(source, "region");
    int status = region ? 0 : -1;
    if (region && region != Py_None && !PyUnicode_Check(region))
        status = (plan->region = zeros(1, sizeof *plan->region)) ? read_region(plan, region, plan->region) : -1;
    Py_XDECREF(region);
    return status;
}

/* ---- what was captured ---- */

static char *address_of(const PlanProgram *plan, const Frame *frame, int32_t slot)
{
    char *address;
    if (plan->slots[slot].addressed)
        return frame->data[slot];
    if (LIKELY(abi_data(frame->tensors[slot], &address)))
        return address;
    PyErr_Clear();
    return NULL;
}

static bool fits(const PlanProgram *plan, const Region *region, const Captured *captured, const Frame *frame)
{
    for (int32_t i = 0; i < region->number_count; i++)
        if (frame->numbers[region->numbers[i]] != captured->numbers[i])
            return false;
    for (int32_t i = 0; i < region->input_count; i++)
        if (!captured->copied[i] && address_of(plan, frame, region->inputs[i]) != captured->addresses[i])
            return false;
    return true;
}

/* Gradient mode is off in what is called. */
static PyObject *called(PyObject *function, PyObject *const *args, Py_ssize_t count)
{
    bool grad = abi_grad_enabled();
    if (grad)
        abi_set_grad_enabled(false);
    PyObject *result = PyObject_Vectorcall(function, args, (size_t)count, NULL);
    if (grad)
        abi_set_grad_enabled(true);
    return result;
}

/* The inputs stay in the frame; the list of what was captured may change while Python runs. */
static PyObject *replay(const Region *region, const Captured *captured, const Frame *frame)
{
    PyObject *args[region->input_count + 1], *function = Py_NewRef(captured->replay);
    Py_ssize_t count = 0;
    for (int32_t i = 0; i < region->input_count; i++)
        if (captured->copied[i])
            args[count++] = frame->tensors[region->inputs[i]];
    PyObject *result = called(function, args, count);
    Py_DECREF(function);
    return result;
}

/* ---- a run ---- */

/* Puts the outs into the frame, and runs what a replay does not do: versions of tensors, and letting go. Steals
   result. */
static int take(PlanProgram *plan, Frame *frame, PyObject *result)
{
    const Region *region = plan->region;
    if (!PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != region->out_count) {
        Py_DECREF(result);
        PyErr_SetString(PyExc_SystemError, "a replay gave something else than the outs");
        return -1;
    }
    for (int32_t i = 0; i < region->out_count; i++) {
        PyObject *out = PyTuple_GET_ITEM(result, i);
        int32_t slot = region->outs[i];
        Py_XSETREF(frame->tensors[slot], Py_NewRef(out));
        if (plan->slots[slot].addressed && !abi_data(out, &frame->data[slot])) {
            Py_DECREF(result);
            return -1;
        }
    }
    Py_DECREF(result);
    for (int32_t i = region->lead; i < region->steps; i++) {
        const Step *step = &plan->steps[i];
        if (!region->host[i])
            continue;
        frame->committed |= step->kind == STEP_CALL && step->as.call->commits; /* what follows it has happened */
        if (step_run(plan, frame, step, NULL) < 0)
            return -1;
    }
    return REGION_DONE;
}

static PyObject *words(const Region *region, const Frame *frame)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, region->number_count * (Py_ssize_t)sizeof(int64_t));
    if (bytes)
        gather(region->numbers, region->number_count, frame->numbers, (int64_t *)PyBytes_AS_STRING(bytes));
    return bytes;
}

static PyObject *addresses(const PlanProgram *plan, const Region *region, const Frame *frame)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, region->input_count * (Py_ssize_t)sizeof(char *));
    for (int32_t i = 0; bytes && i < region->input_count; i++)
        ((char **)PyBytes_AS_STRING(bytes))[i] = address_of(plan, frame, region->inputs[i]);
    return bytes;
}

/* Nothing that fits: what is decided for this run. None: its steps are to be run; False: and nobody need ask again;
   else the outs. */
static int ask(PlanProgram *plan, Frame *frame)
{
    Region *region = plan->region;
    PyObject *inputs = PyTuple_New(region->input_count), *answer = NULL;
    for (int32_t i = 0; inputs && i < region->input_count; i++)
        PyTuple_SET_ITEM(inputs, i, Py_NewRef(frame->tensors[region->inputs[i]]));
    PyObject *key = words(region, frame), *places = addresses(plan, region, frame);
    PyObject *state =
        PyBytes_FromStringAndSize((const char *)frame->numbers, plan->count * (Py_ssize_t)sizeof *frame->numbers);
    if (inputs && key && places && state)
        answer = called(region->captures, (PyObject *[]){(PyObject *)plan, inputs, key, places, state}, 5);
    Py_XDECREF(inputs);
    Py_XDECREF(key);
    Py_XDECREF(places);
    Py_XDECREF(state);
    if (!answer)
        return -1;
    if (answer != Py_None && answer != Py_False)
        return take(plan, frame, answer);
    region->asks &= answer == Py_None;
    Py_DECREF(answer);
    return REGION_PLAIN;
}

int region_run(PlanProgram *plan, Frame *frame)
{
    Region *region = plan->region;
    for (int32_t i = 0; i < region->captured_count; i++) {
        if (!fits(plan, region, &region->captured[i], frame))
            continue;
        PyObject *found = replay(region, &region->captured[i], frame);
        if (found == Py_NotImplemented) {
            Py_DECREF(found);
            continue;
        }
        if (found == Py_None) {
            Py_DECREF(found);
            return REGION_PLAIN;
        }
        if (found)
            return take(plan, frame, found);
        frame->committed = true; /* the device has failed at it, which must be seen */
        return -1;
    }
    return region->asks ? ask(plan, frame) : REGION_PLAIN;
}

/* ---- for what captures ---- */

static const Region *region_of(PlanProgram *plan, PyObject *inputs, PyObject *state)
{
    if (!plan->region || plan->dead || PyTuple_GET_SIZE(inputs) != plan->region->input_count
        || PyBytes_GET_SIZE(state) != plan->count * (Py_ssize_t)sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "these are not the inputs or the numbers of the plan's region");
        return NULL;
    }
    return plan->region;
}

static int lend(PlanProgram *plan, Frame *frame, PyObject *inputs, PyObject *state)
{
    const Region *region = plan->region;
    memcpy(frame->numbers, PyBytes_AS_STRING(state), (size_t)plan->count * sizeof *frame->numbers);
    for (int32_t i = 0; i < region->input_count; i++) {
        PyObject *input = PyTuple_GET_ITEM(inputs, i);
        int32_t slot = region->inputs[i];
        if (!abi_is_tensor(input))
            return wrong("no tensor", input);
        frame->tensors[slot] = Py_NewRef(input);
        if (plan->slots[slot].addressed && !abi_data(input, &frame->data[slot]))
            return -1;
    }
    return memory_begin(plan, frame);
}

static PyObject *outs_of(const Region *region, const Frame *frame)
{
    PyObject *outs = PyTuple_New(region->out_count);
    for (int32_t i = 0; outs && i < region->out_count; i++) {
        PyObject *out = frame->tensors[region->outs[i]];
        if (out)
            PyTuple_SET_ITEM(outs, i, Py_NewRef(out));
        else
            Py_CLEAR(outs);
    }
    return outs;
}

PyObject *region_steps_py(PlanProgram *plan, PyObject *args)
{
    PyObject *inputs, *state, *outs = NULL;
    if (!PyArg_ParseTuple(args, "O!S", &PyTuple_Type, &inputs, &state))
        return NULL;
    const Region *region = region_of(plan, inputs, state);
    if (!region)
        return NULL;
    Frame frame;
    char **buffers = PyMem_Malloc(((size_t)plan->buffer_room + 1) * sizeof *buffers);
    if (buffers && frame_make(plan, &frame)) {
        int status = lend(plan, &frame, inputs, state);
        for (int32_t i = region->lead; status == 0 && i < region->steps; i++)
            if (!region->host[i] || plan->steps[i].kind == STEP_RELEASE)
                status = step_run(plan, &frame, &plan->steps[i], buffers);
        outs = status == 0 ? outs_of(region, &frame) : NULL;
        memory_end(plan, &frame);
        frame_free(plan, &frame);
    } else {
        PyErr_NoMemory();
    }
    PyMem_Free(buffers);
    if (!outs && !PyErr_Occurred())
        PyErr_SetString(Declined, "the steps declined");
    return outs;
}

static void captured_free(Captured *captured)
{
    PyMem_Free(captured->numbers);
    PyMem_Free(captured->addresses);
    PyMem_Free(captured->copied);
    Py_XDECREF(captured->replay);
}

static int fill(PlanProgram *plan, Captured *captured, PyObject *inputs, PyObject *copied, PyObject *state)
{
    const Region *region = plan->region;
    captured->numbers = zeros((size_t)region->number_count, sizeof *captured->numbers);
    captured->addresses = zeros((size_t)region->input_count, sizeof *captured->addresses);
    captured->copied = zeros((size_t)region->input_count, sizeof *captured->copied);
    if (!captured->numbers || !captured->addresses || !captured->copied)
        return -1;
    gather(region->numbers, region->number_count, (const int64_t *)PyBytes_AS_STRING(state), captured->numbers);
    for (int32_t i = 0; i < region->input_count; i++)
        if (!abi_is_tensor(PyTuple_GET_ITEM(inputs, i))
            || !abi_data(PyTuple_GET_ITEM(inputs, i), &captured->addresses[i]))
            return wrong("no address", PyTuple_GET_ITEM(inputs, i));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(copied); i++) {
        Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(copied, i));
        if (place < 0 || place >= region->input_count)
            return wrong("a place out of range", copied);
        captured->copied[place] = true;
    }
    return 0;
}

PyObject *region_add_py(PlanProgram *plan, PyObject *args)
{
    PyObject *inputs, *copied, *state, *function;
    if (!PyArg_ParseTuple(args, "O!O!SO", &PyTuple_Type, &inputs, &PyTuple_Type, &copied, &state, &function))
        return NULL;
    if (!region_of(plan, inputs, state))
        return NULL;
    Captured made = {0};
    if (fill(plan, &made, inputs, copied, state) < 0) {
        captured_free(&made);
        return NULL;
    }
    Region *region = plan->region;
    Captured *grown = PyMem_Realloc(region->captured, ((size_t)region->captured_count + 1) * sizeof *grown);
    if (!grown) {
        captured_free(&made);
        return PyErr_NoMemory();
    }
    made.replay = Py_NewRef(function);
    region->captured = grown;
    grown[region->captured_count++] = made;
    Py_RETURN_NONE;
}

/* ---- life ---- */

int region_traverse(const Region *region, visitproc visit, void *arg)
{
    Py_VISIT(region->captures);
    for (int32_t i = 0; i < region->captured_count; i++)
        Py_VISIT(region->captured[i].replay);
    return 0;
}

void region_clear(Region *region)
{
    Captured *captured = region->captured;
    int32_t count = region->captured_count;
    region->captured = NULL, region->captured_count = 0, region->asks = false;
    for (int32_t i = 0; i < count; i++)
        captured_free(&captured[i]);
    PyMem_Free(captured);
    Py_CLEAR(region->captures);
}

void region_free(Region *region)
{
    if (!region)
        return;
    region_clear(region);
    PyMem_Free(region->host);
    PyMem_Free(region->inputs);
    PyMem_Free(region->outs);
    PyMem_Free(region->numbers);
    PyMem_Free(region);
}
