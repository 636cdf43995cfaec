/* Systems of linear equations, determinants and Cholesky's factors of batches of small matrices, and sums of
 * exponentials along a dimension, all in double precision. */

typedef struct {
    int ndim, bytes; /* dimensions of the batch, bytes of an element */
    const int64_t *sizes;
    int64_t rows, columns; /* of the result */
    const char *a; const int64_t *a_strides;
    const char *b; const int64_t *b_strides; /* NULL: there is none */
    char *out; const int64_t *out_strides;
} matrices;

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

/* Gives a, n by n, to its triangle by exchanges of rows, and does the same with b, n by m; the determinant. */
static double eliminated(double *a, double *b, int64_t n, int64_t m)
{
    double determinant = 1;
    for (int64_t k = 0; k < n; k++) {
        int64_t top = k;
        for (int64_t i = k + 1; i < n; i++)
            if (fabs(a[i * n + k]) > fabs(a[top * n + k]))
                top = i;
        determinant *= top == k ? a[top * n + k] : -a[top * n + k];
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
    return determinant;
}

static int solve_one(framefuse_model *model, double *a, double *b, int64_t n, int64_t m)
{
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
    return 0;
}

static int factor_one(framefuse_model *model, const double *a, double *b, int64_t n)
{
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

enum work { SOLVE, FACTOR, DETERMINANT };

static int each_matrix(framefuse_model *model, const matrices *of, enum work work)
{
    int64_t place[DIMENSIONS] = {0}, n = of->rows, m = of->columns;
    int last = of->ndim, bytes = of->bytes;
    for (int d = 0; d < last; d++)
        if (of->sizes[d] == 0)
            return 0;
    if (scratch(model, (n * n + n * m + 1) * (int64_t)sizeof(double)))
        return -1;
    double *a = model->scratch, *b = a + n * n;
    for (;;) {
        int64_t a_at = 0, b_at = 0, out_at = 0;
        for (int d = 0; d < last; d++) {
            a_at += place[d] * of->a_strides[d];
            b_at += of->b ? place[d] * of->b_strides[d] : 0;
            out_at += place[d] * of->out_strides[d];
        }
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                a[i * n + j] = real_at(of->a, a_at + i * of->a_strides[last] + j * of->a_strides[last + 1], bytes);
        for (int64_t i = 0; of->b && i < n; i++)
            for (int64_t j = 0; j < m; j++)
                b[i * m + j] = real_at(of->b, b_at + i * of->b_strides[last] + j * of->b_strides[last + 1], bytes);
        if (work == DETERMINANT)
            put_real(of->out, out_at, bytes, eliminated(a, b, n, 0));
        else if (work == SOLVE ? solve_one(model, a, b, n, m) : factor_one(model, a, b, n))
            return -1;
        for (int64_t i = 0; work != DETERMINANT && i < n; i++)
            for (int64_t j = 0; j < m; j++)
                put_real(of->out, out_at + i * of->out_strides[last] + j * of->out_strides[last + 1], bytes,
                         b[i * m + j]);
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
