/* Compiles a Plan of dataclasses into arrays of C structs, and refuses what breaks the rules of framefuse.ir.plan. */
#include "plan_compile.h"

#include "autograd.h"
#include "convolutions.h"
#include "fields.h"
#include "launch.h"
#include "numbers.h"
#include "plan.h"
#include "replay.h"
#include "template.h"
#include "torch_abi.h"

/* ---- slots ---- */

static int read_place(PyObject *source, Slot *slot)
{
    static const char *const PLACES[PLACE_COUNT] = {
#define X(place, name) name,
        SLOT_PLACES(X)
#undef X
    };
    PyObject *place = PyObject_GetAttrString(source, "place");
    const char *text = place && PyUnicode_Check(place) ? PyUnicode_AsUTF8(place) : "";
    slot->place = PLACE_COUNT;
    for (int i = 0; i < PLACE_COUNT; i++)
        if (strcmp(PLACES[i], text) == 0)
            slot->place = (uint8_t)i;
    Py_XDECREF(place);
    return slot->place == PLACE_COUNT ? wrong("an unknown place", source) : 0;
}

static int read_element(PyObject *source, Slot *slot)
{
    PyObject *dtype = PyObject_GetAttrString(source, "dtype"), *device = PyObject_GetAttrString(source, "device");
    const DTypeRow *row = dtype ? abi_dtype(dtype) : NULL;
    int status = row && device ? abi_device(device, &slot->device_type, &slot->device_index) : -1;
    if (row)
        slot->dtype = row->code, slot->item_size = row->size;
    Py_XDECREF(dtype);
    Py_XDECREF(device);
    return status;
}

/* A slot lies in the arena of its device. */
static int find_arena(const PlanProgram *plan, PyObject *source, Slot *slot)
{
    slot->arena = plan->arena_count - 1;
    while (slot->arena >= 0
           && (plan->arenas[slot->arena].device_type != slot->device_type
               || plan->arenas[slot->arena].device_index != slot->device_index))
        slot->arena--;
    bool own = slot->device_type == 0 ? plan->arena_number >= 0 : slot->arena >= 0;
    return own ? 0 : wrong("no arena of the device", source);
}

static int read_arenas(PlanProgram *plan, PyObject *tuple)
{
    if (!(plan->arenas = zeros((size_t)PyTuple_GET_SIZE(tuple), sizeof *plan->arenas)))
        return -1;
    plan->arena_count = (int32_t)PyTuple_GET_SIZE(tuple);
    for (int32_t i = 0; i < plan->arena_count; i++) {
        PlanArena *arena = &plan->arenas[i];
        PyObject *device, *pair = PyTuple_GET_ITEM(tuple, i);
        if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "Oi", &device, &arena->number)
            || abi_device(device, &arena->device_type, &arena->device_index) < 0)
            return wrong("an arena that is no pair", pair);
        if (arena->number < 0 || arena->number >= plan->count || arena->device_type == 0)
            return wrong("an arena of the CPU, or a number out of range,", pair);
    }
    return 0;
}

static int read_slot(PlanProgram *plan, PyObject *source, int32_t index)
{
    Slot *slot = &plan->slots[index];
    int32_t strides;
    if (read_place(source, slot) < 0 || read_element(source, slot) < 0
        || field_indices(source, "sizes", plan->count, &slot->sizes, &slot->ndim) < 0
        || field_indices(source, "strides", plan->count, &slot->strides, &strides) < 0)
        return -1;
    if (strides != slot->ndim || slot->ndim > MAX_NDIM)
        return wrong("sizes and strides of different lengths", source);
    if (field_int(source, "offset", -1, plan->count, &slot->offset) < 0)
        return -1;
    /* a view stands behind the slot that it views, so that following bases ends */
    Py_ssize_t limit = slot->place == ARENA ? plan->count : slot->place == VIEW ? index : INT32_MAX;
    if (field_int(source, "base", slot->place == ARENA || slot->place == VIEW ? 0 : -1, limit, &slot->base) < 0)
        return -1;
    if (slot->place == ARENA && find_arena(plan, source, slot) < 0)
        return -1;
    if ((slot->place == INPUT) != (index < plan->input_count))
        return wrong("inputs are the first slots, and only those: a slot", source);
    return 0;
}

/* ---- templates ---- */

typedef struct {
    PlanProgram *plan;
    bool inside; /* arena and view slots may be seen */
    PyObject *where;
} TemplateRules;

static int keep_rules(Template *template, void *context)
{
    TemplateRules *rules = context;
    PlanProgram *plan = rules->plan;
    if (template->tag == TAG_TENSOR) {
        uint8_t place = plan->slots[template->index].place;
        if (!rules->inside && (place == ARENA || place == VIEW))
            return wrong("arena memory would be seen outside", rules->where);
    }
    if (template->tag != TAG_REGISTER)
        return 0;
    for (int32_t i = 0; i < plan->register_count; i++)
        if (plan->registers[i] == template->index) {
            template->index = i;
            return 0;
        }
    int32_t *grown = PyMem_Realloc(plan->registers, ((size_t)plan->register_count + 1) * sizeof *grown);
    if (!grown) {
        PyErr_NoMemory();
        return -1;
    }
    plan->registers = grown;
    grown[plan->register_count] = template->index;
    template->index = plan->register_count++;
    return 0;
}

static int read_template(PlanProgram *plan, PyObject *tuple, Template *out, bool inside, PyObject *where)
{
    TemplateRules rules = {plan, inside, where};
    if (template_parse(tuple, out, plan->slot_count, plan->count) < 0)
        return -1;
    return template_walk(out, keep_rules, &rules);
}

/* ---- steps ---- */

/* Code for the CPU is given the CPU's memory only. */
static int on_cpu(const PlanProgram *plan, const int32_t *slots, int32_t count, PyObject *where)
{
    for (int32_t i = 0; i < count; i++)
        if (plan->slots[slots[i]].device_type != 0)
            return wrong("memory of another device than the CPU", where);
    return 0;
}

static int read_kernel(PlanProgram *plan, PyObject *source, KernelInfo *info)
{
    PyObject *address = PyObject_GetAttrString(source, "address");
    info->kernel = address ? (Kernel)(uintptr_t)PyLong_AsUnsignedLongLong(address) : NULL;
    Py_XDECREF(address);
    if (PyErr_Occurred() || !info->kernel)
        return wrong("no address", source);
    if (field_indices(source, "buffers", plan->slot_count, &info->buffers, &info->buffer_count) < 0
        || field_indices(source, "numbers", plan->count, &info->numbers, &info->number_count) < 0
        || field_int(source, "extent", 0, plan->count, &info->extent) < 0
        || field_int(source, "work", 0, plan->count, &info->work) < 0
        || field_bool(source, "parallel", &info->parallel) < 0)
        return -1;
    if (info->number_count > 4096)
        return wrong("more than 4096 numbers", source);
    plan->buffer_room = info->buffer_count > plan->buffer_room ? info->buffer_count : plan->buffer_room;
    return on_cpu(plan, info->buffers, info->buffer_count, source);
}

static int read_matmul(PlanProgram *plan, PyObject *source, MatmulInfo *info)
{
    if (field_int(source, "out", 0, plan->slot_count, &info->out) < 0
        || field_int(source, "a", 0, plan->slot_count, &info->a) < 0
        || field_int(source, "c", 0, plan->slot_count, &info->c) < 0
        || field_int(source, "batch", 0, plan->count, &info->batch) < 0
        || field_int(source, "m", 0, plan->count, &info->m) < 0 || field_int(source, "n", 0, plan->count, &info->n) < 0
        || field_int(source, "k", 0, plan->count, &info->k) < 0
        || field_triple(source, "a_strides", plan->count, info->a_strides) < 0
        || field_triple(source, "c_strides", plan->count, info->c_strides) < 0
        || field_triple(source, "out_strides", plan->count, info->out_strides) < 0
        || field_bool(source, "accumulate", &info->accumulate) < 0)
        return -1;
    const Slot *out = &plan->slots[info->out], *a = &plan->slots[info->a], *c = &plan->slots[info->c];
    if (out->dtype != a->dtype || out->dtype != c->dtype || (out->item_size != 4 && out->item_size != 8))
        return wrong("operands that are not all float32 or all float64", source);
    return on_cpu(plan, (int32_t[]){info->out, info->a, info->c}, 3, source);
}

static int read_outs(PlanProgram *plan, PyObject *source, CallInfo *call)
{
    PyObject *tuple = field_tuple(source, "outs");
    int status = tuple && (call->outs = zeros((size_t)PyTuple_GET_SIZE(tuple), sizeof *call->outs)) ? 0 : -1;
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *path;
        struct CallOut *out = &call->outs[call->out_count++];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, i), "O!i", &PyTuple_Type, &path, &out->slot)
            || !(out->path = zeros((size_t)PyTuple_GET_SIZE(path), sizeof *out->path))
            || items_as_indices(path, INT32_MAX, out->path) < 0)
            status = -1;
        else if (out->slot < 0 || out->slot >= plan->slot_count || plan->slots[out->slot].place != CALL)
            status = wrong("a result that goes to no call slot", source);
        else
            out->depth = (int32_t)PyTuple_GET_SIZE(path);
    }
    Py_XDECREF(tuple);
    return status;
}

static int read_binds(PlanProgram *plan, PyObject *source, CallInfo *call)
{
    PyObject *tuple = field_tuple(source, "binds");
    int status = tuple && (call->binds = zeros((size_t)PyTuple_GET_SIZE(tuple), sizeof *call->binds)) ? 0 : -1;
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_GET_SIZE(tuple); i++) {
        struct CallBind *bind = &call->binds[call->bind_count++];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, i), "iii", &bind->slot, &bind->dimension, &bind->number))
            status = -1;
        else if (bind->slot < 0 || bind->slot >= plan->slot_count || bind->dimension < ELEMENT || bind->number < 0
                 || bind->number >= plan->count)
            status = wrong("a binding out of range", source);
    }
    Py_XDECREF(tuple);
    return status;
}

static int read_arguments(PlanProgram *plan, PyObject *source, CallInfo *call, PyObject *args, PyObject *kwargs)
{
    bool inside;
    Py_ssize_t positional = PyTuple_GET_SIZE(args), named = PyTuple_GET_SIZE(kwargs);
    if (field_bool(source, "inside", &inside) < 0
        || !(call->args = zeros((size_t)(positional + named), sizeof *call->args)))
        return -1;
    call->positional = (int32_t)positional, call->arg_count = (int32_t)(positional + named);
    if (named && !(call->names = PyTuple_New(named)))
        return -1;
    for (Py_ssize_t i = 0; i < positional; i++)
        if (read_template(plan, PyTuple_GET_ITEM(args, i), &call->args[i], inside, source) < 0)
            return -1;
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name, *value;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(kwargs, i), "UO", &name, &value))
            return -1;
        PyTuple_SET_ITEM(call->names, i, Py_NewRef(name));
        if (read_template(plan, value, &call->args[positional + i], inside, source) < 0)
            return -1;
    }
    call->straight = !named;
    for (int32_t i = 0; i < call->arg_count; i++)
        call->straight &= call->args[i].tag == TAG_TENSOR && call->args[i].index == i && plan->slots[i].place == INPUT;
    return 0;
}

static int read_call(PlanProgram *plan, PyObject *source, CallInfo *call)
{
    PyObject *function = PyObject_GetAttrString(source, "function"), *args = field_tuple(source, "args"),
             *kwargs = field_tuple(source, "kwargs");
    int status = function && args && kwargs ? read_arguments(plan, source, call, args, kwargs) : -1;
    call->function = function;
    plan->attaches |= function && is_attach(function);
    Py_XDECREF(function); /* the step holds it */
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    if (status < 0 || read_outs(plan, source, call) < 0 || read_binds(plan, source, call) < 0
        || field_indices(source, "normal", plan->slot_count, &call->normal, &call->normal_count) < 0)
        return -1;
    for (int32_t i = 0; i < call->normal_count; i++)
        if (plan->slots[call->normal[i]].place != CALL)
            return wrong("a normal slot that is no call slot", source);
    if (field_bool(source, "grad", &call->grad) < 0 || field_bool(source, "keeps_mode", &call->keeps_mode) < 0)
        return -1;
    call->once = PyObject_GetAttrString(source, "once");
    if (!call->once)
        return -1;
    if (call->once == Py_None)
        Py_CLEAR(call->once);
    call->gradients_of_convolution = !call->names && !call->grad && is_convolution_backward(call->function);
    return field_bool(source, "commits", &call->commits);
}

static int read_numbers_step(PlanProgram *plan, PyObject *source, Step *step)
{
    PyObject *tuple = field_tuple(source, "numbers");
    int status = tuple && (step->own = zeros((size_t)PyTuple_GET_SIZE(tuple), sizeof *step->own)) ? 0 : -1;
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_GET_SIZE(tuple); i++)
        status = number_parse(PyTuple_GET_ITEM(tuple, i), plan->count, &step->own[step->own_count++]);
    Py_XDECREF(tuple);
    return status;
}

/* The kind of a step by the name of its class; STEP_COUNT for none. */
static uint8_t kind_of(PyObject *source)
{
    static const char *const KINDS[STEP_COUNT] = {
#define X(kind, name) name,
        STEP_KINDS(X)
#undef X
    };
    const char *name = Py_TYPE(source)->tp_name, *dot = strrchr(name, '.');
    uint8_t kind = 0;
    while (kind < STEP_COUNT && strcmp(KINDS[kind], dot ? dot + 1 : name))
        kind++;
    return kind;
}

static int read_alloc(PlanProgram *plan, PyObject *source, Step *step)
{
    if (field_int(source, "slot", 0, plan->slot_count, &step->slot) < 0)
        return -1;
    return plan->slots[step->slot].place == FRESH ? 0 : wrong("an allocation of no fresh slot", source);
}

static int read_step(PlanProgram *plan, PyObject *source, Step *step)
{
    uint8_t kind = kind_of(source);
    step->kind = kind == STEP_COUNT ? STEP_ALLOC : kind;
    switch (kind) {
    case STEP_KERNEL:
        return read_kernel(plan, source, &step->as.kernel);
    case STEP_MATMUL:
        return read_matmul(plan, source, &step->as.matmul);
    case STEP_CALL:
        return (step->as.call = zeros(1, sizeof(CallInfo))) ? read_call(plan, source, step->as.call) : -1;
    case STEP_RELEASE:
        return field_indices(source, "slots", plan->slot_count, &step->slots, &step->slot_count);
    case STEP_NUMBERS:
        return read_numbers_step(plan, source, step);
    case STEP_LAUNCH:
        return (step->as.launch = zeros(1, sizeof(LaunchInfo))) ? launch_read(plan, source, step->as.launch) : -1;
    case STEP_ALLOC:
        return read_alloc(plan, source, step);
    default:
        return wrong("an unknown step", source);
    }
}

/* ---- numbers ---- */

/* When a number is known: NEVER is a constant, 0 a bound number, i + 1 once step i has bound it. */
enum { CONSTANT = -1 };

static int32_t stage_of(const Number *number, const int32_t *stage)
{
    if (number_is_const(number))
        return CONSTANT;
    int32_t left = stage[number->left], right = number_is_unary(number) ? CONSTANT : stage[number->right];
    return left > right ? left : right;
}

/* Constants are folded here; the rest is sorted by the step after which it can run, in the order given. */
static int schedule_numbers(PlanProgram *plan, const Number *given, int32_t count, int32_t *stage, int32_t *when)
{
    for (int32_t i = 0; i < plan->count; i++)
        stage[i] = 0; /* bound, or wrongly never written: zero for ever */
    for (int32_t s = 0; s < plan->step_count; s++)
        for (int32_t b = 0; plan->steps[s].kind == STEP_CALL && b < plan->steps[s].as.call->bind_count; b++)
            stage[plan->steps[s].as.call->binds[b].number] = s + 1;
    for (int32_t s = 0; s < plan->step_count; s++)
        for (int32_t i = 0; i < plan->steps[s].own_count; i++)
            stage[plan->steps[s].own[i].to] = s + 1;
    for (int32_t i = 0; i < count; i++) {
        when[i] = stage_of(&given[i], stage);
        if (when[i] == CONSTANT && !number_run(&given[i], plan->initial))
            when[i] = 0; /* declines on each call, as it must */
        stage[given[i].to] = when[i];
    }
    for (int32_t s = 0; s <= plan->step_count; s++) {
        int32_t from = plan->number_count;
        for (int32_t i = 0; i < count; i++)
            if (when[i] == s)
                plan->numbers[plan->number_count++] = given[i];
        if (s == 0)
            plan->early_numbers = plan->number_count;
        else
            plan->steps[s - 1].numbers_from = from, plan->steps[s - 1].numbers_to = plan->number_count;
    }
    plan->any_late = plan->arena_late = plan->arena_number >= 0 && stage[plan->arena_number] > 0;
    for (int32_t i = 0; i < plan->arena_count; i++)
        plan->any_late |= plan->arenas[i].late = stage[plan->arenas[i].number] > 0;
    return 0;
}

static int read_numbers(PlanProgram *plan, PyObject *tuple)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    Number *given = zeros((size_t)count, sizeof *given);
    int32_t *stage = zeros((size_t)plan->count, sizeof *stage), *when = zeros((size_t)count, sizeof *when);
    plan->numbers = zeros((size_t)count, sizeof *plan->numbers);
    int status = given && stage && when && plan->numbers ? 0 : -1;
    for (Py_ssize_t i = 0; i < count && status == 0; i++)
        status = number_parse(PyTuple_GET_ITEM(tuple, i), plan->count, &given[i]);
    if (status == 0)
        status = schedule_numbers(plan, given, (int32_t)count, stage, when);
    PyMem_Free(given);
    PyMem_Free(stage);
    PyMem_Free(when);
    return status;
}

/* ---- the plan ---- */

/* Only what native code reads needs an address: asking torch for one touches two more lines of memory for each
   tensor. */
static void mark_addressed(PlanProgram *plan)
{
    for (int32_t i = 0; i < plan->step_count; i++) {
        const Step *step = &plan->steps[i];
        if (step->kind == STEP_MATMUL)
            plan->slots[step->as.matmul.out].addressed = plan->slots[step->as.matmul.a].addressed =
                plan->slots[step->as.matmul.c].addressed = true;
        for (int32_t b = 0; step->kind == STEP_KERNEL && b < step->as.kernel.buffer_count; b++)
            plan->slots[step->as.kernel.buffers[b]].addressed = true;
        for (int32_t a = 0; step->kind == STEP_LAUNCH && a < step->as.launch->argument_count; a++)
            if (launch_takes_slot(&step->as.launch->arguments[a]))
                plan->slots[step->as.launch->arguments[a].index].addressed = true;
    }
    for (int32_t i = plan->slot_count - 1; i >= 0; i--) /* a view stands behind what it views */
        if (plan->slots[i].place == VIEW)
            plan->slots[plan->slots[i].base].addressed = true;
}

static int read_finish(PlanProgram *plan, PyObject *pair, Finish *finish)
{
    PyObject *args;
    if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "OO!", &finish->function, &PyTuple_Type, &args))
        return wrong("a finish that is no pair", pair);
    if (!(finish->args = zeros((size_t)PyTuple_GET_SIZE(args), sizeof *finish->args)))
        return -1;
    finish->arg_count = (int32_t)PyTuple_GET_SIZE(args);
    for (int32_t i = 0; i < finish->arg_count; i++)
        if (read_template(plan, PyTuple_GET_ITEM(args, i), &finish->args[i], false, pair) < 0)
            return -1;
    return 0;
}

static int read_generators(PlanProgram *plan, PyObject *templates)
{
    if (!(plan->generators = zeros((size_t)PyTuple_GET_SIZE(templates), sizeof *plan->generators)))
        return -1;
    plan->generator_count = (int32_t)PyTuple_GET_SIZE(templates);
    for (int32_t i = 0; i < plan->generator_count; i++)
        if (read_template(plan, PyTuple_GET_ITEM(templates, i), &plan->generators[i], false, plan->plan) < 0)
            return -1;
    return 0;
}

static int read_parts(PlanProgram *plan, PyObject *arenas, PyObject *numbers, PyObject *slots, PyObject *steps,
                      PyObject *finish, PyObject *result)
{
    plan->slot_count = (int32_t)PyTuple_GET_SIZE(slots), plan->step_count = (int32_t)PyTuple_GET_SIZE(steps);
    plan->finish_count = (int32_t)PyTuple_GET_SIZE(finish);
    plan->initial = zeros((size_t)plan->count, sizeof *plan->initial);
    plan->slots = zeros((size_t)plan->slot_count, sizeof *plan->slots);
    plan->steps = zeros((size_t)plan->step_count, sizeof *plan->steps);
    plan->finish = zeros((size_t)plan->finish_count, sizeof *plan->finish);
    if (!plan->initial || !plan->slots || !plan->steps || !plan->finish)
        return -1;
    if (plan->input_count > plan->slot_count)
        return wrong("more inputs than slots", plan->plan);
    if (read_arenas(plan, arenas) < 0)
        return -1;
    for (int32_t i = 0; i < plan->slot_count; i++)
        if (read_slot(plan, PyTuple_GET_ITEM(slots, i), i) < 0)
            return -1;
    for (int32_t i = 0; i < plan->step_count; i++)
        if (read_step(plan, PyTuple_GET_ITEM(steps, i), &plan->steps[i]) < 0)
            return -1;
    for (int32_t i = 0; i < plan->finish_count; i++)
        if (read_finish(plan, PyTuple_GET_ITEM(finish, i), &plan->finish[i]) < 0)
            return -1;
    mark_addressed(plan);
    if (!(plan->own = zeros((size_t)plan->input_count, sizeof *plan->own))
        || !(plan->keep = zeros((size_t)plan->input_count, sizeof *plan->keep)))
        return -1;
    for (int32_t i = 0; i < plan->input_count; i++)
        plan->own[plan->own_count++] = i;
    return read_template(plan, result, &plan->result, false, plan->plan) < 0 ? -1 : read_numbers(plan, numbers);
}

int plan_compile(PlanProgram *plan)
{
    PyObject *source = plan->plan;
    if (!abi.ready) {
        PyErr_SetString(PyExc_RuntimeError, "native.abi.initialise() has not run");
        return -1;
    }
    if (field_int(source, "count", 0, 1 << 24, &plan->count) < 0
        || field_int(source, "bound", 0, plan->count + 1, &plan->bound) < 0
        || field_int(source, "arena", -1, plan->count, &plan->arena_number) < 0
        || field_indices(source, "inputs", INT32_MAX, &plan->inputs, &plan->input_count) < 0)
        return -1;
    PyObject *numbers = field_tuple(source, "numbers"), *slots = field_tuple(source, "slots"),
             *steps = field_tuple(source, "steps"), *finish = field_tuple(source, "finish"),
             *result = PyObject_GetAttrString(source, "result"), *generators = field_tuple(source, "generators"),
             *arenas = field_tuple(source, "arenas");
    int status = -1;
    if (numbers && slots && steps && finish && result && generators && arenas
        && (plan->held = PyTuple_Pack(6, numbers, slots, steps, finish, result, generators)))
        status =
            read_parts(plan, arenas, numbers, slots, steps, finish, result) < 0 || read_generators(plan, generators) < 0
                ? -1
                : region_read(plan, source);
    Py_XDECREF(numbers);
    Py_XDECREF(slots);
    Py_XDECREF(steps);
    Py_XDECREF(finish);
    Py_XDECREF(result);
    Py_XDECREF(generators);
    Py_XDECREF(arenas);
    return status;
}

static void call_free(CallInfo *call)
{
    for (int32_t i = 0; i < call->arg_count; i++)
        template_clear(&call->args[i]);
    for (int32_t i = 0; i < call->out_count; i++)
        PyMem_Free(call->outs[i].path);
    Py_XDECREF(call->names);
    Py_XDECREF(call->once);
    PyMem_Free(call->args);
    PyMem_Free(call->outs);
    PyMem_Free(call->binds);
    PyMem_Free(call->normal);
    PyMem_Free(call);
}

void plan_free(PlanProgram *plan)
{
    for (int32_t i = 0; plan->slots && i < plan->slot_count; i++) {
        PyMem_Free(plan->slots[i].sizes);
        PyMem_Free(plan->slots[i].strides);
    }
    for (int32_t i = 0; plan->steps && i < plan->step_count; i++) {
        Step *step = &plan->steps[i];
        if (step->kind == STEP_KERNEL) {
            PyMem_Free(step->as.kernel.buffers);
            PyMem_Free(step->as.kernel.numbers);
        }
        if (step->kind == STEP_CALL && step->as.call)
            call_free(step->as.call);
        if (step->kind == STEP_LAUNCH && step->as.launch)
            launch_free(step->as.launch);
        PyMem_Free(step->slots);
        PyMem_Free(step->own);
    }
    for (int32_t i = 0; plan->finish && i < plan->finish_count; i++) {
        for (int32_t a = 0; a < plan->finish[i].arg_count; a++)
            template_clear(&plan->finish[i].args[a]);
        PyMem_Free(plan->finish[i].args);
    }
    template_clear(&plan->result);
    for (int32_t i = 0; i < plan->generator_count; i++)
        template_clear(&plan->generators[i]);
    PyMem_Free(plan->generators);
    PyMem_Free(plan->arenas);
    PyMem_Free(plan->own);
    PyMem_Free(plan->keep);
    PyMem_Free(plan->reals);
    PyMem_Free(plan->initial);
    PyMem_Free(plan->numbers);
    PyMem_Free(plan->slots);
    PyMem_Free(plan->steps);
    PyMem_Free(plan->finish);
    PyMem_Free(plan->inputs);
    PyMem_Free(plan->registers);
}
