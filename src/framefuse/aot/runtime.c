/* The part of an exported library that is equal in all: checks of tensors, memory, products of matrices. The program
 * itself stands behind it in one translation unit. */
#include "framefuse.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define DIMENSIONS 64

typedef union { int64_t i; double r; } word;
typedef struct { const char *name; uint8_t code, bits; int32_t ndim; const int64_t *sizes, *strides; uint64_t offset;
                 int64_t bytes; } constant;

struct framefuse_model {
    char error[512];
    const char **constants; /* where each weight lies: in the library, or in memory of its own */
    char **own;
    char *arena;
    int64_t arena_bytes;
    void *panel_a, *panel_b; /* packed pieces of the factors of a product */
};

static int fail(framefuse_model *model, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(model->error, sizeof model->error, format, values);
    va_end(values);
    return -1;
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static void *room(int64_t bytes) {
    if (bytes < 0 || bytes > PTRDIFF_MAX - 128)
        return NULL;
    return aligned_alloc(64, ((size_t)bytes + 64) / 64 * 64);
}

static int arena(framefuse_model *model, int64_t bytes) {
    if (bytes <= model->arena_bytes)
        return 0;
    free(model->arena);
    model->arena = room(bytes);
    model->arena_bytes = model->arena ? bytes : 0;
    return model->arena ? 0 : fail(model, "there is no memory for %lld bytes", (long long)bytes);
}

/* The bytes of a dense tensor; -1 where they are more than there can be. */
static int64_t dense_bytes(int ndim, const int64_t *sizes, int64_t element) {
    int64_t bytes = element;
    for (int d = 0; d < ndim; d++)
        if (sizes[d] < 0 || __builtin_mul_overflow(bytes, sizes[d], &bytes))
            return -1;
    return bytes;
}

/* ---- tensors that come and go ----------------------------------------------------------------------------------- */

static void *data_of(const DLTensor *tensor) { return (char *)tensor->data + tensor->byte_offset; }

/* Whether a tensor has this dtype and number of dimensions and lies in the memory of the CPU. */
static int check_kind(framefuse_model *model, const char *what, const DLTensor *tensor, int code, int bits, int ndim) {
    if (tensor == NULL)
        return fail(model, "%s is missing", what);
    if (tensor->device.device_type != kDLCPU)
        return fail(model, "%s lies on a device of type %d: this program runs on the CPU", what,
                    (int)tensor->device.device_type);
    if (tensor->dtype.code != code || tensor->dtype.bits != bits || tensor->dtype.lanes != 1)
        return fail(model, "%s has the dtype (code %d, %d bits), not (code %d, %d bits)", what, tensor->dtype.code,
                    tensor->dtype.bits, code, bits);
    if (tensor->ndim != ndim)
        return fail(model, "%s has %d dimensions, not %d", what, (int)tensor->ndim, ndim);
    if (ndim > 0 && tensor->shape == NULL)
        return fail(model, "%s has no sizes", what);
    int64_t elements = 1;
    for (int d = 0; d < ndim; d++) {
        if (tensor->shape[d] < 0)
            return fail(model, "%s has the size %lld", what, (long long)tensor->shape[d]);
        if (__builtin_mul_overflow(elements, tensor->shape[d], &elements))
            return fail(model, "%s has too many elements", what);
    }
    if (tensor->data == NULL && elements > 0)
        return fail(model, "%s has no memory", what);
    return 0;
}

static int check_size(framefuse_model *model, const char *what, const DLTensor *tensor, int d, int64_t wanted) {
    if (tensor->shape[d] == wanted)
        return 0;
    return fail(model, "%s has size %lld in dimension %d, not %lld", what, (long long)tensor->shape[d], d,
                (long long)wanted);
}

static int64_t stride_of(const DLTensor *tensor, int d) {
    if (tensor->strides)
        return tensor->strides[d];
    int64_t stride = 1;
    for (int inner = tensor->ndim - 1; inner > d; inner--)
        stride *= tensor->shape[inner];
    return stride;
}

static int is_empty(const DLTensor *tensor) {
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] == 0)
            return 1;
    return 0;
}

static int check_stride(framefuse_model *model, const char *what, const DLTensor *tensor, int d, int64_t wanted) {
    if (tensor->shape[d] <= 1 || is_empty(tensor) || stride_of(tensor, d) == wanted)
        return 0;
    return fail(model, "%s has stride %lld in dimension %d, not %lld: copy it into the order in which it was recorded",
                what, (long long)stride_of(tensor, d), d, (long long)wanted);
}

/* Whether a tensor is dense with its dimensions in this order, outermost first. */
static int check_order(framefuse_model *model, const char *what, const DLTensor *tensor, const int *order) {
    int64_t stride = 1;
    for (int place = tensor->ndim - 1; place >= 0; place--) {
        if (check_stride(model, what, tensor, order[place], stride))
            return -1;
        stride *= tensor->shape[order[place]];
    }
    return 0;
}

typedef struct { DLManagedTensor tensor; void *memory; int64_t numbers[]; } result;

static void drop(DLManagedTensor *tensor) {
    result *whole = tensor->manager_ctx;
    free(whole->memory);
    free(whole);
}

/* Takes memory over into a tensor; NULL where there is no room for it. */
static DLManagedTensor *give(char *memory, int code, int bits, int ndim, const word *numbers, const int *sizes,
                             const int *strides) {
    result *whole = malloc(sizeof *whole + 2 * (size_t)ndim * sizeof(int64_t));
    if (whole == NULL)
        return NULL;
    for (int d = 0; d < ndim; d++) {
        whole->numbers[d] = numbers[sizes[d]].i;
        whole->numbers[ndim + d] = numbers[strides[d]].i;
    }
    whole->memory = memory;
    whole->tensor.dl_tensor = (DLTensor){memory, {kDLCPU, 0}, ndim, {(uint8_t)code, (uint8_t)bits, 1}, whole->numbers,
                                         whole->numbers + ndim, 0};
    whole->tensor.manager_ctx = whole;
    whole->tensor.deleter = drop;
    return &whole->tensor;
}

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

static int64_t floor_divide(int64_t a, int64_t b) { int64_t q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }
static int64_t floor_remainder(int64_t a, int64_t b) { int64_t r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
static int divides(int64_t a, int64_t b) { return b != 0 && !(a == INT64_MIN && b == -1); }

/* ---- products of matrices --------------------------------------------------------------------------------------- */

/* Pieces of the right factor (DEPTH rows, WIDE columns) and of the left one (TALL rows) are packed into panels as wide
 * as the tile that is held in registers: ROWS rows of two vectors. What is beyond an edge is zero there. */
#define DEPTH 256
#define WIDE 512
#define TALL 96
#define ROWS 6
#if defined(__AVX512F__)
#define VECTOR 64
#elif defined(__AVX__)
#define VECTOR 32
#else
#define VECTOR 16
#endif

#define PRODUCT(name, type)                                                                                            \
    typedef type name##_vector __attribute__((vector_size(VECTOR), aligned(VECTOR)));                                  \
    static void name##_tile(int64_t depth, const type *a, const type *b, type *tile) {                                 \
        enum { LANES = VECTOR / sizeof(type) };                                                                        \
        name##_vector sums[ROWS][2] = {{{0}}};                                                                         \
        for (int64_t k = 0; k < depth; k++, a += ROWS, b += 2 * LANES) {                                               \
            name##_vector left = *(const name##_vector *)b, right = *(const name##_vector *)(b + LANES);               \
            for (int row = 0; row < ROWS; row++) {                                                                     \
                sums[row][0] += left * a[row];                                                                         \
                sums[row][1] += right * a[row];                                                                        \
            }                                                                                                          \
        }                                                                                                              \
        memcpy(tile, sums, sizeof sums);                                                                               \
    }                                                                                                                  \
    /* Strips of `strip` lines that lie `across` apart, each of `deep` elements that lie `along` apart. */             \
    static void name##_pack(int64_t deep, int64_t lines, int64_t strip, const type *from, int64_t along,               \
                            int64_t across, type *to) {                                                                \
        for (int64_t j = 0; j < lines; j += strip, to += deep * strip) {                                               \
            int64_t count = lines - j < strip ? lines - j : strip;                                                     \
            const type *first = from + j * across;                                                                     \
            if (count < strip)                                                                                         \
                memset(to, 0, (size_t)(deep * strip) * sizeof *to);                                                    \
            if (across == 1)                                                                                           \
                for (int64_t k = 0; k < deep; k++)                                                                     \
                    for (int64_t x = 0; x < count; x++)                                                                \
                        to[k * strip + x] = first[k * along + x];                                                      \
            else                                                                                                       \
                for (int64_t k0 = 0; k0 < deep; k0 += 16)                                                              \
                    for (int64_t x = 0; x < count; x++)                                                                \
                        for (int64_t k = k0; k < deep && k < k0 + 16; k++)                                             \
                            to[k * strip + x] = first[k * along + x * across];                                         \
        }                                                                                                              \
    }                                                                                                                  \
    static void name(framefuse_model *model, int64_t batch, int64_t m, int64_t n, int64_t depth, const type *a,        \
                     int64_t ab, int64_t am, int64_t ak, const type *b, int64_t bb, int64_t bk, int64_t bn, type *out, \
                     int64_t ob, int64_t om, int64_t on) {                                                             \
        enum { COLUMNS = 2 * VECTOR / sizeof(type) };                                                                  \
        type *pa = model->panel_a, *pb = model->panel_b;                                                               \
        type tile[ROWS * COLUMNS] __attribute__((aligned(VECTOR)));                                                    \
        for (; batch > 0; batch--, a += ab, b += bb, out += ob) {                                                      \
            for (int64_t i = 0; depth == 0 && i < m; i++)                                                              \
                for (int64_t j = 0; j < n; j++)                                                                        \
                    out[i * om + j * on] = 0;                                                                          \
            for (int64_t j0 = 0; j0 < n; j0 += WIDE) {                                                                 \
                int64_t wide = n - j0 < WIDE ? n - j0 : WIDE;                                                          \
                for (int64_t k0 = 0; k0 < depth; k0 += DEPTH) {                                                        \
                    int64_t deep = depth - k0 < DEPTH ? depth - k0 : DEPTH;                                            \
                    name##_pack(deep, wide, COLUMNS, b + k0 * bk + j0 * bn, bk, bn, pb);                               \
                    for (int64_t i0 = 0; i0 < m; i0 += TALL) {                                                         \
                        int64_t tall = m - i0 < TALL ? m - i0 : TALL;                                                  \
                        name##_pack(deep, tall, ROWS, a + i0 * am + k0 * ak, ak, am, pa);                              \
                        for (int64_t j = 0; j < wide; j += COLUMNS)                                                    \
                            for (int64_t i = 0; i < tall; i += ROWS) {                                                 \
                                name##_tile(deep, pa + i * deep, pb + j * deep, tile);                                 \
                                type *corner = out + (i0 + i) * om + (j0 + j) * on;                                    \
                                int64_t rows = tall - i < ROWS ? tall - i : ROWS;                                      \
                                int64_t columns = wide - j < COLUMNS ? wide - j : COLUMNS;                             \
                                for (int64_t y = 0; y < rows; y++)                                                     \
                                    for (int64_t x = 0; x < columns; x++) {                                            \
                                        type *place = corner + y * om + x * on;                                        \
                                        *place = (k0 ? *place : 0) + tile[y * COLUMNS + x];                            \
                                    }                                                                                  \
                            }                                                                                          \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
PRODUCT(product_float32, float)
PRODUCT(product_float64, double)
