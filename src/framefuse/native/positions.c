/* Tells whether a tensor of positions lies in a dimension: a call that writes there may fail when it has written some
   of them, which nobody could take back. */
#include "positions.h"

#include "torch_abi.h"

typedef struct {
    int64_t low, high; /* the least and the greatest so far */
} Span;

#define SPAN_OF_ROW(type)                                                                                              \
    static void span_of_##type(const char *data, int64_t count, int64_t stride, Span *span)                           \
    {                                                                                                                  \
        const type *at = (const type *)data;                                                                           \
        int64_t low = span->low, high = span->high;                                                                    \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            int64_t value = at[i * stride];                                                                            \
            low = value < low ? value : low;                                                                           \
            high = value > high ? value : high;                                                                        \
        }                                                                                                              \
        span->low = low, span->high = high;                                                                            \
    }

SPAN_OF_ROW(int64_t)
SPAN_OF_ROW(int32_t)

static void span_of(const char *data, const Layout *layout, int64_t dimension, int64_t bytes, Span *span)
{
    int64_t size = dimension < layout->ndim ? layout->sizes[dimension] : 1;
    int64_t stride = dimension < layout->ndim ? layout->strides[dimension] : 1;
    if (dimension + 1 >= layout->ndim) {
        (bytes == 8 ? span_of_int64_t : span_of_int32_t)(data, size, stride, span);
        return;
    }
    for (int64_t i = 0; i < size; i++)
        span_of(data + i * stride * bytes, layout, dimension + 1, bytes, span);
}

PyObject *positions_within_py(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !abi_is_tensor(args[0]))
        return PyErr_Format(PyExc_TypeError, "positions_within takes a tensor, a size and a flag");
    int64_t size = PyLong_AsLongLong(args[1]);
    int wraps = PyObject_IsTrue(args[2]);
    int32_t dtype, device_type, device_index;
    Layout layout;
    char *data;
    if (PyErr_Occurred() || wraps < 0)
        return NULL;
    if (!abi_element(args[0], &dtype, &device_type, &device_index) || !abi_layout(args[0], &layout)
        || !abi_data(args[0], &data))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "positions that cannot be read");
    int64_t bytes = 0;
    for (int i = 0; i < abi.dtype_count; i++)
        if (abi.dtypes[i].code == dtype && strncmp(abi.dtypes[i].name, "int", 3) == 0)
            bytes = abi.dtypes[i].size;
    if (device_type != 0 || (bytes != 8 && bytes != 4))
        return PyErr_Format(PyExc_TypeError, "positions of another kind");
    Span span = {INT64_MAX, INT64_MIN};
    span_of(data, &layout, 0, bytes, &span);
    if (span.low <= span.high && (span.low < (wraps ? -size : 0) || span.high >= size))
        return PyErr_Format(PyExc_IndexError, "positions from %lld to %lld in a dimension of %lld",
                            (long long)span.low, (long long)span.high, (long long)size);
    Py_RETURN_NONE;
}
