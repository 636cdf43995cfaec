/* The part of an exported library for the CPU that is equal in all: memory, threads, products of matrices and
 * convolutions. The program itself stands behind it in one translation unit. */
#include "tensors.h"

enum { BLOCKS = 256 };
typedef struct { char *data; int64_t bytes; int used; } block;

typedef struct { char *values[DERIVED + 1]; int ready; } derived_values; /* what is computed of weights alone */

struct framefuse_model {
    char error[512];
    const char **constants; /* where each weight lies: in the library, or in memory of its own */
    char **own;
    char *arena;
    int64_t arena_bytes;
    block blocks[BLOCKS];  /* memory of tensors that come and go within a call */
    void *scratch;         /* what one product or convolution needs beside its operands */
    int64_t scratch_bytes;
    int threads;
    struct crew *crew;
    int crew_of;           /* the count of forks when they came */
    int replaced;          /* whether weights were, whose panels are the model's own then */
    struct pack *packs;
    derived_values derived;
    weights_file file;     /* where the weights are not those of the other models */
};

static DLDevice device_of(const framefuse_model *model) { (void)model; return (DLDevice){kDLCPU, 0}; }
static void let_go(char *memory) { free(memory); }
static int check_device(framefuse_model *model, const char *what, const DLTensor *tensor);

#include "tensors.c"

static int check_device(framefuse_model *model, const char *what, const DLTensor *tensor) {
    if (tensor->device.device_type == kDLCPU)
        return 0;
    return fail(model, "%s lies on a device of type %d: this program runs on the CPU", what,
                (int)tensor->device.device_type);
}

enum { WIDE_PAGE = 1 << 21 }; /* bytes that one entry of the processor's tables can stand for */

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static void *room(int64_t bytes) {
    if (bytes < 0 || bytes > PTRDIFF_MAX - 2 * WIDE_PAGE)
        return NULL;
    size_t step = bytes >= WIDE_PAGE ? WIDE_PAGE : 64, size = ((size_t)bytes + step) / step * step;
    void *memory = aligned_alloc(step, size);
#ifdef MADV_HUGEPAGE
    if (memory != NULL && step > 64)
        madvise(memory, size, MADV_HUGEPAGE); /* an advice: what it answers does not matter */
#endif
    return memory;
}

/* Memory for a result, which leaves with it. */
static char *lasting(framefuse_model *model, int64_t bytes) { (void)model; return room(bytes); }

static int arena(framefuse_model *model, int64_t bytes) {
    if (bytes <= model->arena_bytes)
        return 0;
    free(model->arena);
    model->arena = room(bytes);
    model->arena_bytes = model->arena ? bytes : 0;
    return model->arena ? 0 : fail(model, "there is no memory for %lld bytes", (long long)bytes);
}

static int scratch(framefuse_model *model, int64_t bytes) {
    if (bytes <= model->scratch_bytes)
        return 0;
    free(model->scratch);
    model->scratch = room(bytes);
    model->scratch_bytes = model->scratch ? bytes : 0;
    return model->scratch ? 0 : fail(model, "there is no memory for %lld bytes", (long long)bytes);
}

/* Memory for a tensor of this call: the smallest block that is large enough, or a new one, for which the largest of the
 * smaller ones is given up, so that calls of the same sizes soon need none. */
static char *take(framefuse_model *model, int64_t bytes) {
    bytes += bytes == 0;
    block *best = NULL, *smaller = NULL;
    for (int k = 0; k < BLOCKS; k++) {
        block *each = &model->blocks[k];
        if (each->used)
            continue;
        if (each->data != NULL && each->bytes >= bytes && (best == NULL || each->bytes < best->bytes))
            best = each;
        else if (each->bytes < bytes && (smaller == NULL || each->bytes > smaller->bytes))
            smaller = each; /* maybe an empty one */
    }
    if (best == NULL && smaller != NULL && bytes >= 0) {
        free(smaller->data);
        smaller->data = room(bytes);
        smaller->bytes = smaller->data ? bytes : 0;
        best = smaller->data ? smaller : NULL;
    }
    if (best == NULL)
        return NULL;
    best->used = 1;
    return best->data;
}

static void give_back(framefuse_model *model, const char *data) {
    for (int k = 0; data && k < BLOCKS; k++)
        if (model->blocks[k].data == data)
            model->blocks[k].used = 0;
}

#include "threads.c"
#include "packs.c"

/* ---- elements that are moved ------------------------------------------------------------------------------------- */

static void copy_one(const char *from, char *to, int64_t element) {
    switch (element) {
    case 1: *to = *from; return;
    case 2: memcpy(to, from, 2); return;
    case 4: memcpy(to, from, 4); return;
    case 8: memcpy(to, from, 8); return;
    default: memcpy(to, from, (size_t)element);
    }
}

/* The same elements with other strides. */
static void copy(int ndim, const int64_t *sizes, const char *from, const int64_t *from_strides, char *to,
                 const int64_t *to_strides, int64_t element) {
    if (ndim == 0) {
        copy_one(from, to, element);
        return;
    }
    if (ndim == 1 && *from_strides == 1 && *to_strides == 1) {
        memcpy(to, from, (size_t)(*sizes * element));
        return;
    }
    for (int64_t k = 0; k < *sizes; k++)
        copy(ndim - 1, sizes + 1, from + k * *from_strides * element, from_strides + 1, to + k * *to_strides * element,
             to_strides + 1, element);
}

/* The same as a step that may fail, as it does elsewhere. */
static int move(framefuse_model *model, int ndim, const int64_t *sizes, const char *from, const int64_t *from_strides,
                char *to, const int64_t *to_strides, int64_t element) {
    (void)model;
    copy(ndim, sizes, from, from_strides, to, to_strides, element);
    return 0;
}

#include "views.c"

/* Parts beside each other, as complex numbers are; bytes are those of a part. */
static void join(int ndim, const int64_t *sizes, const char *real, const int64_t *real_strides, const char *imag,
                 const int64_t *imag_strides, char *to, const int64_t *to_strides, int bytes)
{
    int64_t twice[MOST_DIMENSIONS];
    for (int d = 0; d < ndim; d++)
        twice[d] = 2 * to_strides[d];
    copy(ndim, sizes, real, real_strides, to, twice, bytes);
    copy(ndim, sizes, imag, imag_strides, to + bytes, twice, bytes);
}

typedef struct { const char *data; const int64_t *steps; int bytes; } positions;

/* Of each place in the first `lead` dimensions of the result: the part of the tensor at the positions that lie there. */
static int elements(framefuse_model *model, int lead, int ndim, const int64_t *sizes, int count, const positions *at,
                    const int64_t *whole, const char *from, const int64_t *from_strides, char *to,
                    const int64_t *to_strides, int64_t element) {
    int64_t place[DIMENSIONS] = {0};
    for (int d = 0; d < ndim; d++)
        if (sizes[d] == 0)
            return 0;
    for (;;) {
        const char *part = from;
        char *target = to;
        for (int d = 0; d < lead; d++)
            target += place[d] * to_strides[d] * element;
        for (int k = 0; k < count; k++) {
            int64_t offset = 0, position;
            for (int d = 0; d < lead; d++)
                offset += place[d] * at[k].steps[d];
            const char *where = at[k].data + offset * at[k].bytes;
            position = at[k].bytes == 8 ? *(const int64_t *)where : *(const int32_t *)where;
            if (position < -whole[k] || position >= whole[k])
                return fail(model, "an index is out of bounds: %lld of %lld", (long long)position, (long long)whole[k]);
            part += (position < 0 ? position + whole[k] : position) * from_strides[k] * element;
        }
        copy(ndim - lead, sizes + lead, part, from_strides + count, target, to_strides + lead, element);
        int d = lead - 1;
        while (d >= 0 && ++place[d] == sizes[d])
            place[d--] = 0;
        if (d < 0)
            return 0;
    }
}

#include "ordering.c"
#include "found.c"
#include "written.c"
#include "linear.c"

/* ---- kernels ---------------------------------------------------------------------------------------------------- */

/* Measured on two cores of an AMD EPYC (Zen 4): a piece of work reaches a thread that is awake in 1 to 2 microseconds. */
enum { WORTH_NANOSECONDS = 5000 };
static const double WORTH_THREADS = 3e5; /* products of numbers */

typedef int64_t kernel(char **buffers, const int64_t *numbers, int64_t begin, int64_t end);
typedef struct { kernel *code; char **buffers; const int64_t *numbers; int64_t *answer; } kernel_call;

static void kernel_piece(const void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const kernel_call *call = context;
    int64_t answer = call->code(call->buffers, call->numbers, begin, end);
    if (answer)
        __atomic_store_n(call->answer, answer, __ATOMIC_RELAXED);
}

/* A kernel whose parts may run at once and that takes so many nanoseconds on one thread. */
static int64_t run(framefuse_model *model, kernel *code, char **buffers, const int64_t *numbers, int64_t extent,
                   int64_t nanoseconds) {
    if (model->threads == 1 || nanoseconds < WORTH_NANOSECONDS)
        return code(buffers, numbers, 0, extent);
    int64_t answer = 0;
    kernel_call call = {code, buffers, numbers, &answer};
    each(model, kernel_piece, &call, extent, model->threads);
    return answer;
}

/* A kernel whose turns follow the elements of a convolution's result, each range of them on the thread that computed it,
 * while they are near; `done`: all have been. It writes over these alone, and begins anew where they are computed once
 * more. */
typedef struct { kernel *code; char **buffers; const int64_t *numbers; int64_t extent, nanoseconds, done, answer; } tail;

static void follow(tail *of, int64_t begin, int64_t end) {
    int64_t answer = begin < end ? of->code(of->buffers, of->numbers, begin, end) : 0;
    if (answer)
        __atomic_store_n(&of->answer, answer, __ATOMIC_RELAXED);
}

#define UNMET "an index is out of bounds, an integer is divided by zero, or the program raises"

static int finish(framefuse_model *model, tail *of) {
    if (!of->done)
        of->answer = run(model, of->code, of->buffers, of->numbers, of->extent, of->nanoseconds);
    return of->answer ? fail(model, UNMET) : 0;
}

/* ---- products of matrices and convolutions ------------------------------------------------------------------------ */

#if defined(__AVX512F__)
#define VECTOR 64
#elif defined(__AVX__)
#define VECTOR 32
#else
#define VECTOR 16
#endif
#if defined(__AVX512F__) || defined(__aarch64__) /* as many rows of two vectors as registers hold */
#define ROWS 12
#else
#define ROWS 6
#endif
#if defined(__GNUC__) && !defined(__clang__) /* elements far from each other are not better off in vectors */
#define IN_SCALARS __attribute__((optimize("no-tree-vectorize", "no-tree-slp-vectorize")))
#else
#define IN_SCALARS
#endif
enum { SHARES = 4, DEPTH = 512, PARTS = 8, TAPS = 1024, NEAR = 1 << 19, PLACES = TAPS * ROWS, MOST_ROWS = 84 * ROWS };
/* Of winograd.c: results of a convolution in squares of two by two. */
enum { SQUARE = 16, FEW_SQUARES = 24, LEAST_SQUARES = 4 * ROWS, SQUARES_NEAR = 3 << 18 };

#define REAL float
#define NAMED(x) x##_float32
#include "products.c"
#include "convolutions.c"
#undef REAL
#undef NAMED
#define REAL double
#define NAMED(x) x##_float64
#include "products.c"
#include "convolutions.c"
