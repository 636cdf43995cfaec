/* What the probe found out about torch's binary interface, and the readers and makers of tensors that stand on it.

   A fact that is unknown (offset -1, address NULL) sends its reader to the next slower way: the stable C getters,
   then Python. */
#ifndef FRAMEFUSE_TORCH_ABI_H
#define FRAMEFUSE_TORCH_ABI_H

#include "base.h"

typedef struct Opaque *Handle; /* AtenTensorHandle: at::Tensor* */

enum { MAX_DTYPES = 32, MAX_NDIM = 64, MAX_DEVICE_TYPES = 32 };

typedef struct {
    char name[16];
    int32_t code;
    int32_t size;
    PyObject *object;  /* owned: torch.dtype */
    int64_t cpu_word;  /* the dtype and device bytes of a CPU tensor, -1 unknown */
} DTypeRow;

/* Torch's state of this thread, as far as a trace depends on it. */
typedef struct {
    uint64_t included, excluded;
    int64_t modes;      /* depth of the stack of TorchFunctionModes */
    int64_t dual_level; /* of forward-mode differentiation, -1 outside */
    int32_t dtype;      /* code of the default dtype */
    bool grad, deterministic;
} State;

typedef struct {
    int64_t ndim;
    const int64_t *sizes, *strides; /* point into the tensor: copy before anything else runs */
} Layout;

typedef struct {
    bool ready;
    PyTypeObject *tensor, *parameter; /* owned */
    DTypeRow dtypes[MAX_DTYPES];
    int dtype_count;
    int32_t float32, float64, int64; /* their codes */
    int32_t uint8;
    bool hip;            /* torch's "cuda" is ROCm */
    /* of each type of device: bits that a plain dense tensor may carry, inference or not; 0 unknown */
    uint64_t plain_keys[MAX_DEVICE_TYPES];

    /* offsets in bytes, -1 unknown */
    Py_ssize_t handle, key_set, dtype, ndim, sizes, strides, autograd_meta, version_pointer, version_count;
    Py_ssize_t node;  /* of an autograd node written in Python: its C++ node */
    Py_ssize_t edges, edge_bytes; /* of a C++ node: the vector of its edges; the size of each */

    /* stable C functions */
    int32_t (*get_sizes)(Handle, int64_t **), (*get_strides)(Handle, int64_t **), (*get_dim)(Handle, int64_t *);
    int32_t (*get_data)(Handle, void **), (*get_dtype)(Handle, int32_t *), (*get_device_type)(Handle, int32_t *);
    int32_t (*get_device_index)(Handle, int32_t *);
    int32_t (*empty_strided)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, Handle *);
    int32_t (*delete_handle)(Handle);
    int32_t (*from_blob)(void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t, int32_t,
                         Handle *, int32_t, const uint8_t *, int64_t);
    int32_t (*current_stream)(int32_t, void **);
    int32_t (*convolution_backward)(Handle, Handle, Handle, const int64_t **, int64_t, const int64_t *, int64_t,
                                    const int64_t *, int64_t, const int64_t *, int64_t, int32_t, const int64_t *,
                                    int64_t, int64_t, const int32_t *, int64_t, Handle *, Handle *, Handle *);
    bool (*grad_enabled)(void);
    void (*set_grad_enabled)(bool);

    /* exported symbols whose C++ names may change */
    PyObject *(*wrap)(Handle);
    bool (*impl_requires_grad)(const void *);
    int64_t (*mode_count)(void);
    int8_t (*default_dtype)(void);
    bool (*context_deterministic)(const void *);
    const void *context;
    int8_t (*autocast_dtype)(int8_t);
    int (*thread_count)(void);
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    void (*sgemm)(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                  const int *, const float *, const int *, const float *, float *, const int *);
    void (*dgemm)(const char *, const char *, const int *, const int *, const int *, const double *, const double *,
                  const int *, const double *, const int *, const double *, double *, const int *);
    const uint64_t *(*hooks_state)(void);
    const volatile bool *anomaly_flag;
    bool (*keeps_graph)(void);
    const size_t *(*graph_task)(void);
    void *tls_library; /* libc10, for the per-thread address of the key sets; NULL unknown */
    uint64_t tls_included_flip, tls_excluded_flip;
    uint64_t below_autograd; /* the keys that torch excludes while an operator computes; 0 unknown */
    unsigned generation; /* of this struct, so that threads look the address up again */

    PyObject *raw_apply;    /* owned: the descriptor of autograd.Function's apply in C, or NULL */
    PyObject *python;       /* owned dict: name -> Python callable, the last way of each fact */
    /* the dispatch key of the default tensor type; `key_on_cpu` while the default device is the CPU */
    uint16_t (*default_key)(void);
    uint16_t key_on_cpu;
    /* borrowed from `python`; NULL where the default device cannot move without a function mode */
    PyObject *default_device;
    PyObject *device_types; /* owned dict: "cpu" -> 0 */
    PyObject *dual_dict;    /* owned: the dict that holds _current_level */
} Abi;

extern Abi abi;

/* Readers answer false (an exception may be set) when the object cannot be read. */
bool abi_keys_slowly(PyObject *tensor, uint64_t *keys);
bool abi_element(PyObject *tensor, int32_t *dtype, int32_t *device_type, int32_t *device_index);
bool abi_layout_slowly(PyObject *tensor, Layout *layout);
bool abi_data(PyObject *tensor, char **data);
bool abi_version_slowly(PyObject *tensor, int64_t *version);
int abi_requires_grad_slowly(PyObject *tensor); /* 1, 0, -1 unknown */
bool abi_read_state(State *state);
bool abi_autocast_dtype(int device_type, int32_t *dtype);
bool abi_modes(PyObject *expected); /* the text of ir/default_device.py */
bool abi_default_device(PyObject *expected); /* false where the legacy default device differs */

/* Makers give new references, or NULL with an exception. */
PyObject *abi_empty(int64_t ndim, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type,
                    int32_t device_index, char **data);
PyObject *abi_over(char *data, int64_t ndim, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                   int32_t device_type, int32_t device_index);
PyObject *abi_wrapped(Handle handle); /* moves the tensor out of an owned handle */
/* whether these are the keys of a tensor that is what its memory says */
bool abi_plain(int32_t device_type, uint64_t keys);

/* whether torch looks for anomalies; 1, 0, -1 with an exception */
int abi_anomaly(void);
/* saved_tensors_hooks of this thread; 1, 0, -1 with an exception */
int abi_hooks_active(void);
/* whether the graph that the engine walks now is kept; the same */
int abi_keeps_graph(void);
bool abi_wants_some(void);  /* whether the engine may leave out some inputs of a node */
bool abi_reads_wants(void); /* whether `abi_wants` tells which; else `abi_ask_wants` gives all of a node as bits */
bool abi_wants(PyObject *node, Py_ssize_t input);
PyObject *abi_ask_wants(PyObject *node, Py_ssize_t inputs);

/* Whether nothing is included or excluded but what always is; false where that is unknown. */
bool abi_thread_is_plain(void);
uint64_t abi_exclude(uint64_t keys); /* of a plain thread; gives what `abi_exclude_only` takes */
void abi_exclude_only(uint64_t before);
bool abi_grad_enabled(void);
void abi_set_grad_enabled(bool on);
int abi_thread_count(void);
bool abi_stream(int32_t device, void **stream); /* the stream of a GPU that this thread works on; false: unknown */

const DTypeRow *abi_dtype(PyObject *name);                                            /* NULL with ValueError */
/* "cpu", "cuda:0"; -1 with ValueError */
int abi_device(PyObject *text, int32_t *device_type, int32_t *device_index);
PyObject *abi_call(const char *name, PyObject *const *args, Py_ssize_t count);        /* a Python fallback */

PyObject *abi_initialise_py(PyObject *module, PyObject *facts);
PyObject *abi_state_py(PyObject *module, PyObject *none);
PyObject *raise_versions_py(PyObject *module, PyObject *const *tensors, Py_ssize_t count);
PyObject *tensor_facts_py(PyObject *module, PyObject *tensor);

/* The two loads on which everything else stands. */
static inline Handle abi_handle(PyObject *tensor) { return (Handle)((char *)tensor + abi.handle); }
static inline char *abi_impl(PyObject *tensor) { return *(char **)((char *)tensor + abi.handle); }

/* What every check of a tensor reads, inline where the probe found the place. */
static inline bool abi_is_tensor(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    return abi.ready && (type == abi.tensor || type == abi.parameter || PyType_IsSubtype(type, abi.tensor));
}

static inline bool abi_keys(PyObject *tensor, uint64_t *keys)
{
    if (__builtin_expect(abi.handle < 0 || abi.key_set < 0, 0))
        return abi_keys_slowly(tensor, keys);
    *keys = *(const uint64_t *)(abi_impl(tensor) + abi.key_set);
    return true;
}

static inline bool abi_layout(PyObject *tensor, Layout *layout)
{
    if (__builtin_expect(abi.handle < 0 || abi.sizes < 0, 0))
        return abi_layout_slowly(tensor, layout);
    char *impl = abi_impl(tensor);
    layout->ndim = *(const int64_t *)(impl + abi.ndim);
    if (__builtin_expect(layout->ndim > 5, 0)) /* inline up to five dimensions, a pointer to a block from six on */
        return abi_layout_slowly(tensor, layout);
    layout->sizes = (const int64_t *)(impl + abi.sizes);
    layout->strides = (const int64_t *)(impl + abi.strides);
    return true;
}

/* How often the tensor was changed in place; false, and no exception, for an inference tensor, which does not count. */
static inline bool abi_version(PyObject *tensor, int64_t *version)
{
    if (__builtin_expect(abi.handle < 0 || abi.version_pointer < 0, 0))
        return abi_version_slowly(tensor, version);
    char *counter = *(char **)(abi_impl(tensor) + abi.version_pointer);
    if (!counter)
        return false;
    *version = *(uint32_t *)(counter + abi.version_count);
    return true;
}

/* No autograd metadata: no gradient, no tangent. With metadata the flag may be either. */
static inline int abi_requires_grad(PyObject *tensor)
{
    if (abi.handle >= 0 && abi.autograd_meta >= 0 && *(void **)(abi_impl(tensor) + abi.autograd_meta) == NULL)
        return 0;
    return abi_requires_grad_slowly(tensor);
}

#endif
