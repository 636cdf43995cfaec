/* The Python type of a compiled guard program: makes it, checks arguments for tests and for explain, and lets go of
   what it holds. */
#include "guard_set.h"

#include <structmember.h>
#include <time.h>

#include "distinct.h"
#include "guard_compile.h"
#include "guard_program.h"
#include "guards.h"
#include "tensor_check.h"
#include "torch_abi.h"
#include "watch.h"

static void free_ops(GuardOp *ops, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (ops[i].code == G_tensor && ops[i].as.tensor)
            tensor_check_free(ops[i].as.tensor);
        else if (ops[i].code == G_apart && ops[i].as.apart)
            apart_free(ops[i].as.apart);
        else if (ops[i].code == G_distinct && ops[i].as.distinct)
            distinct_free(ops[i].as.distinct);
    PyMem_Free(ops);
}

static int guard_set_traverse(GuardSet *set, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(set));
    Py_VISIT(set->program);
    Py_VISIT(set->instructions);
    for (int32_t i = 0; i < set->owned_count; i++)
        Py_VISIT(set->owned[i]);
    return 0;
}

static int guard_set_clear(GuardSet *set)
{
    set->dead = true; /* the arrays borrow from the program: never read them again */
    watch_forget(set);
    guards_release(set);
    Py_CLEAR(set->program);
    Py_CLEAR(set->instructions);
    return 0;
}

static void guard_set_dealloc(GuardSet *set)
{
    PyTypeObject *type = Py_TYPE(set);
    PyObject_GC_UnTrack(set);
    guard_set_clear(set);
    free_ops(set->ops, set->op_count);
    for (int32_t i = 0; i < set->block_count; i++)
        free_ops(set->blocks[i].ops, set->blocks[i].count);
    PyMem_Free(set->blocks);
    PyMem_Free(set->words);
    PyMem_Free(set->word_instructions);
    PyMem_Free(set->dicts);
    PyMem_Free(set->tags);
    PyMem_Free(set->empties);
    PyMem_Free(set->registers);
    PyMem_Free(set->settled);
    PyMem_Free(set->numbers);
    PyMem_Free(set->owned);
    Py_CLEAR(set->default_device);
    type->tp_free((PyObject *)set);
    Py_DECREF(type);
}

static PyObject *guard_set_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"program", NULL};
    PyObject *program;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &program))
        return NULL;
    GuardSet *set = (GuardSet *)type->tp_alloc(type, 0);
    if (!set)
        return NULL;
    set->program = Py_NewRef(program);
    if (guards_compile(set) < 0) {
        Py_DECREF(set);
        return NULL;
    }
    return (PyObject *)set;
}

static PyObject *guard_set_check(GuardSet *set, PyObject *arguments)
{
    if (!PyTuple_Check(arguments))
        return PyErr_Format(PyExc_TypeError, "arguments must be a tuple");
    State state;
    if (set->has_state && !abi_read_state(&state))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_RuntimeError, "torch's state cannot be read");
    Py_ssize_t answer = guards_check(set, ((PyTupleObject *)arguments)->ob_item, PyTuple_GET_SIZE(arguments), &state);
    if (answer != GUARDS_HIT)
        return PyLong_FromSsize_t(answer);
    PyObject *registers = PyTuple_New(set->register_count), *numbers = PyTuple_New(set->number_count);
    for (Py_ssize_t i = 0; registers && i < set->register_count; i++)
        PyTuple_SET_ITEM(registers, i, Py_NewRef(set->registers[i] ? set->registers[i] : Py_None));
    for (Py_ssize_t i = 0; numbers && i < set->number_count; i++)
        PyTuple_SET_ITEM(numbers, i, PyLong_FromLongLong(set->numbers[i]));
    guards_release(set);
    return Py_BuildValue("(NN)", registers, numbers);
}

/* Seconds of one check, as the mean over `count` of them, or the index of the instruction that failed. */
static PyObject *guard_set_measure(GuardSet *set, PyObject *args)
{
    PyObject *arguments;
    int count;
    State state;
    struct timespec begin, end;
    if (!PyArg_ParseTuple(args, "O!i", &PyTuple_Type, &arguments, &count))
        return NULL;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < count; i++) {
        if (set->has_state && !abi_read_state(&state))
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_RuntimeError, "torch's state cannot be read");
        Py_ssize_t answer =
            guards_check(set, ((PyTupleObject *)arguments)->ob_item, PyTuple_GET_SIZE(arguments), &state);
        if (answer != GUARDS_HIT)
            return PyLong_FromSsize_t(answer);
        guards_release(set);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    return PyFloat_FromDouble(((double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec))
                              / (count > 0 ? count : 1));
}

static PyMethodDef guard_set_methods[] = {
    {"measure", (PyCFunction)guard_set_measure, METH_VARARGS,
     "measure(arguments, count): seconds of one check, or the failing instruction"},
    {"check", (PyCFunction)guard_set_check, METH_O, "(registers, numbers), or the index of the failing instruction"},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef guard_set_members[] = {
    {"program", T_OBJECT, offsetof(GuardSet, program), READONLY, NULL},
    {"checks", T_ULONGLONG, offsetof(GuardSet, checks), READONLY, NULL},
    {"words", T_INT, offsetof(GuardSet, word_count), READONLY, NULL},
    {"dicts", T_INT, offsetof(GuardSet, dict_count), READONLY, NULL},
    {"reruns", T_ULONGLONG, offsetof(GuardSet, reruns), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot guard_set_slots[] = {
    {Py_tp_new, guard_set_new},
    {Py_tp_dealloc, guard_set_dealloc},
    {Py_tp_traverse, guard_set_traverse},
    {Py_tp_clear, guard_set_clear},
    {Py_tp_methods, guard_set_methods},
    {Py_tp_members, guard_set_members},
    {Py_tp_doc, "GuardSet(program): a guard program compiled into C."},
    {0, NULL},
};
static PyType_Spec guard_set_spec = {"framefuse._native.GuardSet", sizeof(GuardSet), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
                                     guard_set_slots};

Py_ssize_t guards_reals(GuardSet *set, ReadReal *to)
{
    Py_ssize_t found = 0;
    for (int32_t b = -1; b < set->block_count; b++) {
        const GuardOp *ops = b < 0 ? set->ops : set->blocks[b].ops;
        for (int32_t i = 0, count = b < 0 ? set->op_count : set->blocks[b].count; i < count; i++)
            if (ops[i].code == G_real) {
                if (to)
                    to[found] = (ReadReal){.number = ops[i].index, .from = ops[i].from};
                found++;
            }
    }
    return found;
}

PyTypeObject *make_guard_set_type(PyObject *module)
{
    return GuardSet_Type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &guard_set_spec, NULL);
}
