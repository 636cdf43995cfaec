/* Turns the facts of the probe into readers and makers of torch's tensors: raw loads, else the stable C getters,
   else Python. */
#include "torch_abi.h"

#include <dlfcn.h>

#include "tags.h"

Abi abi = {.handle = -1,
           .key_set = -1,
           .dtype = -1,
           .ndim = -1,
           .sizes = -1,
           .strides = -1,
           .autograd_meta = -1,
           .version_pointer = -1};

/* Handles of a raw fallback are read into these; the GIL is held and the reader copies before anything else runs. */
static int64_t slow_sizes[MAX_NDIM], slow_strides[MAX_NDIM];

PyObject *abi_call(const char *name, PyObject *const *args, Py_ssize_t count)
{
    PyObject *function = abi.python ? PyDict_GetItemString(abi.python, name) : NULL;
    if (!function)
        return PyErr_Format(PyExc_RuntimeError, "torch's binary interface is not initialised (%s)", name);
    return PyObject_Vectorcall(function, args, (size_t)count, NULL);
}

static bool call_int(const char *name, PyObject *const *args, Py_ssize_t count, int64_t *out)
{
    PyObject *result = abi_call(name, args, count);
    if (!result)
        return false;
    *out = PyLong_AsLongLong(result);
    Py_DECREF(result);
    return *out != -1 || !PyErr_Occurred();
}

bool abi_keys_slowly(PyObject *tensor, uint64_t *keys)
{
    PyObject *result = abi_call("keys", &tensor, 1);
    if (!result)
        return false;
    *keys = PyLong_AsUnsignedLongLong(result);
    Py_DECREF(result);
    return !PyErr_Occurred();
}

/* Python's way of dtype, device, sizes and strides: one call that gives them all as a flat tuple of ints. */
static bool read_slowly(PyObject *tensor, const char *what, int64_t *out, Py_ssize_t *count)
{
    PyObject *result = abi_call(what, &tensor, 1);
    if (!result)
        return false;
    bool good = PyTuple_CheckExact(result) && PyTuple_GET_SIZE(result) <= MAX_NDIM;
    if (good) {
        *count = PyTuple_GET_SIZE(result);
        for (Py_ssize_t i = 0; i < *count && good; i++) {
            out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(result, i));
            good = out[i] != -1 || !PyErr_Occurred();
        }
    }
    Py_DECREF(result);
    return good;
}

bool abi_element(PyObject *tensor, int32_t *dtype, int32_t *device_type, int32_t *device_index)
{
    if (LIKELY(abi.handle >= 0 && abi.get_dtype && abi.get_device_type && abi.get_device_index)) {
        Handle handle = abi_handle(tensor);
        return !abi.get_dtype(handle, dtype) && !abi.get_device_type(handle, device_type)
               && !abi.get_device_index(handle, device_index);
    }
    int64_t found[MAX_NDIM];
    Py_ssize_t count = 0;
    if (!read_slowly(tensor, "element", found, &count) || count != 3)
        return false;
    *dtype = (int32_t)found[0], *device_type = (int32_t)found[1], *device_index = (int32_t)found[2];
    return true;
}

bool abi_layout_slowly(PyObject *tensor, Layout *layout)
{
    if (LIKELY(abi.handle >= 0 && abi.get_dim)) {
        Handle handle = abi_handle(tensor);
        int64_t *sizes, *strides;
        if (abi.get_dim(handle, &layout->ndim) || abi.get_sizes(handle, &sizes) || abi.get_strides(handle, &strides))
            return false;
        layout->sizes = sizes, layout->strides = strides;
        return true;
    }
    Py_ssize_t sizes, strides;
    if (!read_slowly(tensor, "sizes", slow_sizes, &sizes) || !read_slowly(tensor, "strides", slow_strides, &strides)
        || sizes != strides)
        return false;
    *layout = (Layout){sizes, slow_sizes, slow_strides};
    return true;
}

bool abi_data(PyObject *tensor, char **data)
{
    if (LIKELY(abi.handle >= 0 && abi.get_data))
        return !abi.get_data(abi_handle(tensor), (void **)data);
    PyObject *result = abi_call("data", &tensor, 1);
    if (!result)
        return false;
    *data = PyLong_AsVoidPtr(result);
    Py_DECREF(result);
    return *data != NULL || !PyErr_Occurred();
}

int abi_requires_grad_slowly(PyObject *tensor)
{
    if (LIKELY(abi.handle >= 0 && abi.impl_requires_grad))
        return abi.impl_requires_grad(abi_impl(tensor));
    PyObject *result = abi_call("requires_grad", &tensor, 1);
    if (!result)
        return -1;
    int value = PyObject_IsTrue(result);
    Py_DECREF(result);
    return value;
}

bool abi_version_slowly(PyObject *tensor, int64_t *version)
{
    if (call_int("version", &tensor, 1, version))
        return *version >= 0;
    PyErr_Clear();
    return false;
}

static bool raise_version(PyObject *tensor)
{
    if (LIKELY(abi.handle >= 0 && abi.version_pointer >= 0)) {
        char *counter = *(char **)(abi_impl(tensor) + abi.version_pointer);
        if (counter) /* inference tensors have none */
            __atomic_add_fetch((uint32_t *)(counter + abi.version_count), 1, __ATOMIC_RELAXED);
        return true;
    }
    PyObject *done = abi_call("raise_version", &tensor, 1);
    Py_XDECREF(done);
    return done != NULL;
}

PyObject *raise_versions_py(PyObject *Py_UNUSED(module), PyObject *const *tensors, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!abi_is_tensor(tensors[i]))
            return PyErr_Format(PyExc_TypeError, "raise_versions takes tensors");
        if (!raise_version(tensors[i]))
            return NULL;
    }
    Py_RETURN_NONE;
}

/* Unknown keys are those of no plain tensor. */
bool abi_plain(int32_t device_type, uint64_t keys)
{
    return device_type >= 0 && device_type < MAX_DEVICE_TYPES && (keys & ~abi.plain_keys[device_type]) == 0;
}

/* ---- the state of the thread ---- */

/* Included and excluded keys of this thread, each xor a default; NULL unknown. */
static uint64_t *words_of_thread(void)
{
    static __thread uint64_t *words;
    static __thread unsigned generation;
    if (UNLIKELY(abi.tls_library == NULL))
        return NULL;
    if (UNLIKELY(words == NULL || generation != abi.generation)) {
        words = dlsym(abi.tls_library, "_ZN3c104impl26raw_local_dispatch_key_setE");
        generation = abi.generation;
    }
    return words;
}

static bool read_keys_of_thread(uint64_t *included, uint64_t *excluded)
{
    const uint64_t *words = words_of_thread();
    if (LIKELY(words != NULL)) {
        *included = words[0] ^ abi.tls_included_flip;
        *excluded = words[1] ^ abi.tls_excluded_flip;
        return true;
    }
    PyObject *result = abi_call("thread_keys", NULL, 0);
    bool good = result && PyArg_ParseTuple(result, "KK", included, excluded);
    Py_XDECREF(result);
    return good;
}

bool abi_thread_is_plain(void)
{
    const uint64_t *words = words_of_thread();
    return words && !words[0] && !words[1];
}

uint64_t abi_exclude(uint64_t keys)
{
    uint64_t *words = words_of_thread(), before = words[1];
    words[1] = ((before ^ abi.tls_excluded_flip) | keys) ^ abi.tls_excluded_flip;
    return before;
}

void abi_exclude_only(uint64_t before) { words_of_thread()[1] = before; }

/* forward_ad._current_level: -1 unless inside dual_level; only there may a plain tensor carry a tangent. */
static bool read_dual_level(int64_t *level)
{
    static uint64_t tag;
    static unsigned generation;
    static int64_t known;
    if (!abi.dual_dict) {
        *level = -1;
        return true;
    }
    uint64_t now = trust_dict_tags ? *dict_tag_word(abi.dual_dict) : 0;
    if (LIKELY(now && now == tag && generation == abi.generation)) {
        *level = known;
        return true;
    }
    PyObject *value = PyDict_GetItemString(abi.dual_dict, "_current_level");
    if (!value)
        return false;
    known = PyLong_AsLongLong(value);
    if (known == -1 && PyErr_Occurred())
        return false;
    tag = now, generation = abi.generation;
    *level = known;
    return true;
}

bool abi_grad_enabled(void)
{
    if (LIKELY(abi.grad_enabled != NULL))
        return abi.grad_enabled();
    int64_t on = 1;
    if (!call_int("grad_enabled", NULL, 0, &on))
        PyErr_Clear();
    return on;
}

void abi_set_grad_enabled(bool on)
{
    if (LIKELY(abi.set_grad_enabled != NULL)) {
        abi.set_grad_enabled(on);
        return;
    }
    PyObject *kind, *value, *trace; /* also called while an exception is on its way */
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *flag = on ? Py_True : Py_False, *result = abi_call("set_grad_enabled", &flag, 1);
    Py_XDECREF(result);
    PyErr_Restore(kind, value, trace);
}

bool abi_read_state(State *state)
{
    memset(state, 0, sizeof *state);
    if (!read_keys_of_thread(&state->included, &state->excluded) || !read_dual_level(&state->dual_level))
        return false;
    state->grad = abi_grad_enabled();
    if (LIKELY(abi.mode_count != NULL))
        state->modes = abi.mode_count();
    else if (!call_int("mode_count", NULL, 0, &state->modes))
        return false;
    int64_t value;
    if (LIKELY(abi.default_dtype != NULL))
        state->dtype = abi.default_dtype();
    else if (call_int("default_dtype", NULL, 0, &value))
        state->dtype = (int32_t)value;
    else
        return false;
    if (LIKELY(abi.context_deterministic != NULL))
        state->deterministic = abi.context_deterministic(abi.context);
    else if (call_int("deterministic", NULL, 0, &value))
        state->deterministic = value;
    else
        return false;
    return true;
}

bool abi_autocast_dtype(int device_type, int32_t *dtype)
{
    if (LIKELY(abi.autocast_dtype != NULL)) {
        *dtype = abi.autocast_dtype((int8_t)device_type);
        return true;
    }
    PyObject *code = PyLong_FromLong(device_type);
    int64_t value = -1;
    bool good = code && call_int("autocast_dtype", &code, 1, &value);
    Py_XDECREF(code);
    *dtype = (int32_t)value;
    return good;
}

/* With no function mode active only torch.set_default_tensor_type can have moved the default device; a build without
   accelerators refuses it. */
bool abi_default_device(PyObject *expected)
{
    if (LIKELY(!abi.default_device))
        return true;
    if (LIKELY(abi.default_key && abi.default_key() == abi.key_on_cpu))
        return PyUnicode_CompareWithASCIIString(expected, "cpu") == 0;
    PyObject *now = PyObject_CallNoArgs(abi.default_device);
    int same = now ? PyObject_RichCompareBool(now, expected, Py_EQ) : -1;
    Py_XDECREF(now);
    return same == 1;
}

/* Whether the function modes that are active are the same, with the device of torch's own for devices. */
bool abi_modes(PyObject *expected)
{
    PyObject *now = abi_call("modes", NULL, 0);
    int same = now ? PyObject_RichCompareBool(now, expected, Py_EQ) : -1;
    Py_XDECREF(now);
    if (same < 0)
        PyErr_Clear();
    return same == 1;
}

int abi_thread_count(void)
{
    if (LIKELY(abi.thread_count != NULL))
        return abi.thread_count();
    int64_t count = 1;
    if (abi.ready && !call_int("thread_count", NULL, 0, &count))
        PyErr_Clear();
    return (int)count;
}

/* The C interface is asked beside Python until both have said the same: no stream can be read before torch has
   started the device. */
bool abi_stream(int32_t device, void **stream)
{
    static unsigned compared; /* the generation in which they did */
    if (LIKELY(abi.current_stream && compared == abi.generation))
        return !abi.current_stream(device, stream);
    PyObject *index = PyLong_FromLong(device);
    int64_t known;
    bool good = index && call_int("stream", &index, 1, &known);
    Py_XDECREF(index);
    if (!good)
        return false;
    if (abi.current_stream && !abi.current_stream(device, stream) && *stream == (void *)(uintptr_t)known)
        compared = abi.generation;
    else
        abi.current_stream = NULL;
    *stream = (void *)(uintptr_t)known;
    return true;
}

/* ---- autograd ---- */

static int ask(const char *name)
{
    PyObject *answer = abi_call(name, NULL, 0);
    int yes = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return yes;
}

int abi_anomaly(void) { return LIKELY(abi.anomaly_flag != NULL) ? *abi.anomaly_flag : ask("anomaly"); }

int abi_hooks_active(void)
{
    if (UNLIKELY(!abi.hooks_state))
        return ask("saved_hooks");
    const uint64_t *deque = abi.hooks_state();
    return deque[2] != deque[6];
}

/* No probe could see the answer "no", for which the engine has to run: Python is asked too until it has given that
   one. */
int abi_keeps_graph(void)
{
    static unsigned compared; /* the generation in which both said no */
    if (LIKELY(abi.keeps_graph && compared == abi.generation))
        return abi.keeps_graph();
    int kept = ask("keeps_graph");
    if (abi.keeps_graph && kept >= 0 && abi.keeps_graph() != kept)
        abi.keeps_graph = NULL;
    else if (kept == 0)
        compared = abi.generation;
    return kept;
}

/* A walk of the whole graph has no entries in the table of what to run, one of libstdc++: chains, how many, a link, and
   the count of entries. */
bool abi_wants_some(void)
{
    if (UNLIKELY(!abi.graph_task))
        return true;
    const size_t *table = abi.graph_task();
    return table && table[3];
}

/* No probe could see entries, for which the engine has to run: Python is asked too, until its answers have shown that
   what is read here is the same. */
enum { PROOF = 8 };
static unsigned compared; /* the generation in which that was shown */

bool abi_reads_wants(void) { return compared == abi.generation && abi.edges >= 0; }

PyObject *abi_ask_wants(PyObject *node, Py_ssize_t inputs)
{
    static unsigned generation;
    static long shown;
    bool compares = abi.graph_task && abi.node >= 0 && abi.edges >= 0 && abi.edge_bytes > 0;
    PyObject *count = PyLong_FromSsize_t(inputs);
    PyObject *found = count ? abi_call(compares ? "compared_wanted" : "wanted", (PyObject *[]){node, count}, 2) : NULL;
    Py_XDECREF(count);
    if (!found || !compares)
        return found;
    PyObject *bits = NULL;
    long proof = 0;
    if (PyArg_ParseTuple(found, "Ol", &bits, &proof))
        Py_INCREF(bits);
    Py_DECREF(found);
    shown = generation == abi.generation ? shown + proof : proof;
    generation = abi.generation;
    if (bits && !proof)
        abi.edges = -1;
    else if (bits && shown >= PROOF)
        compared = abi.generation;
    return bits;
}

/* An entry is a link, the node, a byte that says yes, and a pointer that does; an edge begins with its node. */
bool abi_wants(PyObject *node, Py_ssize_t input)
{
    const char *here = *(char **)((char *)node + abi.node);
    uintptr_t target = *(uintptr_t *)(*(char **)(here + abi.edges) + input * abi.edge_bytes);
    const uintptr_t *table = (const uintptr_t *)abi.graph_task();
    uintptr_t **chains = (uintptr_t **)table[0], count = table[1], *entry = chains[target % count];
    entry = target && entry ? (uintptr_t *)entry[0] : NULL;
    for (; entry && entry[1] % count == target % count; entry = (uintptr_t *)entry[0])
        if (entry[1] == target)
            return (entry[2] & 0xff) || entry[3];
    return false;
}

/* ---- making tensors ---- */

static PyObject *long_tuple(const int64_t *values, int64_t count)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (int64_t i = 0; tuple && i < count; i++) {
        PyObject *value = PyLong_FromLongLong(values[i]);
        if (!value) {
            Py_DECREF(tuple);
            return NULL;
        }
        PyTuple_SET_ITEM(tuple, i, value);
    }
    return tuple;
}

/* name(sizes, strides, numbers...) of a Python fallback */
static PyObject *make_slowly(const char *name, int64_t ndim, const int64_t *sizes, const int64_t *strides,
                             const int64_t *rest, int count)
{
    PyObject *args[3] = {long_tuple(sizes, ndim), long_tuple(strides, ndim), long_tuple(rest, count)};
    PyObject *result = args[0] && args[1] && args[2] ? abi_call(name, args, 3) : NULL;
    for (int i = 0; i < 3; i++)
        Py_XDECREF(args[i]);
    return result;
}

PyObject *abi_wrapped(Handle handle)
{
    PyObject *result = abi.wrap(handle);
    abi.delete_handle(handle);
    return result;
}

PyObject *abi_empty(int64_t ndim, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type,
                    int32_t device_index, char **data)
{
    if (LIKELY(abi.wrap && abi.empty_strided && abi.delete_handle && abi.get_data)) {
        Handle handle;
        if (LIKELY(!abi.empty_strided(ndim, sizes, strides, dtype, device_type, device_type == 0 ? 0 : device_index,
                                      &handle))) {
            abi.get_data(handle, (void **)data);
            return abi_wrapped(handle);
        } /* else torch raises below what it raises under eager: only Python sees which exception that is */
    }
    PyObject *result = make_slowly("empty", ndim, sizes, strides, (int64_t[]){dtype, device_type, device_index}, 3);
    if (result && !abi_data(result, data))
        Py_CLEAR(result);
    return result;
}

/* A tensor over memory that it does not own; the caller sees to it that nobody keeps it. */
PyObject *abi_over(char *data, int64_t ndim, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                   int32_t device_type, int32_t device_index)
{
    if (LIKELY(abi.wrap && abi.from_blob && abi.delete_handle)) {
        Handle handle;
        if (UNLIKELY(abi.from_blob(data, ndim, sizes, strides, 0, dtype, device_type,
                                   device_type == 0 ? 0 : device_index, &handle, 0, NULL, 0))) {
            PyErr_SetString(PyExc_RuntimeError, "torch refused a tensor over an arena");
            return NULL;
        }
        return abi_wrapped(handle);
    }
    if (device_type != 0)
        return PyErr_Format(PyExc_RuntimeError, "only torch's C interface makes a tensor over a GPU's memory");
    return make_slowly("over", ndim, sizes, strides, (int64_t[]){(int64_t)(intptr_t)data, dtype}, 2);
}

/* ---- names ---- */

const DTypeRow *abi_dtype(PyObject *name)
{
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    for (int i = 0; text && i < abi.dtype_count; i++)
        if (strcmp(abi.dtypes[i].name, text) == 0)
            return &abi.dtypes[i];
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "no element type %R", name);
    return NULL;
}

int abi_device(PyObject *text, int32_t *device_type, int32_t *device_index)
{
    const char *name = PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : NULL;
    const char *colon = name ? strchr(name, ':') : NULL;
    PyObject *kind = name ? (colon ? PyUnicode_FromStringAndSize(name, colon - name) : Py_NewRef(text)) : NULL;
    PyObject *code = kind && abi.device_types ? PyDict_GetItemWithError(abi.device_types, kind) : NULL;
    Py_XDECREF(kind);
    if (!code) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "no device %R", text);
        return -1;
    }
    *device_type = (int32_t)PyLong_AsLong(code);
    *device_index = colon ? atoi(colon + 1) : -1;
    return 0;
}

PyObject *abi_state_py(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    State state;
    if (!abi_read_state(&state))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_RuntimeError, "torch's state cannot be read");
    return Py_BuildValue("(KKNLiNL)", state.included, state.excluded, PyBool_FromLong(state.grad),
                         (long long)state.modes, state.dtype, PyBool_FromLong(state.deterministic),
                         (long long)state.dual_level);
}

PyObject *tensor_facts_py(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    if (!abi_is_tensor(tensor))
        return PyErr_Format(PyExc_TypeError, "not a tensor: %R", tensor);
    uint64_t keys;
    int32_t dtype, device_type, device_index;
    Layout layout;
    char *data;
    int64_t version = -1;
    if (!abi_keys(tensor, &keys) || !abi_element(tensor, &dtype, &device_type, &device_index)
        || !abi_data(tensor, &data))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "unreadable tensor");
    int requires_grad = abi_requires_grad(tensor);
    if (!abi_version(tensor, &version))
        version = -1;
    if (requires_grad < 0 || !abi_layout(tensor, &layout))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "unreadable tensor");
    return Py_BuildValue("{sKsisisisNsNsNsNsL}", "keys", keys, "dtype", dtype, "device_type", device_type,
                         "device_index", device_index, "sizes", long_tuple(layout.sizes, layout.ndim), "strides",
                         long_tuple(layout.strides, layout.ndim), "data", PyLong_FromVoidPtr(data), "requires_grad",
                         PyBool_FromLong(requires_grad), "version", (long long)version);
}
