/* Takes the facts that the probe of framefuse.native.abi found out of its dict into the struct that native code
   reads. */
#include <dlfcn.h>

#include "torch_abi.h"

static int64_t fact_int(PyObject *facts, const char *name, int64_t otherwise)
{
    PyObject *value = PyDict_GetItemString(facts, name);
    if (!value || value == Py_None)
        return otherwise;
    uint64_t bits = PyLong_AsUnsignedLongLongMask(value);
    return (int64_t)bits;
}

static int read_dtypes(PyObject *rows)
{
    if (!rows || !PyList_Check(rows) || PyList_GET_SIZE(rows) > MAX_DTYPES) {
        PyErr_SetString(PyExc_ValueError, "facts['dtypes'] must be a list of rows");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows); i++) {
        DTypeRow *row = &abi.dtypes[i];
        const char *name;
        long long word;
        PyObject *object;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(rows, i), "siiOL", &name, &row->code, &row->size, &object, &word))
            return -1;
        strncpy(row->name, name, sizeof row->name - 1);
        row->cpu_word = word;
        row->object = Py_NewRef(object);
        abi.dtype_count = (int)i + 1;
        if (strcmp(name, "float32") == 0)
            abi.float32 = row->code;
        if (strcmp(name, "uint8") == 0)
            abi.uint8 = row->code;
        if (strcmp(name, "float64") == 0)
            abi.float64 = row->code;
        if (strcmp(name, "int64") == 0)
            abi.int64 = row->code;
    }
    return 0;
}

/* A dict: device type -> bits. */
static int read_plain_keys(PyObject *bits)
{
    PyObject *device, *keys;
    Py_ssize_t at = 0;
    while (bits && PyDict_Check(bits) && PyDict_Next(bits, &at, &device, &keys)) {
        long type = PyLong_AsLong(device);
        if (type >= 0 && type < MAX_DEVICE_TYPES)
            abi.plain_keys[type] = PyLong_AsUnsignedLongLong(keys);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static void forget(void)
{
    for (int i = 0; i < abi.dtype_count; i++)
        Py_CLEAR(abi.dtypes[i].object);
    Py_CLEAR(abi.tensor);
    Py_CLEAR(abi.parameter);
    Py_CLEAR(abi.raw_apply);
    Py_CLEAR(abi.python);
    Py_CLEAR(abi.device_types);
    Py_CLEAR(abi.dual_dict);
    unsigned generation = abi.generation + 1;
    memset(&abi, 0, sizeof abi);
    abi.generation = generation;
}

#define ADDRESS(field, name) abi.field = (__typeof__(abi.field))(uintptr_t)fact_int(facts, name, 0)
#define OFFSET(field, name) abi.field = (Py_ssize_t)fact_int(facts, name, -1)

PyObject *abi_initialise_py(PyObject *Py_UNUSED(module), PyObject *facts)
{
    if (!PyDict_Check(facts))
        return PyErr_Format(PyExc_TypeError, "facts must be a dict");
    forget();
    OFFSET(handle, "handle");
    OFFSET(key_set, "key_set");
    OFFSET(dtype, "dtype");
    OFFSET(ndim, "ndim");
    OFFSET(sizes, "sizes");
    OFFSET(strides, "strides");
    OFFSET(autograd_meta, "autograd_meta");
    OFFSET(version_pointer, "version_pointer");
    OFFSET(version_count, "version_count");
    ADDRESS(get_sizes, "get_sizes");
    ADDRESS(get_strides, "get_strides");
    ADDRESS(get_dim, "get_dim");
    ADDRESS(get_data, "get_data_ptr");
    ADDRESS(get_dtype, "get_dtype");
    ADDRESS(get_device_type, "get_device_type");
    ADDRESS(get_device_index, "get_device_index");
    ADDRESS(empty_strided, "empty_strided");
    ADDRESS(delete_handle, "delete_tensor_object");
    ADDRESS(from_blob, "create_tensor_from_blob_v2");
    ADDRESS(grad_enabled, "grad_mode_is_enabled");
    ADDRESS(set_grad_enabled, "grad_mode_set_enabled");
    ADDRESS(wrap, "wrap");
    ADDRESS(impl_requires_grad, "requires_grad");
    ADDRESS(mode_count, "mode_count");
    ADDRESS(default_dtype, "default_dtype");
    ADDRESS(context_deterministic, "deterministic");
    ADDRESS(context, "context");
    ADDRESS(autocast_dtype, "autocast_dtype");
    ADDRESS(thread_count, "thread_count");
    ADDRESS(parallel, "parallel");
    ADDRESS(sgemm, "sgemm");
    ADDRESS(dgemm, "dgemm");
    OFFSET(node, "node");
    ADDRESS(hooks_state, "hooks_state");
    ADDRESS(anomaly_flag, "anomaly_flag");
    ADDRESS(keeps_graph, "keeps_graph");
    OFFSET(edges, "edges");
    OFFSET(edge_bytes, "edge_bytes");
    ADDRESS(graph_task, "graph_task");
    ADDRESS(tls_included_flip, "tls_included_flip");
    ADDRESS(tls_excluded_flip, "tls_excluded_flip");
    ADDRESS(below_autograd, "below_autograd");
    ADDRESS(convolution_backward, "convolution_backward");
    ADDRESS(current_stream, "current_stream");
    ADDRESS(default_key, "default_key");
    abi.key_on_cpu = (uint16_t)fact_int(facts, "default_key_on_cpu", 0);
    abi.hip = fact_int(facts, "hip", 0);
    PyObject *path = PyDict_GetItemString(facts, "tls_library");
    if (path && PyUnicode_Check(path))
        abi.tls_library = dlopen(PyUnicode_AsUTF8(path), RTLD_NOW | RTLD_NOLOAD);
    abi.raw_apply = Py_XNewRef(PyDict_GetItemString(facts, "raw_apply"));
    abi.tensor = (PyTypeObject *)Py_XNewRef(PyDict_GetItemString(facts, "tensor"));
    abi.parameter = (PyTypeObject *)Py_XNewRef(PyDict_GetItemString(facts, "parameter"));
    abi.python = Py_XNewRef(PyDict_GetItemString(facts, "python"));
    abi.default_device = abi.python ? PyDict_GetItemString(abi.python, "default_device") : NULL;
    abi.device_types = Py_XNewRef(PyDict_GetItemString(facts, "device_types"));
    abi.dual_dict = Py_XNewRef(PyDict_GetItemString(facts, "dual_dict"));
    if (read_dtypes(PyDict_GetItemString(facts, "dtypes")) < 0
        || read_plain_keys(PyDict_GetItemString(facts, "plain_keys")) < 0)
        return NULL;
    if (!abi.tensor || !abi.parameter || !abi.python || !PyDict_Check(abi.python) || !abi.device_types
        || !PyDict_Check(abi.device_types))
        return PyErr_Format(PyExc_ValueError, "facts lack the Python side");
    abi.ready = !PyErr_Occurred();
    if (!abi.ready)
        return NULL;
    Py_RETURN_NONE;
}
