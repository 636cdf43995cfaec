/* Keeps what a run draws and sends from happening twice: generators go back to where a declined run found them, and
   a run whose collective has run does not decline any more. */
#include "rewind.h"

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
