/* Calls as if a frame further out had made them: what looks at the stack then meets none of the frames in between. */
#include "border.h"

#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#if PY_VERSION_HEX < 0x030D0000
#define TOP(thread) ((thread)->cframe->current_frame)
#else
#define TOP(thread) ((thread)->current_frame)
#endif

/* at_frame(prepare, *args): prepare(*args) gives a frame that runs in this thread, and what is then called on top of it. The
   frames between stay where they are, and are on top again afterwards. */
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
    PyObject *result = NULL;
    if (below) {
        TOP(thread) = below;
        result = PyObject_CallNoArgs(call);
        TOP(thread) = top;
    } else {
        PyErr_SetString(PyExc_ValueError, "the frame does not run in this thread");
    }
    Py_DECREF(prepared);
    return result;
}
