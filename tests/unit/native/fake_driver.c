/* A driver of GPUs that are not there: it runs "kernels" on the CPU when they are launched, and writes down what it was asked.

   A module is the text "module"; its kernels are the functions of this file, called once for each program of the grid. There are two devices,
   each with one context. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, NO_DEVICE = 100, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500 };

typedef struct {
    char name[32];
    unsigned grid, threads, shared;
    void *stream;
    int device, parameters_null; /* of the context that was current; whether four null pointers stood behind the arguments */
} Launch;

typedef struct {
    const char *name;
    int count; /* of arguments */
    void (*body)(void **parameters, unsigned program);
    int (*whole)(void **parameters, unsigned grid); /* in place of `body`: all programs; gives the driver's answer */
} Function;

static int contexts[2] = {0, 1};
static __thread int *current, *below[8]; /* of each thread */
static __thread int depth;

Launch fake_launches[256];
int fake_launch_count, fake_retained[2], fake_pushed, fake_popped, fake_unloaded, fake_loaded, fake_relaxed, fake_shared_limit;
int fake_fail_launch, fake_fail_load, fake_fail_attribute, fake_fail_init;
int fake_current(void) { return current ? *current : -1; }
void fake_make_current(int device) { current = device < 0 ? 0 : &contexts[device]; }
void fake_reset(void)
{
    fake_launch_count = fake_pushed = fake_popped = fake_unloaded = fake_loaded = fake_relaxed = fake_shared_limit = 0;
    fake_fail_launch = fake_fail_load = fake_fail_attribute = fake_fail_init = 0;
    memset(fake_retained, 0, sizeof fake_retained);
    current = 0, depth = 0;
}

#define POINTER(i) (*(float **)parameters[i])
#define BLOCK 4

/* out[i] = scale * x[i] + y[i], BLOCK points a program */
static void axpy(void **parameters, unsigned program)
{
    float *x = POINTER(0), *y = POINTER(1), *out = POINTER(2), scale = *(float *)parameters[3];
    int32_t count = *(int32_t *)parameters[4];
    for (int32_t i = (int32_t)program * BLOCK; i < (int32_t)program * BLOCK + BLOCK && i < count; i++)
        out[i] = scale * x[i] + y[i];
}

/* out[0] = the four kinds of numbers, summed, by one program */
static void kinds(void **parameters, unsigned program)
{
    (void)program;
    double *out = *(double **)parameters[0];
    out[0] = (double)*(int64_t *)parameters[1], out[1] = *(int32_t *)parameters[2];
    out[2] = *(double *)parameters[3], out[3] = *(float *)parameters[4];
}

static Function functions[] = {{"axpy", 5, axpy, 0}, {"axpy_unaligned", 5, axpy, 0}, {"kinds", 5, kinds, 0}};

/* A kernel that somebody else runs; it lives for good. */
void *fake_function(const char *name, int count, int (*whole)(void **, unsigned))
{
    Function *made = malloc(sizeof *made);
    if (made)
        *made = (Function){strdup(name), count, 0, whole};
    return made;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : fake_fail_init; }
int cuDeviceGet(int *device, int ordinal) { return ordinal > 1 ? NO_DEVICE : (*device = ordinal + 7, OK); }
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    fake_retained[device - 7]++;
    *context = &contexts[device - 7];
    return OK;
}
int cuCtxGetCurrent(void **context) { return *context = current, OK; }
int cuCtxPushCurrent_v2(void *context) { return fake_pushed++, below[depth++ % 8] = current, current = context, OK; }
int cuCtxPopCurrent_v2(void **context) { return fake_popped++, *context = current, current = below[--depth % 8], OK; }
int cuModuleLoadData(void **module, const void *image)
{
    if (!current)
        return INVALID_CONTEXT;
    if (fake_fail_load || strcmp(image, "module"))
        return fake_fail_load ? fake_fail_load : INVALID_IMAGE;
    fake_loaded++;
    *module = functions;
    return OK;
}
int cuModuleUnload(void *module) { return fake_unloaded += module == functions, OK; }
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    for (unsigned i = 0; module == functions && i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].name, name) == 0)
            return *function = &functions[i], OK;
    return NOT_FOUND;
}
int cuFuncSetAttribute(void *function, int attribute, int value)
{
    (void)function;
    if (attribute == 8)
        fake_shared_limit = value;
    return fake_fail_attribute;
}
int cuLaunchKernel(void *handle, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned shared, void *stream,
                   void **parameters, void **extra)
{
    const Function *function = handle;
    if (!current || fake_fail_launch)
        return fake_fail_launch ? fake_fail_launch : INVALID_CONTEXT;
    if (x == 0 || y != 1 || z != 1 || ty != 1 || tz != 1 || extra)
        return INVALID_VALUE;
    Launch *launch = &fake_launches[fake_launch_count++ % 256];
    *launch = (Launch){"", x, threads, shared, stream, *current, 1};
    strncpy(launch->name, function->name, sizeof launch->name - 1);
    for (int i = 0; i < 4; i++)
        launch->parameters_null &= *(void **)parameters[function->count + i] == 0;
    if (function->whole)
        return function->whole(parameters, x);
    for (unsigned program = 0; program < x && x < 1u << 20; program++)
        function->body(parameters, program);
    return OK;
}
int cuGetErrorName(int code, const char **name) { return *name = code == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : 0, *name ? OK : INVALID_VALUE; }
int cuGetErrorString(int code, const char **text) { return *text = code == 719 ? "unspecified launch failure" : 0, *text ? OK : INVALID_VALUE; }
int cuThreadExchangeStreamCaptureMode(int *mode)
{
    static __thread int now;
    int before = now;
    fake_relaxed += *mode == 2;
    now = *mode, *mode = before;
    return OK;
}
