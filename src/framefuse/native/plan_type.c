/* The Python type of a compiled plan: makes it, runs it for tests, and lets go of what it holds. */
#include "plan_type.h"

#include <structmember.h>

#include "arena.h"
#include "frame.h"
#include "plan.h"
#include "plan_compile.h"
#include "replay.h"
#include "run.h"
#include "steps.h"

PyTypeObject *PlanProgram_Type;

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"plan", NULL};
    PyObject *source;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &source))
        return NULL;
    PlanProgram *plan = (PlanProgram *)type->tp_alloc(type, 0);
    if (!plan)
        return NULL;
    plan->plan = Py_NewRef(source);
    if (plan_compile(plan) < 0) {
        Py_DECREF(plan);
        return NULL;
    }
    plan->buffers = PyMem_Calloc((size_t)plan->buffer_room + 1, sizeof *plan->buffers);
    if (!plan->buffers || !frame_make(plan, &plan->frame)) {
        Py_DECREF(plan);
        return PyErr_NoMemory();
    }
    arena_user(plan->takes_arena = plan->arena_number >= 0);
    return (PyObject *)plan;
}

static int plan_traverse(PlanProgram *plan, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(plan));
    Py_VISIT(plan->plan);
    Py_VISIT(plan->held);
    Py_VISIT(plan->better);
    Py_VISIT(plan->kept);
    int status = plan->region ? region_traverse(plan->region, visit, arg) : 0;
    if (status)
        return status;
    Py_VISIT(plan->frame.kept);
    for (int32_t i = 0; plan->frame.tensors && i < plan->slot_count; i++)
        if (!plan->slots[i].kept)
            Py_VISIT(plan->frame.tensors[i]);
    for (int32_t i = 0; plan->frame.registers && i < plan->register_count; i++)
        Py_VISIT(plan->frame.registers[i]);
    return 0;
}

static int plan_clear(PlanProgram *plan)
{
    plan->dead = true; /* steps and templates borrow from what goes now */
    plan_forget(plan);
    if (plan->region)
        region_clear(plan->region);
    Py_CLEAR(plan->plan);
    Py_CLEAR(plan->held);
    Py_CLEAR(plan->better);
    Py_CLEAR(plan->declined);
    return 0;
}

static void plan_dealloc(PlanProgram *plan)
{
    PyTypeObject *type = Py_TYPE(plan);
    PyObject_GC_UnTrack(plan);
    frame_free(plan, &plan->frame);
    arena_user(-plan->takes_arena);
    plan_free(plan);
    plan_clear(plan);
    region_free(plan->region);
    PyMem_Free(plan->buffers);
    type->tp_free((PyObject *)plan);
    Py_DECREF(type);
}

static PyObject *plan_run_py(PlanProgram *plan, PyObject *args)
{
    PyObject *registers, *words, *result = NULL;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &registers, &PyTuple_Type, &words))
        return NULL;
    if (PyTuple_GET_SIZE(registers) < plan_registers_needed(plan) || PyTuple_GET_SIZE(words) < plan->bound)
        return PyErr_Format(PyExc_ValueError, "too few registers or numbers");
    int64_t *numbers = PyMem_Calloc((size_t)plan->bound + 1, sizeof *numbers);
    if (!numbers)
        return PyErr_NoMemory();
    for (int32_t i = 0; i < plan->bound; i++)
        numbers[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(words, i));
    int answer = PyErr_Occurred()
                     ? RUN_DONE
                     : plan_run(plan, ((PyTupleObject *)registers)->ob_item, numbers, AGE_UNKNOWN, &result);
    result = PyErr_Occurred() ? NULL : result;
    PyMem_Free(numbers);
    if (answer == RUN_DECLINED)
        PyErr_SetString(Declined, "the plan declined");
    return answer == RUN_DECLINED ? NULL : result;
}

/* A step reads its kernel once, so it runs the one or the other; both stay where they are as long as the plan. */
static PyObject *plan_replace_kernel(PlanProgram *plan, PyObject *args)
{
    unsigned long long old, better;
    PyObject *holder;
    if (!PyArg_ParseTuple(args, "KKO", &old, &better, &holder) || (!plan->better && !(plan->better = PyList_New(0)))
        || PyList_Append(plan->better, holder) < 0)
        return NULL;
    long replaced = 0;
    for (int32_t i = 0; i < plan->step_count; i++) {
        Step *step = &plan->steps[i];
        if (step->kind != STEP_KERNEL || (uintptr_t)step->as.kernel.kernel != (uintptr_t)old)
            continue;
        __atomic_store_n(&step->as.kernel.kernel, (Kernel)(uintptr_t)better, __ATOMIC_RELEASE);
        replaced++;
    }
    return PyLong_FromLong(replaced);
}

static PyObject *get_arena_bytes(PlanProgram *plan, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(plan->arena_bytes);
}

static PyMethodDef plan_methods[] = {
    {"run", (PyCFunction)plan_run_py, METH_VARARGS, "Runs the plan without guards; raises Declined."},
    {"steps", (PyCFunction)region_steps_py, METH_VARARGS,
     "steps(inputs, state): runs the steps of the region on these inputs; gives its outs."},
    {"add", (PyCFunction)region_add_py, METH_VARARGS,
     "add(inputs, copied, state, replay): from now on a run like this one calls replay."},
    {"replace_kernel", (PyCFunction)plan_replace_kernel, METH_VARARGS,
     "replace_kernel(old, better, holder): steps that run the code at one address run that at the other from now on."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef plan_members[] = {
    {"plan", T_OBJECT, offsetof(PlanProgram, plan), READONLY, NULL},
    {"runs", T_ULONGLONG, offsetof(PlanProgram, runs), READONLY, NULL},
    {"declines", T_ULONGLONG, offsetof(PlanProgram, declines), READONLY, NULL},
    {"declined", T_OBJECT, offsetof(PlanProgram, declined), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef plan_getset[] = {
    {"arena_bytes", (getter)get_arena_bytes, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot plan_slots[] = {
    {Py_tp_new, plan_new},
    {Py_tp_dealloc, plan_dealloc},
    {Py_tp_traverse, plan_traverse},
    {Py_tp_clear, plan_clear},
    {Py_tp_methods, plan_methods},
    {Py_tp_members, plan_members},
    {Py_tp_getset, plan_getset},
    {Py_tp_doc, "PlanProgram(plan): a plan compiled into C."},
    {0, NULL},
};
static PyType_Spec plan_spec = {"framefuse._native.PlanProgram", sizeof(PlanProgram), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, plan_slots};

PyTypeObject *make_plan_type(PyObject *module)
{
    return PlanProgram_Type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &plan_spec, NULL);
}
