/* Keeps what a run draws and sends from happening twice: generators go back to where a declined run found them, a run
   whose collective has run does not decline any more, and an operator of the program's that raised in a run is not
   called again by the program that runs in its place. */
#include "rewind.h"

#include "call.h"
#include "plan.h"
#include "template.h"

static PyObject *generator(const PlanProgram *plan, Frame *frame, int32_t i)
{
    return template_build(&plan->generators[i], frame);
}

int rewind_save(const PlanProgram *plan, Frame *frame)
{
    PyObject *states = PyTuple_New(plan->generator_count);
    for (int32_t i = 0; states && i < plan->generator_count; i++) {
        PyObject *owner = generator(plan, frame, i),
                 *state = owner ? PyObject_CallMethod(owner, "get_state", NULL) : NULL;
        Py_XDECREF(owner);
        if (!state)
            Py_CLEAR(states);
        else
            PyTuple_SET_ITEM(states, i, state);
    }
    frame->states = states;
    return states ? 0 : -1;
}

void plan_rewind(const PlanProgram *plan, Frame *frame)
{
    PyErr_Clear();
    for (int32_t i = 0; frame->states && i < plan->generator_count; i++) {
        PyObject *owner = generator(plan, frame, i);
        PyObject *done =
            owner ? PyObject_CallMethod(owner, "set_state", "O", PyTuple_GET_ITEM(frame->states, i)) : NULL;
        if (!done)
            PyErr_Clear(); /* a generator takes the state that it gave */
        Py_XDECREF(done);
        Py_XDECREF(owner);
    }
}

/* Says beside an error that what the call did before it is done, which a traceback of compiled code does not show. */
static void add_note(void)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    PyObject *done = error ? PyObject_CallMethod(error, "add_note", "s",
                                                 "The compiled call had written its inputs, or done another thing that "
                                                 "cannot be done twice, before this error: it was not run again.")
                           : NULL;
    if (!done)
        PyErr_Clear();
    Py_XDECREF(done);
    PyErr_Restore(kind, error, trace);
}

/* An interrupt is not the program's business and must not be lost: it is not answered by running the program again. */
bool run_must_end(const Frame *frame)
{
    if (frame->committed && !PyErr_Occurred())
        PyErr_SetString(
            PyExc_RuntimeError,
            "an index is out of range, an integer is divided by zero or memory ran out, after a step of this call "
            "that cannot run twice");
    if (frame->behind && PyErr_ExceptionMatches(PyExc_Exception))
        add_note();
    return frame->committed || (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception));
}

static __thread PyObject *to_enter; /* owned, or NULL: under what the program runs in place of the run that declined */

static PyObject *call_made(const CallInfo *call)
{
    return Py_BuildValue("(OO)", call->function, call->out_count ? Py_True : Py_False);
}

/* The step has failed: what keeps its call from being made again is made of the calls of its kind up to it. */
void rewind_raised(const PlanProgram *plan, Frame *frame, const Step *failed)
{
    const CallInfo *call = failed->as.call;
    if (!call->once || frame->committed || !PyErr_ExceptionMatches(PyExc_Exception))
        return;
    PyObject *kind, *error, *trace, *calls = PyList_New(0);
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (error && trace)
        PyException_SetTraceback(error, trace);
    for (const Step *step = plan->steps; calls && step <= failed; step++) {
        PyObject *made = step->kind == STEP_CALL && step->as.call->once ? call_made(step->as.call) : Py_NewRef(Py_None);
        if (!made || (made != Py_None && PyList_Append(calls, made) < 0))
            Py_CLEAR(calls);
        Py_XDECREF(made);
    }
    Py_XSETREF(frame->raised, calls && error ? PyObject_CallFunctionObjArgs(call->once, calls, error, NULL) : NULL);
    Py_XDECREF(calls);
    if (!frame->raised)
        PyErr_Clear();
    PyErr_Restore(kind, error, trace);
}

void rewind_declined(Frame *frame)
{
    PyObject *before = to_enter;
    to_enter = frame->raised, frame->raised = NULL;
    Py_XDECREF(before);
}

bool rewind_waits(void) { return to_enter != NULL; }

PyObject *rewind_enter(void)
{
    PyObject *mode = to_enter;
    to_enter = NULL;
    PyObject *entered = mode ? PyObject_CallMethod(mode, "__enter__", NULL) : NULL;
    if (mode && !entered) {
        PyErr_Clear();
        Py_CLEAR(mode);
    }
    Py_XDECREF(entered);
    return mode;
}

void rewind_leave(PyObject *mode)
{
    if (LIKELY(!mode))
        return;
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyObject *left = PyObject_CallMethod(mode, "__exit__", "OOO", Py_None, Py_None, Py_None);
    if (!left)
        PyErr_WriteUnraisable(mode);
    Py_XDECREF(left);
    Py_DECREF(mode);
    PyErr_Restore(kind, error, trace);
}
