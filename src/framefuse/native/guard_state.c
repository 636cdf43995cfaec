/* Turns the GlobalState of a program into the fields that a check compares with torch's state of the thread. */
#include "guard_state.h"

#include "guard_program.h"
#include "torch_abi.h"

static int dtype_code(PyObject *name, int32_t *code)
{
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    PyObject *short_name = text && strncmp(text, "torch.", 6) == 0 ? PyUnicode_FromString(text + 6) : Py_NewRef(name);
    const DTypeRow *row = short_name ? abi_dtype(short_name) : NULL;
    Py_XDECREF(short_name);
    if (!row)
        return -1;
    *code = row->code;
    return 0;
}

static int read_autocast(GuardSet *set, PyObject *rows)
{
    if (!PyTuple_Check(rows))
        return PyErr_SetString(PyExc_ValueError, "GlobalState.autocast is a tuple of rows"), -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); i++) {
        PyObject *device, *name;
        int on;
        int32_t device_index;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "OpO", &device, &on, &name))
            return -1;
        if (!on)
            continue; /* whether it is on shows in the excluded keys; its dtype matters only then */
        if (set->autocast_count == 4)
            return PyErr_SetString(PyExc_ValueError, "autocast on more than four device types"), -1;
        if (abi_device(device, &set->autocast[set->autocast_count].device_type, &device_index) < 0
            || dtype_code(name, &set->autocast[set->autocast_count].dtype) < 0)
            return -1;
        set->autocast_count++;
    }
    return 0;
}

int guard_state_parse(GuardSet *set, PyObject *state)
{
    static const char *const FIELDS[] = {"grad_enabled",  "autocast",       "default_dtype", "default_device",
                                         "deterministic", "function_modes", "dispatch_keys"};
    PyObject *field[7] = {NULL};
    int result = -1;
    for (int i = 0; i < 7; i++)
        if (!(field[i] = PyObject_GetAttrString(state, FIELDS[i])))
            goto done;
    set->has_state = true;
    set->state.grad = field[0] == Py_True;
    set->state.deterministic = field[4] == Py_True;
    set->state.modes = PyLong_AsLongLong(field[5]);
    set->state.dual_level = -1;
    set->default_device = Py_NewRef(field[3]);
    if (PyErr_Occurred() || !PyArg_ParseTuple(field[6], "KK", &set->state.included, &set->state.excluded))
        goto done;
    result = dtype_code(field[2], &set->state.dtype) < 0 || read_autocast(set, field[1]) < 0 ? -1 : 0;
done:
    for (int i = 0; i < 7; i++)
        Py_XDECREF(field[i]);
    return result;
}

bool guard_state_agrees(GuardSet *set, const State *state)
{
    const State *mine = &set->state;
    if (state->included != mine->included || state->excluded != mine->excluded || state->grad != mine->grad
        || state->modes != mine->modes || state->dtype != mine->dtype || state->deterministic != mine->deterministic
        || state->dual_level != -1)
        return false;
    for (int i = 0; i < set->autocast_count; i++) {
        int32_t dtype;
        if (!abi_autocast_dtype(set->autocast[i].device_type, &dtype) || dtype != set->autocast[i].dtype)
            return false;
    }
    return state->modes ? abi_modes(set->default_device) : abi_default_device(set->default_device);
}
