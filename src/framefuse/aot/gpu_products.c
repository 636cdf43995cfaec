/* Products of matrices by the vendor's library, cuBLAS, found by dlopen when the first model is loaded. */

enum { PLAIN = 0, TURNED = 1 };                              /* of cublasOperation_t */
enum { COMPUTED_32 = 68, COMPUTED_64 = 70, COMPUTED_TF32 = 77 }; /* of cublasComputeType_t */
typedef enum { FLOAT32 = 0, FLOAT64 = 1, FLOAT16 = 2, BFLOAT16 = 14 } real; /* of cudaDataType_t */

typedef struct { char *data; int64_t batch, row, column; } matrix; /* strides in elements */
typedef struct { real kind, made; int64_t batch, m, n, k; matrix a, c, out; } product;

/* Of a matrix whose columns lie one behind the other: whether it is the turned one, and what is between its columns. */
typedef struct { int turned, apart; } layout;

static struct {
    int (*create)(void **);
    int (*destroy)(void *);
    int (*stream)(void *, void *);
    int (*multiply)(void *, int, int, int, int, int, const void *, const void *, int, int, long long, const void *, int,
                    int, long long, const void *, void *, int, int, long long, int, int, int);
    int (*multiply_one)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int,
                        const void *, void *, int, int, int, int);
} blas;

/* One that the process has already comes first. */
static int open_blas(char *error, size_t size) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"};
    void *library = NULL;
    if (blas.create != NULL)
        return 0;
    for (int k = 0; k < 6 && library == NULL; k++)
        library = dlopen(names[k % 3], RTLD_NOW | RTLD_LOCAL | (k < 3 ? RTLD_NOLOAD : 0));
    if (library == NULL) {
        snprintf(error, size, "the program multiplies matrices by cuBLAS, and there is none: %s", dlerror());
        return -1;
    }
    *(void **)&blas.destroy = dlsym(library, "cublasDestroy_v2");
    *(void **)&blas.stream = dlsym(library, "cublasSetStream_v2");
    *(void **)&blas.multiply = dlsym(library, "cublasGemmStridedBatchedEx");
    *(void **)&blas.multiply_one = dlsym(library, "cublasGemmEx");
    void *create = dlsym(library, "cublasCreate_v2");
    if (!create || !blas.destroy || !blas.stream || !blas.multiply || !blas.multiply_one) {
        snprintf(error, size, "cuBLAS lacks a function that the program calls");
        return -1;
    }
    *(void **)&blas.create = create;
    return 0;
}

static int open_products(framefuse_model *model, char *error, size_t size) {
    if (open_blas(error, size))
        return -1;
    int code = blas.create(&model->products);
    if (code)
        snprintf(error, size, "cuBLAS does not start (code %d)", code);
    return code ? -1 : 0;
}

static void close_products(framefuse_model *model) {
    if (model->products != NULL)
        blas.destroy(model->products);
}

static int begin_products(framefuse_model *model) {
    int code = blas.stream(model->products, model->stream);
    return code ? fail(model, "cuBLAS takes no work on the stream (code %d)", code) : 0;
}

/* How a matrix of so many rows and columns lies; -1 where the library cannot read it. */
static int lies(layout *to, int64_t rows, int64_t columns, int64_t row, int64_t column) {
    int turned = row != 1 && rows != 1;
    int64_t near = turned ? columns : rows, far = turned ? rows : columns;
    int64_t apart = far > 1 ? (turned ? row : column) : near;
    if ((turned && column != 1 && columns != 1) || (apart < near && far > 1) || apart > INT_MAX)
        return -1;
    *to = (layout){turned, apart > 0 ? (int)apart : 1};
    return 0;
}

/* out[m, n] = sum of a[m, k] * c[k, n]. The library writes column after column: where ours are rows, it multiplies the
 * turned matrices in the other order. */
static int multiply(framefuse_model *model, const product *of) {
    const float one = 1, zero = 0;
    const double one_64 = 1, zero_64 = 0;
    int wide = of->kind == FLOAT64;
    const void *by = wide ? (const void *)&one_64 : &one, *with = wide ? (const void *)&zero_64 : &zero;
    int computed = wide ? COMPUTED_64 : ROUNDED_PRODUCTS && of->kind == FLOAT32 ? COMPUTED_TF32 : COMPUTED_32;
    if (of->batch == 0 || of->m == 0 || of->n == 0)
        return 0;
    int turn = of->out.column == 1 || of->n == 1;
    matrix left = turn ? of->c : of->a, right = turn ? of->a : of->c, out = of->out;
    int64_t m = turn ? of->n : of->m, n = turn ? of->m : of->n, k = of->k;
    layout of_left, of_right, of_out;
    int unreadable;
    if (turn) /* rows and columns of the turned ones are the other way round */
        unreadable = lies(&of_left, m, k, left.column, left.row) || lies(&of_right, k, n, right.column, right.row) ||
                     lies(&of_out, m, n, out.column, out.row);
    else
        unreadable = lies(&of_left, m, k, left.row, left.column) || lies(&of_right, k, n, right.row, right.column) ||
                     lies(&of_out, m, n, out.row, out.column);
    if (unreadable || of_out.turned || m > INT_MAX || n > INT_MAX || k > INT_MAX || of->batch > INT_MAX)
        return fail(model, "a product of matrices has sizes that cuBLAS does not take");
    int kind = (int)of->kind, made = (int)of->made, code;
    if (of->batch == 1)
        code = blas.multiply_one(model->products, of_left.turned, of_right.turned, (int)m, (int)n, (int)k, by, left.data,
                                 kind, of_left.apart, right.data, kind, of_right.apart, with, out.data, made,
                                 of_out.apart, computed, -1);
    else
        code = blas.multiply(model->products, of_left.turned, of_right.turned, (int)m, (int)n, (int)k, by, left.data,
                             kind, of_left.apart, left.batch, right.data, kind, of_right.apart, right.batch, with,
                             out.data, made, of_out.apart, out.batch, (int)of->batch, computed, -1);
    return code ? fail(model, "cuBLAS could not multiply (code %d)", code) : 0;
}
