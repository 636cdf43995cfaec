/* Executes a guard program: compares words of long-lived objects, re-reads blocks whose tag moved, and reads the
   arguments. */
#include "guards.h"

#include "distinct.h"
#include "guard_program.h"
#include "guard_state.h"
#include "numbers.h"
#include "tags.h"
#include "tensor_check.h"
#include "torch_abi.h"
#include "watch.h"

PyTypeObject *GuardSet_Type;

PyObject **closure_cell(PyObject *function, Py_ssize_t index)
{
    if (!PyFunction_Check(function))
        return NULL;
    PyObject *closure = PyFunction_GET_CLOSURE(function);
    if (!closure || index < 0 || index >= PyTuple_GET_SIZE(closure))
        return NULL;
    return &((PyCellObject *)PyTuple_GET_ITEM(closure, index))->ob_ref;
}

/* Equality of exact atoms that never runs Python code and tells -0.0 from 0.0, True from 1 and 1 from 1.0. */
bool atoms_equal(PyObject *left, PyObject *right)
{
    if (left == right)
        return true;
    PyTypeObject *type = Py_TYPE(left);
    if (type != Py_TYPE(right))
        return false;
    if (type == &PyFloat_Type)
        return as_word(PyFloat_AS_DOUBLE(left)) == as_word(PyFloat_AS_DOUBLE(right));
    if (type == &PyComplex_Type) {
        Py_complex a = PyComplex_AsCComplex(left), b = PyComplex_AsCComplex(right);
        return as_word(a.real) == as_word(b.real) && as_word(a.imag) == as_word(b.imag);
    }
    if (type == &PyTuple_Type) {
        if (PyTuple_GET_SIZE(left) != PyTuple_GET_SIZE(right))
            return false;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(left); i++)
            if (!atoms_equal(PyTuple_GET_ITEM(left, i), PyTuple_GET_ITEM(right, i)))
                return false;
        return true;
    }
    if (type == &PyUnicode_Type || type == &PyLong_Type || type == &PyBytes_Type)
        return PyObject_RichCompareBool(left, right, Py_EQ) == 1;
    return false;
}

/* Walks an exact set or OrderedDict: no function of the user's runs. */
static bool walk_agrees(PyObject *container, PyObject *keys)
{
    PyObject *iterator = PyObject_GetIter(container), *key;
    Py_ssize_t i = 0;
    bool same = iterator != NULL;
    while (same && (key = PyIter_Next(iterator))) {
        same = i < PyTuple_GET_SIZE(keys) && atoms_equal(key, PyTuple_GET_ITEM(keys, i++));
        Py_DECREF(key);
    }
    Py_XDECREF(iterator);
    return same && !PyErr_Occurred();
}

static bool keys_agree(PyObject *mapping, PyObject *keys)
{
    if (PyAnySet_CheckExact(mapping)) /* the order of a set tells its history, and a program that walks it saw that */
        return PySet_GET_SIZE(mapping) == PyTuple_GET_SIZE(keys) && walk_agrees(mapping, keys);
    if (!PyDict_Check(mapping) || PyDict_GET_SIZE(mapping) != PyTuple_GET_SIZE(keys))
        return false;
    Py_ssize_t position = 0, i = 0;
    PyObject *key;
    if (Py_TYPE(mapping)->tp_iter == PyDict_Type.tp_iter) {
        while (PyDict_Next(mapping, &position, &key, NULL))
            if (!atoms_equal(key, PyTuple_GET_ITEM(keys, i++)))
                return false;
        return true;
    }
    if (Py_TYPE(mapping)->tp_iter != PyODict_Type.tp_iter) /* a class with an order of its own */
        return false;
    return walk_agrees(mapping, keys);
}

static PyObject *entry_of(PyObject *mapping, PyObject *key, Py_hash_t hash)
{
    return mapping && PyDict_Check(mapping) ? _PyDict_GetItem_KnownHash(mapping, key, hash) : NULL;
}

static PyObject *global_of(PyObject *function, PyObject *name, Py_hash_t hash)
{
    if (!PyFunction_Check(function))
        return NULL;
    PyObject *found = entry_of(PyFunction_GET_GLOBALS(function), name, hash);
    return found || PyErr_Occurred() ? found : entry_of(((PyFunctionObject *)function)->func_builtins, name, hash);
}

/* The length of a container, -1 for what has none that C code alone tells. */
static Py_ssize_t length_of(PyObject *object)
{
    if (PyDict_Check(object))
        return PyDict_GET_SIZE(object);
    if (PyList_Check(object) || PyTuple_Check(object))
        return Py_SIZE(object);
    if (PyAnySet_Check(object))
        return PySet_GET_SIZE(object);
    const char *name = Py_TYPE(object)->tp_name;
    return (Py_TYPE(object)->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) && strcmp(name, "collections.deque") == 0
               ? PyObject_Size(object)
               : -1;
}

static PyObject *element_of(PyObject *sequence, Py_ssize_t index)
{
    if (PyTuple_Check(sequence)) {
        index += index < 0 ? PyTuple_GET_SIZE(sequence) : 0;
        return index >= 0 && index < PyTuple_GET_SIZE(sequence) ? PyTuple_GET_ITEM(sequence, index) : NULL;
    }
    if (PyList_Check(sequence)) {
        index += index < 0 ? PyList_GET_SIZE(sequence) : 0;
        return index >= 0 && index < PyList_GET_SIZE(sequence) ? PyList_GET_ITEM(sequence, index) : NULL;
    }
    Py_ssize_t length = length_of(sequence);
    index += index < 0 ? length : 0;
    if (length < 0 || index < 0 || index >= length || !PySequence_Check(sequence) || PyAnySet_Check(sequence)
        || PyDict_Check(sequence))
        return NULL;
    PyObject *element = PySequence_GetItem(sequence, index); /* a deque */
    Py_XDECREF(element); /* the deque holds it */
    return element;
}

/* A new reference to what a context variable was set to in this context, NULL when it was not. */
static PyObject *context_value(PyObject *variable)
{
    PyObject *found = NULL, *none = (PyObject *)GuardSet_Type; /* no program sets this */
    if (!PyContextVar_CheckExact(variable) || PyContextVar_Get(variable, none, &found) < 0)
        return NULL;
    if (found == none)
        Py_CLEAR(found);
    return found;
}

static bool place_is_unset(PyObject *holder, const GuardOp *op)
{
    PyObject *found, **cell;
    bool unset;
    switch (op->as.unset) {
    case UNSET_CELL:
        cell = closure_cell(holder, op->index);
        return cell && *cell == NULL;
    case UNSET_GETATTR:
        found = PyObject_GetAttr(holder, op->object);
        Py_XDECREF(found);
        return !found && PyErr_ExceptionMatches(PyExc_AttributeError) ? (PyErr_Clear(), true) : false;
    case UNSET_CONTEXT:
        found = context_value(holder);
        Py_XDECREF(found);
        return !found && PyContextVar_CheckExact(holder) && !PyErr_Occurred();
    case UNSET_ATTR:
        found = instance_dict(holder);
        unset = !found || (PyDict_Check(found) && !entry_of(found, op->object, op->hash));
        break;
    case UNSET_ITEM:
        unset = PyDict_Check(holder) && !entry_of(holder, op->object, op->hash);
        break;
    default:
        unset = PyFunction_Check(holder) && !global_of(holder, op->object, op->hash);
    }
    return unset && !PyErr_Occurred();
}

static bool relation_holds(Py_ssize_t relation, int64_t left, int64_t right)
{
    switch (relation) {
    case Py_EQ: return left == right;
    case Py_NE: return left != right;
    case Py_LT: return left < right;
    default: return left <= right;
    }
}

static bool real_relation_holds(Py_ssize_t relation, int64_t left, int64_t right)
{
    double a, b;
    memcpy(&a, &left, sizeof a), memcpy(&b, &right, sizeof b);
    switch (relation) {
    case Py_EQ: return a == b;
    case Py_NE: return a != b;
    case Py_LT: return a < b;
    default: return a <= b;
    }
}

static bool bind_integer(PyObject *object, int64_t *to)
{
    int overflow;
    if (!PyLong_CheckExact(object))
        return false;
    *to = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow;
}

/* The element of a tensor of the CPU without dimensions: a float as a double, an int as it is. */
static bool scalar_read(PyObject *object, int64_t *to)
{
    Layout layout;
    int32_t dtype, device_type, device_index;
    char *data;
    float single;
    if (!abi_is_tensor(object) || !abi_element(object, &dtype, &device_type, &device_index) || device_type != 0
        || !abi_layout(object, &layout) || layout.ndim != 0 || !abi_data(object, &data) || !data)
        return false;
    if (dtype == abi.float32) {
        memcpy(&single, data, sizeof single);
        *to = as_word((double)single);
    } else if (dtype == abi.float64 || dtype == abi.int64) {
        memcpy(to, data, sizeof *to);
    } else {
        return false;
    }
    return true;
}

static bool code_is(PyObject *function, const GuardOp *op)
{
    if (!PyFunction_Check(function))
        return false;
    PyFunctionObject *f = (PyFunctionObject *)function;
    PyObject *defaults = f->func_defaults ? f->func_defaults : Py_None,
             *keyword = f->func_kwdefaults ? f->func_kwdefaults : Py_None;
    return f->func_code == op->object && defaults == op->as.code_of.defaults
           && keyword == op->as.code_of.keyword_defaults;
}

/* Whether a dict lacks names and holds empty dicts of C code at others, which a block leaves for `check_empties`. */
static bool bare_holds(GuardSet *set, PyObject *mapping, const GuardOp *op)
{
    if (!PyDict_Check(mapping))
        return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(op->object); i++) {
        PyObject *name = PyTuple_GET_ITEM(op->object, i);
        if (entry_of(mapping, name, PyObject_Hash(name)) || PyErr_Occurred())
            return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(op->as.empties); i++) {
        PyObject *name = PyTuple_GET_ITEM(op->as.empties, i), *held = entry_of(mapping, name, PyObject_Hash(name));
        if (!held || !(PyDict_CheckExact(held) || PyODict_CheckExact(held)) || PyDict_GET_SIZE(held))
            return false;
        if (op->index >= 0)
            set->empties[op->index + i] = held;
    }
    return true;
}

#define LOAD(expression)                                  \
    do {                                                  \
        PyObject *loaded = (expression);                  \
        set->registers[op->to] = loaded;                  \
        return loaded != NULL;                            \
    } while (0)

/* A tag that moved says only that something was assigned: what lies on the classes decides, and the new tag is
   taken. */
static bool version_holds(PyTypeObject *type, GuardOp *op)
{
    if (op->as.tag && type_tag(type) == op->as.tag)
        return true;
    if (!op->object)
        return false;
    unsigned int tag = type_tag(type);
    PyObject *answer = PyObject_CallOneArg(op->object, (PyObject *)type);
    bool same = answer == Py_True;
    Py_XDECREF(answer);
    if (same && op->as.tag)
        op->as.tag = tag;
    return same;
}

/* Whether a function of C gives for a string what it gave: (function, arguments before, arguments behind, answer). */
static bool answers(PyObject *text, PyObject *question)
{
    if (!PyUnicode_CheckExact(text))
        return false;
    PyObject *before = PyTuple_GET_ITEM(question, 1), *behind = PyTuple_GET_ITEM(question, 2), *arguments[ASKED];
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(before); i++)
        arguments[count++] = PyTuple_GET_ITEM(before, i);
    arguments[count++] = text;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(behind); i++)
        arguments[count++] = PyTuple_GET_ITEM(behind, i);
    PyObject *found = PyObject_Vectorcall(PyTuple_GET_ITEM(question, 0), arguments, (size_t)count, NULL);
    bool same = found && atoms_equal(found, PyTuple_GET_ITEM(question, 3));
    if (!found)
        PyErr_Clear();
    Py_XDECREF(found);
    return same;
}

bool guard_op_run(GuardSet *set, const GuardOp *op, PyObject *const *arguments, Py_ssize_t count)
{
    PyObject *from = op->code == G_arg || op->code == G_apart || op->code == G_distinct || op->code >= G_relation
                         ? NULL
                         : set->registers[op->from];
    switch (op->code) {
    case G_arg: LOAD(op->index < count ? arguments[op->index] : NULL);
    case G_dict: LOAD(instance_dict(from));
    case G_item_dict: LOAD(entry_of(from, op->object, op->hash));
    case G_item_seq: LOAD(element_of(from, op->index));
    case G_entry: { /* tensors hash by their address, and are equal as keys where they are one */
        PyObject *key = set->registers[op->index];
        bool plain = Py_TYPE(key) == abi.tensor || Py_TYPE(key) == abi.parameter;
        LOAD(plain ? entry_of(from, key, (Py_hash_t)(uintptr_t)key) : NULL);
    }
    case G_global: LOAD(global_of(from, op->object, op->hash));
    case G_cell: {
        PyObject **cell = closure_cell(from, op->index);
        LOAD(cell ? *cell : NULL);
    }
    case G_type: LOAD((PyObject *)Py_TYPE(from));
    case G_type_attr: LOAD(PyType_Check(from) ? _PyType_Lookup((PyTypeObject *)from, op->object) : NULL);
    case G_getattr: {
        PyObject *found = PyObject_GetAttr(from, op->object);
        Py_XSETREF(set->owned[op->index], found);
        LOAD(found);
    }
    case G_context: {
        PyObject *found = context_value(from);
        Py_XSETREF(set->owned[op->index], found);
        LOAD(found);
    }
    case G_func: LOAD(PyMethod_Check(from) ? PyMethod_GET_FUNCTION(from) : NULL);
    case G_self:
        LOAD(PyMethod_Check(from)      ? PyMethod_GET_SELF(from)
             : PyCFunction_Check(from) ? PyCFunction_GET_SELF(from)
                                       : NULL);
    case G_is: return from == op->object;
    case G_type_is: return (PyObject *)Py_TYPE(from) == op->object;
    case G_int_eq: case G_float_eq: case G_str_eq: return atoms_equal(from, op->object);
    case G_answer: return answers(from, op->object);
    case G_length: return length_of(from) == op->index;
    case G_keys: return keys_agree(from, op->object);
    case G_absent:
        if (PyAnySet_Check(from))
            return PySet_Contains(from, op->object) == 0;
        return PyDict_Check(from) && !entry_of(from, op->object, op->hash) && !PyErr_Occurred();
    case G_present:
        return PyAnySet_Check(from) ? PySet_Contains(from, op->object) == 1
                                    : entry_of(from, op->object, op->hash) != NULL;
    case G_type_absent:
        return PyType_Check(from) && !_PyType_Lookup((PyTypeObject *)from, op->object) && !PyErr_Occurred();
    case G_bare: return bare_holds(set, from, op);
    case G_unset: return place_is_unset(from, op);
    case G_tensor: return tensor_check_slowly(op->as.tensor, from, set->numbers);
    case G_integer: return bind_integer(from, &set->numbers[op->index]);
    case G_real:
        if (!PyFloat_CheckExact(from))
            return false;
        set->numbers[op->index] = as_word(PyFloat_AS_DOUBLE(from));
        return true;
    case G_scalar: return scalar_read(from, &set->numbers[op->index]);
    case G_count:
        set->numbers[op->index] = PyUnicode_CheckExact(from) ? PyUnicode_GET_LENGTH(from) : length_of(from);
        return set->numbers[op->index] >= 0;
    case G_code: return code_is(from, op);
    case G_same: return from == set->registers[op->index];
    case G_different: return from != set->registers[op->index];
    case G_disjoint: return tensors_disjoint(from, set->registers[op->index]);
    case G_apart: return apart_holds(op->as.apart, set->registers);
    case G_distinct: return distinct_holds(op->as.distinct, set->registers);
    case G_address: set->numbers[op->index] = (int64_t)(intptr_t)from; return true;
    case G_version: return PyType_Check(from) && version_holds((PyTypeObject *)from, (GuardOp *)op);
    case G_relation: return relation_holds(op->index, set->numbers[op->to], set->numbers[op->from]);
    case G_real_relation:
        return real_relation_holds(op->index, set->numbers[op->to], set->numbers[op->from]) == op->holds;
    case G_number: return number_run(&op->as.number, set->numbers);
    default: return false;
    }
}

/* GUARDS_HIT, or the failing instruction. */
static Py_ssize_t run_block(GuardSet *set, const Block *block, PyObject *const *arguments, Py_ssize_t count)
{
    set->reruns++;
    for (int32_t i = 0; i < block->count; i++)
        if (!guard_op_run(set, &block->ops[i], arguments, count))
            return block->ops[i].instruction;
    return GUARDS_HIT;
}

static inline uint64_t tag_of(const uint64_t *place) { return *place >> TAG_SHIFT; }

/* The dict at `index` leaves those that are looked at together: it changes too often. Gives the index of the one
   that took its place. */
static void look_at_alone(GuardSet *set, GuardOp *op, int32_t index)
{
    int32_t last = --op->as.dicts.settled;
    if (op->as.dicts.watched) {
        watch_move(set, set->blocks[set->dicts[index].block].subject, index, -1);
        if (last != index)
            watch_move(set, set->blocks[set->dicts[last].block].subject, last, index);
    }
    WatchedDict dict = set->dicts[index];
    const uint64_t *tag = set->tags[index];
    set->dicts[index] = set->dicts[last], set->tags[index] = set->tags[last];
    set->dicts[last] = dict, set->tags[last] = tag;
}

/* Reads the facts of a changed dict again. What runs may change dicts too, so that the mark goes and the tag is read
   before. */
static Py_ssize_t read_again(GuardSet *set, WatchedDict *dict, uint64_t tag, PyObject *const *arguments,
                             Py_ssize_t count)
{
    dict->moved = false;
    Py_ssize_t answer = run_block(set, &set->blocks[dict->block], arguments, count);
    if (answer == GUARDS_HIT)
        dict->seen = tag;
    else
        dict->moved = set->reported = true;
    return answer;
}

static __attribute__((noinline)) Py_ssize_t some_moved(GuardSet *set, GuardOp *op, PyObject *const *arguments,
                                                       Py_ssize_t count)
{
    bool watched = op->as.dicts.watched;
    Py_ssize_t answer;
    for (int32_t i = op->from; i < op->as.dicts.settled;) {
        WatchedDict *dict = &set->dicts[i];
        uint64_t now = tag_of(set->tags[i]);
        if (watched ? !dict->moved : now == dict->seen) {
            i++;
            continue;
        }
        if ((answer = read_again(set, dict, now, arguments, count)) != GUARDS_HIT)
            return answer;
        dict->moves = set->checks - dict->checked <= SOON ? dict->moves + 1 : 0;
        dict->checked = set->checks;
        if (dict->moves < OFTEN)
            i++;
        else
            look_at_alone(set, op, i);
    }
    uint64_t sum = 0;
    for (int32_t i = op->from; i < op->as.dicts.settled; i++)
        sum += set->dicts[i].seen;
    op->as.dicts.sum = sum;
    return GUARDS_HIT;
}

static inline bool none_moved(const GuardSet *set, const GuardOp *op, bool reported)
{
    if (op->as.dicts.watched)
        return !reported;
    const uint64_t *const *tag = set->tags + op->from, *const *end = set->tags + op->as.dicts.settled;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (; tag + 4 <= end; tag += 4)
        a += tag_of(tag[0]), b += tag_of(tag[1]), c += tag_of(tag[2]), d += tag_of(tag[3]);
    for (; tag < end; tag++)
        a += tag_of(*tag);
    return a + b + c + d == op->as.dicts.sum;
}

static inline Py_ssize_t check_dicts(GuardSet *set, GuardOp *op, bool reported, PyObject *const *arguments,
                                     Py_ssize_t count)
{
    Py_ssize_t answer;
    if (UNLIKELY(!none_moved(set, op, reported)) && (answer = some_moved(set, op, arguments, count)) != GUARDS_HIT)
        return answer;
    for (int32_t i = op->as.dicts.settled; i < op->to; i++) {
        uint64_t now = tag_of(set->tags[i]);
        if ((!trust_dict_tags || now != set->dicts[i].seen)
            && (answer = read_again(set, &set->dicts[i], now, arguments, count)) != GUARDS_HIT)
            return answer;
    }
    return GUARDS_HIT;
}

/* The instruction whose dict is no longer empty, if there is one. */
static Py_ssize_t check_empties(const GuardSet *set, const GuardOp *op)
{
    PyObject *const *empties = set->empties;
    Py_ssize_t used = 0;
    for (int32_t i = op->from; i < op->to; i++)
        used |= PyDict_GET_SIZE(empties[i]);
    if (LIKELY(!used))
        return GUARDS_HIT;
    for (int32_t b = 0; b < set->block_count; b++)
        for (int32_t o = 0; o < set->blocks[b].count; o++) {
            const GuardOp *bare = &set->blocks[b].ops[o];
            for (Py_ssize_t i = 0; bare->code == G_bare && i < PyTuple_GET_SIZE(bare->as.empties); i++)
                if (PyDict_GET_SIZE(empties[bare->index + i]))
                    return bare->instruction;
        }
    return op->instruction;
}

/* `count` checks in a row; gives the failing one, or NULL. */
static inline const GuardOp *check_tensors(GuardSet *set, const GuardOp *op, Py_ssize_t count)
{
    PyObject *const *registers = set->registers;
    for (const GuardOp *end = op + count; op < end; op++) {
        PyObject *object = registers[op->from];
        if (UNLIKELY(!tensor_flat(op->as.tensor, object)) && !tensor_check_slowly(op->as.tensor, object, set->numbers))
            return op;
    }
    return NULL;
}

static Py_ssize_t check_ops(GuardSet *set, bool reported, PyObject *const *arguments, Py_ssize_t count)
{
    Py_ssize_t answer;
    for (const GuardOp *op = set->ops, *end = op + set->op_count; op < end; op++) {
        switch (op->code) {
        case G_WORDS:
            for (int32_t i = op->from; i < op->to; i++)
                if (UNLIKELY(*set->words[i].address != set->words[i].expected))
                    return set->word_instructions[i];
            break;
        case G_DICTS:
            if (UNLIKELY((answer = check_dicts(set, (GuardOp *)op, reported, arguments, count)) != GUARDS_HIT))
                return answer;
            break;
        case G_EMPTIES:
            if (UNLIKELY((answer = check_empties(set, op)) != GUARDS_HIT))
                return answer;
            break;
        case G_BLOCK:
            if ((answer = run_block(set, &set->blocks[op->index], arguments, count)) != GUARDS_HIT)
                return answer;
            break;
        case G_TYPE_BLOCK: {
            PyTypeObject *type = (PyTypeObject *)set->blocks[op->index].subject;
            if (LIKELY(op->as.tag && type_tag_now(type) == op->as.tag))
                break;
            if ((answer = run_block(set, &set->blocks[op->index], arguments, count)) != GUARDS_HIT)
                return answer;
            ((GuardOp *)op)->as.tag = type_tag(type);
            break;
        }
        case G_version:
            if (UNLIKELY(!op->as.tag || type_tag_now((PyTypeObject *)set->registers[op->from]) != op->as.tag)
                && !guard_op_run(set, op, arguments, count))
                return op->instruction;
            break;
        case G_arg: /* the four of every call, without the way through the large switch */
            if (UNLIKELY(op->index >= count))
                return op->instruction;
            set->registers[op->to] = arguments[op->index];
            break;
        case G_tensor: {
            const GuardOp *failing = check_tensors(set, op, op->index);
            if (UNLIKELY(failing))
                return failing->instruction;
            op += op->index - 1;
            break;
        }
        case G_number:
            if (UNLIKELY(!number_run(&op->as.number, set->numbers)))
                return op->instruction;
            break;
        default:
            if (!guard_op_run(set, op, arguments, count))
                return op->instruction;
        }
    }
    return GUARDS_HIT;
}

Py_ssize_t guards_check(GuardSet *set, PyObject *const *arguments, Py_ssize_t count, const State *state)
{
    set->checks++;
    /* getattr and keys with an __eq__ of their own may run Python, and that may come back here, in this thread or
       another. */
    if (UNLIKELY(set->busy))
        return GUARDS_BUSY;
    if (UNLIKELY(set->dead || (set->has_state && !guard_state_agrees(set, state)))) {
        PyErr_Clear();
        return -1;
    }
    bool reported = set->reported;
    set->reported = false;
    set->busy = true;
    Py_ssize_t answer = check_ops(set, reported, arguments, count);
    set->busy = false;
    if (UNLIKELY(answer != GUARDS_HIT)) {
        set->reported |= reported;
        if (PyErr_Occurred())
            PyErr_Clear();
        guards_release(set);
    }
    return answer;
}

void guards_release(GuardSet *set)
{
    for (int32_t i = 0; i < set->owned_count; i++)
        Py_CLEAR(set->owned[i]);
}

PyObject **guards_registers(GuardSet *set) { return set->registers; }
const int64_t *guards_numbers(GuardSet *set) { return set->numbers; }
Py_ssize_t guards_register_count(GuardSet *set) { return set->register_count; }
Py_ssize_t guards_number_count(GuardSet *set) { return set->number_count; }
bool guards_need_state(GuardSet *set) { return set->has_state; }
const bool *guards_settled(GuardSet *set) { return set->settled; }
uint64_t guards_age(GuardSet *set) { return set->reruns; }
