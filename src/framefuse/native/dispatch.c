/* The compiled function: a vectorcall object that binds a call, finds the entry whose guards hold and runs its plan. */
#include "dispatch.h"

#include <structmember.h>

#include "bind.h"
#include "frame_hook.h"
#include "frames.h"
#include "guards.h"
#include "plan_type.h"
#include "rewind.h"
#include "run.h"
#include "steps.h"
#include "switch.h"
#include "torch_abi.h"
#include "weigh.h"

/* ---- Compiled: guards and the plan that they protect ---- */

typedef struct {
    PyObject_HEAD
    GuardSet *guards;  /* strong */
    PlanProgram *plan; /* strong */
    PyObject *follow;  /* strong or NULL: the Dispatch of the point that the plan leads to */
    PyObject *vain;    /* strong or NULL: called with the entry once its plan has often declined */
    uint64_t hits, declines;
} Compiled;

enum { OFTEN = 3 }; /* declined calls: fewer may be errors of the program's */

static PyTypeObject *Compiled_Type;

static bool is_point(PyObject *object);

static PyObject *compiled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"guards", "plan", "follow", "vain", NULL};
    PyObject *guards, *plan, *follow = Py_None, *vain = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!|OO", names, GuardSet_Type, &guards, PlanProgram_Type, &plan,
                                     &follow, &vain))
        return NULL;
    if (follow != Py_None && !is_point(follow))
        return PyErr_Format(PyExc_TypeError, "not the Dispatch of a point: %R", follow);
    if (plan_registers_needed((PlanProgram *)plan) > guards_register_count((GuardSet *)guards)
        || plan_numbers_bound((PlanProgram *)plan) > guards_number_count((GuardSet *)guards))
        return PyErr_Format(PyExc_ValueError, "the plan reads registers or numbers that its guards do not set");
    Compiled *entry = (Compiled *)type->tp_alloc(type, 0);
    if (entry) {
        Py_ssize_t count = guards_reals((GuardSet *)guards, NULL);
        ReadReal *reals = PyMem_Calloc((size_t)count + 1, sizeof *reals);
        if (reals)
            guards_reals((GuardSet *)guards, reals);
        else
            PyErr_NoMemory();
        if (!reals || plan_keep((PlanProgram *)plan, guards_settled((GuardSet *)guards), reals, count) < 0) {
            PyMem_Free(reals);
            Py_DECREF(entry);
            return NULL;
        }
        entry->guards = (GuardSet *)Py_NewRef(guards);
        entry->plan = (PlanProgram *)Py_NewRef(plan);
        entry->follow = follow == Py_None ? NULL : Py_NewRef(follow);
        entry->vain = vain == Py_None ? NULL : Py_NewRef(vain);
    }
    return (PyObject *)entry;
}

static int compiled_traverse(Compiled *entry, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(entry));
    Py_VISIT(entry->guards);
    Py_VISIT(entry->plan);
    Py_VISIT(entry->follow);
    Py_VISIT(entry->vain);
    return 0;
}

static void compiled_dealloc(Compiled *entry)
{
    PyTypeObject *type = Py_TYPE(entry);
    PyObject_GC_UnTrack(entry);
    Py_CLEAR(entry->guards);
    Py_CLEAR(entry->plan);
    Py_CLEAR(entry->follow);
    Py_CLEAR(entry->vain);
    type->tp_free((PyObject *)entry);
    Py_DECREF(type);
}

static PyMemberDef compiled_members[] = {
    {"guards", T_OBJECT, offsetof(Compiled, guards), READONLY, NULL},
    {"plan", T_OBJECT, offsetof(Compiled, plan), READONLY, NULL},
    {"follow", T_OBJECT, offsetof(Compiled, follow), READONLY, NULL},
    {"hits", T_ULONGLONG, offsetof(Compiled, hits), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot compiled_slots[] = {
    /* no tp_clear: guards, plan and follow break their own cycles */
    {Py_tp_new, compiled_new},
    {Py_tp_dealloc, compiled_dealloc},
    {Py_tp_traverse, compiled_traverse},
    {Py_tp_members, compiled_members},
    {Py_tp_doc,
     "Compiled(guards, plan, follow=None, vain=None): one entry of a Dispatch; with follow the plan gives "
     "(target, args, kwargs, values...) of a break; vain(entry) is called once the plan has often declined."},
    {0, NULL},
};
static PyType_Spec compiled_spec = {"framefuse._native.Compiled", sizeof(Compiled), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, compiled_slots};

PyTypeObject *make_compiled_type(PyObject *module)
{
    return Compiled_Type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &compiled_spec, NULL);
}

/* ---- Dispatch ---- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function;            /* strong, never NULL: also after tp_clear others may still call us */
    PyObject *owner;               /* strong or NULL */
    PyObject *miss;                /* strong; NULL after tp_clear */
    PyObject *failed;              /* of a point: takes over when the opaque step raised; strong or NULL */
    PyObject *weighed;             /* told of each weighing; strong or NULL */
    Py_ssize_t point;              /* of a point: how many values it takes, positionally; else -1 */
    PyObject *dict, *weakrefs;
    Door door;                     /* what of the function's calls reaches us (frame_hook.c) */
    Signature signature;           /* of the function's code; code is NULL for what is no Python function */
    Compiled **entries;            /* strong references, the last hit first */
    Py_ssize_t entry_count;
    uint64_t calls, hits, misses, declines;
    double eager;                  /* seconds of the calls for which nothing compiled held and nothing was compiled */
    uint64_t waited;               /* how many they are */
    double until;                  /* so long do such calls run without asking whether to compile */
    uint32_t vain;                 /* such calls in a row */
    uint32_t rest;                 /* so many of the next calls are made without looking */
    uint32_t pause;                /* what rest was after the last of such calls */
    Weigh weigh;
    bool timed;                    /* such calls of rest count as eager */
    bool enabled, bypass;
} Dispatch;

/* A program whose every call is a case of its own pays for looking at ever fewer calls, one in 1 + REST at last. */
enum { VAIN = 128, FIRST_REST = 15, REST = 255 };
enum { SMALL = 12, OUR_FRAMES = 300 /* that recording and compiling take at most, below those of the program */ };

static __thread int thread_bypass;

PyObject *bypass_py(PyObject *Py_UNUSED(module), PyObject *on)
{
    int value = PyObject_IsTrue(on), before = thread_bypass;
    if (value < 0)
        return NULL;
    thread_bypass = value;
    return PyBool_FromLong(before);
}

/* Room for the owner and the arguments: the caller's own array where it may be extended, else a copy. */
static PyObject **with_owner(Dispatch *self, PyObject *const *args, Py_ssize_t total, PyObject **small)
{
    PyObject **all = total + 1 <= SMALL ? small : PyMem_Malloc((size_t)(total + 1) * sizeof *all);
    if (!all)
        return (PyObject **)PyErr_NoMemory();
    all[0] = self->owner;
    if (total)
        memcpy(all + 1, args, (size_t)total * sizeof *all);
    return all;
}

static PyObject *call_original(Dispatch *self, PyObject *const *args, size_t flags, PyObject *names)
{
    if (!self->owner) {
        if (LIKELY(!self->door.code))
            return PyObject_Vectorcall(self->function, args, flags, names);
        PyObject *function = Py_NewRef(self->function), *before = door_pass(function);
        PyObject *result = PyObject_Vectorcall(function, args, flags, names);
        door_passed(before);
        Py_DECREF(function);
        return result;
    }
    PyObject *small[SMALL];
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    PyObject **all = with_owner(self, args, count + (names ? PyTuple_GET_SIZE(names) : 0), small);
    if (!all)
        return NULL;
    PyObject *result = PyObject_Vectorcall(self->function, all, (size_t)count + 1, names);
    if (all != small)
        PyMem_Free(all);
    return result;
}

/* A call for which nothing compiled held has run the function since `begun`. */
static void ran_eagerly(Dispatch *self, double begun)
{
    bool paused = self->vain >= VAIN;
    uint32_t calls = paused ? 1 + self->pause : 1;
    self->eager += (weigh_clock() - begun) * calls, self->waited += calls;
    if (self->point >= 0 || ++self->vain < VAIN)
        return;
    self->timed = false;
    self->rest = self->pause = !paused ? FIRST_REST : self->pause < REST ? 2 * self->pause + 1 : REST;
}

/* Calls `miss(args, kwargs)`, and the function itself where that gives Declined: no frame of ours stands above it
   then. Takes over both references, either of which may be NULL with an exception. */
static PyObject *call_miss_with(Dispatch *self, PyObject *args, PyObject *kwargs)
{
    PyObject *pair[2] = {args, kwargs}, *result = NULL;
    if (args && kwargs) {
        PyObject *miss = Py_NewRef(self->miss), *function = Py_NewRef(self->function), *before = NULL;
        bool open = self->door.code != NULL;
        if (open)
            before = door_pass(function);
        headroom(OUR_FRAMES);
        result = PyObject_Vectorcall(miss, pair, 2, NULL);
        headroom(-OUR_FRAMES);
        if (result == Declined) {
            Py_DECREF(result);
            double begun = weigh_clock();
            result = PyObject_Call(function, args, kwargs);
            ran_eagerly(self, begun);
        } else {
            self->vain = 0;
        }
        if (open)
            door_passed(before);
        Py_DECREF(function);
        Py_DECREF(miss);
    }
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    return result;
}

static PyObject *call_miss(Dispatch *self, PyObject *const *args, size_t flags, PyObject *names)
{
    if (!self->miss || self->miss == Py_None)
        return call_original(self, args, flags, names);
    Py_ssize_t count = PyVectorcall_NARGS(flags), shift = self->owner != NULL;
    PyObject *all = PyTuple_New(count + shift), *kwargs = PyDict_New();
    if (all && shift)
        PyTuple_SET_ITEM(all, 0, Py_NewRef(self->owner));
    for (Py_ssize_t i = 0; all && i < count; i++)
        PyTuple_SET_ITEM(all, i + shift, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; names && kwargs && i < PyTuple_GET_SIZE(names); i++)
        if (PyDict_SetItem(kwargs, PyTuple_GET_ITEM(names, i), args[count + i]) < 0)
            Py_CLEAR(kwargs);
    return call_miss_with(self, all, kwargs);
}

/* Bound arguments as a call has them, by name where they have to be; either is NULL with an exception. */
static void unbind(Dispatch *self, PyObject *const *bound, PyObject **args, PyObject **keywords)
{
    const Signature *signature = &self->signature;
    int end = signature->positional + signature->keyword_only;
    PyObject *rest = signature->var_positional ? bound[end] : NULL;
    Py_ssize_t more = rest ? PyTuple_GET_SIZE(rest) : 0;
    PyObject *all = PyTuple_New(signature->positional + more);
    PyObject *kwargs = signature->var_keywords ? PyDict_Copy(bound[end + signature->var_positional]) : PyDict_New();
    for (Py_ssize_t i = 0; all && i < signature->positional; i++)
        PyTuple_SET_ITEM(all, i, Py_NewRef(bound[i]));
    for (Py_ssize_t i = 0; all && i < more; i++)
        PyTuple_SET_ITEM(all, signature->positional + i, Py_NewRef(PyTuple_GET_ITEM(rest, i)));
    for (Py_ssize_t i = signature->positional; kwargs && i < end; i++)
        if (PyDict_SetItem(kwargs, PyTuple_GET_ITEM(signature->code->co_localsplusnames, i), bound[i]) < 0)
            Py_CLEAR(kwargs);
    *args = all, *keywords = kwargs;
}

static PyObject *call_miss_bound(Dispatch *self, PyObject *const *bound)
{
    PyObject *args, *kwargs;
    unbind(self, bound, &args, &kwargs);
    return call_miss_with(self, args, kwargs);
}

static PyObject *call_original_bound(Dispatch *self, PyObject *const *bound)
{
    PyObject *args, *kwargs, *result = NULL;
    unbind(self, bound, &args, &kwargs);
    if (args && kwargs) {
        PyObject *function = Py_NewRef(self->function), *before = door_pass(function);
        result = PyObject_Call(function, args, kwargs);
        door_passed(before);
        Py_DECREF(function);
    }
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    return result;
}

enum { FOUND_NONE, FOUND_DONE, FOUND_DECLINED };

/* Entries that are not run for long keep no parameters that the program has replaced. */
static void forget_others(Dispatch *self, const Compiled *but)
{
    /* what dies may run Python code, which may change the entries */
    for (Py_ssize_t i = 0; i < self->entry_count; i++) {
        Compiled *entry = (Compiled *)Py_NewRef((PyObject *)self->entries[i]);
        if (entry != but)
            plan_forget(entry->plan);
        Py_DECREF(entry);
    }
}

/* *follow receives a new reference to the point that the plan leads to, or NULL. */
static void ran_in_vain(Compiled *entry)
{
    if (++entry->declines < OFTEN || !entry->vain)
        return;
    PyObject *vain = entry->vain, *told;
    entry->vain = NULL;
    if (!(told = PyObject_CallOneArg(vain, (PyObject *)entry)))
        PyErr_WriteUnraisable(vain);
    Py_XDECREF(told);
    Py_DECREF(vain);
}

static int try_entries(Dispatch *self, PyObject *const *bound, Py_ssize_t total, PyObject **result, Dispatch **follow)
{
    State state;
    bool state_known = false;
    for (Py_ssize_t i = 0; i < self->entry_count; i++) {
        Compiled *entry = self->entries[i];
        if (!state_known && guards_need_state(entry->guards)) {
            if (UNLIKELY(!abi_read_state(&state))) {
                PyErr_Clear();
                return FOUND_NONE;
            }
            state_known = true;
        }
        Py_INCREF(entry); /* Python code below may clear the entries */
        Py_ssize_t answer = guards_check(entry->guards, bound, total, &state);
        if (answer != GUARDS_HIT) {
            Py_DECREF(entry);
            if (answer == GUARDS_BUSY) /* nothing says that another trace is needed */
                return FOUND_DECLINED;
            continue;
        }
        if (i > 0 && i < self->entry_count && self->entries[i] == entry) {
            memmove(self->entries + 1, self->entries, (size_t)i * sizeof *self->entries);
            self->entries[0] = entry;
        }
        if (UNLIKELY(!entry->hits && !entry->declines)) /* what is compiled comes again: there may be more such cases */
            self->until = 0.0;
        self->vain = 0;
        int done = plan_run(entry->plan, guards_registers(entry->guards), guards_numbers(entry->guards),
                            guards_age(entry->guards), result);
        guards_release(entry->guards);
        if (LIKELY(done == RUN_DONE))
            self->hits++, entry->hits++;
        if (UNLIKELY(plan_swapped(entry->plan)))
            forget_others(self, entry);
        *follow = done == RUN_DONE && *result ? (Dispatch *)Py_XNewRef(entry->follow) : NULL;
        if (UNLIKELY(done == RUN_DECLINED))
            ran_in_vain(entry);
        Py_DECREF(entry);
        return done == RUN_DONE ? FOUND_DONE : FOUND_DECLINED;
    }
    return FOUND_NONE;
}

static int bind_and_try(Dispatch *self, PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result,
                        Dispatch **follow)
{
    PyObject *small[SMALL], **bound = small;
    Signature *signature = &self->signature;
    bool plain =
        !names && signature->total == signature->positional && count + (self->owner != NULL) == signature->total;
    if (LIKELY(plain)) { /* borrowed: the caller holds its arguments */
        if (!self->owner)
            return try_entries(self, args, count, result, follow);
        bound = with_owner(self, args, count, small);
        int found = bound ? try_entries(self, bound, count + 1, result, follow) : FOUND_DONE;
        if (bound && bound != small)
            PyMem_Free(bound);
        return found;
    }
    int total = signature->total;
    if (total > SMALL && !(bound = PyMem_Malloc((size_t)total * sizeof *bound))) {
        *result = PyErr_NoMemory();
        return FOUND_DONE;
    }
    int status = bind_call(signature, (PyFunctionObject *)self->function, self->owner, args, count, names, bound),
        found = FOUND_DECLINED;
    if (status == 1)
        found = try_entries(self, bound, total, result, follow);
    else if (status < 0)
        PyErr_Clear(); /* the original call meets the same error, or does not */
    for (int i = 0; i < total; i++)
        Py_XDECREF(bound[i]);
    if (bound != small)
        PyMem_Free(bound);
    return found;
}

/* ---- points: where compiled code goes on after a step that runs for real ---- */

enum { TARGET, ARGS, KWARGS, HANDED };

/* The opaque step of a break; its outcome takes the place of the keywords, next to the values that are handed on. */
static int run_step(PyObject *handed, PyObject *const **values, Py_ssize_t *count)
{
    PyObject **items = ((PyTupleObject *)handed)->ob_item;
    *values = items + HANDED, *count = PyTuple_GET_SIZE(handed) - HANDED;
    if (items[TARGET] == Py_None)
        return 0;
    PyObject *outcome = PyObject_Call(items[TARGET], items[ARGS], items[KWARGS] == Py_None ? NULL : items[KWARGS]);
    if (!outcome)
        return -1;
    Py_SETREF(items[KWARGS], outcome);
    --*values, ++*count;
    return 0;
}

/* The program goes on by the interpreter, with the exception of the step at its place. */
static PyObject *step_failed(Dispatch *point, PyObject *handed)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace)
        PyException_SetTraceback(error, trace);
    PyObject *values = PyTuple_GetSlice(handed, HANDED, PyTuple_GET_SIZE(handed)), *result = NULL;
    headroom(OUR_FRAMES);
    if (values && point->failed)
        result = PyObject_CallFunctionObjArgs(point->failed, error, values, NULL);
    else
        PyErr_SetObject(kind, error);
    headroom(-OUR_FRAMES);
    Py_XDECREF(values);
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return result;
}

/* Steals handed and point. A loop of the program that closes on itself is a loop here. */
static PyObject *run_points(PyObject *handed, Dispatch *point)
{
    for (;;) {
        PyObject *const *values, *result = NULL;
        Py_ssize_t count;
        Dispatch *next = NULL;
        if (UNLIKELY(!PyTuple_CheckExact(handed) || PyTuple_GET_SIZE(handed) < HANDED || Py_REFCNT(handed) != 1))
            PyErr_SetString(PyExc_SystemError, "a plan with a point gave no tuple of its own");
        else if (run_step(handed, &values, &count) < 0)
            result = step_failed(point, handed);
        else if (PyErr_CheckSignals() == 0) {
            if (count != point->point)
                PyErr_SetString(PyExc_SystemError, "a plan gave another number of values than its point takes");
            else {
                point->calls++;
                int found = point->enabled ? try_entries(point, values, count, &result, &next) : FOUND_DECLINED;
                if (found == FOUND_DECLINED) {
                    point->declines++;
                    PyObject *mode = rewind_enter();
                    result = PyObject_Vectorcall(point->function, values, (size_t)count, NULL);
                    rewind_leave(mode);
                } else if (found == FOUND_NONE) {
                    point->misses++;
                    result = call_miss(point, values, (size_t)count, NULL);
                }
            }
        }
        Py_DECREF(handed);
        Py_DECREF(point);
        if (!next)
            return result;
        handed = result, point = next;
    }
}

static bool usable(Dispatch *self)
{
    if (!self->enabled || self->bypass || thread_bypass || calls_are_off())
        return false;
    if (self->point >= 0)
        return true;
    if (!self->signature.code)
        return false;
    PyCodeObject *code = (PyCodeObject *)((PyFunctionObject *)self->function)->func_code;
    if (UNLIKELY(code != self->signature.code))
        signature_read(&self->signature, code);
    return true;
}

/* *ran: compiled code ran in the call. */
static PyObject *compiled_call(Dispatch *self, PyObject *const *args, size_t flags, PyObject *names, bool *ran)
{
    Dispatch *follow = NULL;
    if (UNLIKELY(Py_EnterRecursiveCall(" in a compiled function")))
        return NULL;
    PyObject *result = NULL;
    if (names && PyTuple_GET_SIZE(names) == 0)
        names = NULL;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    int found = LIKELY(self->point < 0) ? bind_and_try(self, args, count, names, &result, &follow)
                : count == self->point  ? try_entries(self, args, count, &result, &follow)
                                        : FOUND_DECLINED;
    *ran = found == FOUND_DONE;
    if (follow)
        result = run_points(result, follow);
    else if (UNLIKELY(found != FOUND_DONE)) {
        if (found == FOUND_DECLINED) {
            self->declines++;
            PyObject *mode = rewind_enter();
            result = call_original(self, args, flags, names);
            rewind_leave(mode);
        } else {
            self->misses++;
            if (self->eager < self->until) {
                double begun = weigh_clock();
                result = call_original(self, args, flags, names);
                ran_eagerly(self, begun);
            } else {
                result = call_miss(self, args, flags, names);
            }
        }
    }
    Py_LeaveRecursiveCall();
    if (UNLIKELY(!result))
        hide_frames();
    return result;
}

/* Takes note of a call that was made for its turn; a weighing that has ended is judged in Python. */
static PyObject *weighed(Dispatch *self, Turn turn, double begun, bool ran, PyObject *result)
{
    Weigh *weigh = &self->weigh;
    if (!result || !weigh->on || (turn != TURN_EAGER && (!ran || weigh->recorded))
        || !weigh_add(weigh, turn, turn == TURN_NONE ? 0.0 : weigh_clock() - begun))
        return result;
    Weigh done = *weigh;
    *weigh = (Weigh){.on = false};
    PyObject *judge = Py_XNewRef(self->weighed);
    /* Without the longest of each side: the first eager call behind many others finds cold caches, and takes ten times
       as long as the next one. */
    double eager = done.sum[TURN_EAGER] - done.most[TURN_EAGER];
    double compiled = done.sum[TURN_COMPILED] - done.most[TURN_COMPILED];
    PyObject *told = judge ? PyObject_CallFunction(judge, "dddd", eager, compiled, done.least[TURN_EAGER],
                                                   done.least[TURN_COMPILED])
                           : NULL;
    if (!told && judge)
        PyErr_WriteUnraisable(judge);
    Py_XDECREF(told);
    Py_XDECREF(judge);
    return result;
}

static PyObject *weighed_call(Dispatch *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Turn turn = weigh_turn(&self->weigh);
    bool ran = false;
    self->weigh.recorded = false;
    double begun = turn == TURN_NONE ? 0.0 : weigh_clock();
    int before = thread_bypass; /* compiled functions below would compile what this one has in its own code */
    if (turn == TURN_EAGER)
        thread_bypass = 1;
    PyObject *result = turn == TURN_EAGER ? call_original(self, args, flags, names)
                                          : compiled_call(self, args, flags, names, &ran);
    thread_bypass = before;
    return weighed(self, turn, begun, ran, result);
}

static PyObject *dispatch_call(PyObject *object, PyObject *const *args, size_t flags, PyObject *names)
{
    Dispatch *self = (Dispatch *)object;
    self->calls++;
    if (UNLIKELY(!usable(self)))
        return call_original(self, args, flags, names);
    if (UNLIKELY(self->rest)) {
        self->rest--;
        bool timed = self->timed;
        double begun = timed ? weigh_clock() : 0.0;
        PyObject *result = call_original(self, args, flags, names);
        if (timed)
            self->eager += weigh_clock() - begun, self->waited++;
        return result;
    }
    if (UNLIKELY(self->weigh.on))
        return weighed_call(self, args, flags, names);
    bool ran;
    return compiled_call(self, args, flags, names, &ran);
}

static PyObject *compiled_frame(Dispatch *self, PyObject *const *bound, bool *plain, bool *ran)
{
    if (UNLIKELY(Py_EnterRecursiveCall(" in a compiled function"))) {
        *plain = false;
        return NULL;
    }
    PyObject *result = NULL;
    Dispatch *follow = NULL;
    int found = try_entries(self, bound, self->signature.total, &result, &follow);
    *ran = found == FOUND_DONE;
    if (follow) {
        *plain = false;
        result = run_points(result, follow);
    } else if (found == FOUND_DECLINED) {
        self->declines++;
        if (UNLIKELY(rewind_waits())) {
            PyObject *mode = rewind_enter();
            *plain = false;
            result = call_original_bound(self, bound);
            rewind_leave(mode);
        }
    } else if (found == FOUND_DONE) {
        *plain = false;
    } else {
        self->misses++;
        *plain = !self->miss || self->miss == Py_None;
        if (!*plain && self->eager < self->until) {
            double begun = weigh_clock();
            result = call_original_bound(self, bound);
            ran_eagerly(self, begun);
        } else if (!*plain) {
            result = call_miss_bound(self, bound);
        }
    }
    Py_LeaveRecursiveCall();
    if (UNLIKELY(!result && !*plain))
        hide_frames();
    return result;
}

static PyObject *weighed_frame(Dispatch *self, PyObject *const *bound, bool *plain)
{
    Turn turn = weigh_turn(&self->weigh);
    bool ran = false;
    self->weigh.recorded = false;
    *plain = turn != TURN_EAGER;
    double begun = turn == TURN_NONE ? 0.0 : weigh_clock();
    int before = thread_bypass;
    if (turn == TURN_EAGER)
        thread_bypass = 1;
    PyObject *result = *plain ? compiled_frame(self, bound, plain, &ran) : call_original_bound(self, bound);
    thread_bypass = before;
    return *plain ? result : weighed(self, turn, begun, ran, result);
}

static PyObject *dispatch_frame(PyObject *object, PyObject *code, PyObject *const *bound, bool *plain)
{
    Dispatch *self = (Dispatch *)object;
    self->calls++;
    *plain = true;
    if (UNLIKELY(!self->enabled || self->bypass || thread_bypass || calls_are_off()))
        return NULL;
    if (UNLIKELY(self->rest)) {
        self->rest--;
        if (!self->timed)
            return NULL;
        *plain = false;
        double begun = weigh_clock();
        PyObject *result = call_original_bound(self, bound);
        self->eager += weigh_clock() - begun, self->waited++;
        return result;
    }
    if (UNLIKELY(code != (PyObject *)self->signature.code))
        signature_read(&self->signature, (PyCodeObject *)code);
    if (UNLIKELY(self->weigh.on))
        return weighed_frame(self, bound, plain);
    bool ran;
    return compiled_frame(self, bound, plain, &ran);
}

static PyTypeObject *Dispatch_Type;

static PyObject *dispatch_function(PyObject *object)
{
    return Py_IS_TYPE(object, Dispatch_Type) && !((Dispatch *)object)->owner ? ((Dispatch *)object)->function : NULL;
}

static Door *dispatch_door(PyObject *object) { return &((Dispatch *)object)->door; }

static PyObject *dispatch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "miss", "owner", "point", "failed", "weighed", NULL};
    PyObject *function, *miss, *owner = Py_None, *failed = Py_None, *weighed = Py_None;
    Py_ssize_t point = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$OnOO", names, &function, &miss, &owner, &point, &failed,
                                     &weighed))
        return NULL;
    if (!PyCallable_Check(function) || (miss != Py_None && !PyCallable_Check(miss)))
        return PyErr_Format(PyExc_TypeError, "%R is not callable", PyCallable_Check(function) ? miss : function);
    Dispatch *self = (Dispatch *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->vectorcall = dispatch_call;
    self->function = Py_NewRef(function);
    self->miss = Py_NewRef(miss);
    self->owner = owner == Py_None ? NULL : Py_NewRef(owner);
    self->failed = failed == Py_None ? NULL : Py_NewRef(failed);
    self->weighed = weighed == Py_None ? NULL : Py_NewRef(weighed);
    self->point = point;
    self->enabled = true;
    if (point < 0 && PyFunction_Check(function))
        signature_read(&self->signature, (PyCodeObject *)((PyFunctionObject *)function)->func_code);
    return (PyObject *)self;
}

static void drop_entries(Dispatch *self)
{
    Compiled **entries = self->entries;
    Py_ssize_t count = self->entry_count;
    self->entries = NULL, self->entry_count = 0;
    for (Py_ssize_t i = 0; i < count; i++)
        Py_DECREF(entries[i]);
    PyMem_Free(entries);
}

static int dispatch_traverse(Dispatch *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->function);
    Py_VISIT(self->owner);
    Py_VISIT(self->miss);
    Py_VISIT(self->failed);
    Py_VISIT(self->weighed);
    Py_VISIT(self->dict);
    Py_VISIT(self->signature.code);
    Py_VISIT(self->door.code);
    for (Py_ssize_t i = 0; i < self->entry_count; i++)
        Py_VISIT(self->entries[i]);
    return 0;
}

static int dispatch_clear(Dispatch *self)
{
    Py_CLEAR(self->dict);
    Py_CLEAR(self->miss);
    Py_CLEAR(self->failed);
    Py_CLEAR(self->weighed);
    drop_entries(self);
    return 0;
}

static void dispatch_dealloc(Dispatch *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weakrefs)
        PyObject_ClearWeakRefs((PyObject *)self);
    if (self->door.code)
        door_close((PyObject *)self);
    dispatch_clear(self);
    Py_CLEAR(self->function);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->signature.code);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *dispatch_get(PyObject *self, PyObject *instance, PyObject *Py_UNUSED(type))
{
    return instance == NULL || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

static PyObject *dispatch_repr(Dispatch *self) { return PyUnicode_FromFormat("<compiled %R>", self->function); }

static PyObject *forward_get(Dispatch *self, void *name)
{
    PyObject *found = self->dict ? PyDict_GetItemString(self->dict, name) : NULL;
    if (found)
        return Py_NewRef(found);
    return strcmp(name, "__wrapped__") == 0 ? Py_NewRef(self->function) : PyObject_GetAttrString(self->function, name);
}

/* What a notebook shows: the Python half writes it; what has none is shown as any object. */
static PyObject *dispatch_html(Dispatch *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *half = self->dict ? PyDict_GetItemString(self->dict, "__framefuse__") : NULL;
    return half ? PyObject_CallMethod(half, "_repr_html_", NULL) : Py_NewRef(Py_None);
}

/* Own attributes first, then the function's: __annotations__, __defaults__, __code__, what the user put there. */
static PyObject *dispatch_getattr(PyObject *self, PyObject *name)
{
    /* No getset as its fellows: the type's own __module__ has to be a string. */
    if (PyUnicode_CompareWithASCIIString(name, "__module__") == 0)
        return forward_get((Dispatch *)self, "__module__");
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return found;
    PyErr_Clear();
    return PyObject_GetAttr(((Dispatch *)self)->function, name);
}

/* Settable, since functools.update_wrapper assigns all of them; what is called does not change. */
static int forward_set(Dispatch *self, PyObject *value, void *name)
{
    if (!self->dict && !(self->dict = PyDict_New()))
        return -1;
    return value ? PyDict_SetItemString(self->dict, name, value) : PyDict_DelItemString(self->dict, name);
}

static PyObject *get_entries(Dispatch *self, void *Py_UNUSED(closure))
{
    PyObject *tuple = PyTuple_New(self->entry_count);
    for (Py_ssize_t i = 0; tuple && i < self->entry_count; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef((PyObject *)self->entries[i]));
    return tuple;
}

static PyObject *dispatch_add(Dispatch *self, PyObject *entry)
{
    if (!Py_IS_TYPE(entry, Compiled_Type))
        return PyErr_Format(PyExc_TypeError, "not a Compiled: %R", entry);
    Compiled **grown = PyMem_Realloc(self->entries, (size_t)(self->entry_count + 1) * sizeof *grown);
    if (!grown)
        return PyErr_NoMemory();
    memmove(grown + 1, grown, (size_t)self->entry_count * sizeof *grown);
    grown[0] = (Compiled *)Py_NewRef(entry);
    self->entries = grown;
    self->entry_count++;
    self->vain = self->rest = 0, self->until = 0.0;
    forget_others(self, grown[0]);
    Py_RETURN_NONE;
}

static PyObject *dispatch_remove(Dispatch *self, PyObject *entry)
{
    for (Py_ssize_t i = 0; i < self->entry_count; i++)
        if ((PyObject *)self->entries[i] == entry) {
            self->entry_count--;
            memmove(self->entries + i, self->entries + i + 1, (size_t)(self->entry_count - i) * sizeof *self->entries);
            Py_DECREF(entry);
            break;
        }
    Py_RETURN_NONE;
}

static PyObject *dispatch_drop(Dispatch *self, PyObject *Py_UNUSED(none))
{
    drop_entries(self);
    self->weigh = (Weigh){.on = false};
    self->vain = self->rest = 0, self->until = 0.0;
    Py_RETURN_NONE;
}

/* So many of the next calls are eager; after so many more of compiled code they are weighed. */
static PyObject *dispatch_weigh(Dispatch *self, PyObject *args)
{
    unsigned int until, rest;
    if (!PyArg_ParseTuple(args, "II", &until, &rest))
        return NULL;
    self->weigh = (Weigh){.on = true, .until = until};
    self->rest = rest, self->timed = false;
    Py_RETURN_NONE;
}

/* So many of the next calls are eager, at least, and count as such. */
static PyObject *dispatch_pause(Dispatch *self, PyObject *calls)
{
    unsigned long rest = PyLong_AsUnsignedLong(calls);
    if (rest == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    if (rest > self->rest)
        self->rest = (uint32_t)rest, self->timed = true;
    Py_RETURN_NONE;
}

static PyObject *dispatch_bind(Dispatch *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (!self->signature.code)
        Py_RETURN_NONE;
    signature_read(&self->signature, (PyCodeObject *)((PyFunctionObject *)self->function)->func_code);
    Py_ssize_t total = self->signature.total;
    PyObject **bound = PyMem_Calloc((size_t)total + 1, sizeof *bound), *result = NULL;
    if (!bound)
        return PyErr_NoMemory();
    int status =
        bind_call(&self->signature, (PyFunctionObject *)self->function, self->owner, args, count, names, bound);
    if (status == 1 && (result = PyTuple_New(total)))
        for (Py_ssize_t i = 0; i < total; i++)
            PyTuple_SET_ITEM(result, i, Py_NewRef(bound[i]));
    for (Py_ssize_t i = 0; i < total; i++)
        Py_XDECREF(bound[i]);
    PyMem_Free(bound);
    return status == 0 ? Py_NewRef(Py_None) : result;
}

static PyObject *dispatch_reduce(Dispatch *self, PyObject *Py_UNUSED(protocol))
{
    PyObject *state = PyObject_GetAttrString((PyObject *)self, "__framefuse__"), *how = NULL;
    if (state)
        how = PyObject_CallMethod(state, "reduce", NULL);
    else if (PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Format(PyExc_TypeError, "cannot pickle the compiled function %R", self->function);
    Py_XDECREF(state);
    return how;
}

static PyObject *dispatch_self(PyObject *self, PyObject *Py_UNUSED(memo)) { return Py_NewRef(self); }

#define FORWARD(name) {name, (getter)forward_get, (setter)forward_set, NULL, name}
static PyGetSetDef dispatch_getset[] = {
    FORWARD("__wrapped__"),
    FORWARD("__name__"),
    FORWARD("__qualname__"),
    FORWARD("__doc__"),
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {"entries", (getter)get_entries, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef dispatch_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Dispatch, vectorcall), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Dispatch, weakrefs), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Dispatch, dict), READONLY, NULL},
    {"function", T_OBJECT, offsetof(Dispatch, function), READONLY, NULL},
    {"miss", T_OBJECT, offsetof(Dispatch, miss), READONLY, NULL},
    {"owner", T_OBJECT, offsetof(Dispatch, owner), READONLY, NULL},
    {"door", T_OBJECT, offsetof(Dispatch, door.code), READONLY, NULL},
    {"calls", T_ULONGLONG, offsetof(Dispatch, calls), 0, NULL},
    {"hits", T_ULONGLONG, offsetof(Dispatch, hits), 0, NULL},
    {"misses", T_ULONGLONG, offsetof(Dispatch, misses), READONLY, NULL},
    {"declines", T_ULONGLONG, offsetof(Dispatch, declines), READONLY, NULL},
    {"enabled", T_BOOL, offsetof(Dispatch, enabled), 0, NULL},
    {"bypass", T_BOOL, offsetof(Dispatch, bypass), 0, NULL},
    {"weighs", T_BOOL, offsetof(Dispatch, weigh) + offsetof(Weigh, on), READONLY, NULL},
    {"recorded", T_BOOL, offsetof(Dispatch, weigh) + offsetof(Weigh, recorded), 0, NULL},
    {"rest", T_UINT, offsetof(Dispatch, rest), READONLY, NULL},
    {"eager", T_DOUBLE, offsetof(Dispatch, eager), READONLY, NULL},
    {"waited", T_ULONGLONG, offsetof(Dispatch, waited), READONLY, NULL},
    {"until", T_DOUBLE, offsetof(Dispatch, until), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef dispatch_methods[] = {
    {"add", (PyCFunction)dispatch_add, METH_O, "Puts an entry first."},
    {"remove", (PyCFunction)dispatch_remove, METH_O, "Drops one entry, if it is there."},
    {"clear", (PyCFunction)dispatch_drop, METH_NOARGS, "Drops all entries."},
    {"weigh", (PyCFunction)dispatch_weigh, METH_VARARGS, "When calls are weighed next."},
    {"pause", (PyCFunction)dispatch_pause, METH_O, "So many of the next calls are eager."},
    {"bind", (PyCFunction)(void (*)(void))dispatch_bind, METH_FASTCALL | METH_KEYWORDS,
     "The bound arguments of a call, or None."},
    {"_repr_html_", (PyCFunction)dispatch_html, METH_NOARGS, NULL},
    {"__reduce__", (PyCFunction)dispatch_reduce, METH_NOARGS, NULL},
    {"__reduce_ex__", (PyCFunction)dispatch_reduce, METH_O, NULL},
    {"__copy__", (PyCFunction)dispatch_self, METH_NOARGS, NULL},
    {"__deepcopy__", (PyCFunction)dispatch_self, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot dispatch_slots[] = {
    {Py_tp_new, dispatch_new},
    {Py_tp_dealloc, dispatch_dealloc},
    {Py_tp_traverse, dispatch_traverse},
    {Py_tp_clear, dispatch_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, dispatch_get},
    {Py_tp_repr, dispatch_repr},
    {Py_tp_getattro, dispatch_getattr},
    {Py_tp_getset, dispatch_getset},
    {Py_tp_members, dispatch_members},
    {Py_tp_methods, dispatch_methods},
    {0, NULL},
};
/* IMMUTABLETYPE keeps the vectorcall slot of a heap type; METHOD_DESCRIPTOR lets `o.m(x)` call without making a
   bound method. */
static PyType_Spec dispatch_spec = {"framefuse._native.Dispatch", sizeof(Dispatch), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
                                        | Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_IMMUTABLETYPE,
                                    dispatch_slots};

static bool is_point(PyObject *object) { return Py_IS_TYPE(object, Dispatch_Type) && ((Dispatch *)object)->point >= 0; }

PyTypeObject *make_dispatch_type(PyObject *module)
{
    static const Behind behind = {dispatch_function, dispatch_door, dispatch_call, dispatch_frame};
    doors_lead_to(&behind);
    return Dispatch_Type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &dispatch_spec, NULL);
}
