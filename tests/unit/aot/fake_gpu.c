/* A GPU that is not there, by the names of its driver: its memory is the CPU's, an image is the number of a kernel as text, and a launch calls
   back with that number, the size of the grid and the parameters. What is no number is the kernel that copies. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int (*fake_callback)(int kernel, unsigned grid, unsigned threads, void **parameters);
int fake_minor, fake_contexts, fake_memories, fake_modules, fake_events, fake_waits, fake_copies, fake_limit, fake_compute;
void *fake_stream;

static int context;
static __thread int depth;

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal > 1 ? 101 : 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { return *value = attribute == 75 ? 9 : fake_minor, device > 1; }
int cuDevicePrimaryCtxRetain(void **made, int device) { return *made = &context, device > 1; }
int cuCtxGetCurrent(void **found) { return *found = depth ? &context : 0, 0; }
int cuCtxPushCurrent_v2(void *given) { return fake_contexts++, depth++, given != &context; }
int cuCtxPopCurrent_v2(void **left) { return *left = &context, fake_contexts--, --depth < 0; }
int cuModuleLoadData(void **module, const void *image) { return fake_modules++, *module = (void *)(long)(atoi(image) + 1), !depth; }
int cuModuleUnload(void *module) { return fake_modules--, (void)module, 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { return *function = module, name[0] == 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return (void)function, (void)value, attribute != 8; }
int cuMemAlloc_v2(uint64_t *made, size_t bytes)
{
    if (fake_limit && bytes > (size_t)fake_limit)
        return 2;
    fake_memories++;
    return *made = (uint64_t)(uintptr_t)aligned_alloc(64, (bytes + 64) / 64 * 64), bytes == 0 || !depth;
}
int cuMemFree_v2(uint64_t memory) { return fake_memories--, free((void *)(uintptr_t)memory), !depth; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) { return memcpy((void *)(uintptr_t)to, from, bytes), 0; }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    fake_stream = stream;
    return memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes), 0;
}
int cuStreamSynchronize(void *stream) { return (void)stream, 0; }
int cuEventCreate(void **event, unsigned flags) { return *event = calloc(1, 1), fake_events++, flags != 2; }
int cuEventDestroy_v2(void *event) { return free(event), fake_events--, 0; }
int cuEventRecord(void *event, void *stream) { return (void)stream, event == 0; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return (void)stream, fake_waits++, event == 0 || flags; }
int cuEventSynchronize(void *event) { return event == 0; }
int cuGetErrorName(int code, const char **name) { return *name = 0, code; }
int cuGetErrorString(int code, const char **text) { return *text = "what the driver says", code < 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return *mode = 0, 0; }

typedef struct { const char *from; char *to; int64_t count, element, ndim, sizes[16], from_strides[16], to_strides[16]; } copying;

static void copy(const copying *of)
{
    fake_copies++;
    for (int64_t k = 0; k < of->count; k++) {
        int64_t left = k, from = 0, to = 0;
        for (int64_t d = of->ndim - 1; d >= 0; left /= of->sizes[d--])
            from += left % of->sizes[d] * of->from_strides[d], to += left % of->sizes[d] * of->to_strides[d];
        memcpy(of->to + to * of->element, of->from + from * of->element, (size_t)of->element);
    }
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned shared, void *stream,
                   void **parameters, void **extra)
{
    (void)shared;
    fake_stream = stream;
    if (y != 1 || z != 1 || ty != 1 || tz != 1 || extra || !depth)
        return 1;
    if (function != (void *)1)
        return fake_callback((int)(long)function - 1, x, threads, parameters);
    return copy(parameters[0]), 0;
}

/* ---- the library of products ---- */

int cublasCreate_v2(void **handle) { return *handle = calloc(1, 1), fake_events++, 0; }
int cublasDestroy_v2(void *handle) { return free(handle), fake_events--, 0; }
int cublasSetStream_v2(void *handle, void *stream) { return (void)stream, handle == 0; }

static double number(const char *data, int kind, long at)
{
    float value;
    if (kind == 1)
        return ((const double *)data)[at];
    if (kind == 0)
        return ((const float *)data)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)data)[at] << 16;
    return memcpy(&value, &bits, 4), value;
}

static void put(char *data, int kind, long at, double number)
{
    float value = (float)number;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (kind == 1)
        ((double *)data)[at] = number;
    else if (kind == 0)
        ((float *)data)[at] = value;
    else
        ((uint16_t *)data)[at] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

int cublasGemmStridedBatchedEx(void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const char *a, int ka, int lda, long long sa,
                               const char *b, int kb, int ldb, long long sb, const void *beta, char *c, int kc, int ldc, long long sc, int batch,
                               int compute, int algorithm)
{
    fake_compute = compute;
    int wide = ka == 1, bytes = wide ? 8 : ka == 0 ? 4 : 2, made = wide ? 8 : kc == 0 ? 4 : 2;
    double one = wide ? *(const double *)alpha : *(const float *)alpha, zero = wide ? *(const double *)beta : *(const float *)beta;
    if (!handle || ka != kb || (kb != kc && (kb != 14 || kc != 0)) || (compute != (wide ? 70 : 68) && (ka != 0 || compute != 77)) || algorithm != -1 || one != 1 || zero != 0)
        return 7;
    if (lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m || lda < 1 || ldb < 1 || (ka != 0 && ka != 1 && ka != 14))
        return 7;
    for (int g = 0; g < batch; g++, a += sa * bytes, b += sb * bytes, c += sc * made)
        for (int j = 0; j < n; j++)
            for (int i = 0; i < m; i++) {
                double sum = 0;
                for (int l = 0; l < k; l++)
                    sum += number(a, ka, ta ? l + (long)i * lda : i + (long)l * lda) * number(b, kb, tb ? j + (long)l * ldb : l + (long)j * ldb);
                put(c, kc, i + (long)j * ldc, sum);
            }
    return 0;
}

int cublasGemmEx(void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const char *a, int ka, int lda, const char *b, int kb,
                 int ldb, const void *beta, char *c, int kc, int ldc, int compute, int algorithm)
{
    return cublasGemmStridedBatchedEx(handle, ta, tb, m, n, k, alpha, a, ka, lda, 0, b, kb, ldb, 0, beta, c, kc, ldc, 0, 1, compute, algorithm);
}
