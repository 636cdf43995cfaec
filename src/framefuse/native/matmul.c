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

static void products(void *context, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++)
        one_product(context, i);
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
