/* Doors: calls of a Python function itself, from wherever they come, reach its Dispatch; on 3.11 a frame evaluator
   finds them, later the function's own vectorcall does. */
#include "frame_hook.h"

#include <pthread.h>

#if PY_VERSION_HEX < 0x030C0000
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#define PyUnstable_Eval_RequestCodeExtraIndex _PyEval_RequestCodeExtraIndex
#define PyUnstable_Code_SetExtra _PyCode_SetExtra
#endif

/* ---- Rooms: what is known of one code object, kept in its co_extra ---- */

typedef struct {
    PyObject **open;    /* Dispatch objects, borrowed: each closes its door when it dies; the newest first */
    Py_ssize_t count;
    /* dict from the address of a first argument to that of a Dispatch (as above), both ints; or NULL */
    PyObject *by_first;
    PyObject *watcher;  /* strong, or NULL */
    bool outermost;     /* the watcher is called for no call inside another one of this code */
} Room;

struct Extra { /* the layout of co_extra in 3.11, 3.12 and 3.13 */
    Py_ssize_t count;
    void *values[1];
};

static const Behind *behind; /* a Dispatch */
static Py_ssize_t extra_index = -1;
static Py_ssize_t in_use; /* open doors and watchers: the evaluator of 3.11 is on while there are any */
static __thread PyObject *passing;
static __thread int inside; /* calls of `outermost` code that run in this thread */

static void hook_on(void);
static void hook_off(void);

void doors_lead_to(const Behind *what) { behind = what; }

static void used(int change)
{
    in_use += change;
    if (change > 0)
        hook_on(); /* each time: another evaluator may have thrown us out */
    else if (in_use == 0)
        hook_off();
}

static inline Room *room_of(PyObject *code)
{
    struct Extra *extra = ((PyCodeObject *)code)->co_extra; /* NULL for nearly all code */
    /* Others may have put theirs there before we asked for an index. */
    return LIKELY(extra == NULL) || extra_index < 0 || extra->count <= extra_index ? NULL : extra->values[extra_index];
}

static void room_free(void *pointer)
{
    Room *room = pointer;
    if (!room)
        return;
    PyObject *watcher = room->watcher, *by_first = room->by_first;
    if (watcher)
        used(-1);
    PyMem_RawFree(room->open);
    PyMem_RawFree(room);
    Py_XDECREF(watcher);
    Py_XDECREF(by_first);
}

static Room *room_make(PyObject *code)
{
    if (extra_index < 0 && (extra_index = PyUnstable_Eval_RequestCodeExtraIndex(room_free)) < 0) {
        PyErr_SetString(PyExc_RuntimeError, "no free index for facts about code objects");
        return NULL;
    }
    Room *room = room_of(code);
    if (room)
        return room;
    if (!(room = PyMem_RawCalloc(1, sizeof *room)))
        return (Room *)PyErr_NoMemory();
    if (PyUnstable_Code_SetExtra(code, extra_index, room) < 0) {
        PyMem_RawFree(room);
        return NULL;
    }
    return room;
}

static void room_leave(PyObject *code)
{
    Room *room = room_of(code);
    /* frees the room */
    if (room && !room->count && !room->watcher && !(room->by_first && PyDict_GET_SIZE(room->by_first))
        && PyUnstable_Code_SetExtra(code, extra_index, NULL) < 0)
        PyErr_Clear();
}

/* Borrowed; `first` may be NULL. */
static PyObject *room_find(const Room *room, PyObject *function, PyObject *first)
{
    if (room->by_first && first) {
        PyObject *key = PyLong_FromVoidPtr(first), *address = key ? PyDict_GetItemWithError(room->by_first, key) : NULL;
        Py_XDECREF(key);
        PyObject *found = address ? PyLong_AsVoidPtr(address) : NULL;
        if (found && behind->function(found) == function)
            return found;
        if (!found)
            PyErr_Clear();
    }
    for (Py_ssize_t i = 0; i < room->count; i++)
        if (behind->function(room->open[i]) == function)
            return room->open[i];
    return NULL;
}

/* The open Dispatch of the function, a new reference; a watcher of its code is called first where there is none. */
static PyObject *door_of(PyObject *code, PyObject *function, PyObject *first)
{
    Room *room = room_of(code);
    PyObject *found = room_find(room, function, first);
    if (!found && room->watcher && !(room->outermost && inside)) {
        PyObject *watcher = Py_NewRef(room->watcher), *args[2] = {function, first ? first : Py_None};
        PyObject *done = PyObject_Vectorcall(watcher, args, 2, NULL);
        if (!done)
            PyErr_WriteUnraisable(watcher);
        Py_XDECREF(done);
        Py_DECREF(watcher);
        room = room_of(code); /* the watcher may have opened and closed doors */
        found = room ? room_find(room, function, first) : NULL;
    }
    return Py_XNewRef(found);
}

static bool counts_calls(PyObject *code)
{
    Room *room = room_of(code);
    return room && room->watcher && room->outermost;
}

/* The next call of the function in this thread runs its own code: the way from a Dispatch to what it stands for. */
PyObject *door_pass(PyObject *function)
{
    PyObject *before = passing;
    passing = function;
    return before;
}

void door_passed(PyObject *before) { passing = before; }

#if PY_VERSION_HEX < 0x030C0000

/* ---- 3.11: an evaluator of frames (PEP 523) ---- */

static _PyFrameEvalFunction next_evaluator;
static bool hooked;                              /* we set ourselves, and took ourselves out since then at no time */
static __thread _PyInterpreterFrame *handed_on;  /* the frame that the next evaluator has: does it come back to us? */

#define RESERVE (256 * 1024)
static __thread char *stack_floor;

/* With an evaluator each Python call is a call in C: the stack can end before the recursion limit that the user
   raised. */
static bool stack_is_low(void)
{
    if (UNLIKELY(!stack_floor)) {
        pthread_attr_t attributes;
        void *lowest;
        size_t size;
        stack_floor = (char *)1;
        if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
            if (pthread_attr_getstack(&attributes, &lowest, &size) == 0)
                stack_floor = (char *)lowest + RESERVE;
            pthread_attr_destroy(&attributes);
        }
    }
    return (char *)__builtin_frame_address(0) < stack_floor;
}

static PyObject *run_frame(PyThreadState *thread, _PyInterpreterFrame *frame, int throwing)
{
    if (UNLIKELY(stack_is_low())) { /* the evaluator raises RecursionError, and clears the frame */
        int left = thread->recursion_remaining;
        thread->recursion_remaining = 0;
        PyObject *none = _PyEval_EvalFrameDefault(thread, frame, throwing);
        thread->recursion_remaining = left;
        return none;
    }
    if (LIKELY(next_evaluator == _PyEval_EvalFrameDefault))
        return _PyEval_EvalFrameDefault(thread, frame, throwing);
    _PyInterpreterFrame *before = handed_on;
    handed_on = frame;
    PyObject *result = next_evaluator(thread, frame, throwing);
    handed_on = before;
    return result;
}

static PyObject *enter_room(PyThreadState *thread, _PyInterpreterFrame *frame)
{
    PyObject *code = (PyObject *)frame->f_code, *function = (PyObject *)frame->f_func, *dispatch = NULL, *result = NULL;
    bool plain = true;
    if (passing == function)
        passing = NULL;
    else
        dispatch = door_of(code, function, frame->f_code->co_argcount ? frame->localsplus[0] : NULL);
    int counted = counts_calls(code);
    inside += counted;
    if (dispatch)
        result = behind->frame(dispatch, code, frame->localsplus, &plain);
    Py_XDECREF(dispatch);
    if (plain)
        result = run_frame(thread, frame, 0);
    inside -= counted;
    return result; /* who called us clears the frame */
}

static PyObject *hook(PyThreadState *thread, _PyInterpreterFrame *frame, int throwing)
{
    if (UNLIKELY(handed_on == frame)) /* the next evaluator was put above us once more */
        return _PyEval_EvalFrameDefault(thread, frame, throwing);
    if (UNLIKELY(room_of((PyObject *)frame->f_code) != NULL) && !throwing && frame->owner == FRAME_OWNED_BY_THREAD
        && !frame->frame_obj)
        return enter_room(thread, frame);
    if (UNLIKELY(!in_use))
        hook_off();
    return run_frame(thread, frame, throwing);
}

static void hook_on(void)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (current == hook || (hooked && current != next_evaluator && current != _PyEval_EvalFrameDefault))
        return; /* another evaluator stands above us and hands its frames on */
    next_evaluator = current;
    hooked = true;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, hook);
}

static void hook_off(void)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    if (_PyInterpreterState_GetEvalFrameFunc(interpreter) != hook)
        return; /* under another evaluator: the first frame after that one goes takes us out */
    _PyInterpreterState_SetEvalFrameFunc(interpreter, next_evaluator);
    hooked = false;
}

static int take_slot(PyObject *Py_UNUSED(function)) { return 0; }
static void give_slot(PyObject *Py_UNUSED(function)) {}
static int see_new_functions(PyObject *Py_UNUSED(code)) { return 0; }

#else

/* ---- 3.12 and later: the function's own vectorcall ---- */

static vectorcallfunc usual; /* that of every function; CPython does not export it */

static void hook_on(void) {}
static void hook_off(void) {}

static void give_slot(PyObject *function);

static PyObject *door_call(PyObject *function, PyObject *const *args, size_t flags, PyObject *names)
{
    PyObject *code = ((PyFunctionObject *)function)->func_code;
    if (UNLIKELY(!room_of(code))) { /* __code__ was replaced, or the last watcher went */
        give_slot(function);
        return usual(function, args, flags, names);
    }
    PyObject *dispatch = NULL, *result;
    Py_INCREF(function);
    if (passing == function)
        passing = NULL;
    else
        dispatch = door_of(code, function, PyVectorcall_NARGS(flags) ? args[0] : NULL);
    int counted = counts_calls(code);
    inside += counted;
    if (dispatch)
        result = behind->call(dispatch, args, flags, names);
    else
        result = usual(function, args, flags, names);
    inside -= counted;
    Py_XDECREF(dispatch);
    Py_DECREF(function);
    return result;
}

static int take_slot(PyObject *function)
{
    vectorcallfunc now = ((PyFunctionObject *)function)->vectorcall;
    if (!usual) {
        PyObject *code = (PyObject *)PyCode_NewEmpty("", "", 1), *globals = PyDict_New();
        PyObject *other = code && globals ? PyFunction_New(code, globals) : NULL;
        if (other)
            usual = ((PyFunctionObject *)other)->vectorcall;
        Py_XDECREF(code);
        Py_XDECREF(globals);
        Py_XDECREF(other);
        if (!usual)
            return -1;
    }
    if (now == door_call)
        return 0;
    if (now != usual) {
        PyErr_Format(PyExc_RuntimeError, "another compiler has taken the calls of %R", function);
        return -1;
    }
    PyFunction_SetVectorcall((PyFunctionObject *)function, door_call);
    return 0;
}

static void give_slot(PyObject *function)
{
    if (((PyFunctionObject *)function)->vectorcall == door_call)
        PyFunction_SetVectorcall((PyFunctionObject *)function, usual);
}

static int on_function(PyFunction_WatchEvent event, PyFunctionObject *function, PyObject *Py_UNUSED(value))
{
    Room *room = event == PyFunction_EVENT_CREATE ? room_of(function->func_code) : NULL;
    return room && room->watcher ? take_slot((PyObject *)function) : 0;
}

static int see_new_functions(PyObject *code)
{
    static int watcher = -1;
    /* new functions take it over: no call site is specialised for a function of version 0 */
    ((PyCodeObject *)code)->co_version = 0;
    if (watcher < 0)
        watcher = PyFunction_AddWatcher(on_function);
    return watcher < 0 ? -1 : 0;
}

#endif

/* ---- What Python sees ---- */

static bool is_lazy(PyObject *code)
{
    return ((PyCodeObject *)code)->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR);
}

static int room_add(Room *room, PyObject *dispatch, PyObject *first)
{
    if (first) {
        if (!room->by_first && !(room->by_first = PyDict_New()))
            return -1;
        PyObject *address = PyLong_FromVoidPtr(dispatch);
        int status = address ? PyDict_SetItem(room->by_first, first, address) : -1;
        Py_XDECREF(address);
        return status;
    }
    PyObject **grown = PyMem_RawRealloc(room->open, (size_t)(room->count + 1) * sizeof *grown);
    if (!grown) {
        PyErr_NoMemory();
        return -1;
    }
    memmove(grown + 1, grown, (size_t)room->count * sizeof *grown);
    grown[0] = dispatch;
    room->open = grown, room->count++;
    return 0;
}

static void room_remove(Room *room, PyObject *dispatch, PyObject *first)
{
    if (first) {
        PyObject *address = PyDict_GetItemWithError(room->by_first, first);
        if (!address || PyLong_AsVoidPtr(address) != dispatch || PyDict_DelItem(room->by_first, first) < 0)
            PyErr_Clear();
        return;
    }
    Py_ssize_t at = 0;
    while (room->open[at] != dispatch)
        at++;
    memmove(room->open + at, room->open + at + 1, (size_t)(--room->count - at) * sizeof *room->open);
}

PyObject *open_door_py(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *dispatch, *first = Py_None;
    if (!PyArg_ParseTuple(args, "O|O", &dispatch, &first))
        return NULL;
    PyObject *function = behind->function(dispatch);
    if (!function || !PyFunction_Check(function) || is_lazy(((PyFunctionObject *)function)->func_code))
        return PyErr_Format(PyExc_TypeError, "not the Dispatch of a Python function that runs when it is called: %R",
                            dispatch);
    Door *door = behind->door(dispatch);
    if (door->code)
        Py_RETURN_NONE;
    PyObject *code = ((PyFunctionObject *)function)->func_code, *key = NULL;
    Room *room = room_make(code);
    if (!room || (first != Py_None && !(key = PyLong_FromVoidPtr(first))))
        return NULL;
    if (take_slot(function) < 0 || room_add(room, dispatch, key) < 0) {
        Py_XDECREF(key);
        room_leave(code);
        return NULL;
    }
    *door = (Door){Py_NewRef(code), key};
    used(+1);
    Py_RETURN_NONE;
}

void door_close(PyObject *dispatch)
{
    Door *slot = behind->door(dispatch), door = *slot;
    Room *room = door.code ? room_of(door.code) : NULL;
    if (!room)
        return;
    PyObject *function = Py_NewRef(behind->function(dispatch));
    *slot = (Door){NULL, NULL};
    PyObject *kind, *error, *trace; /* a Dispatch may die while an exception passes */
    PyErr_Fetch(&kind, &error, &trace);
    room_remove(room, dispatch, door.first);
    if (!room->watcher && !room->by_first && !room_find(room, function, NULL))
        give_slot(function);
    room_leave(door.code);
    Py_DECREF(function);
    Py_DECREF(door.code);
    Py_XDECREF(door.first);
    used(-1);
    PyErr_Restore(kind, error, trace);
}

PyObject *forget_first_py(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function, *first;
    if (!PyArg_ParseTuple(args, "O!O!", &PyFunction_Type, &function, &PyLong_Type, &first))
        return NULL;
    Room *room = room_of(((PyFunctionObject *)function)->func_code);
    if (room && room->by_first && PyDict_DelItem(room->by_first, first) < 0)
        PyErr_Clear(); /* its door was closed */
    Py_RETURN_NONE;
}

PyObject *behind_door_py(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function, *first;
    if (!PyArg_ParseTuple(args, "O!O", &PyFunction_Type, &function, &first))
        return NULL;
    Room *room = room_of(((PyFunctionObject *)function)->func_code);
    PyObject *found = room ? room_find(room, function, first) : NULL;
    return Py_NewRef(found ? found : Py_None);
}

PyObject *close_door_py(PyObject *Py_UNUSED(module), PyObject *dispatch)
{
    if (!behind->function(dispatch))
        return PyErr_Format(PyExc_TypeError, "not a Dispatch: %R", dispatch);
    door_close(dispatch);
    Py_RETURN_NONE;
}

PyObject *watch_calls_py(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *target, *watcher;
    int outermost = 0;
    if (!PyArg_ParseTuple(args, "OO|p", &target, &watcher, &outermost))
        return NULL;
    PyObject *code = PyFunction_Check(target) ? ((PyFunctionObject *)target)->func_code : target;
    if (!PyCode_Check(code) || is_lazy(code))
        return PyErr_Format(PyExc_TypeError, "not a function or code object that runs when it is called: %R", target);
    Room *room = watcher == Py_None ? room_of(code) : room_make(code);
    if (!room) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    if (watcher != Py_None && (PyFunction_Check(target) ? take_slot(target) : see_new_functions(code)) < 0) {
        room_leave(code);
        return NULL;
    }
    PyObject *before = room->watcher;
    room->watcher = watcher == Py_None ? NULL : Py_NewRef(watcher);
    room->outermost = outermost;
    if (!before != !room->watcher)
        used(room->watcher ? +1 : -1);
    room_leave(code);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}
