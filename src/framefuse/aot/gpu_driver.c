/* The driver of NVIDIA's GPUs, found by dlopen when the first model is loaded. */

enum { MAX_DEVICES = 64, MAJOR = 75, MINOR = 76, MAX_DYNAMIC_SHARED_SIZE = 8, WITHOUT_TIMES = 2, UNSUPPORTED_IMAGE = 209 };
enum { WITHOUT_LEAVE = 48 << 10 }; /* bytes of shared memory that any kernel may take */

/* X(field, parameters, name); all give an error code. */
#define DRIVER_FUNCTIONS(X) \
    X(init, (unsigned), "cuInit") \
    X(device, (int *, int), "cuDeviceGet") \
    X(attribute, (int *, int, int), "cuDeviceGetAttribute") \
    X(retain, (void **, int), "cuDevicePrimaryCtxRetain") \
    X(push, (void *), "cuCtxPushCurrent_v2") \
    X(pop, (void **), "cuCtxPopCurrent_v2") \
    X(load, (void **, const void *), "cuModuleLoadData") \
    X(unload, (void *), "cuModuleUnload") \
    X(function, (void **, void *, const char *), "cuModuleGetFunction") \
    X(set, (void *, int, int), "cuFuncSetAttribute") \
    X(launch, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), \
      "cuLaunchKernel") \
    X(allocate, (uint64_t *, size_t), "cuMemAlloc_v2") \
    X(release, (uint64_t), "cuMemFree_v2") \
    X(to_device, (uint64_t, const void *, size_t), "cuMemcpyHtoD_v2") \
    X(within, (uint64_t, uint64_t, size_t, void *), "cuMemcpyDtoDAsync_v2") \
    X(synchronize, (void *), "cuStreamSynchronize") \
    X(event, (void **, unsigned), "cuEventCreate") \
    X(drop_event, (void *), "cuEventDestroy_v2") \
    X(record, (void *, void *), "cuEventRecord") \
    X(await, (void *, void *, unsigned), "cuStreamWaitEvent") \
    X(wait, (void *), "cuEventSynchronize") \
    X(error_text, (int, const char **), "cuGetErrorString")

static struct {
    int open;
#define X(field, parameters, name) int (*field) parameters;
    DRIVER_FUNCTIONS(X)
#undef X
} driver;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER; /* held where models, and what they share, come and go */

/* What the models of a library share on one device; the last function copies. */
typedef struct gpu {
    int models;
    void *context;
    void *modules[CODES + 1], *functions[CODES + 1];
    char *weights;
} gpu;
static gpu gpus[MAX_DEVICES];

static const char *words_of(int code) {
    const char *text = NULL;
    return driver.error_text(code, &text) || text == NULL ? "the driver has no text for it" : text;
}

/* 0, or -1 with the reason in `error`. */
static int open_driver(char *error, size_t size) {
    static const char *const path = "libcuda.so.1";
    if (driver.open)
        return 0;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(error, size, "the program runs on a GPU, and there is no CUDA driver: %s", dlerror());
        return -1;
    }
#define X(field, parameters, name) \
    driver.field = (__typeof__(driver.field))(uintptr_t)dlsym(library, name); \
    if (driver.field == NULL) { \
        snprintf(error, size, "the CUDA driver %s lacks %s", path, name); \
        return -1; \
    }
    DRIVER_FUNCTIONS(X)
#undef X
    int code = driver.init(0);
    if (code) {
        snprintf(error, size, "the CUDA driver does not start: %s (code %d)", words_of(code), code);
        return -1;
    }
    driver.open = 1;
    return 0;
}
