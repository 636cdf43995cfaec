/* Systems of linear equations, determinants and Cholesky's factors of batches of matrices, and sums of exponentials
 * along a dimension, all in double precision. */

typedef struct { char *data; const int64_t *strides; int64_t rows, columns; } matrix_out; /* NULL: nobody reads it */

typedef struct {
    int ndim, bytes; /* dimensions of the batch, bytes of an element */
    const int64_t *sizes;
    int64_t rows, columns;
    const char *a; const int64_t *a_strides;
    int64_t b_columns; /* it has as many rows */
    const char *b; const int64_t *b_strides; /* NULL: there is none */
    matrix_out out[3];
} matrices;

/* Computes the results r, row by row, of one matrix and what stands beside it; both may be overwritten. `more` has room
 * for two matrices of its sizes and two of the smaller one, and for eight vectors. */
typedef int one_matrix(framefuse_model *model, const matrices *of, double *a, double *b, double *const *r, double *more);

static double real_at(const char *data, int64_t at, int bytes)
{
    return bytes == 8 ? ((const double *)data)[at] : ((const float *)data)[at];
}

static void put_real(char *data, int64_t at, int bytes, double value)
{
    if (bytes == 8)
        ((double *)data)[at] = value;
    else
        ((float *)data)[at] = (float)value;
}

/* Brings a, n by n, to its triangle by exchanges of rows, and does the same with b, n by m. 1 or -1 as these change the
 * determinant; 0 where that is 0. */
static int eliminated(double *a, double *b, int64_t n, int64_t m)
{
    int sign = 1;
    for (int64_t k = 0; k < n; k++) {
        int64_t top = k;
        for (int64_t i = k + 1; i < n; i++)
            if (fabs(a[i * n + k]) > fabs(a[top * n + k]))
                top = i;
        sign = top == k ? sign : -sign;
        if (a[top * n + k] == 0)
            return 0;
        for (int64_t j = 0; top != k && j < n; j++) {
            double held = a[k * n + j];
            a[k * n + j] = a[top * n + j];
            a[top * n + j] = held;
        }
        for (int64_t j = 0; top != k && j < m; j++) {
            double held = b[k * m + j];
            b[k * m + j] = b[top * m + j];
            b[top * m + j] = held;
        }
        for (int64_t i = k + 1; i < n; i++) {
            double factor = a[i * n + k] / a[k * n + k];
            for (int64_t j = k + 1; factor != 0 && j < n; j++)
                a[i * n + j] -= factor * a[k * n + j];
            for (int64_t j = 0; factor != 0 && j < m; j++)
                b[i * m + j] -= factor * b[k * m + j];
        }
    }
    return sign;
}

static int solve_one(framefuse_model *model, const matrices *of, double *a, double *b, double *const *r, double *more)
{
    (void)more;
    int64_t n = of->rows, m = of->b_columns;
    eliminated(a, b, n, m);
    for (int64_t k = 0; k < n; k++)
        if (a[k * n + k] == 0)
            return fail(model, "a matrix is singular, and has no inverse");
    for (int64_t k = n; k-- > 0;)
        for (int64_t j = 0; j < m; j++) {
            double value = b[k * m + j];
            for (int64_t i = k + 1; i < n; i++)
                value -= a[k * n + i] * b[i * m + j];
            b[k * m + j] = value / a[k * n + k];
        }
    memcpy(r[0], b, (size_t)(n * m) * sizeof *b);
    return 0;
}

/* A triangle alone: what is no number on its diagonal gives what is no number. */
static int below_one(framefuse_model *model, const matrices *of, double *a, double *b, double *const *r, double *more)
{
    (void)model, (void)more;
    int64_t n = of->rows, m = of->b_columns;
    for (int64_t k = 0; k < n; k++)
        for (int64_t j = 0; j < m; j++) {
            double value = b[k * m + j];
            for (int64_t i = 0; i < k; i++)
                value -= a[k * n + i] * r[0][i * m + j];
            r[0][k * m + j] = value / a[k * n + k];
        }
    return 0;
}

static int above_one(framefuse_model *model, const matrices *of, double *a, double *b, double *const *r, double *more)
{
    (void)model, (void)more;
    int64_t n = of->rows, m = of->b_columns;
    for (int64_t k = n; k-- > 0;)
        for (int64_t j = 0; j < m; j++) {
            double value = b[k * m + j];
            for (int64_t i = k + 1; i < n; i++)
                value -= a[k * n + i] * r[0][i * m + j];
            r[0][k * m + j] = value / a[k * n + k];
        }
    return 0;
}

static int factor_one(framefuse_model *model, const matrices *of, double *a, double *unused, double *const *r,
                      double *more)
{
    (void)unused, (void)more;
    int64_t n = of->rows;
    double *b = r[0];
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = 0; i < n; i++) {
            double value = a[i * n + k];
            for (int64_t j = 0; j < k && i >= k; j++)
                value -= b[i * n + j] * b[k * n + j];
            if (i == k && !(value > 0))
                return fail(model, "a matrix is not positive-definite");
            b[i * n + k] = i < k ? 0 : i == k ? sqrt(value) : value / b[k * n + k];
        }
    return 0;
}

static int determinant_one(framefuse_model *model, const matrices *of, double *a, double *b, double *const *r,
                           double *more)
{
    (void)model, (void)more;
    double determinant = eliminated(a, b, of->rows, 0);
    for (int64_t k = 0; determinant != 0 && k < of->rows; k++)
        determinant *= a[k * of->rows + k];
    r[0][0] = determinant;
    return 0;
}

/* The sign of the determinant, and the logarithm of its size. */
static int logarithm_one(framefuse_model *model, const matrices *of, double *a, double *b, double *const *r,
                         double *more)
{
    (void)model, (void)more;
    double sign = eliminated(a, b, of->rows, 0), sum = sign == 0 ? -INFINITY : 0;
    for (int64_t k = 0; sign != 0 && k < of->rows; k++) {
        double each = a[k * of->rows + k];
        sign = each != each ? each : each < 0 ? -sign : sign;
        sum += log(fabs(each));
    }
    if (r[0])
        r[0][0] = sign;
    if (r[1])
        r[1][0] = sum;
    return 0;
}

#include "decompositions.c"

static void read_matrix(double *to, int64_t rows, int64_t columns, const char *from, int64_t at,
                        const int64_t *strides, int bytes)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            to[i * columns + j] = real_at(from, at + i * strides[0] + j * strides[1], bytes);
}

static int each_matrix(framefuse_model *model, const matrices *of, one_matrix *one)
{
    int64_t place[DIMENSIONS] = {0}, m = of->rows, n = of->columns, less = m < n ? m : n, most = m < n ? n : m;
    int last = of->ndim, bytes = of->bytes;
    for (int d = 0; d < last; d++)
        if (of->sizes[d] == 0)
            return 0;
    int64_t room = m * n + m * of->b_columns + 2 * m * n + 2 * less * less + 8 * most + 8;
    for (int k = 0; k < 3; k++)
        room += 2 * of->out[k].rows * of->out[k].columns;
    if (scratch(model, room * (int64_t)sizeof(double)))
        return -1;
    double *a = model->scratch, *b = a + m * n, *more = b + m * of->b_columns, *r[3];
    for (int k = 0; k < 3; k++) {
        r[k] = of->out[k].data ? more : NULL;
        more += of->out[k].rows * of->out[k].columns;
    }
    for (;;) {
        int64_t a_at = 0, b_at = 0, at[3] = {0};
        for (int d = 0; d < last; d++) {
            a_at += place[d] * of->a_strides[d];
            b_at += of->b ? place[d] * of->b_strides[d] : 0;
            for (int k = 0; k < 3; k++)
                at[k] += r[k] ? place[d] * of->out[k].strides[d] : 0;
        }
        read_matrix(a, m, n, of->a, a_at, of->a_strides + last, bytes);
        if (of->b)
            read_matrix(b, m, of->b_columns, of->b, b_at, of->b_strides + last, bytes);
        if (one(model, of, a, b, r, more))
            return -1;
        for (int k = 0; k < 3; k++)
            for (int64_t i = 0; r[k] && i < of->out[k].rows; i++)
                for (int64_t j = 0; j < of->out[k].columns; j++)
                    put_real(of->out[k].data,
                             at[k] + i * of->out[k].strides[last] + j * of->out[k].strides[last + 1], bytes,
                             r[k][i * of->out[k].columns + j]);
        int d = last - 1;
        while (d >= 0 && ++place[d] == of->sizes[d])
            place[d--] = 0;
        if (d < 0)
            return 0;
    }
}

/* The logarithms of the sums of exponentials up to each place along a dimension. */
static void sums_of_exponentials(int ndim, const int64_t *sizes, int along, const char *from,
                                 const int64_t *from_strides, char *out, const int64_t *out_strides, int bytes)
{
    int64_t place[DIMENSIONS] = {0};
    for (int d = 0; d < ndim; d++)
        if (sizes[d] == 0)
            return;
    for (;;) {
        int64_t from_at = 0, out_at = 0;
        for (int d = 0; d < ndim; d++) {
            from_at += place[d] * from_strides[d];
            out_at += place[d] * out_strides[d];
        }
        double sum = -INFINITY;
        for (int64_t k = 0; k < (ndim ? sizes[along] : 1); k++) {
            double term = real_at(from, from_at + (ndim ? k * from_strides[along] : 0), bytes);
            double high = term > sum || term != term ? term : sum, low = high == term ? sum : term;
            if (sum != sum)
                high = sum;
            sum = high == low && isinf(high) ? high : high + log1p(exp(low - high));
            put_real(out, out_at + (ndim ? k * out_strides[along] : 0), bytes, sum);
        }
        int d = ndim - 1;
        while (d >= 0 && (d == along || ++place[d] == sizes[d]))
            place[d--] = 0;
        if (d < 0)
            return;
    }
}
