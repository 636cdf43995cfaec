/* Runs a matrix product step on the BLAS that libtorch carries, or on torch itself where that BLAS was not found. */
#include "matmul.h"

#include <limits.h>

#include "plan.h"
#include "threads.h"
#include "torch_abi.h"

/* A rows x cols matrix with strides (row, col) as BLAS wants it: column major ('N') or its transpose ('T'). A
   dimension of one element has no stride that matters. */
static bool operand(int64_t rows, int64_t cols, int64_t row, int64_t col, char *trans, int *leading)
{
    int64_t least_n = rows > 1 ? rows : 1, least_t = cols > 1 ? cols : 1, ld;
    if ((row == 1 || rows <= 1) && (col >= least_n || cols <= 1)) {
        *trans = 'N', ld = cols <= 1 ? least_n : col;
    } else if ((col == 1 || cols <= 1) && (row >= least_t || rows <= 1)) {
        *trans = 'T', ld = rows <= 1 ? least_t : row;
    } else {
        return false;
    }
    *leading = (int)ld;
    return ld <= INT_MAX;
}

typedef struct {
    char trans_left, trans_right;
    int rows, cols, inner, ld_left, ld_right, ld_out;
    char *left, *right, *out;
    int64_t left_step, right_step, out_step; /* bytes from one product of the batch to the next */
    bool is_double, accumulate;
} Product;

static void one_product(const Product *p, int64_t index)
{
    const char *left = p->left + index * p->left_step, *right = p->right + index * p->right_step;
    char *out = p->out + index * p->out_step;
    if (p->is_double) {
        const double one = 1, beta = p->accumulate;
        abi.dgemm(&p->trans_left, &p->trans_right, &p->rows, &p->cols, &p->inner, &one, (const double *)left,
                  &p->ld_left, (const double *)right, &p->ld_right, &beta, (double *)out, &p->ld_out);
    } else {
        const float one = 1, beta = p->accumulate;
        abi.sgemm(&p->trans_left, &p->trans_right, &p->rows, &p->cols, &p->inner, &one, (const float *)left,
                  &p->ld_left, (const float *)right, &p->ld_right, &beta, (float *)out, &p->ld_out);
    }
}

/* Of a batch of tiny products each would take the library longer to begin than to compute. Measured on one thread of an
   EPYC, 5000 products of 3 x 3 matrices: 0.62 ms by the library, 0.13 to 0.25 here. */
enum { TINY = 128, TINY_INNER = 8 };

static bool is_tiny(const Product *p)
{
    return p->inner <= TINY_INNER && p->rows <= TINY && p->cols <= TINY && p->rows * p->cols * p->inner <= TINY;
}

#define TINY_PRODUCTS(name, real)                                                                                      \
    static void name(const Product *p, int64_t begin, int64_t end)                                                     \
    {                                                                                                                  \
        int64_t row = p->trans_left == 'N' ? 1 : p->ld_left, down = p->trans_left == 'N' ? p->ld_left : 1;             \
        int64_t col = p->trans_right == 'N' ? p->ld_right : 1, along = p->trans_right == 'N' ? 1 : p->ld_right;        \
        for (int64_t i = begin; i < end; i++) {                                                                        \
            const real *left = (const real *)(p->left + i * p->left_step);                                             \
            const real *right = (const real *)(p->right + i * p->right_step);                                          \
            real *out = (real *)(p->out + i * p->out_step);                                                            \
            for (int c = 0; c < p->cols; c++)                                                                          \
                for (int r = 0; r < p->rows; r++) {                                                                    \
                    real sum = 0;                                                                                      \
                    for (int k = 0; k < p->inner; k++)                                                                 \
                        sum += left[r * row + k * down] * right[c * col + k * along];                                  \
                    real *to = out + r + (int64_t)c * p->ld_out;                                                       \
                    *to = p->accumulate ? *to + sum : sum;                                                             \
                }                                                                                                      \
        }                                                                                                              \
    }
TINY_PRODUCTS(tiny_floats, float)
TINY_PRODUCTS(tiny_doubles, double)

static void products(void *context, int64_t begin, int64_t end)
{
    const Product *p = context;
    if (end - begin > 1 && is_tiny(p))
        (p->is_double ? tiny_doubles : tiny_floats)(p, begin, end);
    else
        for (int64_t i = begin; i < end; i++)
            one_product(p, i);
}

/* Torch computes it over tensors made for the occasion. */
static int by_torch(const MatmulInfo *info, const int64_t *numbers, char *out, char *a, char *c, const Slot *slot)
{
    int64_t batch = numbers[info->batch], m = numbers[info->m], n = numbers[info->n], k = numbers[info->k], strides[3];
    PyObject *args[4] = {
        abi_over(out, 3, (int64_t[]){batch, m, n}, gather(info->out_strides, 3, numbers, strides), slot->dtype, 0, 0),
        abi_over(a, 3, (int64_t[]){batch, m, k}, gather(info->a_strides, 3, numbers, strides), slot->dtype, 0, 0),
        abi_over(c, 3, (int64_t[]){batch, k, n}, gather(info->c_strides, 3, numbers, strides), slot->dtype, 0, 0),
        info->accumulate ? Py_True : Py_False,
    };
    PyObject *done = args[0] && args[1] && args[2] ? abi_call("matmul", args, 4) : NULL;
    for (int i = 0; i < 3; i++)
        Py_XDECREF(args[i]);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

int matmul_run(const MatmulInfo *info, const int64_t *numbers, char *out, char *a, char *c, const Slot *slot)
{
    int64_t batch = numbers[info->batch], m = numbers[info->m], n = numbers[info->n], k = numbers[info->k];
    int64_t as[3], cs[3], os[3];
    gather(info->a_strides, 3, numbers, as);
    gather(info->c_strides, 3, numbers, cs);
    gather(info->out_strides, 3, numbers, os);
    if (batch <= 0 || m <= 0 || n <= 0)
        return batch < 0 || m < 0 || n < 0 ? -1 : 0;
    Product p = {.inner = (int)k, .is_double = slot->item_size == 8, .accumulate = info->accumulate, .out = out};
    if ((p.is_double ? (void *)abi.dgemm : (void *)abi.sgemm) == NULL || k == 0)
        return k == 0 && info->accumulate ? 0 : by_torch(info, numbers, out, a, c, slot);
    if (m > INT_MAX || n > INT_MAX || k > INT_MAX || k < 0)
        return -1;
    char plain;
    int64_t size = slot->item_size, as_step = as[0] * size, cs_step = cs[0] * size;
    p.out_step = os[0] * size;
    /* row-major out: its transpose is c^T a^T, column major */
    if (operand(n, m, os[2], os[1], &plain, &p.ld_out) && plain == 'N') {
        if (!operand(n, k, cs[2], cs[1], &p.trans_left, &p.ld_left)
            || !operand(k, m, as[2], as[1], &p.trans_right, &p.ld_right))
            return -1;
        p.rows = (int)n, p.cols = (int)m, p.left = c, p.right = a, p.left_step = cs_step, p.right_step = as_step;
    } else {
        if (!operand(m, n, os[1], os[2], &plain, &p.ld_out) || plain != 'N'
            || !operand(m, k, as[1], as[2], &p.trans_left, &p.ld_left)
            || !operand(k, n, cs[1], cs[2], &p.trans_right, &p.ld_right))
            return -1;
        p.rows = (int)m, p.cols = (int)n, p.left = a, p.right = c, p.left_step = as_step, p.right_step = cs_step;
    }
    /* The library runs large products in parallel itself, with the count that this call sets for the thread; many
       small ones are dealt out here. */
    int threads = abi_thread_count();
    double each = 2.0 * (double)m * (double)n * (double)k, nanoseconds = each * (double)batch / 30;
    bool deal = threads > 1 && batch >= threads && each < 2e6 && nanoseconds > 8000;
    threads = deal ? threads_usable() : 1;
    if (nanoseconds <= 20000) {
        threads_each(products, &p, batch, threads);
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS
    threads_each(products, &p, batch, threads);
    Py_END_ALLOW_THREADS
    return 0;
}
