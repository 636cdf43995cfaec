/* A driver of a GPU that is not there, whose kernels are functions of the test: a module is its number as text, and a launch calls back with that
   number, the size of the grid and the parameters. */
#include <stdlib.h>

int (*fake_callback)(int kernel, unsigned grid, unsigned threads, void **parameters);

static int context;
static __thread void *current;

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDevicePrimaryCtxRetain(void **made, int device) { return *made = &context, device; }
int cuCtxGetCurrent(void **found) { return *found = current, 0; }
int cuCtxPushCurrent_v2(void *given) { return current = given, 0; }
int cuCtxPopCurrent_v2(void **left) { return *left = current, current = 0, 0; }
int cuModuleLoadData(void **module, const void *image) { return *module = (void *)(long)atoi(image), 0; }
int cuModuleUnload(void *module) { return (void)module, 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { return *function = module, name[0] == 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return (void)function, (void)attribute, (void)value, 0; }
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned shared, void *stream,
                   void **parameters, void **extra)
{
    (void)shared, (void)stream;
    return y != 1 || z != 1 || ty != 1 || tz != 1 || extra ? 1 : fake_callback((int)(long)function, x, threads, parameters);
}
int cuGetErrorName(int code, const char **name) { return *name = 0, code; }
int cuGetErrorString(int code, const char **text) { return *text = 0, code; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return *mode = 0, 0; }
