/* What a tensor is compared with: a TensorSpec, and the memory of other tensors. */
#ifndef FRAMEFUSE_TENSOR_CHECK_H
#define FRAMEFUSE_TENSOR_CHECK_H

#include "torch_abi.h"

typedef uint64_t Pair __attribute__((vector_size(16), aligned(8), may_alias));

/* Equal checks that bind nothing are one object, so that the parameters of a model ask for few lines of memory. */
typedef struct {
    int32_t users;
    PyTypeObject *type;
    uint64_t keys;
    int64_t word;     /* dtype and device bytes, -1 to use the getters */
    int64_t expected; /* what `word` becomes once a tensor of another device than the CPU has them so; -1: nothing */
    int32_t dtype, device_type, device_index;
    int ndim;
    int64_t *sizes;       /* -1: free */
    int64_t *strides;     /* NULL: dense in `order`; -1: free */
    int32_t *order;
    int8_t requires_grad; /* -1: not looked at */
    int binds;
    struct TensorBind { bool stride; int32_t dimension, number; } *bind;
    bool flat; /* the TensorImpl agrees where it holds `words` under `masks`: a quick yes for up to two known sizes */
    Pair words[4], masks[4];
} TensorCheck;

int tensor_check_parse(PyObject *spec, PyObject *numbers, Py_ssize_t count, TensorCheck *out);
bool tensor_check_slowly(TensorCheck *check, PyObject *object, int64_t *numbers);
bool tensor_check_same(const TensorCheck *left, const TensorCheck *right);
void tensor_check_free(TensorCheck *check); /* by one user */
/* True is a quick yes; false says nothing. */
static inline bool tensor_flat(const TensorCheck *check, PyObject *object)
{
    if (UNLIKELY(!check->flat || Py_TYPE(object) != check->type))
        return false;
    const char *impl = abi_impl(object);
    Pair different = (*(const Pair *)(impl + abi.ndim) ^ check->words[0]) & check->masks[0];
    different |= (*(const Pair *)(impl + abi.ndim + 16) ^ check->words[1]) & check->masks[1];
    different |= (*(const Pair *)(impl + abi.strides) ^ check->words[2]) & check->masks[2];
    different |= (*(const Pair *)(impl + abi.dtype) ^ check->words[3]) & check->masks[3];
    bool grad_agrees = check->requires_grad < 0 || abi_requires_grad(object) == check->requires_grad;
    return !(different[0] | different[1]) && grad_agrees;
}

bool tensors_disjoint(PyObject *left, PyObject *right);

/* Tensors of which the first `written` overlap no other one in memory, with where they lay when that was found last. */
typedef struct {
    int32_t count, written;
    bool known;
    struct ApartTensor {
        int32_t reg;
        int64_t bytes; /* -1: only the tensor tells */
        char *begin, *end;
    } *tensors;
    int32_t *order; /* by place in memory */
} Apart;

Apart *apart_parse(PyObject *registers, Py_ssize_t written, PyObject *bytes); /* NULL with an exception */
bool apart_holds(Apart *apart, PyObject *const *registers);
void apart_free(Apart *apart);

#endif
