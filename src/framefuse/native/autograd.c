/* Hangs outputs that a plan has computed into torch's autograd, and answers the engine when their gradients are
   asked. */
#include "autograd.h"

#include <structmember.h>

#include "torch_abi.h"

/* ---- Attach: the place of one graph in autograd; holds no tensor ---- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *backward, *differentiable;  /* strong; NULL after tp_clear */
    PyObject *function;                   /* strong: the class torch.autograd.Function that is applied */
    PyObject *near[5];                    /* strong: what torch looks up on `function` in each call, by NEAR */
    PyObject *apply;                      /* strong: torch's own apply of it, past the checks that guards have made */
    PyObject *wanted;                     /* strong: the int whose first `inputs` bits are set */
    /* strong: descriptors of the node; the last may be NULL */
    PyObject *to_save, *materialize, *saved_tensors, *clear_saved;
    /* strong: what a walk that wants some gradients checks and frees; a dict of the answers */
    PyObject *part, *parts;
    PyObject *asked;                      /* strong or NULL: whether gradients read these of the roots, as bits */
    PyObject *names;                      /* strong: of each output None, or eager's node and which of its results */
    PyObject *met; /* strong: (watched tensor, how eager's node holds it), in the order in which a walk meets them */
    /* owned: of each watched tensor: 0, or its memory is kept and not the tensor; output 0 is 1, an input -1. One that
       is READ_AGAIN is kept itself, and nobody asks whether it was written. */
    int32_t *memory;
    bool frees;                           /* a second walk of all is an error */
    Py_ssize_t inputs, outputs, watched, through, own, roots, numbers;
    Py_ssize_t before_own; /* the values of a call that stand before the own tensors */
    uint64_t calls, backwards;
} Attach;

/* What a node keeps from forward to backward: the tensors only watched, those through, which are watched too, own
   tensors, roots and numbers; behind them the versions of the watched tensors and of the roots.

   Torch saves in its own way what somebody's hooks want to see, and what it refuses to save. Else that is needed for
   its check of changes in place alone, for which the versions stand here: an eighth of the call. An output would
   make a cycle here, so a tensor of the same memory stands for it, which has the same version. The same is kept for
   an input of which eager keeps a view: it is what the input was, also when it is given other memory. */
typedef struct {
    PyObject_VAR_HEAD
    Attach *attach;    /* strong */
    bool torch_has;    /* torch has the own tensors and those through */
    bool freed;        /* all of it */
    PyObject *gone;    /* strong, or NULL: what walks freed that wanted some gradients, as the bits of an int */
    Py_ssize_t count;  /* of tensors and numbers */
    PyObject *items[]; /* strong; NULL where torch has it or it was given away */
} Held;

static int64_t *versions(const Held *held) { return (int64_t *)(held->items + held->count); }

static PyTypeObject *Attach_Type, *Held_Type;
static Py_ssize_t held_offset; /* of the slot that the nodes of every Attach have */

/* The values of the call that is on its way through torch into `forward` of the same thread. */
typedef struct {
    Attach *attach;
    PyObject *const *values;
} Passing;
static __thread Passing *passing;

static const char FREED[] =
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already "
    "been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). "
    "Specify retain_graph=True if you need to "
    "backward through the graph a second time or if you need to access saved tensors after calling backward.";

/* ---- the function's class ---- */

/* Torch makes a new string for each attribute that it asks of the function's class, so that CPython's cache of
   attributes never hits, and looks through all classes behind it: a third of the whole call. The metaclass answers
   during a call of ours. */
static const struct {
    const char *name;
    Py_ssize_t length;
} NEAR[] = {{"_backward_cls", 13},
            {"forward", 7},
            {"setup_context", 13},
            {"clear_saved_tensors_on_access", 29},
            {"boxed_grads_call", 16}};
enum { NEAR_COUNT = sizeof NEAR / sizeof *NEAR };

static PyTypeObject *Function_Type; /* the metaclass, made with the first Attach */

static PyObject *function_getattr(PyObject *function, PyObject *name)
{
    if (passing && passing->attach->function == function && PyUnicode_IS_COMPACT_ASCII(name)) {
        Py_ssize_t length = PyUnicode_GET_LENGTH(name);
        for (int i = 0; i < NEAR_COUNT; i++)
            if (length == NEAR[i].length && !memcmp(PyUnicode_DATA(name), NEAR[i].name, (size_t)length)
                && passing->attach->near[i])
                return Py_NewRef(passing->attach->near[i]);
    }
    return PyType_Type.tp_getattro(function, name);
}

static PyType_Slot function_slots[] = {
    {Py_tp_getattro, function_getattr},
    {Py_tp_doc, "The metaclass of functions that Attach applies: torch's own, with quicker look-ups."},
    {0, NULL},
};
static PyType_Spec function_spec = {"framefuse._native.FunctionMeta", 0, 0, Py_TPFLAGS_DEFAULT, function_slots};

static PyObject *metaclass(void)
{
    PyObject *base = abi.python ? PyDict_GetItemString(abi.python, "function_meta") : NULL;
    if (!Function_Type && !base)
        return PyErr_Format(PyExc_RuntimeError, "torch's binary interface is not initialised");
    if (!Function_Type)
        Function_Type = (PyTypeObject *)PyType_FromSpecWithBases(&function_spec, base);
    return (PyObject *)Function_Type;
}

/* ---- Held ---- */

static int held_traverse(Held *held, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(held));
    Py_VISIT(held->attach);
    for (Py_ssize_t i = 0; i < held->count; i++)
        Py_VISIT(held->items[i]);
    return 0;
}

static int held_clear(Held *held)
{
    held->freed = true;
    Py_CLEAR(held->gone);
    for (Py_ssize_t i = 0; i < held->count; i++)
        Py_CLEAR(held->items[i]);
    return 0;
}

static void held_dealloc(Held *held)
{
    PyTypeObject *type = Py_TYPE(held);
    PyObject_GC_UnTrack(held);
    held_clear(held);
    Py_CLEAR(held->attach);
    type->tp_free((PyObject *)held);
    Py_DECREF(type);
}

static PyType_Slot held_slots[] = {
    {Py_tp_dealloc, held_dealloc},
    {Py_tp_traverse, held_traverse},
    {Py_tp_clear, held_clear},
    {Py_tp_doc, "What a node of a compiled graph keeps from forward to backward."},
    {0, NULL},
};
static PyType_Spec held_spec = {
    "framefuse._native.Held", offsetof(Held, items), sizeof(PyObject *),
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, held_slots};

static PyObject **held_of(PyObject *node) { return (PyObject **)((char *)node + held_offset); }

static PyObject *get(PyObject *descriptor, PyObject *node)
{
    return Py_TYPE(descriptor)->tp_descr_get(descriptor, node, (PyObject *)Py_TYPE(node));
}

static int set(PyObject *descriptor, PyObject *node, PyObject *value)
{
    return Py_TYPE(descriptor)->tp_descr_set(descriptor, node, value);
}

static PyObject *tuple_of(PyObject *const *items, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(items[i]));
    return tuple;
}

/* ---- forward: torch calls it with the node and the inputs; everything else comes by `passing` ---- */

static Py_ssize_t watched_of(const Attach *attach) { return attach->watched + attach->through; }

enum { READ_AGAIN = -2 };

static Held *hold(Attach *attach, PyObject *const *values, bool hooked)
{
    Py_ssize_t watched = watched_of(attach), roots = watched + attach->own,
               count = roots + attach->roots + attach->numbers;
    Held *held = PyObject_GC_NewVar(Held, Held_Type, count + watched + attach->roots);
    if (!held)
        return NULL;
    held->attach = (Attach *)Py_NewRef(attach);
    held->torch_has = hooked, held->freed = false, held->gone = NULL, held->count = count;
    memset(held->items, 0, (size_t)count * sizeof *held->items);
    PyObject_GC_Track(held);
    for (Py_ssize_t i = 0; i < watched; i++)
        held->torch_has |= !abi_version(values[i], &versions(held)[i]);
    for (Py_ssize_t i = 0; i < attach->roots; i++)
        if (!abi_version(values[roots + i], &versions(held)[watched + i]))
            versions(held)[watched + i] = -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (held->torch_has && i >= attach->watched && i < roots)
            continue;
        bool apart = i < watched && attach->memory[i] && attach->memory[i] != READ_AGAIN;
        held->items[i] = apart ? abi_call("detach", &values[i], 1) : Py_NewRef(values[i]);
        if (!held->items[i]) {
            Py_DECREF(held);
            return NULL;
        }
    }
    return held;
}

static PyObject *forward(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Passing *call = passing;
    if (!call || count != call->attach->inputs + 1)
        return PyErr_Format(PyExc_RuntimeError, "this function is applied by compiled code only");
    passing = NULL;
    Attach *attach = call->attach;
    PyObject *node = args[0], *const *outputs = call->values + attach->inputs,
             *const *values = outputs + attach->outputs;
    int hooked = abi_hooks_active();
    if (hooked < 0 || set(attach->materialize, node, Py_False) < 0)
        return NULL;
    Held *held = hold(attach, values, hooked);
    if (!held)
        return NULL;
    Py_XSETREF(*held_of(node), (PyObject *)held);
    if (held->torch_has && attach->through + attach->own) {
        PyObject *tuple = tuple_of(values + attach->watched, attach->through + attach->own);
        int status = tuple ? set(attach->to_save, node, tuple) : -1;
        Py_XDECREF(tuple);
        if (status < 0)
            return NULL;
    }
    return tuple_of(outputs, attach->outputs);
}

static PyObject *attach_call(PyObject *object, PyObject *const *args, size_t flags, PyObject *names)
{
    Attach *attach = (Attach *)object;
    Py_ssize_t count =
        attach->inputs + attach->outputs + watched_of(attach) + attach->own + attach->roots + attach->numbers;
    if (UNLIKELY(PyVectorcall_NARGS(flags) != count || (names && PyTuple_GET_SIZE(names))))
        return PyErr_Format(PyExc_TypeError, "Attach takes %zd values by position", count);
    int anomaly = abi_anomaly(); /* it wants the operation that was at fault: eager's nodes tell */
    if (UNLIKELY(anomaly))
        return anomaly < 0 ? NULL : PyErr_Format(PyExc_RuntimeError, "torch looks for anomalies");
    PyObject *inputs = tuple_of(args, attach->inputs);
    if (!inputs)
        return NULL;
    attach->calls++;
    Passing here = {attach, args}, *before = passing;
    passing = &here;
    PyObject *result = PyObject_Call(attach->apply, inputs, NULL);
    passing = before;
    Py_DECREF(inputs);
    return result;
}

/* ---- backward: the engine calls it, in whichever thread it runs ---- */

/* Which inputs want a gradient, as the bits of an int. */
static PyObject *wanted_by(const Attach *attach, PyObject *node)
{
    if (LIKELY(!abi_wants_some()))
        return Py_NewRef(attach->wanted);
    if (UNLIKELY(!abi_reads_wants()))
        return abi_ask_wants(node, attach->inputs);
    PyObject *bits = PyLong_FromLong(0), *width = PyLong_FromLong(32);
    for (Py_ssize_t from = (attach->inputs - 1) / 32 * 32; bits && width && from >= 0; from -= 32) {
        unsigned long word = 0;
        for (Py_ssize_t i = from; i < attach->inputs && i < from + 32; i++)
            word |= (unsigned long)abi_wants(node, i) << (i - from);
        PyObject *low = PyLong_FromUnsignedLong(word), *high = PyNumber_Lshift(bits, width);
        Py_SETREF(bits, low && high ? PyNumber_Or(high, low) : NULL);
        Py_XDECREF(low);
        Py_XDECREF(high);
    }
    Py_XDECREF(width);
    return bits;
}

/* What torch saved for the node; NULL with eager's own error where it was freed. */
static PyObject *torch_saved(const Attach *attach, PyObject *node, bool keep)
{
    PyObject *saved = get(attach->saved_tensors, node);
    if (!saved || keep || !attach->clear_saved)
        return saved;
    PyObject *done = PyObject_CallOneArg(attach->clear_saved, node); /* the list below holds the last references then */
    if (!done)
        Py_CLEAR(saved);
    Py_XDECREF(done);
    return saved;
}

/* Whether an item was written since forward. */
static bool written_since(const Held *held, Py_ssize_t item, int64_t expected)
{
    int64_t now;
    PyObject *tensor = held->items[item];
    return !LIKELY(!tensor || expected < 0 || !abi_version(tensor, &now) || now == expected);
}

/* Whether a watched tensor was written since forward that backward does not read as it is by then. */
static bool is_stale(const Held *held, Py_ssize_t item)
{
    return !LIKELY(!written_since(held, item, versions(held)[item])) && held->attach->memory[item] != READ_AGAIN;
}

/* How eager's node holds the first of the watched tensors, of `some` or all, that a walk finds written, which becomes
   the item; None where it holds the tensor as it is. Borrowed. */
static PyObject *first_met(const Held *held, PyObject *some, Py_ssize_t *item)
{
    PyObject *met = held->attach->met;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(met); i++) {
        PyObject *entry = PyTuple_GET_ITEM(met, i), *number = PyTuple_GET_ITEM(entry, 0);
        Py_ssize_t here = PyLong_AsSsize_t(number);
        if (here < 0 || here >= watched_of(held->attach) || !is_stale(held, here))
            continue;
        if (some && PySequence_Contains(some, number) != 1)
            continue;
        *item = here;
        return PyTuple_GET_ITEM(entry, 1);
    }
    return Py_None;
}

/* Whether an item has the version that it had in forward: 0, or -1 with eager's error. */
static int unchanged(const Held *held, Py_ssize_t item, PyObject *some)
{
    if (LIKELY(!is_stale(held, item)))
        return 0;
    PyObject *form = first_met(held, some, &item);
    int64_t expected = versions(held)[item];
    int32_t output = item < watched_of(held->attach) ? held->attach->memory[item] - 1 : -1;
    PyObject *names = held->attach->names;
    bool known = output >= 0 && output < PyTuple_GET_SIZE(names);
    PyObject *name = Py_NewRef(known ? PyTuple_GET_ITEM(names, output) : Py_None);
    if (output >= 0 && Py_IsNone(name)) {
        PyObject *own = PyUnicode_FromString(((PyTypeObject *)held->attach->near[0])->tp_name); /* its whole name */
        Py_SETREF(name, own ? Py_BuildValue("Ni", own, output) : NULL);
    }
    PyObject *told = name ? Py_BuildValue("LO", (long long)expected, name) : NULL;
    PyObject *args[] = {held->items[item], told, form},
             *never = told ? abi_call("modified", args, 3) : NULL; /* it raises */
    Py_XDECREF(never);
    Py_XDECREF(told);
    Py_XDECREF(name);
    return -1;
}

/* The same of all watched tensors, or of those whose numbers `some` tells. Behind somebody's hooks torch does not
   look either. */
static int all_unchanged(const Held *held, PyObject *some)
{
    Py_ssize_t count = some ? PyTuple_GET_SIZE(some) : watched_of(held->attach);
    for (Py_ssize_t i = 0; !held->torch_has && i < count; i++) {
        Py_ssize_t item = some ? PyLong_AsSsize_t(PyTuple_GET_ITEM(some, i)) : i;
        if (item < 0 || item >= watched_of(held->attach))
            return PyErr_Format(PyExc_IndexError, "no watched tensor %zd", item), -1;
        if (unchanged(held, item, some) < 0)
            return -1;
    }
    return 0;
}

/* The saved tensors as a list; None for what an earlier walk freed. They leave `held` unless they are to be kept. */
static PyObject *saved_list(const Attach *attach, Held *held, PyObject *node, bool keep)
{
    Py_ssize_t count = attach->through + attach->own;
    PyObject *list = PyList_New(count), *saved = NULL;
    if (list && count && held->torch_has && !(saved = torch_saved(attach, node, keep)))
        Py_CLEAR(list);
    if (saved && PyTuple_GET_SIZE(saved) != count) {
        PyErr_SetString(PyExc_SystemError, "torch saved another number of tensors");
        Py_CLEAR(list);
    }
    for (Py_ssize_t i = 0; list && i < count; i++) {
        PyObject **item = saved ? &PyTuple_GET_ITEM(saved, i) : &held->items[attach->watched + i];
        PyList_SET_ITEM(list, i, *item ? *item : Py_NewRef(Py_None));
        if (keep || saved)
            Py_XINCREF(*item);
        else
            *item = NULL;
    }
    Py_XDECREF(saved);
    return list;
}

/* The numbers of the roots that were written since forward, as bits; NULL where there are none, and with an error. */
static PyObject *written_roots(const Attach *attach, const Held *held)
{
    Py_ssize_t watched = watched_of(attach), from = watched + attach->own;
    PyObject *bits = NULL, *one = NULL;
    for (Py_ssize_t i = 0; i < attach->roots; i++) {
        if (LIKELY(!written_since(held, from + i, versions(held)[watched + i])))
            continue;
        PyObject *number = PyLong_FromSsize_t(i);
        one = one ? one : PyLong_FromLong(1), bits = bits ? bits : PyLong_FromLong(0);
        PyObject *bit = number && one ? PyNumber_Lshift(one, number) : NULL;
        Py_XDECREF(number);
        if (bits)
            Py_SETREF(bits, bit ? PyNumber_Or(bits, bit) : NULL);
        Py_XDECREF(bit);
        if (!bits)
            break;
    }
    Py_XDECREF(one);
    return bits;
}

/* Whether the gradients can be computed once more from the roots: all that are read are as they were. Those that
   eager's nodes saved were checked before; any other one may be written. -1 with an error. */
static int roots_hold(const Attach *attach, const Held *held)
{
    PyObject *bits = written_roots(attach, held), *answer = NULL;
    if (LIKELY(!bits))
        return PyErr_Occurred() ? -1 : 1;
    if (!attach->asked)
        answer = Py_NewRef(Py_True);
    else if (!(answer = Py_XNewRef(PyDict_GetItemWithError(attach->parts, bits))) && !PyErr_Occurred()
             && (answer = PyObject_CallOneArg(attach->asked, bits)) && PyDict_SetItem(attach->parts, bits, answer) < 0)
        Py_CLEAR(answer);
    int reads = answer ? PyObject_IsTrue(answer) : -1;
    Py_DECREF(bits);
    Py_XDECREF(answer);
    return reads < 0 ? -1 : !reads;
}

static PyObject *root_list(const Attach *attach, const Held *held)
{
    Py_ssize_t from = watched_of(attach) + attach->own;
    PyObject *list = PyList_New(attach->roots);
    for (Py_ssize_t i = 0; list && i < attach->roots; i++)
        PyList_SET_ITEM(list, i, Py_NewRef(held->items[from + i] ? held->items[from + i] : Py_None));
    return list;
}

/* The saved tensors and the roots behind them, as a list. */
static PyObject *saved_and_roots(const Attach *attach, Held *held, PyObject *node, bool keep)
{
    PyObject *roots = root_list(attach, held), *list = roots ? saved_list(attach, held, node, keep) : NULL;
    if (list && PyList_SetSlice(list, PyList_GET_SIZE(list), PyList_GET_SIZE(list), roots) < 0)
        Py_CLEAR(list);
    Py_XDECREF(roots);
    return list;
}

/* Gradients without their derivatives: a walk through them to what they rest on is an error. */
static PyObject *first_only(const Attach *attach, const Held *held, PyObject *target, PyObject *const *values)
{
    PyObject *roots = root_list(attach, held), *result = NULL;
    abi_set_grad_enabled(false);
    PyObject *found = roots ? PyObject_Vectorcall(target, values, 4, NULL) : NULL;
    abi_set_grad_enabled(true);
    if (found)
        result = abi_call("first_only", (PyObject *[]){found, roots, values[1]}, 3);
    Py_XDECREF(found);
    Py_XDECREF(roots);
    return result;
}

/* What a walk that wants some gradients, or comes after one, checks and frees; NULL with eager's error where it
   needs what was freed. */
static PyObject *verdict_on(Attach *attach, Held *held, PyObject *wanted)
{
    PyObject *gone = held->gone ? Py_NewRef(held->gone) : PyLong_FromLong(held->freed ? -1 : 0), *verdict = NULL;
    PyObject *key = gone ? PyTuple_Pack(2, wanted, gone) : NULL;
    if (key && !(verdict = Py_XNewRef(PyDict_GetItemWithError(attach->parts, key))) && !PyErr_Occurred()
        && (verdict = PyObject_CallFunctionObjArgs(attach->part, wanted, gone, NULL))
        && PyDict_SetItem(attach->parts, key, verdict) < 0)
        Py_CLEAR(verdict);
    Py_XDECREF(gone);
    Py_XDECREF(key);
    PyObject *checks, *after, *drop;
    if (verdict == Py_None)
        PyErr_SetString(PyExc_RuntimeError, FREED);
    if (verdict
        && (verdict == Py_None
            || !PyArg_ParseTuple(verdict, "O!O!O!", &PyTuple_Type, &checks, &PyLong_Type, &after, &PyTuple_Type,
                                 &drop)))
        Py_CLEAR(verdict);
    return verdict;
}

/* Frees what eager's nodes on the way would: all, which leaves a graph that saved nothing as it is, or by the
   verdict. */
static void let_go(const Attach *attach, Held *held, PyObject *verdict)
{
    if (verdict) {
        PyObject *drop = PyTuple_GET_ITEM(verdict, 2);
        Py_XSETREF(held->gone, Py_NewRef(PyTuple_GET_ITEM(verdict, 1)));
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(drop); i++) {
            Py_ssize_t number = PyLong_AsSsize_t(PyTuple_GET_ITEM(drop, i));
            if (number >= 0 && number < attach->through + attach->own)
                Py_CLEAR(held->items[attach->watched + number]);
        }
    } else if (attach->frees) {
        held->freed = true;
        for (Py_ssize_t i = 0; i < held->count - attach->numbers; i++)
            Py_CLEAR(held->items[i]);
    }
}

static PyObject *walk(Attach *attach, Held *held, PyObject *node, PyObject *const *given, Py_ssize_t count)
{
    bool again = abi_grad_enabled();
    int from_roots = again ? roots_hold(attach, held) : 0;
    PyObject *target = from_roots ? attach->differentiable : attach->backward, *result = NULL, *verdict = NULL,
             *list = NULL;
    int keep = abi_keeps_graph();
    if (keep < 0 || from_roots < 0)
        return NULL;
    if (count != attach->outputs || !target)
        return PyErr_Format(PyExc_SystemError, "a compiled graph of %zd outputs got %zd gradients", attach->outputs,
                            count);
    attach->backwards++;
    PyObject *wanted = wanted_by(attach, node), *tangents = tuple_of(given, count);
    PyObject *numbers = tuple_of(held->items + held->count - attach->numbers, attach->numbers);
    int whole = !wanted                                     ? -1
                : wanted == attach->wanted || !attach->part ? 1
                                                            : PyObject_RichCompareBool(wanted, attach->wanted, Py_EQ);
    if (whole > 0 && !held->gone && held->freed && attach->frees)
        PyErr_SetString(PyExc_RuntimeError, FREED);
    else if (whole >= 0 && ((whole && !held->gone) || (verdict = verdict_on(attach, held, wanted))))
        list = all_unchanged(held, verdict ? PyTuple_GET_ITEM(verdict, 0) : NULL) < 0
                   ? NULL
                   : (from_roots ? saved_and_roots : saved_list)(attach, held, node,
                                                                 keep || verdict || !attach->frees);
    if (tangents && numbers && list) {
        PyObject *values[] = {list, tangents, numbers, wanted};
        Py_INCREF(target);
        if (again && !from_roots)
            result = first_only(attach, held, target, values);
        if (!keep)
            let_go(attach, held, verdict);
        if (!again || from_roots)
            result = PyObject_Vectorcall(target, values, 4, NULL);
        Py_DECREF(target);
    }
    Py_XDECREF(verdict);
    Py_XDECREF(list);
    Py_XDECREF(tangents);
    Py_XDECREF(numbers);
    Py_XDECREF(wanted);
    return result;
}

/* The engine's call: a method of the nodes. */
static PyObject *apply(PyObject *node, PyObject *const *tangents, Py_ssize_t count)
{
    PyObject *held = *held_of(node);
    if (!held || !Py_IS_TYPE(held, Held_Type))
        return PyErr_Format(PyExc_RuntimeError, "not a node of a compiled graph");
    Py_INCREF(held);
    PyObject *result = walk(((Held *)held)->attach, (Held *)held, node, tangents, count);
    Py_DECREF(held);
    return result;
}

/* The same as the static method of the function's class. */
static PyObject *backward(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    PyObject *held = count ? PyObject_GetAttrString(args[0], "_held") : NULL, *result = NULL;
    if (held && Py_IS_TYPE(held, Held_Type))
        result = walk(((Held *)held)->attach, (Held *)held, args[0], args + 1, count - 1);
    else if (!PyErr_Occurred())
        PyErr_Format(PyExc_RuntimeError, "not a node of a compiled graph");
    Py_XDECREF(held);
    return result;
}

/* What is watched has the versions of this moment: the call that made the tensor's node has written the last of it. */
static PyObject *settle(PyObject *Py_UNUSED(attach), PyObject *tensor)
{
    PyObject *node = PyObject_GetAttrString(tensor, "grad_fn"),
             *found = node ? PyObject_GetAttrString(node, "_held") : NULL;
    Py_XDECREF(node);
    if (!found)
        return NULL;
    Held *held = (Held *)found;
    for (Py_ssize_t i = 0; Py_IS_TYPE(found, Held_Type) && i < watched_of(held->attach); i++)
        if (held->items[i])
            abi_version(held->items[i], &versions(held)[i]);
    Py_DECREF(found);
    Py_RETURN_NONE;
}

PyObject *saved_drop_py(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count < 1 || !PyList_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "saved_drop(list, *indices)");
    for (Py_ssize_t i = 1; i < count; i++) {
        Py_ssize_t index = PyLong_AsSsize_t(args[i]);
        if (index == -1 && PyErr_Occurred())
            return NULL;
        if (index < 0 || PyList_SetItem(args[0], index, Py_NewRef(Py_None)) < 0)
            return PyErr_Format(PyExc_IndexError, "saved_drop: no entry %zd", index);
    }
    Py_RETURN_NONE;
}

/* ---- the Python type ---- */

static PyMethodDef forward_method = {"forward", (PyCFunction)(void (*)(void))forward, METH_FASTCALL, NULL};
static PyMethodDef backward_method = {"backward", (PyCFunction)(void (*)(void))backward, METH_FASTCALL, NULL};

static PyMethodDef apply_method = {"apply", (PyCFunction)(void (*)(void))apply, METH_FASTCALL, NULL};

/* Reads a data descriptor of the node's class. */
static PyObject *descriptor(PyObject *type, const char *name)
{
    PyObject *found = PyObject_GetAttrString(type, name);
    if (found && !(Py_TYPE(found)->tp_descr_get && Py_TYPE(found)->tp_descr_set)) {
        PyErr_Format(PyExc_RuntimeError, "torch's nodes have no %s", name);
        Py_CLEAR(found);
    }
    return found;
}

/* Makes the classes and finds out where their parts are. */
static int attach_build(Attach *attach, PyObject *name)
{
    PyObject *parts[5] = {name, metaclass(), PyCFunction_New(&forward_method, NULL),
                          PyCFunction_New(&backward_method, NULL), attach->names};
    PyObject *classes = parts[1] && parts[2] && parts[3] ? abi_call("node_classes", parts, 5) : NULL, *slot = NULL,
             *method = NULL;
    Py_XDECREF(parts[2]);
    Py_XDECREF(parts[3]);
    PyObject *function, *node;
    if (!classes || !PyArg_ParseTuple(classes, "OO!", &function, &PyType_Type, &node))
        goto failed;
    attach->function = Py_NewRef(function);
    for (int i = 0; i < NEAR_COUNT; i++)
        if (!(attach->near[i] = PyObject_GetAttrString(function, NEAR[i].name)))
            PyErr_Clear(); /* another torch, which does not ask for it */
    slot = PyObject_GetAttrString(node, "_held");
    method = slot ? PyDescr_NewMethod((PyTypeObject *)node, &apply_method) : NULL;
    if (!method || PyObject_SetAttrString(node, "apply", method) < 0)
        goto failed;
    if (!Py_IS_TYPE(slot, &PyMemberDescr_Type)) {
        PyErr_SetString(PyExc_SystemError, "the node has no slot");
        goto failed;
    }
    held_offset = ((PyMemberDescrObject *)slot)->d_member->offset;
    if (!(attach->to_save = descriptor(node, "to_save"))
        || !(attach->materialize = descriptor(node, "materialize_grads"))
        || !(attach->saved_tensors = descriptor(node, "saved_tensors")))
        goto failed;
    attach->clear_saved = PyObject_GetAttrString(node, "maybe_clear_saved_tensors");
    if (!attach->clear_saved)
        PyErr_Clear();
    attach->apply = abi.raw_apply ? PyObject_CallMethod(abi.raw_apply, "__get__", "OO", Py_None, function)
                                  : PyObject_GetAttrString(function, "apply");
    PyObject *one = PyLong_FromLong(1), *bits = PyLong_FromSsize_t(attach->inputs),
             *power = one && bits ? PyNumber_Lshift(one, bits) : NULL;
    attach->wanted = power ? PyNumber_Subtract(power, one) : NULL;
    Py_XDECREF(one);
    Py_XDECREF(bits);
    Py_XDECREF(power);
    if (!attach->apply || !attach->wanted)
        goto failed;
    Py_DECREF(slot);
    Py_DECREF(method);
    Py_DECREF(classes);
    return 0;
failed:
    Py_XDECREF(slot);
    Py_XDECREF(apply);
    Py_XDECREF(classes);
    return -1;
}

/* Which watched tensors are kept as their memory. */
static int read_memory(Attach *attach, PyObject *numbers)
{
    Py_ssize_t watched = watched_of(attach);
    if (!(attach->memory = PyMem_Calloc((size_t)watched + 1, sizeof *attach->memory)))
        return PyErr_NoMemory(), -1;
    Py_ssize_t number, place = 0;
    PyObject *key, *output;
    while (numbers && PyDict_Next(numbers, &place, &key, &output)) {
        if ((number = PyLong_AsSsize_t(key)) < 0 || number >= watched)
            return PyErr_Format(PyExc_ValueError, "memory: there is no watched tensor %zd", number), -1;
        attach->memory[number] = output == Py_None ? -1 : 1 + (int32_t)PyLong_AsLong(output);
    }
    return 0;
}

static PyObject *attach_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"backward", "differentiable", "inputs", "outputs", "watched", "through", "own", "roots",
                            "numbers", "name", "memory", "part", "frees", "names", "met", "asked", NULL};
    PyObject *backward_call, *differentiable, *name = NULL, *memory = NULL, *part = NULL, *shown = NULL, *met = NULL,
             *asked = Py_None;
    Py_ssize_t counts[7] = {0};
    int frees = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$nnnnnnnUO!OpO!O!O", names, &backward_call, &differentiable,
                                     &counts[0], &counts[1], &counts[2], &counts[3], &counts[4], &counts[5], &counts[6],
                                     &name, &PyDict_Type, &memory, &part, &frees, &PyTuple_Type, &shown, &PyTuple_Type,
                                     &met, &asked))
        return NULL;
    for (int i = 0; i < 7; i++)
        if (counts[i] < (i < 2) || counts[i] > INT32_MAX)
            return PyErr_Format(PyExc_ValueError, "%s=%zd: there must be at least %d", names[i + 2], counts[i], i < 2);
    if (!PyCallable_Check(backward_call) || !PyCallable_Check(differentiable))
        return PyErr_Format(PyExc_TypeError, "%R is not callable",
                            PyCallable_Check(backward_call) ? differentiable : backward_call);
    Attach *attach = (Attach *)type->tp_alloc(type, 0);
    if (!attach)
        return NULL;
    attach->vectorcall = attach_call;
    attach->backward = Py_NewRef(backward_call);
    attach->differentiable = Py_NewRef(differentiable);
    attach->part = Py_XNewRef(part);
    attach->asked = Py_IsNone(asked) ? NULL : Py_NewRef(asked);
    attach->names = shown ? Py_NewRef(shown) : PyTuple_New(0);
    attach->met = met ? Py_NewRef(met) : PyTuple_New(0);
    attach->inputs = counts[0], attach->outputs = counts[1], attach->watched = counts[2], attach->through = counts[3];
    attach->own = counts[4], attach->roots = counts[5], attach->numbers = counts[6];
    attach->before_own = counts[0] + counts[1] + counts[2] + counts[3];
    attach->frees = frees < 0 ? counts[3] + counts[4] > 0 : frees;
    name = name ? Py_NewRef(name) : PyUnicode_FromString("Compiled");
    if (!attach->names || !attach->met || !name || !(attach->parts = PyDict_New()) || read_memory(attach, memory) < 0
        || attach_build(attach, name) < 0)
        Py_CLEAR(attach);
    Py_XDECREF(name);
    return (PyObject *)attach;
}

static int attach_traverse(Attach *attach, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(attach));
    Py_VISIT(attach->backward);
    Py_VISIT(attach->differentiable);
    Py_VISIT(attach->part);
    Py_VISIT(attach->parts);
    Py_VISIT(attach->asked);
    Py_VISIT(attach->names);
    Py_VISIT(attach->met);
    Py_VISIT(attach->function);
    Py_VISIT(attach->apply);
    for (int i = 0; i < NEAR_COUNT; i++)
        Py_VISIT(attach->near[i]);
    Py_VISIT(attach->to_save);
    Py_VISIT(attach->materialize);
    Py_VISIT(attach->saved_tensors);
    Py_VISIT(attach->clear_saved);
    return 0;
}

static int attach_clear(Attach *attach)
{
    Py_CLEAR(attach->backward);
    Py_CLEAR(attach->differentiable);
    Py_CLEAR(attach->part);
    Py_CLEAR(attach->parts);
    Py_CLEAR(attach->asked);
    return 0;
}

static void attach_dealloc(Attach *attach)
{
    PyTypeObject *type = Py_TYPE(attach);
    PyObject_GC_UnTrack(attach);
    attach_clear(attach);
    PyMem_Free(attach->memory);
    Py_CLEAR(attach->names);
    Py_CLEAR(attach->met);
    Py_CLEAR(attach->function);
    Py_CLEAR(attach->apply);
    for (int i = 0; i < NEAR_COUNT; i++)
        Py_CLEAR(attach->near[i]);
    Py_CLEAR(attach->wanted);
    Py_CLEAR(attach->to_save);
    Py_CLEAR(attach->materialize);
    Py_CLEAR(attach->saved_tensors);
    Py_CLEAR(attach->clear_saved);
    type->tp_free((PyObject *)attach);
    Py_DECREF(type);
}

static PyMemberDef attach_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Attach, vectorcall), READONLY, NULL},
    {"function", T_OBJECT, offsetof(Attach, function), READONLY, NULL},
    {"calls", T_ULONGLONG, offsetof(Attach, calls), READONLY, NULL},
    {"backwards", T_ULONGLONG, offsetof(Attach, backwards), READONLY, NULL},
    {"before_own", T_PYSSIZET, offsetof(Attach, before_own), READONLY, NULL},
    {"own", T_PYSSIZET, offsetof(Attach, own), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef attach_methods[] = {
    {"settle", settle, METH_O, "Has the node that made a tensor watch for writes from now on."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot attach_slots[] = {
    {Py_tp_new, attach_new},
    {Py_tp_dealloc, attach_dealloc},
    {Py_tp_traverse, attach_traverse},
    {Py_tp_clear, attach_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, attach_members},
    {Py_tp_methods, attach_methods},
    {Py_tp_doc,
     "Attach(backward, differentiable, *, inputs, outputs, ...): hangs computed outputs into torch's autograd."},
    {0, NULL},
};
static PyType_Spec attach_spec = {
    "framefuse._native.Attach", sizeof(Attach), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE, attach_slots};

bool is_attach(PyObject *object) { return Py_IS_TYPE(object, Attach_Type); }

PyTypeObject *make_attach_type(PyObject *module)
{
    Held_Type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &held_spec, NULL);
    return Attach_Type = Held_Type ? (PyTypeObject *)PyType_FromModuleAndSpec(module, &attach_spec, NULL) : NULL;
}
