/* Runs a plan: numbers, then steps over slots, then effects, then the result; whatever goes wrong before the effects
   declines the call. */
#include "run.h"

#include "frame.h"
#include "memory.h"
#include "plan.h"
#include "profile.h"
#include "replay.h"
#include "rewind.h"
#include "steps.h"
#include "template.h"
#include "torch_abi.h"

/* `labels` are the steps' names for a profiler, or NULL. */
static inline int some_steps(PlanProgram *plan, Frame *frame, char **buffers, PyObject *labels, int32_t from,
                             int32_t to)
{
    for (const Step *step = plan->steps + from, *end = plan->steps + to; step < end; step++) {
        PyObject *range = labels ? profile_enter(labels, step - plan->steps) : NULL;
        int status = step_run(plan, frame, step, buffers);
        if (range)
            profile_leave(range);
        if (UNLIKELY(status < 0 || numbers_between(plan, frame, step->numbers_from, step->numbers_to) < 0))
            return -1;
    }
    return 0;
}

static inline int every_step(PlanProgram *plan, Frame *frame, char **buffers, PyObject *labels)
{
    int32_t done = 0;
    if (plan->region) {
        done = plan->region->lead;
        if (UNLIKELY(some_steps(plan, frame, buffers, labels, 0, done) < 0))
            return -1;
        int region = region_run(plan, frame);
        if (UNLIKELY(region < 0))
            return -1;
        if (region == REGION_DONE)
            return some_steps(plan, frame, buffers, labels, plan->region->steps, plan->step_count);
    }
    if (UNLIKELY(memory_begin(plan, frame) < 0))
        return -1;
    return some_steps(plan, frame, buffers, labels, done, plan->step_count);
}

static int run_steps(PlanProgram *plan, Frame *frame, char **buffers)
{
    if (LIKELY(!profile_listens()))
        return every_step(plan, frame, buffers, NULL);
    PyObject *labels = profile_labels(plan->plan), *whole = profile_enter(labels, plan->step_count);
    int status = every_step(plan, frame, buffers, labels);
    if (whole)
        profile_leave(whole);
    Py_XDECREF(labels);
    return status;
}

/* ---- a run ---- */

static inline bool usable(const PlanProgram *plan, Frame *frame, int32_t input)
{
    PyObject *tensor = frame->tensors[input];
    return LIKELY(tensor && abi_is_tensor(tensor))
           && (!plan->slots[input].addressed || abi_data(tensor, &frame->data[input]));
}

/* Whether `kept` holds what the registers hold. */
static bool keeps_these(const PlanProgram *plan, PyObject *const *registers)
{
    for (int32_t i = 0; i < plan->keep_count; i++)
        if (PyTuple_GET_ITEM(plan->kept, i) != registers[plan->inputs[plan->keep[i]]])
            return false;
    return true;
}

/* Makes `kept` hold the kept inputs in the registers; gives what it was before if it changed, for the caller to drop
   when no register is read any more: a parameter that dies may run Python code. 0, or -1 with an exception. */
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
    for (int32_t i = 0; i < plan->real_count; i++) {
        const ReadReal *real = &plan->reals[i];
        double value = as_real(numbers[real->number]);
        if (UNLIKELY(value != value) && frame_keep_nan(frame, real->number, registers[real->from]) < 0)
            return -1;
    }
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
    return numbers_between(plan, frame, 0, plan->early_numbers);
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
    Py_CLEAR(frame->nans);
    size_t bytes = memory_end(plan, frame);
    plan->arena_bytes = bytes > plan->arena_bytes ? bytes : plan->arena_bytes;
}

/* Keeps what the first run that declines says, for who asks why calls run eagerly. No code of the program runs: only a
   message that is plain text is read. */
static void keep_error(PlanProgram *plan)
{
    PyObject *kind, *error, *trace, *said = NULL;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    PyObject *args = error && PyExceptionInstance_Check(error) ? ((PyBaseExceptionObject *)error)->args : NULL;
    if (args && PyTuple_CheckExact(args) && PyTuple_GET_SIZE(args) && PyUnicode_CheckExact(PyTuple_GET_ITEM(args, 0)))
        said = PyTuple_GET_ITEM(args, 0);
    plan->declined = said ? PyUnicode_FromFormat("%s: %U", Py_TYPE(error)->tp_name, said)
                          : PyUnicode_FromString(error ? Py_TYPE(error)->tp_name : "an error");
    if (!plan->declined)
        PyErr_Clear();
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
}

static int run_in(PlanProgram *plan, Frame *frame, char **buffers, PyObject *const *registers, const int64_t *numbers,
                  PyObject **result)
{
    *result = NULL;
    int answer = RUN_DONE;
    PyObject *before = NULL;
    frame->committed = frame->behind = false;
    if (LIKELY(load(plan, frame, registers, numbers, &before) == 0
               && (!plan->generator_count || rewind_save(plan, frame) == 0) && run_steps(plan, frame, buffers) == 0)) {
        if (run_finish(plan, frame))
            *result = template_build(&plan->result, frame);
    } else if (!run_must_end(frame)) {
        if (!plan->declined && PyErr_Occurred())
            keep_error(plan);
        plan_rewind(plan, frame);
        rewind_declined(frame);
        plan->declines++;
        answer = RUN_DECLINED;
    }
    Py_CLEAR(frame->states);
    Py_CLEAR(frame->raised);
    unload(plan, frame);
    Py_XDECREF(before);
    return answer;
}

/* Whether somebody looks at the single nodes that eager makes: anomaly mode names the one at fault, and hooks of
   saved tensors see what each saves. Checkpoints are such hooks, and count on the same tensors when they run the
   program once more. */
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
    if (plan->keep_count && UNLIKELY(!plan->kept || age != plan->kept_at || age == AGE_UNKNOWN)
        && keep_inputs(plan, registers, age, &before) < 0) {
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
    for (int32_t i = 0; i < plan->real_count; i++)
        most = plan->reals[i].from > most ? plan->reals[i].from : most;
    return most + 1;
}

int plan_keep(PlanProgram *plan, const bool *settled, ReadReal *reals, Py_ssize_t real_count)
{
    if (plan->bound_to_guards || plan->frame.busy) {
        PyErr_SetString(PyExc_ValueError, "the plan has an entry already");
        return -1;
    }
    plan->bound_to_guards = true;
    plan->reals = reals;
    for (Py_ssize_t i = 0; i < real_count; i++)
        if (reals[i].number < plan->bound)
            reals[plan->real_count++] = reals[i];
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
