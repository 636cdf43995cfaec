/* Gives gradients of convolutions by torch's C interface: an operator that is called from Python reads eleven arguments
   into boxes and takes 20 us longer than that, where gradients of small convolutions are computed in 8. */
#include "convolutions.h"

#include "profile.h"
#include "torch_abi.h"

enum { ARGUMENTS = 11, LONGEST = 8 }; /* torch's: a volume has lists of three numbers */

typedef struct {
    int64_t values[LONGEST];
    int64_t count;
} Numbers;

bool is_convolution_backward(PyObject *function)
{
    PyObject *name = PyObject_GetAttrString(function, "_name"); /* of torch's operators alone */
    bool is = name && PyUnicode_Check(name)
              && PyUnicode_CompareWithASCIIString(name, "aten::convolution_backward") == 0;
    Py_XDECREF(name);
    PyErr_Clear();
    return is;
}

/* A list or tuple of ints or bools. */
static bool read_numbers(PyObject *given, Numbers *numbers)
{
    if (!PyList_CheckExact(given) && !PyTuple_CheckExact(given))
        return false;
    numbers->count = PySequence_Fast_GET_SIZE(given);
    if (numbers->count > LONGEST)
        return false;
    for (int64_t i = 0; i < numbers->count; i++) {
        PyObject *value = PySequence_Fast_GET_ITEM(given, i);
        if (!PyLong_Check(value))
            return false;
        numbers->values[i] = PyLong_AsLongLong(value);
    }
    return true;
}

/* A tensor of the CPU that is what its memory says: nothing stands between it and the library but autograd. */
static bool is_plain(PyObject *tensor)
{
    uint64_t keys;
    int32_t dtype, device_type, device_index;
    return abi_is_tensor(tensor) && abi_keys(tensor, &keys) && abi_plain(0, keys)
           && abi_element(tensor, &dtype, &device_type, &device_index) && device_type == 0;
}

typedef struct {
    Numbers sizes, step, padding, hole, extra, mask;
    int64_t groups;
    bool has_bias, transposed;
} Given;

static bool read_given(PyObject *const *args, Given *given)
{
    given->has_bias = args[3] != Py_None, given->transposed = args[7] == Py_True;
    if (given->has_bias && !read_numbers(args[3], &given->sizes))
        return false;
    if (!read_numbers(args[4], &given->step) || !read_numbers(args[5], &given->padding)
        || !read_numbers(args[6], &given->hole) || !read_numbers(args[8], &given->extra)
        || !read_numbers(args[10], &given->mask))
        return false;
    given->groups = PyLong_Check(args[9]) ? PyLong_AsLongLong(args[9]) : -1;
    return PyBool_Check(args[7]) && given->groups > 0 && given->mask.count == 3 && !PyErr_Occurred();
}

/* The three gradients in one tuple, None in place of those that were not asked for. */
static PyObject *gradients(PyObject *const *args, Given *given)
{
    Handle made[3] = {NULL, NULL, NULL};
    const int64_t *sizes = given->sizes.values;
    int32_t mask[3], failed;
    for (int i = 0; i < 3; i++)
        mask[i] = given->mask.values[i] != 0;
    uint64_t before = abi_exclude(abi.below_autograd);
    Py_BEGIN_ALLOW_THREADS
    failed = abi.convolution_backward(
        abi_handle(args[0]), abi_handle(args[1]), abi_handle(args[2]), given->has_bias ? &sizes : NULL,
        given->sizes.count, given->step.values, given->step.count, given->padding.values, given->padding.count,
        given->hole.values, given->hole.count, given->transposed, given->extra.values, given->extra.count,
        given->groups, mask, 3, &made[0], &made[1], &made[2]);
    Py_END_ALLOW_THREADS
    abi_exclude_only(before);
    PyObject *result = failed ? NULL : PyTuple_New(3);
    for (int i = 0; i < 3 && !failed; i++) {
        PyObject *part = abi_wrapped(made[i]);
        if (!part)
            Py_CLEAR(result);
        if (result)
            PyTuple_SET_ITEM(result, i, part);
    }
    return result;
}

/* Asked beside the operator until both have said the same. */
static PyObject *compared(PyObject *operator, PyObject *const *args, Given *given)
{
    PyObject *known = PyObject_Vectorcall(operator, args, ARGUMENTS, NULL), *same = NULL;
    PyObject *found = known ? gradients(args, given) : NULL;
    if (found)
        same = abi_call("same_gradients", (PyObject *[]){known, found}, 2);
    if (known && same != Py_True)
        abi.convolution_backward = NULL, PyErr_Clear();
    Py_XDECREF(found);
    Py_XDECREF(same);
    return known;
}

PyObject *convolution_backward(PyObject *operator, PyObject *const *args, Py_ssize_t count)
{
    static unsigned agreed; /* the generation in which it did */
    Given given = {0};
    if (count != ARGUMENTS || !abi.convolution_backward || !abi.below_autograd || !abi_thread_is_plain()
        || abi_grad_enabled() || profile_listens() || abi.handle < 0 || !abi.wrap || !abi.delete_handle)
        return NULL;
    if (!is_plain(args[0]) || !is_plain(args[1]) || !is_plain(args[2]) || !read_given(args, &given)) {
        PyErr_Clear();
        return NULL;
    }
    if (LIKELY(agreed == abi.generation))
        return gradients(args, &given);
    PyObject *result = compared(operator, args, &given);
    if (result && abi.convolution_backward)
        agreed = abi.generation;
    return result;
}
