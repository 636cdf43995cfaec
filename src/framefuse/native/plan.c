/* Runs a plan: numbers, then steps over slots, then effects, then the result; whatever goes wrong before the effects declines the call. */
#include "plan.h"

#include <structmember.h>

PyTypeObject *PlanProgram_Type;
PyObject *Declined;

/* Measured on two cores: a parallel region pays off above some 8 us of serial work, and giving up the GIL above some 20 us. */
static const int64_t PARALLEL_NS = 8000, RELEASE_GIL_NS = 20000;

/* ---- frames ---- */

/* The kept inputs leave the frame. */
static void frame_forget(const PlanProgram *plan, Frame *frame)
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
    return abi_over(slot_data(plan, frame, index), slot->ndim, sizes, strides, slot->dtype, slot->device_type, slot->device_index);
}

/* ---- steps: 0, or -1 for a decline (with or without an exception) ---- */

static int run_kernel(PlanProgram *plan, Frame *frame, const KernelInfo *info, char **buffers)
{
    int64_t arguments[info->number_count + 1];
    for (int32_t i = 0; i < info->buffer_count; i++)
        buffers[i] = slot_data(plan, frame, info->buffers[i]);
    gather(info->numbers, info->number_count, frame->numbers, arguments);
    int64_t extent = frame->numbers[info->extent], work = frame->numbers[info->work], answer;
    if (LIKELY(work <= PARALLEL_NS))
        return info->kernel(buffers, arguments, 0, extent) ? -1 : 0;
    int threads = info->parallel && extent > 1 ? threads_usable() : 1;
    if (work <= RELEASE_GIL_NS)
        return threads_run(info->kernel, buffers, arguments, extent, threads) ? -1 : 0;
    Py_BEGIN_ALLOW_THREADS
    answer = threads_run(info->kernel, buffers, arguments, extent, threads);
    Py_END_ALLOW_THREADS
    return answer ? -1 : 0;
}

static int run_numbers(const PlanProgram *plan, Frame *frame, int32_t from, int32_t to)
{
    for (int32_t i = from; i < to; i++)
        if (UNLIKELY(!number_run(&plan->numbers[i], frame->numbers)))
            return -1;
    return 0;
}

/* Behind a step that cannot run twice no launch may decline. */
static bool may_go_on(const PlanProgram *plan, const Frame *frame, const Step *step)
{
    for (; step < plan->steps + plan->step_count; step++)
        if (step->kind == STEP_LAUNCH && !launch_may(plan, frame, step->as.launch))
            return false;
    return true;
}

int plan_step(PlanProgram *plan, Frame *frame, const Step *step, char **buffers)
{
    if (UNLIKELY(plan->any_late) && memory_reach(plan, frame, step) < 0)
        return -1;
    switch (step->kind) {
    case STEP_KERNEL:
        return run_kernel(plan, frame, &step->as.kernel, buffers);
    case STEP_ALLOC:
        return memory_alloc(plan, frame, step->slot);
    case STEP_MATMUL: {
        const MatmulInfo *info = &step->as.matmul;
        return matmul_run(info, frame->numbers, slot_data(plan, frame, info->out), slot_data(plan, frame, info->a),
                          slot_data(plan, frame, info->c), &plan->slots[info->out]);
    }
    case STEP_LAUNCH:
        return launch_run(plan, frame, step->as.launch);
    case STEP_CALL:
        if (step->as.call->commits && !frame->committed && !may_go_on(plan, frame, step + 1))
            return -1;
        frame->committed |= step->as.call->commits;
        return call_run(plan, frame, step->as.call);
    case STEP_NUMBERS:
        for (int32_t i = 0; i < step->own_count; i++)
            if (!number_run(&step->own[i], frame->numbers))
                return -1;
        return 0;
    default:
        for (int32_t i = 0; i < step->slot_count; i++)
            if (LIKELY(!plan->slots[step->slots[i]].kept))
                Py_CLEAR(frame->tensors[step->slots[i]]);
        return 0;
    }
}

static int run_steps(PlanProgram *plan, Frame *frame, char **buffers)
{
    const Step *step = plan->steps, *end = step + plan->step_count;
    int region = plan->region ? region_run(plan, frame) : REGION_PLAIN;
    if (UNLIKELY(region < 0))
        return -1;
    if (region == REGION_DONE)
        step += plan->region->steps;
    else if (UNLIKELY(memory_begin(plan, frame) < 0))
        return -1;
    for (; step < end; step++) {
        if (UNLIKELY(plan_step(plan, frame, step, buffers) < 0 || run_numbers(plan, frame, step->numbers_from, step->numbers_to) < 0))
            return -1;
    }
    return 0;
}

/* ---- a run ---- */

static inline bool usable(const PlanProgram *plan, Frame *frame, int32_t input)
{
    PyObject *tensor = frame->tensors[input];
    return LIKELY(tensor && abi_is_tensor(tensor)) && (!plan->slots[input].addressed || abi_data(tensor, &frame->data[input]));
}

/* Whether `kept` holds what the registers hold. */
static bool keeps_these(const PlanProgram *plan, PyObject *const *registers)
{
    for (int32_t i = 0; i < plan->keep_count; i++)
        if (PyTuple_GET_ITEM(plan->kept, i) != registers[plan->inputs[plan->keep[i]]])
            return false;
    return true;
}

/* Makes `kept` hold the kept inputs in the registers; gives what it was before if it changed, for the caller to drop when no register is read any more:
   a parameter that dies may run Python code. 0, or -1 with an exception. */
static int keep_inputs(PlanProgram *plan, PyObject *const *registers, uint64_t age, PyObject **before)
{
    if (!plan->kept || !keeps_these(plan, registers)) {
        int on = PyGC_Disable(); /* a collection would run Python code while the registers are borrowed */
        PyObject *fresh = PyTuple_New(plan->keep_count);
        if (on)
            PyGC_Enable();
        for (int32_t i = 0; fresh && i < plan->keep_count; i++) {
            PyObject *tensor = registers[plan->inputs[plan->keep[i]]];
            PyTuple_SET_ITEM(fresh, i, Py_XNewRef(tensor));
            if (!tensor || !abi_is_tensor(tensor))
                Py_CLEAR(fresh);
        }
        if (!fresh)
            return -1;
        plan->swapped = plan->kept != NULL;
        *before = plan->kept;
        plan->kept = fresh;
    }
    plan->kept_at = age;
    return 0;
}

/* *before receives what the frame held before, if that is not `kept`. */
static void lend_kept(const PlanProgram *plan, Frame *frame, PyObject **before)
{
    *before = frame->kept;
    frame->kept = Py_NewRef(plan->kept);
    for (int32_t i = 0; i < plan->keep_count; i++)
        frame->tensors[plan->keep[i]] = PyTuple_GET_ITEM(plan->kept, i);
}

static int load(PlanProgram *plan, Frame *frame, PyObject *const *registers, const int64_t *numbers, PyObject **before)
{
    memcpy(frame->numbers, numbers, (size_t)plan->bound * sizeof *numbers);
    for (int32_t i = 0; i < plan->register_count; i++)
        frame->registers[i] = Py_XNewRef(registers[plan->registers[i]]);
    if (UNLIKELY(frame->kept != plan->kept))
        lend_kept(plan, frame, before);
    for (int32_t i = 0; i < plan->own_count; i++) {
        int32_t input = plan->own[i];
        frame->tensors[input] = Py_XNewRef(registers[plan->inputs[input]]);
        if (UNLIKELY(!usable(plan, frame, input)))
            return -1;
    }
    for (int32_t i = 0; i < plan->addressed_count; i++)
        if (UNLIKELY(!usable(plan, frame, plan->keep[i])))
            return -1;
    for (int32_t i = 0; i < plan->register_count; i++)
        if (!frame->registers[i])
            return -1;
    return run_numbers(plan, frame, 0, plan->early_numbers);
}

static bool run_finish(const PlanProgram *plan, Frame *frame)
{
    for (int32_t i = 0; i < plan->finish_count; i++) {
        const Finish *finish = &plan->finish[i];
        PyObject *args[finish->arg_count + 1], *done = NULL;
        int32_t made = 0;
        while (made < finish->arg_count && (args[made] = template_build(&finish->args[made], frame)))
            made++;
        if (made == finish->arg_count)
            done = PyObject_Vectorcall(finish->function, args, (size_t)made, NULL);
        while (made > 0)
            Py_DECREF(args[--made]);
        if (!done)
            return false;
        Py_DECREF(done);
    }
    return true;
}

static void unload(PlanProgram *plan, Frame *frame)
{
    for (int32_t i = 0; i < plan->own_count; i++)
        Py_CLEAR(frame->tensors[plan->own[i]]);
    for (int32_t i = plan->input_count; i < plan->slot_count; i++)
        Py_CLEAR(frame->tensors[i]);
    for (int32_t i = 0; i < plan->register_count; i++)
        Py_CLEAR(frame->registers[i]);
    size_t bytes = memory_end(plan, frame);
    plan->arena_bytes = bytes > plan->arena_bytes ? bytes : plan->arena_bytes;
}

static int run_in(PlanProgram *plan, Frame *frame, char **buffers, PyObject *const *registers, const int64_t *numbers, PyObject **result)
{
    *result = NULL;
    int answer = RUN_DONE;
    PyObject *before = NULL;
    frame->committed = false;
    if (LIKELY(load(plan, frame, registers, numbers, &before) == 0 && (!plan->generator_count || rewind_save(plan, frame) == 0)
               && run_steps(plan, frame, buffers) == 0)) {
        if (run_finish(plan, frame))
            *result = template_build(&plan->result, frame);
    } else if (!run_must_end(frame)) {
        plan_rewind(plan, frame);
        plan->declines++;
        answer = RUN_DECLINED;
    }
    Py_CLEAR(frame->states);
    unload(plan, frame);
    Py_XDECREF(before);
    return answer;
}

/* Whether somebody looks at the single nodes that eager makes: anomaly mode names the one at fault, and hooks of saved tensors see what each saves.
   Checkpoints are such hooks, and count on the same tensors when they run the program once more. */
static bool watched(void)
{
    int hooked = abi_hooks_active(), anomaly = abi_anomaly();
    if (UNLIKELY(hooked < 0 || anomaly < 0))
        PyErr_Clear();
    return hooked || anomaly;
}

int plan_run(PlanProgram *plan, PyObject *const *registers, const int64_t *numbers, uint64_t age, PyObject **result)
{
    int answer = RUN_DECLINED;
    PyObject *before = NULL;
    *result = NULL;
    if (UNLIKELY(plan->dead))
        return answer;
    plan->runs++;
    if (plan->attaches && UNLIKELY(watched())) {
        plan->declines++;
        return answer;
    }
    if (plan->keep_count && UNLIKELY(!plan->kept || age != plan->kept_at || age == AGE_UNKNOWN) && keep_inputs(plan, registers, age, &before) < 0) {
        PyErr_Clear();
        plan->declines++;
        return answer;
    }
    Py_INCREF(plan);
    if (LIKELY(!plan->frame.busy)) {
        plan->frame.busy = true;
        answer = run_in(plan, &plan->frame, plan->buffers, registers, numbers, result);
        plan->frame.busy = false;
    } else { /* another thread, or the plan called itself through one of its steps */
        Frame frame;
        char **buffers = PyMem_Malloc(((size_t)plan->buffer_room + 1) * sizeof *buffers);
        if (buffers && frame_make(plan, &frame)) {
            answer = run_in(plan, &frame, buffers, registers, numbers, result);
            frame_free(plan, &frame);
        }
        PyMem_Free(buffers);
    }
    Py_XDECREF(before);
    Py_DECREF(plan);
    return answer;
}

Py_ssize_t plan_registers_needed(PlanProgram *plan)
{
    int32_t most = -1;
    for (int32_t i = 0; i < plan->input_count; i++)
        most = plan->inputs[i] > most ? plan->inputs[i] : most;
    for (int32_t i = 0; i < plan->register_count; i++)
        most = plan->registers[i] > most ? plan->registers[i] : most;
    return most + 1;
}

int plan_keep(PlanProgram *plan, const bool *settled)
{
    if (plan->bound_to_guards || plan->frame.busy) {
        PyErr_SetString(PyExc_ValueError, "the plan has an entry already");
        return -1;
    }
    plan->bound_to_guards = true;
    plan->own_count = 0;
    for (int addressed = 1; addressed >= 0; addressed--) {
        for (int32_t i = 0; i < plan->input_count; i++)
            if (plan->slots[i].addressed == addressed && settled[plan->inputs[i]])
                plan->keep[plan->keep_count++] = i, plan->slots[i].kept = true;
        if (addressed)
            plan->addressed_count = plan->keep_count;
    }
    for (int32_t i = 0; i < plan->input_count; i++)
        if (!plan->slots[i].kept)
            plan->own[plan->own_count++] = i;
    return 0;
}

void plan_forget(PlanProgram *plan)
{
    PyObject *kept = plan->kept;
    plan->kept = NULL;
    if (!plan->frame.busy)
        frame_forget(plan, &plan->frame);
    Py_XDECREF(kept);
}

bool plan_swapped(PlanProgram *plan)
{
    bool swapped = plan->swapped;
    plan->swapped = false;
    return swapped;
}

Py_ssize_t plan_numbers_bound(PlanProgram *plan) { return plan->bound; }

/* ---- the Python type ---- */

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"plan", NULL};
    PyObject *source;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &source))
        return NULL;
    PlanProgram *plan = (PlanProgram *)type->tp_alloc(type, 0);
    if (!plan)
        return NULL;
    plan->plan = Py_NewRef(source);
    if (plan_compile(plan) < 0) {
        Py_DECREF(plan);
        return NULL;
    }
    plan->buffers = PyMem_Calloc((size_t)plan->buffer_room + 1, sizeof *plan->buffers);
    if (!plan->buffers || !frame_make(plan, &plan->frame)) {
        Py_DECREF(plan);
        return PyErr_NoMemory();
    }
    arena_user(plan->takes_arena = plan->arena_number >= 0);
    return (PyObject *)plan;
}

static int plan_traverse(PlanProgram *plan, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(plan));
    Py_VISIT(plan->plan);
    Py_VISIT(plan->held);
    Py_VISIT(plan->kept);
    int status = plan->region ? region_traverse(plan->region, visit, arg) : 0;
    if (status)
        return status;
    Py_VISIT(plan->frame.kept);
    for (int32_t i = 0; plan->frame.tensors && i < plan->slot_count; i++)
        if (!plan->slots[i].kept)
            Py_VISIT(plan->frame.tensors[i]);
    for (int32_t i = 0; plan->frame.registers && i < plan->register_count; i++)
        Py_VISIT(plan->frame.registers[i]);
    return 0;
}

static int plan_clear(PlanProgram *plan)
{
    plan->dead = true; /* steps and templates borrow from what goes now */
    plan_forget(plan);
    if (plan->region)
        region_clear(plan->region);
    Py_CLEAR(plan->plan);
    Py_CLEAR(plan->held);
    return 0;
}

static void plan_dealloc(PlanProgram *plan)
{
    PyTypeObject *type = Py_TYPE(plan);
    PyObject_GC_UnTrack(plan);
    frame_free(plan, &plan->frame);
    arena_user(-plan->takes_arena);
    plan_free(plan);
    plan_clear(plan);
    region_free(plan->region);
    PyMem_Free(plan->buffers);
    type->tp_free((PyObject *)plan);
    Py_DECREF(type);
}

static PyObject *plan_run_py(PlanProgram *plan, PyObject *args)
{
    PyObject *registers, *words, *result = NULL;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &registers, &PyTuple_Type, &words))
        return NULL;
    if (PyTuple_GET_SIZE(registers) < plan_registers_needed(plan) || PyTuple_GET_SIZE(words) < plan->bound)
        return PyErr_Format(PyExc_ValueError, "too few registers or numbers");
    int64_t *numbers = PyMem_Calloc((size_t)plan->bound + 1, sizeof *numbers);
    if (!numbers)
        return PyErr_NoMemory();
    for (int32_t i = 0; i < plan->bound; i++)
        numbers[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(words, i));
    int answer = PyErr_Occurred() ? RUN_DONE : plan_run(plan, ((PyTupleObject *)registers)->ob_item, numbers, AGE_UNKNOWN, &result);
    result = PyErr_Occurred() ? NULL : result;
    PyMem_Free(numbers);
    if (answer == RUN_DECLINED)
        PyErr_SetString(Declined, "the plan declined");
    return answer == RUN_DECLINED ? NULL : result;
}

static PyObject *get_arena_bytes(PlanProgram *plan, void *Py_UNUSED(closure)) { return PyLong_FromSize_t(plan->arena_bytes); }

static PyMethodDef plan_methods[] = {
    {"run", (PyCFunction)plan_run_py, METH_VARARGS, "Runs the plan without guards; raises Declined."},
    {"steps", (PyCFunction)region_steps_py, METH_VARARGS, "steps(inputs, state): runs the steps of the region on these inputs; gives its outs."},
    {"add", (PyCFunction)region_add_py, METH_VARARGS, "add(inputs, copied, state, replay): from now on a run like this one calls replay."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef plan_members[] = {
    {"plan", T_OBJECT, offsetof(PlanProgram, plan), READONLY, NULL},
    {"runs", T_ULONGLONG, offsetof(PlanProgram, runs), READONLY, NULL},
    {"declines", T_ULONGLONG, offsetof(PlanProgram, declines), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef plan_getset[] = {
    {"arena_bytes", (getter)get_arena_bytes, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot plan_slots[] = {
    {Py_tp_new, plan_new},
    {Py_tp_dealloc, plan_dealloc},
    {Py_tp_traverse, plan_traverse},
    {Py_tp_clear, plan_clear},
    {Py_tp_methods, plan_methods},
    {Py_tp_members, plan_members},
    {Py_tp_getset, plan_getset},
    {Py_tp_doc, "PlanProgram(plan): a plan compiled into C."},
    {0, NULL},
};
static PyType_Spec plan_spec = {"framefuse._native.PlanProgram", sizeof(PlanProgram), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, plan_slots};

PyTypeObject *make_plan_type(PyObject *module)
{
    return PlanProgram_Type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &plan_spec, NULL);
}
