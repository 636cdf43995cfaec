/* Keeps our own frames out of sight: calls that look at the stack are made as if a frame further out made them, and
   tracebacks of the program's exceptions name none of ours. */
#include "frames.h"

#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#if PY_VERSION_HEX < 0x030D0000
#define TOP(thread) ((thread)->cframe->current_frame)
#else
#define TOP(thread) ((thread)->current_frame)
#endif

/* at_frame(prepare, *args): prepare(*args) gives a frame, and what is then called on top of it if it still runs
   here. The frames between stay where they are, and are on top again afterwards. */
PyObject *at_frame_py(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "at_frame() takes what prepares the call");
        return NULL;
    }
    PyObject *prepared = PyObject_Vectorcall(args[0], args + 1, count - 1, NULL), *call;
    PyFrameObject *outer;
    if (!prepared || !PyArg_ParseTuple(prepared, "O!O:at_frame", &PyFrame_Type, &outer, &call)) {
        Py_XDECREF(prepared);
        return NULL;
    }
    PyThreadState *thread = PyThreadState_Get();
    struct _PyInterpreterFrame *top = TOP(thread), *below = top;
    while (below && below != outer->f_frame)
        below = below->previous;
    if (below) /* else no Python frame called us */
        TOP(thread) = below;
    PyObject *result = PyObject_CallNoArgs(call);
    TOP(thread) = top;
    Py_DECREF(prepared);
    return result;
}

/* As many more frames as our own take between those of the program, which meets its end of recursion where it would
   without us. */
void headroom(int more)
{
    PyThreadState *thread = PyThreadState_Get();
#if PY_VERSION_HEX < 0x030C0000
    thread->recursion_remaining += more;
#else
    thread->py_recursion_remaining += more;
#endif
}

PyObject *headroom_py(PyObject *Py_UNUSED(module), PyObject *more)
{
    long count = PyLong_AsLong(more);
    if (count == -1 && PyErr_Occurred())
        return NULL;
    headroom((int)count);
    Py_RETURN_NONE;
}

static bool is_ours(PyFrameObject *frame)
{
    PyObject *globals = PyFrame_GetGlobals(frame), *name = PyDict_GetItemString(globals, "__name__");
    const char *text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : "";
    bool ours = text && strncmp(text, "framefuse.", 10) == 0 && strcmp(text, "framefuse.demo") != 0;
    Py_DECREF(globals);
    return ours;
}

/* Takes our frames out of the traceback of the exception that is set. One that is all our own, as UserError has,
   stays whole. */
void hide_frames(void)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    PyTracebackObject *first = NULL, *last = NULL;
    for (PyTracebackObject *here = (PyTracebackObject *)trace; here && PyTraceBack_Check(here);) {
        PyTracebackObject *next = here->tb_next;
        if (!is_ours(here->tb_frame)) {
            if (!first)
                first = here;
            else if (last->tb_next != here) {
                Py_INCREF(here);
                Py_XSETREF(last->tb_next, here);
            }
            last = here;
        }
        here = next;
    }
    if (first) {
        if (last->tb_next)
            Py_CLEAR(last->tb_next);
        Py_INCREF(first);
        Py_SETREF(trace, (PyObject *)first);
        PyException_SetTraceback(error, trace);
    }
    PyErr_Restore(kind, error, trace);
}
