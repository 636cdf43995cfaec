/* The driver of a GPU: found by dlopen at its first use, it loads compiled kernels and launches them on streams of
   torch's.

   ROCm has functions of the same shapes under other names, so it is a second column of one table; that column was
   never run. Whatever the driver answers but success becomes RuntimeError with its own words. Modules are never
   unloaded: a captured graph may hold their kernels. */
#include "cuda.h"

#include <dlfcn.h>

#include "torch_abi.h"

/* X(field, parameters, name in CUDA, name in HIP); all give an error code. The last two rows may be missing: HIP's
   kernels need no leave for more shared memory, and only a thread that captures a graph has a capture mode to
   change. */
#define DRIVER_FUNCTIONS(X) \
    X(init, (unsigned), "cuInit", "hipInit") \
    X(device, (int *, int), "cuDeviceGet", "hipDeviceGet") \
    X(retain, (void **, int), "cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain") \
    X(current, (void **), "cuCtxGetCurrent", "hipCtxGetCurrent") \
    X(push, (void *), "cuCtxPushCurrent_v2", "hipCtxPushCurrent") \
    X(pop, (void **), "cuCtxPopCurrent_v2", "hipCtxPopCurrent") \
    X(load, (void **, const void *), "cuModuleLoadData", "hipModuleLoadData") \
    X(unload, (void *), "cuModuleUnload", "hipModuleUnload") \
    X(function, (void **, void *, const char *), "cuModuleGetFunction", "hipModuleGetFunction") \
    X(launch, \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), \
      "cuLaunchKernel", "hipModuleLaunchKernel") \
    X(error_name, (int, const char **), "cuGetErrorName", "hipDrvGetErrorName") \
    X(error_text, (int, const char **), "cuGetErrorString", "hipDrvGetErrorString") \
    X(attribute, (void *, int, int), "cuFuncSetAttribute", NULL) \
    X(capture_mode, (int *), "cuThreadExchangeStreamCaptureMode", "hipThreadExchangeStreamCaptureMode")

enum { FIRST_OPTIONAL = 12, FUNCTIONS = 14, MAX_DEVICES = 64 };
enum { MAX_DYNAMIC_SHARED_SIZE = 8, CAPTURE_RELAXED = 2 }; /* of CUfunction_attribute and CUstreamCaptureMode */
static const int WITHOUT_LEAVE = 48 << 10;                 /* bytes of shared memory that any kernel may take */

static const char *const LIBRARIES[] = {"libcuda.so.1", "libamdhip64.so"};
static const char *const NAMES[FUNCTIONS][2] = {
#define X(field, parameters, cuda, hip) {cuda, hip},
    DRIVER_FUNCTIONS(X)
#undef X
};

/* All of this changes with the GIL held. */
static struct {
    bool open;
#define X(field, parameters, cuda, hip) int (*field) parameters;
    DRIVER_FUNCTIONS(X)
#undef X
} driver;
static void *contexts[MAX_DEVICES]; /* the primary context of each device, held for good, as torch holds it */
static char stand_in[1024];         /* the library to use in place of the driver */

static int refuse(const char *what, int code)
{
    const char *name = NULL, *text = NULL;
    if (driver.error_name(code, &name) || !name)
        name = "unknown error";
    if (driver.error_text(code, &text) || !text)
        text = "the driver has no text for it";
    PyErr_Format(PyExc_RuntimeError, "%s: %s (%s, code %d)", what, text, name, code);
    return -1;
}

static int find_functions(void *library, const char *path)
{
    void *found[FUNCTIONS];
    for (int i = 0; i < FUNCTIONS; i++) {
        const char *name = NAMES[i][abi.hip];
        found[i] = name ? dlsym(library, name) : NULL;
        if (!found[i] && i < FIRST_OPTIONAL) {
            PyErr_Format(PyExc_RuntimeError, "the GPU's driver %s lacks %s", path, name);
            return -1;
        }
    }
    int i = 0;
#define X(field, parameters, cuda, hip) driver.field = (__typeof__(driver.field))(uintptr_t)found[i++];
    DRIVER_FUNCTIONS(X)
#undef X
    return 0;
}

static int driver_open(void)
{
    if (LIKELY(driver.open))
        return 0;
    const char *path = *stand_in ? stand_in : LIBRARIES[abi.hip];
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        PyErr_Format(PyExc_RuntimeError, "no driver of a GPU: %s", dlerror());
        return -1;
    }
    if (find_functions(library, path) < 0)
        return -1;
    int code = driver.init(0);
    if (code)
        return refuse("the GPU's driver does not start", code);
    driver.open = true;
    return 0;
}

/* The primary context of a device, which is the one that torch works in; NULL with an exception. */
static void *context_of(int32_t device)
{
    int handle, code;
    if (driver_open() < 0)
        return NULL;
    if (device < 0 || device >= MAX_DEVICES)
        return PyErr_Format(PyExc_RuntimeError, "no GPU has the number %d", device);
    if (LIKELY(contexts[device] != NULL))
        return contexts[device];
    if ((code = driver.device(&handle, device)) || (code = driver.retain(&contexts[device], handle))) {
        contexts[device] = NULL;
        refuse("the context of a GPU cannot be had", code);
    }
    return contexts[device];
}

bool driver_is_stand_in(void) { return *stand_in; }
int driver_ready(int32_t device) { return context_of(device) ? 0 : -1; }

/* Makes a context current for a moment: a thread may have none yet, or that of another device. */
static int enter(void *context, bool *entered)
{
    void *now = NULL;
    int code = driver.current(&now);
    *entered = false;
    if (!code && UNLIKELY(now != context) && !(code = driver.push(context)))
        *entered = true;
    return code;
}

static void leave(bool entered)
{
    void *left;
    if (UNLIKELY(entered))
        driver.pop(&left);
}

int driver_launch(uint64_t function, int32_t device, unsigned grid, unsigned threads, unsigned shared, void *stream,
                  void **parameters)
{
    void *context = context_of(device);
    bool entered;
    int code;
    if (UNLIKELY(!context))
        return -1;
    Py_BEGIN_ALLOW_THREADS /* it waits where the stream's queue is full */
    code = enter(context, &entered);
    if (LIKELY(!code))
        code = driver.launch((void *)(uintptr_t)function, grid, 1, 1, threads, 1, 1, shared, stream, parameters, NULL);
    leave(entered);
    Py_END_ALLOW_THREADS
    return LIKELY(!code) ? 0 : refuse("a kernel could not be launched", code);
}

static int load(const char *image, const char *name, int shared, void *context, void **function)
{
    bool entered;
    void *module = NULL;
    int mode = CAPTURE_RELAXED; /* while a graph is captured in this thread, loading would spoil it */
    int code = enter(context, &entered), captured = driver.capture_mode ? driver.capture_mode(&mode) : -1;
    if (!code)
        code = driver.load(&module, image);
    if (!code)
        code = driver.function(function, module, name);
    if (!code && shared > WITHOUT_LEAVE && driver.attribute)
        code = driver.attribute(*function, MAX_DYNAMIC_SHARED_SIZE, shared);
    if (code && module)
        driver.unload(module);
    if (!captured)
        driver.capture_mode(&mode);
    leave(entered);
    return code;
}

PyObject *load_module_py(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"image", "name", "shared", "device", NULL};
    PyObject *image;
    const char *name;
    int shared, device = 0, code;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Ssi|i", names, &image, &name, &shared, &device))
        return NULL;
    void *context = context_of(device), *function = NULL;
    if (!context)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    code = load(PyBytes_AS_STRING(image), name, shared, context, &function);
    Py_END_ALLOW_THREADS
    if (code) {
        refuse("a kernel could not be loaded", code);
        return NULL;
    }
    return PyLong_FromVoidPtr(function);
}

PyObject *use_driver_py(PyObject *Py_UNUSED(module), PyObject *path)
{
    Py_ssize_t length = 0;
    const char *text = path == Py_None ? "" : PyUnicode_AsUTF8AndSize(path, &length);
    if (!text)
        return NULL;
    if ((size_t)length >= sizeof stand_in)
        return PyErr_Format(PyExc_ValueError, "a path of more than %d bytes", (int)sizeof stand_in - 1);
    memcpy(stand_in, text, (size_t)length + 1);
    memset(contexts, 0, sizeof contexts);
    memset(&driver, 0, sizeof driver);
    Py_RETURN_NONE;
}
