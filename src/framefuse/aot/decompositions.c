/* Factors of one matrix in double precision: orthogonal ones, eigenvalues, singular values; and its exponential. A
 * matrix lies row by row. Each function is one of `each_matrix`, which says what it is given. */

/* Turns x, so many elements apart, by a reflection along its first axis: what is left of it there comes back, and in
 * its place lies the direction of the reflection, whose first part is 1 and not there. */
static double reflected(double *x, int64_t count, int64_t step, double *factor)
{
    double below = 0, head = *x;
    for (int64_t i = 1; i < count; i++)
        below = hypot(below, x[i * step]);
    *factor = 0;
    if (below == 0)
        return head;
    double left = -copysign(hypot(head, below), head);
    for (int64_t i = 1; i < count; i++)
        x[i * step] /= head - left;
    *factor = (left - head) / left;
    return left;
}

/* Applies a reflection to so many columns from `to` on; its direction lies `step` apart. */
static void reflect(const double *x, int64_t step, double factor, double *to, int64_t count, int64_t columns,
                    int64_t width)
{
    for (int64_t j = 0; factor != 0 && j < columns; j++) {
        double along = to[j];
        for (int64_t i = 1; i < count; i++)
            along += x[i * step] * to[i * width + j];
        along *= factor;
        to[j] -= along;
        for (int64_t i = 1; i < count; i++)
            to[i * width + j] -= along * x[i * step];
    }
}

/* Leaves the triangle in a, m by n, with the reflections below it, and their factors. */
static void triangular(double *a, int64_t m, int64_t n, double *factors)
{
    for (int64_t k = 0; k < m && k < n; k++) {
        double *head = a + k * n + k, left = reflected(head, m - k, n, &factors[k]);
        reflect(head, n, factors[k], head + 1, m - k, n - k - 1, n);
        *head = left;
    }
}

/* The product of the reflections in a, as its first columns. */
static void orthogonal(const double *a, int64_t m, int64_t n, const double *factors, double *q, int64_t columns)
{
    memset(q, 0, (size_t)(m * columns) * sizeof *q);
    for (int64_t i = 0; i < m && i < columns; i++)
        q[i * columns + i] = 1;
    for (int64_t k = (m < n ? m : n); k-- > 0;)
        reflect(a + k * n + k, n, factors[k], q + k * columns + k, m - k, columns - k, columns);
}

static int qr_one(framefuse_model *model, const matrices *of, double *a, double *b, double *const *r, double *more)
{
    (void)model, (void)b;
    int64_t m = of->rows, n = of->columns;
    triangular(a, m, n, more);
    if (r[0])
        orthogonal(a, m, n, more, r[0], of->out[0].columns);
    for (int64_t i = 0; r[1] && i < of->out[1].rows; i++)
        for (int64_t j = 0; j < n; j++)
            r[1][i * n + j] = j < i ? 0 : a[i * n + j];
    return 0;
}

static void turn(double *x, double *y, int64_t count, double c, double s)
{
    for (int64_t i = 0; i < count; i++) {
        double held = x[i];
        x[i] = c * held + s * y[i];
        y[i] = c * y[i] - s * held;
    }
}

/* Gives the symmetric matrix whose lower triangle is a to three diagonals d and e, and the rows that do so to q. */
static void tridiagonal(double *a, int64_t n, double *d, double *e, double *q, double *more)
{
    double *factors = more, *w = more + n;
    for (int64_t k = 0; k + 1 < n; k++) {
        double *v = a + (k + 1) * n + k, along = 0;
        int64_t count = n - k - 1;
        e[k] = reflected(v, count, n, &factors[k]);
        *v = 1;
        for (int64_t i = 0; i < count; i++) {
            w[i] = 0;
            for (int64_t j = 0; j < count; j++)
                w[i] += a[((i > j ? i : j) + k + 1) * n + (i > j ? j : i) + k + 1] * v[j * n];
            w[i] *= factors[k];
            along += w[i] * v[i * n];
        }
        for (int64_t i = 0; i < count; i++)
            w[i] -= factors[k] / 2 * along * v[i * n];
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j <= i; j++)
                a[(i + k + 1) * n + j + k + 1] -= v[i * n] * w[j] + w[i] * v[j * n];
    }
    for (int64_t i = 0; i < n; i++)
        d[i] = a[i * n + i];
    memset(q, 0, (size_t)(n * n) * sizeof *q);
    for (int64_t i = 0; i < n; i++)
        q[i * n + i] = 1;
    for (int64_t k = n - 1; k-- > 0;) { /* rows, since those are what is turned next */
        const double *v = a + (k + 1) * n + k;
        for (int64_t row = k + 1; factors[k] != 0 && row < n; row++) {
            double along = 0, *to = q + row * n + k + 1;
            for (int64_t i = 0; i < n - k - 1; i++)
                along += v[i * n] * to[i];
            for (int64_t i = 0; i < n - k - 1; i++)
                to[i] -= factors[k] * along * v[i * n];
        }
    }
}

/* The eigenvalues of three diagonals, into d, with the rows of q turned along; -1 where that has no end. */
static int diagonal(int64_t n, double *d, double *e, double *q)
{
    int64_t turns = 0;
    for (int64_t high = n - 1; high > 0;) {
        int64_t low = high;
        while (low > 0 && !(fabs(e[low - 1]) <= DBL_EPSILON / 2 * (fabs(d[low - 1]) + fabs(d[low]))) &&
               !(fabs(e[low - 1]) < DBL_MIN))
            low--;
        if (low == high) {
            high--;
            continue;
        }
        if (++turns > 60 * n)
            return -1;
        double half = (d[high - 1] - d[high]) / 2, last = e[high - 1];
        double shift = d[high] - last * last / (half + copysign(hypot(half, last), half));
        double x = d[low] - shift, z = e[low];
        for (int64_t k = low; k < high; k++) {
            double r = hypot(x, z), c = r == 0 ? 1 : x / r, s = r == 0 ? 0 : z / r;
            double first = d[k], second = d[k + 1], beside = e[k];
            if (k > low)
                e[k - 1] = r;
            d[k] = c * c * first + 2 * c * s * beside + s * s * second;
            d[k + 1] = s * s * first - 2 * c * s * beside + c * c * second;
            e[k] = c * s * (second - first) + (c * c - s * s) * beside;
            x = e[k];
            if (k + 1 < high) {
                z = s * e[k + 1];
                e[k + 1] *= c;
            }
            turn(q + k * n, q + (k + 1) * n, n, c, s);
        }
    }
    return 0;
}

/* Eigenvalues, rising, and a column for each. */
static int eigen_one(framefuse_model *model, const matrices *of, double *a, double *b, double *const *r, double *more)
{
    (void)b;
    int64_t n = of->rows;
    double *d = more, *e = d + n, *q = e + n;
    tridiagonal(a, n, d, e, q, q + n * n);
    if (diagonal(n, d, e, q))
        return fail(model, "the eigenvalues of a matrix are not found: it holds what is no number");
    for (int64_t k = 0; k < n; k++) {
        int64_t least = 0;
        for (int64_t i = 1; i < n; i++)
            if (d[i] < d[least])
                least = i;
        if (r[0])
            r[0][k] = d[least];
        for (int64_t i = 0; r[1] && i < n; i++)
            r[1][i * n + k] = q[least * n + i];
        d[least] = INFINITY;
    }
    return 0;
}

/* Makes so many rows orthogonal to each other by turns, and turns those of v along; -1 where that has no end. */
static int apart(double *rows, int64_t count, int64_t width, double *v)
{
    for (int sweep = 0; sweep < 60; sweep++) {
        int turned = 0;
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = i + 1; j < count; j++) {
                double *x = rows + i * width, *y = rows + j * width, xx = 0, yy = 0, xy = 0;
                for (int64_t k = 0; k < width; k++) {
                    xx += x[k] * x[k];
                    yy += y[k] * y[k];
                    xy += x[k] * y[k];
                }
                if (fabs(xy) <= 4 * DBL_EPSILON * sqrt(xx) * sqrt(yy))
                    continue;
                double half = (yy - xx) / (2 * xy);
                double t = copysign(1, half) / (fabs(half) + hypot(1, half)), c = 1 / hypot(1, t);
                turn(x, y, width, c, -c * t);
                turn(v + i * count, v + j * count, count, c, -c * t);
                turned = 1;
            }
        if (!turned)
            return 0;
    }
    return -1;
}

/* Makes column k of u, m by `columns`, one of length 1 that is orthogonal to those before it. */
static void completed(double *u, int64_t m, int64_t columns, int64_t k)
{
    int64_t axis = 0;
    double least = INFINITY;
    for (int64_t i = 0; i < m; i++) {
        double known = 0;
        for (int64_t j = 0; j < k; j++)
            known += u[i * columns + j] * u[i * columns + j];
        if (known < least) {
            least = known;
            axis = i;
        }
    }
    for (int64_t i = 0; i < m; i++)
        u[i * columns + k] = i == axis;
    for (int twice = 0; twice < 2; twice++) {
        double length = 0;
        for (int64_t j = 0; j < k; j++) {
            double along = 0;
            for (int64_t i = 0; i < m; i++)
                along += u[i * columns + j] * u[i * columns + k];
            for (int64_t i = 0; i < m; i++)
                u[i * columns + k] -= along * u[i * columns + j];
        }
        for (int64_t i = 0; i < m; i++)
            length = hypot(length, u[i * columns + k]);
        for (int64_t i = 0; i < m; i++)
            u[i * columns + k] /= length;
    }
}

/* Singular values, falling, with the columns of the left factor and the rows of the right one. A wide matrix is turned
 * round; of a tall one the triangle is taken first. */
static int singular_one(framefuse_model *model, const matrices *of, double *a, double *b, double *const *r,
                        double *more)
{
    (void)b;
    int wide = of->rows < of->columns;
    int64_t m = wide ? of->columns : of->rows, n = wide ? of->rows : of->columns;
    double *tall = more, *rows = tall + m * n, *v = rows + n * n, *factors = v + n * n, *lengths = factors + n;
    double scale = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double value = wide ? a[j * m + i] : a[i * n + j];
            tall[i * n + j] = value;
            scale = fabs(value) > scale || value != value ? fabs(value) : scale;
        }
    if (!(scale < INFINITY))
        return fail(model, "a matrix has no singular values: it holds what is no number");
    for (int64_t i = 0; scale > 0 && i < m * n; i++)
        tall[i] /= scale;
    triangular(tall, m, n, factors);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            rows[i * n + j] = j <= i ? tall[j * n + i] : 0;
            v[i * n + j] = i == j;
        }
    if (apart(rows, n, n, v))
        return fail(model, "the singular values of a matrix are not found");
    double *left = r[wide ? 2 : 0], *right = r[wide ? 0 : 2], *u = left ? a : NULL; /* a is read, and m by n */
    int64_t columns = left ? (wide ? of->out[2].rows : of->out[0].columns) : 0;
    for (int64_t i = 0; i < n; i++) {
        lengths[i] = 0;
        for (int64_t j = 0; j < n; j++)
            lengths[i] = hypot(lengths[i], rows[i * n + j]);
    }
    for (int64_t k = 0; k < n; k++) {
        int64_t most = 0;
        for (int64_t i = 1; i < n; i++)
            if (lengths[i] > lengths[most])
                most = i;
        double length = lengths[most];
        lengths[most] = -1;
        if (r[1])
            r[1][k] = length * scale;
        for (int64_t i = 0; right && i < n; i++)
            right[wide ? i * n + k : k * n + i] = v[most * n + i];
        for (int64_t i = 0; u && i < n; i++)
            u[i * n + k] = length > 0 ? rows[most * n + i] / length : 0;
        if (u && length == 0)
            completed(u, n, n, k);
    }
    if (left == NULL)
        return 0;
    double *whole = lengths + n; /* the left factor with its columns, m by `columns` */
    memset(whole, 0, (size_t)(m * columns) * sizeof *whole);
    for (int64_t i = 0; i < n; i++)
        memcpy(whole + i * columns, u + i * n, (size_t)n * sizeof *u);
    for (int64_t k = n; k-- > 0;)
        reflect(tall + k * n + k, n, factors[k], whole + k * columns, m - k, n, columns);
    for (int64_t k = n; k < columns; k++)
        completed(whole, m, columns, k);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < columns; j++)
            left[wide ? j * m + i : i * columns + j] = whole[i * columns + j];
    return 0;
}

static void multiplied(const double *a, const double *b, double *out, int64_t n)
{
    memset(out, 0, (size_t)(n * n) * sizeof *out);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++)
            for (int64_t j = 0; j < n; j++)
                out[i * n + j] += a[i * n + k] * b[k * n + j];
}

/* The exponential: by its series where the matrix is small, and squared again as often as it was halved. */
static int exponential_one(framefuse_model *model, const matrices *of, double *a, double *b, double *const *r,
                           double *more)
{
    (void)model, (void)b;
    enum { TERMS = 18 };
    int64_t n = of->rows, halves = 0;
    double most = 0, *sum = more, *next = more + n * n;
    for (int64_t i = 0; i < n; i++) {
        double row = 0;
        for (int64_t j = 0; j < n; j++)
            row += fabs(a[i * n + j]);
        most = row > most ? row : most;
    }
    if (most > 0.5 && most < INFINITY)
        halves = ilogb(most) + 2;
    for (int64_t i = 0; i < n * n; i++) {
        a[i] = ldexp(a[i], (int)-halves);
        sum[i] = i % (n + 1) == 0;
    }
    for (int term = TERMS; term > 0; term--) {
        multiplied(a, sum, next, n);
        for (int64_t i = 0; i < n * n; i++)
            sum[i] = next[i] / term + (i % (n + 1) == 0);
    }
    for (int64_t k = 0; k < halves; k++) {
        multiplied(sum, sum, next, n);
        memcpy(sum, next, (size_t)(n * n) * sizeof *sum);
    }
    if (r[0])
        memcpy(r[0], sum, (size_t)(n * n) * sizeof *sum);
    return 0;
}
