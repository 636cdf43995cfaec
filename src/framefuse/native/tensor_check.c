/* Compares a tensor with a TensorSpec and binds its free sizes and strides to numbers. */
#include "tensor_check.h"

#include "torch_abi.h"

enum { FREE = -1 };
static const uint64_t ELEMENT_BYTES = 0xffffffffffull; /* dtype (2), device type, device index, has-device */

/* The bytes of a device behind those of a dtype: its type, its index and that there is one. No tensor of another
   device than the CPU was there to probe, so this is believed of a check when the getters have said yes to a tensor
   that has these bytes. */
static int64_t word_elsewhere(int64_t cpu_word, int32_t type, int32_t index)
{
    return (int64_t)(((uint64_t)cpu_word & ~0xffff0000ull) | (uint64_t)(uint8_t)type << 16
                     | (uint64_t)(uint8_t)index << 24);
}

static int64_t *read_extents(PyObject *tuple, int ndim)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != ndim) {
        PyErr_SetString(PyExc_ValueError, "a TensorSpec's sizes and strides are tuples of its rank");
        return NULL;
    }
    int64_t *values = PyMem_Calloc((size_t)ndim + 1, sizeof *values);
    for (int i = 0; values && i < ndim; i++) {
        PyObject *entry = PyTuple_GET_ITEM(tuple, i);
        values[i] = PyLong_Check(entry) ? PyLong_AsLongLong(entry) : FREE;
    }
    if (!values)
        PyErr_NoMemory();
    return values;
}

static int read_order(PyObject *tuple, TensorCheck *out)
{
    unsigned seen = 0;
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != out->ndim || out->ndim > 31)
        goto bad;
    out->order = PyMem_Calloc((size_t)out->ndim + 1, sizeof *out->order);
    if (!out->order) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < out->ndim; i++) {
        long dimension = PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
        if (dimension < 0 || dimension >= out->ndim)
            goto bad;
        seen |= 1u << dimension;
        out->order[i] = (int32_t)dimension;
    }
    if (seen == (1u << out->ndim) - 1)
        return 0;
bad:
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a TensorSpec's order is a permutation of its dimensions");
    return -1;
}

static int read_binds(PyObject *numbers, Py_ssize_t count, TensorCheck *out)
{
    if (!PyTuple_Check(numbers)) {
        PyErr_SetString(PyExc_ValueError, "the numbers of a tensor instruction are a tuple");
        return -1;
    }
    out->bind = PyMem_Calloc((size_t)PyTuple_GET_SIZE(numbers) + 1, sizeof *out->bind);
    if (!out->bind) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); i++) {
        const char *kind;
        int dimension, number;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(numbers, i), "sii", &kind, &dimension, &number))
            return -1;
        bool stride = strcmp(kind, "stride") == 0;
        if ((!stride && strcmp(kind, "size")) || dimension < 0 || dimension >= out->ndim || number < 0
            || number >= count) {
            PyErr_Format(PyExc_ValueError, "bad binding %R", PyTuple_GET_ITEM(numbers, i));
            return -1;
        }
        out->bind[out->binds++] = (struct TensorBind){stride, dimension, number};
    }
    return 0;
}

static int read_spec(PyObject *type, PyObject *keys, PyObject *name, PyObject *device, PyObject *requires_grad,
                     TensorCheck *out)
{
    if (!PyType_Check(type) || !abi.ready) {
        PyErr_SetString(abi.ready ? PyExc_ValueError : PyExc_RuntimeError,
                        abi.ready ? "a TensorSpec's type is a type" : "native.abi.initialise() has not run");
        return -1;
    }
    const DTypeRow *row = abi_dtype(name);
    if (!row || abi_device(device, &out->device_type, &out->device_index) < 0)
        return -1;
    out->type = (PyTypeObject *)type;
    out->keys = PyLong_AsUnsignedLongLong(keys);
    out->dtype = row->code;
    out->word = out->device_type == 0 && out->device_index < 0 ? row->cpu_word : -1;
    out->expected = out->device_type != 0 && row->cpu_word >= 0
                        ? word_elsewhere(row->cpu_word, out->device_type, out->device_index)
                        : -1;
    out->requires_grad = requires_grad == Py_None ? -1 : requires_grad == Py_True;
    return PyErr_Occurred() ? -1 : 0;
}

/* The words of a dense tensor of at most two known sizes. Torch keeps rank and sizes in a row, and element type and
   key set side by side. */
static void flatten(TensorCheck *check)
{
    int64_t stride = 1, strides[2];
    if (check->ndim > 2 || check->binds || !check->order || check->word < 0 || abi.handle < 0 || abi.dtype < 0
        || abi.ndim < 0 || abi.strides < 0 || abi.key_set != abi.dtype + 8 || abi.sizes != abi.ndim + 8)
        return;
    for (int i = check->ndim - 1; i >= 0; i--) {
        int64_t size = check->sizes[check->order[i]];
        if (size == FREE)
            return;
        strides[check->order[i]] = stride;
        stride *= size > 1 ? size : 1;
    }
    check->words[0][0] = (uint64_t)check->ndim, check->masks[0][0] = ~0ull;
    if (check->ndim > 0)
        check->words[0][1] = (uint64_t)check->sizes[0], check->masks[0][1] = ~0ull;
    if (check->ndim > 1)
        check->words[1][0] = (uint64_t)check->sizes[1], check->masks[1][0] = ~0ull;
    for (int i = 0; i < check->ndim; i++)
        check->words[2][i] = (uint64_t)strides[i], check->masks[2][i] = ~0ull;
    check->words[3] = (Pair){(uint64_t)check->word, check->keys}, check->masks[3] = (Pair){ELEMENT_BYTES, ~0ull};
    check->flat = true;
}

int tensor_check_parse(PyObject *spec, PyObject *numbers, Py_ssize_t count, TensorCheck *out)
{
    static const char *const NAMES[] = {"type",  "keys",  "dtype",   "device",
                                        "sizes", "order", "strides", "requires_grad"};
    PyObject *field[8] = {NULL}, *name = NULL;
    int result = -1;
    memset(out, 0, sizeof *out);
    out->users = 1;
    for (int i = 0; i < 8; i++)
        if (!(field[i] = PyObject_GetAttrString(spec, NAMES[i])))
            goto done;
    if (!(name = PyObject_GetAttrString(field[2], "name"))
        || read_spec(field[0], field[1], name, field[3], field[7], out) < 0)
        goto done;
    out->ndim = PyTuple_Check(field[4]) ? (int)PyTuple_GET_SIZE(field[4]) : MAX_NDIM + 1;
    if (out->ndim > MAX_NDIM) {
        PyErr_SetString(PyExc_ValueError, "a TensorSpec's sizes are a tuple of at most 64");
        goto done;
    }
    if (!(out->sizes = read_extents(field[4], out->ndim)))
        goto done;
    if (field[5] != Py_None ? read_order(field[5], out) < 0 : !(out->strides = read_extents(field[6], out->ndim)))
        goto done;
    result = PyErr_Occurred() ? -1 : read_binds(numbers, count, out);
    if (result == 0)
        flatten(out);
done:
    for (int i = 0; i < 8; i++)
        Py_XDECREF(field[i]);
    Py_XDECREF(name);
    return result;
}

static bool same_extents(const int64_t *left, const int64_t *right, int count)
{
    return left == right || (left && right && memcmp(left, right, (size_t)count * sizeof *left) == 0);
}

bool tensor_check_same(const TensorCheck *left, const TensorCheck *right)
{
    if (left->type != right->type || left->keys != right->keys || left->word != right->word
        || left->dtype != right->dtype || left->device_type != right->device_type
        || left->device_index != right->device_index || left->ndim != right->ndim
        || left->requires_grad != right->requires_grad || left->binds || right->binds || !left->order != !right->order)
        return false;
    return same_extents(left->sizes, right->sizes, left->ndim)
           && same_extents(left->strides, right->strides, left->ndim)
           && (!left->order || memcmp(left->order, right->order, (size_t)left->ndim * sizeof *left->order) == 0);
}

void tensor_check_free(TensorCheck *check)
{
    if (--check->users > 0)
        return;
    PyMem_Free(check->sizes);
    PyMem_Free(check->strides);
    PyMem_Free(check->order);
    PyMem_Free(check->bind);
    PyMem_Free(check);
}

static void learn_word(TensorCheck *check, PyObject *tensor)
{
    uint64_t word;
    memcpy(&word, abi_impl(tensor) + abi.dtype, 8);
    if ((word & ELEMENT_BYTES) == (uint64_t)check->expected) {
        check->word = check->expected;
        flatten(check);
    }
    check->expected = -1;
}

static inline bool element_agrees(TensorCheck *check, PyObject *tensor)
{
    if (LIKELY(check->word >= 0 && abi.dtype >= 0 && abi.handle >= 0)) {
        uint64_t word;
        memcpy(&word, abi_impl(tensor) + abi.dtype, 8);
        return (word & ELEMENT_BYTES) == (uint64_t)check->word;
    }
    int32_t dtype, device_type, device_index;
    if (!abi_element(tensor, &dtype, &device_type, &device_index) || dtype != check->dtype
        || device_type != check->device_type
        || (device_type != 0 && check->device_index >= 0 && device_index != check->device_index))
        return false;
    if (check->expected >= 0 && device_index == check->device_index && abi.dtype >= 0 && abi.handle >= 0)
        learn_word(check, tensor);
    return true;
}

/* Dense in `order`: each stride is the product of the sizes inside it. Dimensions of size 1 have no stride that
   anybody could see, nor has any dimension of a tensor without elements. */
static inline bool dense(const TensorCheck *check, const Layout *layout)
{
    int64_t expected = 1;
    for (int i = check->ndim - 1; i >= 0; i--) {
        int32_t dimension = check->order[i];
        int64_t size = layout->sizes[dimension];
        if (size == 0)
            return true;
        if (size != 1) {
            if (layout->strides[dimension] != expected) {
                for (int j = 0; j < check->ndim; j++)
                    if (layout->sizes[j] == 0)
                        return true;
                return false;
            }
            expected *= size;
        }
    }
    return true;
}

bool tensor_check_slowly(TensorCheck *check, PyObject *object, int64_t *numbers)
{
    uint64_t keys;
    Layout layout;
    if (UNLIKELY(Py_TYPE(object) != check->type || !abi_keys(object, &keys) || keys != check->keys))
        return false;
    if (UNLIKELY(!element_agrees(check, object)
                 || (check->requires_grad >= 0 && abi_requires_grad(object) != check->requires_grad)))
        return false;
    if (UNLIKELY(!abi_layout(object, &layout) || layout.ndim != check->ndim))
        return false;
    for (int i = 0; i < check->ndim; i++)
        if (check->sizes[i] != FREE && check->sizes[i] != layout.sizes[i])
            return false;
    if (check->order) {
        if (!dense(check, &layout))
            return false;
    } else {
        for (int i = 0; i < check->ndim; i++)
            if (check->strides[i] != FREE && check->strides[i] != layout.strides[i])
                return false;
    }
    for (int i = 0; i < check->binds; i++) {
        const struct TensorBind *bind = &check->bind[i];
        numbers[bind->number] = (bind->stride ? layout.strides : layout.sizes)[bind->dimension];
    }
    return true;
}

/* The bytes between the first and the last element; strides of torch are never negative. */
static bool span_of(PyObject *tensor, char **begin, char **end)
{
    Layout layout;
    int32_t dtype, device_type, device_index;
    int64_t last = 0, size = 0;
    enum { META = 14 }; /* c10::DeviceType: tensors without memory */
    if (!abi_is_tensor(tensor) || !abi_element(tensor, &dtype, &device_type, &device_index) || device_type == META
        || !abi_data(tensor, begin) || !abi_layout(tensor, &layout))
        return false;
    for (int i = 0; i < abi.dtype_count; i++)
        size = abi.dtypes[i].code == dtype ? abi.dtypes[i].size : size;
    *end = *begin;
    for (int64_t i = 0; i < layout.ndim; i++) {
        if (layout.sizes[i] == 0)
            return true;
        last += (layout.sizes[i] - 1) * layout.strides[i];
    }
    *end = *begin + (last + 1) * size;
    return size > 0;
}

bool tensors_disjoint(PyObject *left, PyObject *right)
{
    char *a, *a_end, *b, *b_end;
    return span_of(left, &a, &a_end) && span_of(right, &b, &b_end)
           && (a_end <= b || b_end <= a || a == a_end || b == b_end);
}

void apart_free(Apart *apart)
{
    PyMem_Free(apart->tensors);
    PyMem_Free(apart->order);
    PyMem_Free(apart);
}

Apart *apart_parse(PyObject *registers, Py_ssize_t written, PyObject *bytes)
{
    Py_ssize_t count = PyTuple_GET_SIZE(registers);
    if (PyTuple_GET_SIZE(bytes) != count || written < 0 || written > count)
        return PyErr_SetString(PyExc_ValueError, "tensors and their bytes, of which some are written"), NULL;
    Apart *apart = PyMem_Calloc(1, sizeof *apart);
    if (!apart)
        return (Apart *)PyErr_NoMemory();
    apart->count = (int32_t)count, apart->written = (int32_t)written;
    apart->tensors = PyMem_Calloc((size_t)count + 1, sizeof *apart->tensors);
    apart->order = PyMem_Calloc((size_t)count + 1, sizeof *apart->order);
    if (!apart->tensors || !apart->order)
        PyErr_NoMemory();
    for (int32_t i = 0; i < apart->count && !PyErr_Occurred(); i++) {
        apart->tensors[i].reg = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(registers, i));
        apart->tensors[i].bytes = PyLong_AsLongLong(PyTuple_GET_ITEM(bytes, i));
        apart->order[i] = i;
    }
    if (!PyErr_Occurred())
        return apart;
    apart_free(apart);
    return NULL;
}

/* Sorted by where they begin; from call to call few change their place. */
static void apart_sort(Apart *apart)
{
    const struct ApartTensor *tensors = apart->tensors;
    for (int32_t i = 1; i < apart->count; i++) {
        int32_t moved = apart->order[i], at = i;
        for (; at > 0 && tensors[apart->order[at - 1]].begin > tensors[moved].begin; at--)
            apart->order[at] = apart->order[at - 1];
        apart->order[at] = moved;
    }
}

bool apart_holds(Apart *apart, PyObject *const *registers)
{
    bool same = apart->known;
    for (int32_t i = 0; i < apart->count; i++) {
        struct ApartTensor *tensor = &apart->tensors[i];
        PyObject *object = registers[tensor->reg];
        char *begin, *end;
        if (LIKELY(tensor->bytes >= 0)) {
            if (!abi_is_tensor(object) || !abi_data(object, &begin))
                return false;
            end = begin + tensor->bytes;
        } else if (!span_of(object, &begin, &end)) {
            return false;
        }
        same &= begin == tensor->begin && end == tensor->end;
        tensor->begin = begin, tensor->end = end;
    }
    if (LIKELY(same))
        return true;
    apart_sort(apart);
    char *last = NULL, *last_written = NULL; /* ends so far, of all and of those that are written */
    apart->known = false;
    for (int32_t i = 0; i < apart->count; i++) {
        const struct ApartTensor *tensor = &apart->tensors[apart->order[i]];
        bool written = apart->order[i] < apart->written;
        if (tensor->begin == tensor->end)
            continue;
        if (tensor->begin < (written ? last : last_written))
            return false;
        last = tensor->end > last ? tensor->end : last;
        if (written)
            last_written = tensor->end > last_written ? tensor->end : last_written;
    }
    return apart->known = true;
}
