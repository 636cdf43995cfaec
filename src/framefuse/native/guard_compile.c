/* Compiles the tuples of a guard program into operations, words that a loop compares, and blocks that wait for a
   change. */
#include "guard_compile.h"

#include "distinct.h"
#include "guard_program.h"
#include "guard_state.h"
#include "guards.h"
#include "numbers.h"
#include "tags.h"
#include "tensor_check.h"
#include "watch.h"

static const char *const NAMES[] = {
#define X(name) #name,
    GUARD_OPERATIONS(X)
#undef X
};

enum { CHECKS = 64 }; /* distinct checks of tensors that are looked through for an equal one */

typedef struct {
    GuardSet *set;
    PyObject **constant; /* borrowed: what a register always holds, if known */
    bool *defined, *written;
    int32_t op_room, word_room, empty_room, empties_checked;
    TensorCheck *checks[CHECKS]; /* borrowed from the operations that use them */
    int check_count;
    PyObject *seen; /* owned: the words stated so far, as (address, expected) */
} Compiler;

static int bad(PyObject *instruction)
{
    if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "bad guard instruction %R", instruction);
    }
    return -1;
}

static int32_t source_register(Compiler *c, Py_ssize_t index)
{
    if (index < 0 || index >= c->set->register_count || !c->defined[index]) {
        PyErr_Format(PyExc_ValueError, "guard register %zd is read before it is written", index);
        return -1;
    }
    return (int32_t)index;
}

/* Each register is written by one instruction, so that a constant register stays one. */
static int define(Compiler *c, Py_ssize_t index)
{
    if (index < 0 || index >= c->set->register_count || c->defined[index]) {
        PyErr_Format(PyExc_ValueError, "guard register %zd is out of range or written twice", index);
        return -1;
    }
    c->defined[index] = true;
    return 0;
}

static int number_index(Compiler *c, Py_ssize_t index)
{
    if (index >= 0 && index < c->set->number_count)
        return 0;
    PyErr_Format(PyExc_ValueError, "guard number %zd is out of range", index);
    return -1;
}

/* The same for numbers: a constant is computed once, and what a block bound stays until it runs again. */
static int write_number(Compiler *c, Py_ssize_t index)
{
    if (number_index(c, index) < 0)
        return -1;
    if (c->written[index]) {
        PyErr_Format(PyExc_ValueError, "guard number %zd is written twice", index);
        return -1;
    }
    c->written[index] = true;
    return 0;
}

static int write_numbers(Compiler *c, const GuardOp *op)
{
    if (op->code == G_integer || op->code == G_real || op->code == G_scalar || op->code == G_count
        || op->code == G_address)
        return write_number(c, op->index);
    if (op->code == G_number)
        return write_number(c, op->as.number.to);
    for (int i = 0; op->code == G_tensor && i < op->as.tensor->binds; i++)
        if (write_number(c, op->as.tensor->bind[i].number) < 0)
            return -1;
    return 0;
}

static int operation_named(const char *name)
{
    for (int i = 0; i < G_WORDS; i++)
        if (strcmp(NAMES[i], name) == 0)
            return i;
    return -1;
}

static int keyed(GuardOp *op, PyObject *key)
{
    op->object = key;
    op->hash = PyObject_Hash(key);
    return op->hash == -1 ? -1 : 0;
}

static int read_relation(Compiler *c, PyObject *instruction, GuardOp *op)
{
    static const struct {
        const char *text;
        int code;
    } RELATIONS[] = {
#define X(code, text) {text, code},
        NUMBER_RELATIONS(X)
#undef X
    };
    const char *name, *text;
    Py_ssize_t left, right;
    int holds = 1;
    if (!PyArg_ParseTuple(instruction, op->code == G_real_relation ? "ssnnp" : "ssnn", &name, &text, &left, &right,
                          &holds)
        || number_index(c, left) < 0 || number_index(c, right) < 0)
        return bad(instruction);
    op->index = -1;
    for (size_t i = 0; i < sizeof RELATIONS / sizeof *RELATIONS; i++)
        if (strcmp(RELATIONS[i].text, text) == 0)
            op->index = RELATIONS[i].code;
    op->to = (int32_t)left, op->from = (int32_t)right;
    op->holds = holds;
    return op->index < 0 ? bad(instruction) : 0;
}

static int read_code(PyObject *instruction, GuardOp *op, Py_ssize_t *r)
{
    const char *name;
    if (!PyArg_ParseTuple(instruction, "snOOO", &name, r, &op->object, &op->as.code_of.defaults,
                          &op->as.code_of.keyword_defaults))
        return bad(instruction);
    return 0;
}

static int read_unset(PyObject *instruction, GuardOp *op, Py_ssize_t *r)
{
    static const char *const KINDS[UNSET_COUNT] = {
#define X(kind, name) name,
        UNSET_KIND_NAMES(X)
#undef X
    };
    const char *name, *kind;
    PyObject *key;
    if (!PyArg_ParseTuple(instruction, "snsO", &name, r, &kind, &key))
        return bad(instruction);
    op->as.unset = 0;
    while (op->as.unset < UNSET_COUNT && strcmp(KINDS[op->as.unset], kind))
        op->as.unset++;
    if (op->as.unset == UNSET_COUNT)
        return bad(instruction);
    if (op->as.unset == UNSET_CELL) {
        op->index = PyLong_AsSsize_t(key);
        return PyErr_Occurred() ? bad(instruction) : 0;
    }
    return keyed(op, key) < 0 ? bad(instruction) : 0;
}

static int read_tensor(Compiler *c, PyObject *instruction, GuardOp *op, Py_ssize_t *r)
{
    const char *name;
    PyObject *spec, *numbers;
    if (!PyArg_ParseTuple(instruction, "snOO", &name, r, &spec, &numbers))
        return bad(instruction);
    op->as.tensor = PyMem_Calloc(1, sizeof(TensorCheck));
    if (!op->as.tensor) {
        PyErr_NoMemory();
        return -1;
    }
    if (tensor_check_parse(spec, numbers, c->set->number_count, op->as.tensor) < 0)
        return -1;
    for (int i = 0; i < c->check_count; i++)
        if (tensor_check_same(c->checks[i], op->as.tensor)) {
            tensor_check_free(op->as.tensor);
            op->as.tensor = c->checks[i];
            op->as.tensor->users++;
            return 0;
        }
    if (c->check_count < CHECKS && !op->as.tensor->binds)
        c->checks[c->check_count++] = op->as.tensor;
    return 0;
}

/* A tuple of strings. */
static bool names_only(PyObject *names)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++)
        if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(names, i)))
            return false;
    return true;
}

static int read_bare(PyObject *instruction, GuardOp *op, Py_ssize_t *r)
{
    const char *name;
    op->index = -1;
    if (!PyArg_ParseTuple(instruction, "snO!O!", &name, r, &PyTuple_Type, &op->object, &PyTuple_Type,
                          &op->as.empties)
        || !names_only(op->object) || !names_only(op->as.empties))
        return bad(instruction);
    return 0;
}

/* Gives the empty dicts that a block finds their places, which `check_empties` looks at after all blocks. */
static int add_empties(Compiler *c, GuardOp *op)
{
    GuardSet *set = c->set;
    Py_ssize_t count = set->empty_count + PyTuple_GET_SIZE(op->as.empties);
    if (count > c->empty_room) {
        Py_ssize_t room = 2 * count + 16;
        PyObject **grown = room <= INT32_MAX ? PyMem_Realloc(set->empties, (size_t)room * sizeof *grown) : NULL;
        if (!grown)
            return PyErr_NoMemory(), -1;
        set->empties = grown, c->empty_room = (int32_t)room;
    }
    op->index = set->empty_count;
    set->empty_count = (int32_t)count;
    return 0;
}

/* A load: (name, d, r, operand) or (name, d, r). */
static int read_load(Compiler *c, PyObject *instruction, GuardOp *op)
{
    const char *name;
    PyObject *operand = NULL;
    Py_ssize_t d, r, size = PyTuple_GET_SIZE(instruction);
    bool has_operand = op->code != G_dict && op->code != G_type && op->code != G_func && op->code != G_self
                    && op->code != G_context;
    if (size != 3 + has_operand || !PyArg_ParseTuple(instruction, "snn|O", &name, &d, &r, &operand))
        return bad(instruction);
    if ((op->from = source_register(c, r)) < 0 || define(c, d) < 0)
        return -1;
    op->to = (int32_t)d;
    switch (op->code) {
    case G_item_dict: case G_global: case G_type_attr: case G_getattr:
        if (op->code != G_item_dict && !PyUnicode_CheckExact(operand))
            return bad(instruction);
        if (keyed(op, operand) < 0)
            return bad(instruction);
        op->index = op->code == G_getattr ? c->set->owned_count++ : 0;
        return 0;
    case G_context:
        op->index = c->set->owned_count++;
        return 0;
    case G_item_seq: case G_cell:
        op->index = PyLong_AsSsize_t(operand);
        return PyErr_Occurred() ? bad(instruction) : 0;
    case G_entry:
        op->index = PyLong_AsSsize_t(operand);
        return PyErr_Occurred() ? bad(instruction) : source_register(c, op->index) < 0 ? -1 : 0;
    default:
        return 0;
    }
}

static int read_apart(Compiler *c, PyObject *instruction, GuardOp *op)
{
    const char *name;
    PyObject *registers, *bytes;
    Py_ssize_t written;
    if (!PyArg_ParseTuple(instruction, "sO!nO!", &name, &PyTuple_Type, &registers, &written, &PyTuple_Type, &bytes))
        return bad(instruction);
    if (!(op->as.apart = apart_parse(registers, written, bytes)))
        return bad(instruction);
    for (int32_t i = 0; i < op->as.apart->count; i++)
        if (source_register(c, op->as.apart->tensors[i].reg) < 0)
            return -1;
    return 0;
}

static int read_distinct(Compiler *c, PyObject *instruction, GuardOp *op)
{
    const char *name;
    PyObject *registers;
    if (!PyArg_ParseTuple(instruction, "sO!", &name, &PyTuple_Type, &registers))
        return bad(instruction);
    if (!(op->as.distinct = distinct_parse(registers)))
        return bad(instruction);
    for (int32_t i = 0; i < op->as.distinct->count; i++)
        if (source_register(c, op->as.distinct->registers[i]) < 0)
            return -1;
    return 0;
}

/* A check: (name, r, operand). */
static int read_check(Compiler *c, PyObject *instruction, GuardOp *op)
{
    const char *name;
    PyObject *operand = NULL;
    Py_ssize_t r = -1;
    int status = op->code == G_code      ? read_code(instruction, op, &r)
               : op->code == G_unset     ? read_unset(instruction, op, &r)
               : op->code == G_bare      ? read_bare(instruction, op, &r)
               : op->code == G_tensor    ? read_tensor(c, instruction, op, &r)
               : PyArg_ParseTuple(instruction, "sn|O", &name, &r, &operand) ? 0 : bad(instruction);
    if (status < 0 || (op->from = source_register(c, r)) < 0)
        return -1;
    if (op->code == G_code || op->code == G_unset || op->code == G_bare || op->code == G_tensor)
        return 0;
    if (!operand)
        return bad(instruction);
    switch (op->code) {
    case G_version: {
        PyObject *type = c->constant[op->from];
        if (!type || !PyType_Check(type))
            return bad(instruction);
        if (PyTuple_CheckExact(operand) && PyTuple_GET_SIZE(operand) == 2) {
            op->object = PyTuple_GET_ITEM(operand, 1);
            operand = PyTuple_GET_ITEM(operand, 0);
        }
        unsigned long tag = PyLong_AsUnsignedLong(operand);
        op->as.tag = trust_type_tags ? (unsigned int)tag : 0; /* a tag that cannot be trusted is never the one seen */
        return PyErr_Occurred() ? bad(instruction) : 0;
    }
    case G_length:
    case G_integer:
    case G_real:
    case G_scalar:
    case G_count:
    case G_address:
    case G_same:
    case G_different:
    case G_disjoint:
        op->index = PyLong_AsSsize_t(operand);
        if (PyErr_Occurred())
            return bad(instruction);
        return op->code != G_same && op->code != G_different && op->code != G_disjoint ? 0
               : source_register(c, op->index) < 0                                     ? -1
                                                                                       : 0;
    case G_absent: case G_present:
        return keyed(op, operand) < 0 ? bad(instruction) : 0;
    case G_answer:
        op->object = operand;
        if (!PyTuple_CheckExact(operand) || PyTuple_GET_SIZE(operand) != 4
            || !PyTuple_CheckExact(PyTuple_GET_ITEM(operand, 1))
            || !PyTuple_CheckExact(PyTuple_GET_ITEM(operand, 2)))
            return bad(instruction);
        return PyTuple_GET_SIZE(PyTuple_GET_ITEM(operand, 1)) + PyTuple_GET_SIZE(PyTuple_GET_ITEM(operand, 2)) < ASKED
            ? 0 : bad(instruction);
    case G_keys:
        op->object = operand;
        return PyTuple_CheckExact(operand) ? 0 : bad(instruction);
    case G_type_absent:
        op->object = operand;
        return PyUnicode_CheckExact(operand) ? 0 : bad(instruction);
    default:
        op->object = operand;
        return 0;
    }
}

static int read_op(Compiler *c, PyObject *instruction, Py_ssize_t index, GuardOp *op)
{
    memset(op, 0, sizeof *op);
    op->instruction = (int32_t)index;
    const char *name =
        PyTuple_Check(instruction) && PyTuple_GET_SIZE(instruction) && PyUnicode_Check(PyTuple_GET_ITEM(instruction, 0))
            ? PyUnicode_AsUTF8(PyTuple_GET_ITEM(instruction, 0))
            : "";
    int code = operation_named(name);
    if (code < 0)
        return bad(instruction);
    op->code = (uint8_t)code;
    if (code == G_number) {
        if (PyTuple_GET_SIZE(instruction) != 2)
            return bad(instruction);
        return number_parse(PyTuple_GET_ITEM(instruction, 1), c->set->number_count, &op->as.number);
    }
    if (code == G_apart)
        return read_apart(c, instruction, op);
    if (code == G_distinct)
        return read_distinct(c, instruction, op);
    if (code == G_relation || code == G_real_relation)
        return read_relation(c, instruction, op);
    if (code == G_arg) {
        Py_ssize_t d;
        if (!PyArg_ParseTuple(instruction, "snn", &name, &d, &op->index) || op->index < 0)
            return bad(instruction);
        op->to = (int32_t)d;
        return define(c, d);
    }
    return code < G_is ? read_load(c, instruction, op) : read_check(c, instruction, op);
}

/* ---- words ---- */

static int add_op(Compiler *c, const GuardOp *op)
{
    GuardSet *set = c->set;
    if (set->op_count == c->op_room) {
        int32_t room = c->op_room ? 2 * c->op_room : 64;
        GuardOp *grown = PyMem_Realloc(set->ops, (size_t)room * sizeof *grown);
        if (!grown)
            return PyErr_NoMemory(), -1;
        set->ops = grown, c->op_room = room;
    }
    set->ops[set->op_count++] = *op;
    return 0;
}

/* The last operation if it is `code`, else a new one that begins at `from`. */
static GuardOp *run_of(Compiler *c, uint8_t code, int32_t from, int32_t instruction)
{
    GuardSet *set = c->set;
    if (!set->op_count || set->ops[set->op_count - 1].code != code) {
        GuardOp run = {.code = code, .from = from, .to = from, .instruction = instruction};
        if (add_op(c, &run) < 0)
            return NULL;
    }
    return &set->ops[set->op_count - 1];
}

/* 1 if the same word was stated before: two facts often rest on one `__dict__` or class. */
static int stated(Compiler *c, const void *address, const void *expected)
{
    PyObject *word = Py_BuildValue("(NN)", PyLong_FromVoidPtr((void *)address), PyLong_FromVoidPtr((void *)expected));
    int known = word ? PySet_Contains(c->seen, word) : -1;
    if (known == 0 && PySet_Add(c->seen, word) < 0)
        known = -1;
    Py_XDECREF(word);
    return known;
}

static int add_word(Compiler *c, const void *address, const void *expected, int32_t instruction)
{
    GuardSet *set = c->set;
    int known = stated(c, address, expected);
    if (known)
        return known < 0 ? -1 : 0;
    if (set->word_count == c->word_room) {
        int32_t room = c->word_room ? 2 * c->word_room : 64;
        Word *words = PyMem_Realloc(set->words, (size_t)room * sizeof *words);
        if (words)
            set->words = words;
        int32_t *instructions =
            words ? PyMem_Realloc(set->word_instructions, (size_t)room * sizeof *instructions) : NULL;
        if (!instructions)
            return PyErr_NoMemory(), -1;
        set->word_instructions = instructions, c->word_room = room;
    }
    GuardOp *run = run_of(c, G_WORDS, set->word_count, instruction);
    if (!run)
        return -1;
    set->words[set->word_count] = (Word){address, (uint64_t)(uintptr_t)expected};
    set->word_instructions[set->word_count++] = instruction;
    run->to = set->word_count;
    return 0;
}

static PyObject *expected_by_next(Compiler *c, Py_ssize_t next, int32_t reg)
{
    const char *name;
    Py_ssize_t r;
    PyObject *expected, *instruction = next < PyTuple_GET_SIZE(c->set->instructions)
                                           ? PyTuple_GET_ITEM(c->set->instructions, next)
                                           : NULL;
    if (!instruction || !PyTuple_Check(instruction) || PyTuple_GET_SIZE(instruction) != 3
        || !PyArg_ParseTuple(instruction, "snO", &name, &r, &expected)) {
        PyErr_Clear();
        return NULL;
    }
    return strcmp(name, "is") == 0 && r == reg ? expected : NULL;
}

/* Turns a check of a long-lived object into words where it is a compare of fields. Gives how many instructions it
   took, 0 for none, -1 on errors. The object is held by the program and its layout is fixed by its type, so the
   addresses stay good. */
static int as_words(Compiler *c, const GuardOp *op, Py_ssize_t index)
{
    PyObject *held = op->code >= G_dict && op->code < G_relation ? c->constant[op->from] : NULL, *expected;
    PyObject **place = NULL;
    if (!held)
        return 0;
    switch (op->code) {
    case G_type_is:
        return add_word(c, &held->ob_type, op->object, op->instruction) < 0 ? -1 : 1;
    case G_length:
        if (!PyList_CheckExact(held))
            return 0;
        return add_word(c, &((PyVarObject *)held)->ob_size, (void *)op->index, op->instruction) < 0 ? -1 : 1;
    case G_code: {
        if (!PyFunction_Check(held))
            return 0;
        PyFunctionObject *f = (PyFunctionObject *)held;
        PyObject *defaults = op->as.code_of.defaults, *keyword = op->as.code_of.keyword_defaults;
        defaults = defaults == Py_None ? NULL : defaults, keyword = keyword == Py_None ? NULL : keyword;
        return add_word(c, &f->func_code, op->object, op->instruction) < 0
                       || add_word(c, &f->func_defaults, defaults, op->instruction) < 0
                       || add_word(c, &f->func_kwdefaults, keyword, op->instruction) < 0
                   ? -1
                   : 1;
    }
    case G_dict:
        place = _PyObject_GetDictPtr(held);
        break;
    case G_cell:
        place = closure_cell(held, op->index);
        break;
    default:
        return 0;
    }
    expected = expected_by_next(c, index + 1, op->to);
    if (!expected || !place || *place != expected)
        return 0; /* it fails now: let the ordinary operations say where */
    c->set->registers[op->to] = c->constant[op->to] = expected;
    c->set->settled[op->to] = true;
    return add_word(c, place, expected, op->instruction + 1) < 0 ? -1 : 2;
}

/* ---- the program ---- */

static int add_dict(Compiler *c, PyObject *dict, bool watched, int32_t block, int32_t instruction)
{
    GuardSet *set = c->set;
    GuardOp *last = set->op_count ? &set->ops[set->op_count - 1] : NULL;
    if (last && last->code == G_DICTS && last->as.dicts.watched != watched) { /* not of one kind: a run of its own */
        GuardOp run = {.code = G_DICTS, .from = set->dict_count, .to = set->dict_count, .instruction = instruction};
        if (add_op(c, &run) < 0)
            return -1;
    }
    GuardOp *run = run_of(c, G_DICTS, set->dict_count, instruction);
    if (!run)
        return -1;
    set->tags[set->dict_count] = dict_tag_word(dict);
    set->dicts[set->dict_count++] = (WatchedDict){.block = block, .moved = true}; /* the first check runs the block */
    set->reported = true;
    run->to = run->as.dicts.settled = set->dict_count;
    run->as.dicts.watched = watched;
    return 0;
}

static int begin_block(Compiler *c, PyObject *instruction, Py_ssize_t index, Py_ssize_t *count)
{
    const char *name;
    PyObject *subject;
    GuardSet *set = c->set;
    if (!PyArg_ParseTuple(instruction, "sOn", &name, &subject, count) || *count < 0
        || index + *count >= PyTuple_GET_SIZE(set->instructions) || !(PyDict_Check(subject) || PyType_Check(subject)))
        return bad(instruction);
    Block *block = &set->blocks[set->block_count];
    *block = (Block){subject, PyMem_Calloc((size_t)*count + 1, sizeof(GuardOp)), 0};
    if (!block->ops)
        return PyErr_NoMemory(), -1;
    GuardOp op = {.code = G_BLOCK, .index = set->block_count++, .instruction = (int32_t)index};
    if (PyDict_Check(subject)) {
        bool watched = watch_dict(subject, set, set->dict_count);
        if (watched || trust_dict_tags) {
            int status = add_dict(c, subject, watched, (int32_t)op.index, (int32_t)index);
            if (status < 0 && watched)
                watch_move(set, subject, set->dict_count, -1);
            return status;
        }
    }
    if (PyType_Check(subject) && trust_type_tags)
        op.code = G_TYPE_BLOCK;
    return add_op(c, &op);
}

static int compile_instruction(Compiler *c, Py_ssize_t index, Block *block)
{
    GuardSet *set = c->set;
    PyObject *instruction = PyTuple_GET_ITEM(set->instructions, index);
    const char *name;
    Py_ssize_t d;
    PyObject *object;
    if (PyTuple_Check(instruction) && PyTuple_GET_SIZE(instruction) == 3
        && PyUnicode_Check(PyTuple_GET_ITEM(instruction, 0))
        && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(instruction, 0), "object") == 0) {
        if (!PyArg_ParseTuple(instruction, "snO", &name, &d, &object))
            return bad(instruction);
        if (define(c, d) < 0)
            return -1;
        set->registers[d] = c->constant[d] = object;
        set->settled[d] = true;
        return 1;
    }
    GuardOp op;
    int status = read_op(c, instruction, index, &op);
    if (status == 0)
        status = write_numbers(c, &op);
    if (block) {
        if (status == 0 && op.code == G_bare)
            status = add_empties(c, &op);
        block->ops[block->count++] = op; /* also a broken one, so that it is freed */
        if (status == 0 && op.code < G_is && op.code != G_arg && op.code != G_getattr && op.code != G_context)
            set->settled[op.to] = set->settled[op.from];
        return status < 0 ? -1 : 1;
    }
    if (status == 0 && op.code == G_number && number_is_const(&op.as.number)) {
        number_run(&op.as.number, set->numbers); /* set once: each number has one writer */
        return 1;
    }
    int taken = status < 0 ? -1 : as_words(c, &op, index);
    if (taken == 0 && add_op(c, &op) == 0)
        return 1;
    if (taken <= 0 && op.code == G_tensor && op.as.tensor)
        tensor_check_free(op.as.tensor);
    if (taken <= 0 && op.code == G_apart && op.as.apart)
        apart_free(op.as.apart);
    if (taken <= 0 && op.code == G_distinct && op.as.distinct)
        distinct_free(op.as.distinct);
    return taken ? taken : -1;
}

/* What the blocks so far found empty is looked at before anything else runs. */
static int check_empties_here(Compiler *c, int32_t instruction)
{
    GuardOp op = {.code = G_EMPTIES, .from = c->empties_checked, .to = c->set->empty_count, .instruction = instruction};
    c->empties_checked = c->set->empty_count;
    return op.from == op.to ? 0 : add_op(c, &op);
}

static int compile_all(Compiler *c)
{
    GuardSet *set = c->set;
    Py_ssize_t total = PyTuple_GET_SIZE(set->instructions), index = 0;
    while (index < total) {
        PyObject *instruction = PyTuple_GET_ITEM(set->instructions, index);
        bool watch = PyTuple_Check(instruction) && PyTuple_GET_SIZE(instruction) == 3
                     && PyUnicode_Check(PyTuple_GET_ITEM(instruction, 0))
                     && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(instruction, 0), "watch") == 0;
        if (!watch) {
            int taken = check_empties_here(c, (int32_t)index) < 0 ? -1 : compile_instruction(c, index, NULL);
            if (taken < 0)
                return -1;
            index += taken;
            continue;
        }
        Py_ssize_t count;
        if (begin_block(c, instruction, index, &count) < 0)
            return -1;
        Block *block = &set->blocks[set->block_count - 1];
        for (Py_ssize_t i = 1; i <= count; i++)
            if (compile_instruction(c, index + i, block) < 0)
                return -1;
        index += count + 1;
    }
    if (check_empties_here(c, (int32_t)total - 1) < 0)
        return -1;
    for (int32_t i = set->op_count - 1; i >= 0; i--)
        if (set->ops[i].code == G_tensor)
            set->ops[i].index =
                1 + (i + 1 < set->op_count && set->ops[i + 1].code == G_tensor ? set->ops[i + 1].index : 0);
    return 0;
}

static Py_ssize_t read_size(PyObject *program, const char *name)
{
    PyObject *value = PyObject_GetAttrString(program, name);
    Py_ssize_t size = value ? PyLong_AsSsize_t(value) : -1;
    Py_XDECREF(value);
    if (!PyErr_Occurred() && (size < 0 || size > 1 << 24))
        PyErr_Format(PyExc_ValueError, "GuardProgram.%s is out of range", name);
    return size;
}

int guards_compile(GuardSet *set)
{
    PyObject *state = PyObject_GetAttrString(set->program, "state");
    if (!state)
        return -1;
    int status = state == Py_None ? 0 : guard_state_parse(set, state);
    Py_DECREF(state);
    if (status < 0 || !(set->instructions = PyObject_GetAttrString(set->program, "instructions")))
        return -1;
    if (!PyTuple_Check(set->instructions))
        return PyErr_SetString(PyExc_ValueError, "GuardProgram.instructions is a tuple"), -1;
    set->register_count = read_size(set->program, "registers");
    if (PyErr_Occurred())
        return -1;
    set->number_count = read_size(set->program, "numbers");
    if (PyErr_Occurred())
        return -1;
    size_t instructions = (size_t)PyTuple_GET_SIZE(set->instructions), registers = (size_t)set->register_count;
    Compiler c = {.set = set};
    c.constant = PyMem_Calloc(registers + 1, sizeof *c.constant);
    c.defined = PyMem_Calloc(registers + 1, sizeof *c.defined);
    c.written = PyMem_Calloc((size_t)set->number_count + 1, sizeof *c.written);
    set->registers = PyMem_Calloc(registers + 1, sizeof *set->registers);
    set->numbers = PyMem_Calloc((size_t)set->number_count + 1, sizeof *set->numbers);
    set->settled = PyMem_Calloc(registers + 1, sizeof *set->settled);
    set->blocks = PyMem_Calloc(instructions + 1, sizeof *set->blocks);
    set->owned = PyMem_Calloc(instructions + 1, sizeof *set->owned);
    set->dicts = PyMem_Calloc(instructions + 1, sizeof *set->dicts);
    set->tags = PyMem_Calloc(instructions + 1, sizeof *set->tags);
    c.seen = PySet_New(NULL);
    status = -1;
    if (!c.seen)
        ;
    else if (!set->dicts || !set->tags || !c.constant || !c.defined || !c.written || !set->registers || !set->settled
             || !set->numbers || !set->blocks || !set->owned)
        PyErr_NoMemory();
    else
        status = compile_all(&c);
    Py_XDECREF(c.seen);
    PyMem_Free(c.constant);
    PyMem_Free(c.defined);
    PyMem_Free(c.written);
    return status;
}
