/* Products of matrices and convolutions as one loop over tiles that are held in registers: included once for each type,
 * REAL, with NAMED(x) for its names.
 *
 * A tile is some rows of the left factor by one or two vectors of columns of the right one. The left factor is read
 * where it lies: each row, and for a convolution each tap of its window, has an address. The right factor is packed into
 * panels as wide as a tile; weights are packed once (packs.c). */

typedef REAL NAMED(vector) __attribute__((vector_size(VECTOR), aligned(sizeof(REAL)), may_alias));
enum { NAMED(LANES) = VECTOR / sizeof(REAL), NAMED(COLUMNS) = 2 * VECTOR / sizeof(REAL) };

/* The sums of groups of rows by the columns of a panel, of `depth` elements behind each of the addresses, from `at` on.
 * They are added to `start`, or without one to what lies at `to`. `parts` sums are kept of each element where few rows
 * would else wait for each other's sums. */
static inline __attribute__((always_inline)) void NAMED(sum)(const int rows, const int vectors, const int parts,
                                                             int64_t groups, int64_t apart, int64_t taps, int64_t depth,
                                                             int64_t at, const REAL *const *from, const REAL *panel,
                                                             int64_t step, const REAL *start, REAL *const *to,
                                                             int64_t first)
{
    for (; groups > 0; groups--, from += apart, to += ROWS) {
        const REAL *const *place = from, *b = panel;
        NAMED(vector) sums[PARTS][ROWS][2];
#pragma GCC unroll 8
        for (int part = 0; part < parts; part++)
#pragma GCC unroll 16
            for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++)
                    sums[part][row][v] = (NAMED(vector)){0};
        for (int64_t tap = 0; tap < taps; tap++, place += ROWS) {
            const REAL *a[ROWS];
#pragma GCC unroll 16
            for (int row = 0; row < rows; row++)
                a[row] = place[row] + at;
            int64_t k = 0;
            for (; k + parts <= depth; k += parts)
#pragma GCC unroll 8
                for (int part = 0; part < parts; part++, b += step) {
                    NAMED(vector) right[2];
#pragma GCC unroll 2
                    for (int v = 0; v < vectors; v++)
                        right[v] = *(const NAMED(vector) *)(b + v * NAMED(LANES));
#pragma GCC unroll 16
                    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
                        for (int v = 0; v < vectors; v++)
                            sums[part][row][v] += right[v] * a[row][k + part];
                }
            for (; k < depth; k++, b += step)
#pragma GCC unroll 16
                for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
                    for (int v = 0; v < vectors; v++)
                        sums[0][row][v] += *(const NAMED(vector) *)(b + v * NAMED(LANES)) * a[row][k];
        }
#pragma GCC unroll 16
        for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) {
                NAMED(vector) sum = sums[0][row][v], *out = (NAMED(vector) *)(to[row] + first + v * NAMED(LANES));
#pragma GCC unroll 8
                for (int part = 1; part < parts; part++)
                    sum += sums[part][row][v];
                *out = (start ? *(const NAMED(vector) *)(start + v * NAMED(LANES)) : *out) + sum;
            }
    }
}

typedef void NAMED(summing)(int64_t, int64_t, int64_t, int64_t, int64_t, const REAL *const *, const REAL *, int64_t,
                            const REAL *, REAL *const *, int64_t);
#define SUMMING(rows, vectors, parts)                                                                                  \
    static void NAMED(sum_##rows##_##vectors)(int64_t groups, int64_t apart, int64_t taps, int64_t depth, int64_t at,  \
                                              const REAL *const *from, const REAL *b, int64_t step, const REAL *start, \
                                              REAL *const *to, int64_t first)                                          \
    {                                                                                                                  \
        NAMED(sum)(rows, vectors, parts, groups, apart, taps, depth, at, from, b, step, start, to, first);             \
    }
SUMMING(1, 1, 8)
SUMMING(1, 2, 8)
SUMMING(2, 1, 4)
SUMMING(2, 2, 4)
SUMMING(4, 1, 2)
SUMMING(4, 2, 1)
#if ROWS == 12
SUMMING(8, 1, 1)
SUMMING(8, 2, 1)
SUMMING(12, 1, 1)
SUMMING(12, 2, 1)
#else
SUMMING(6, 1, 1)
SUMMING(6, 2, 1)
#endif
static const struct { int rows; NAMED(summing) *sum[2]; } NAMED(summings)[] = {
#if ROWS == 12
    {12, {NAMED(sum_12_1), NAMED(sum_12_2)}}, {8, {NAMED(sum_8_1), NAMED(sum_8_2)}},
#else
    {6, {NAMED(sum_6_1), NAMED(sum_6_2)}},
#endif
    {4, {NAMED(sum_4_1), NAMED(sum_4_2)}}, {2, {NAMED(sum_2_1), NAMED(sum_2_2)}}, {1, {NAMED(sum_1_1), NAMED(sum_1_2)}},
};

/* ---- panels ------------------------------------------------------------------------------------------------------ */

/* The right factor: element (tap, k, column) lies at tap_h * sh + tap_w * sw + k * sk + column * sn. `flat`: its one
 * panel is as wide as it. */
typedef struct { const REAL *data; int64_t taps_h, taps_w, depth, columns, sh, sw, sk, sn; int flat; } NAMED(factor);

static int64_t NAMED(panels)(int64_t columns) { return (columns + NAMED(COLUMNS) - 1) / NAMED(COLUMNS); }

/* How wide the panel is that begins at a column: one vector where that is enough. */
static int NAMED(width)(int64_t columns, int64_t first)
{
    return columns - first <= NAMED(LANES) ? NAMED(LANES) : NAMED(COLUMNS);
}

static int64_t NAMED(packed_size)(const NAMED(factor) *b)
{
    int64_t lines = (b->columns + NAMED(LANES) - 1) / NAMED(LANES) * NAMED(LANES);
    return lines * b->taps_h * b->taps_w * b->depth;
}

typedef __typeof__((NAMED(vector)){0} == (NAMED(vector)){0}) NAMED(order);

/* Turns a square of LANES by LANES elements, whose lines lie `from_step` and `to_step` apart. */
static void NAMED(turn)(const REAL *from, int64_t from_step, REAL *to, int64_t to_step)
{
    NAMED(vector) lines[NAMED(LANES)];
#pragma GCC unroll 16
    for (int k = 0; k < NAMED(LANES); k++)
        lines[k] = *(const NAMED(vector) *)(from + k * from_step);
#pragma GCC unroll 4
    for (int step = NAMED(LANES) / 2; step > 0; step /= 2) {
        NAMED(order) low, high;
#pragma GCC unroll 16
        for (int lane = 0; lane < NAMED(LANES); lane++) {
            low[lane] = lane & step ? NAMED(LANES) + lane - step : lane;
            high[lane] = lane & step ? NAMED(LANES) + lane : lane + step;
        }
#pragma GCC unroll 16
        for (int k = 0; k < NAMED(LANES); k++)
            if (!(k & step)) {
                NAMED(vector) a = lines[k], b = lines[k + step];
                lines[k] = __builtin_shuffle(a, b, low);
                lines[k + step] = __builtin_shuffle(a, b, high);
            }
    }
#pragma GCC unroll 16
    for (int k = 0; k < NAMED(LANES); k++)
        *(NAMED(vector) *)(to + k * to_step) = lines[k];
}

/* Turns `lines` lines of `count` elements. */
IN_SCALARS static void NAMED(turned)(const REAL *from, int64_t from_step, int64_t lines, int64_t count, int64_t between,
                                     REAL *to, int64_t to_step)
{
    for (int64_t x = 0; x < lines; x += NAMED(LANES))
        for (int64_t k = 0; k < count; k += NAMED(LANES)) {
            if (between == 1 && x + NAMED(LANES) <= lines && k + NAMED(LANES) <= count) {
                NAMED(turn)(from + x * from_step + k, from_step, to + k * to_step + x, to_step);
                continue;
            }
            for (int64_t j = x; j < lines && j < x + NAMED(LANES); j++)
                for (int64_t i = k; i < count && i < k + NAMED(LANES); i++)
                    to[i * to_step + j] = from[j * from_step + i * between];
        }
}

static void NAMED(pack_panel)(const NAMED(factor) *b, int64_t first, REAL *to)
{
    int width = NAMED(width)(b->columns, first);
    int64_t count = b->columns - first < width ? b->columns - first : width;
    for (int64_t h = 0; h < b->taps_h; h++)
        for (int64_t w = 0; w < b->taps_w; w++, to += b->depth * width) {
            const REAL *from = b->data + h * b->sh + w * b->sw + first * b->sn;
            if (count < width)
                memset(to, 0, (size_t)(b->depth * width) * sizeof *to);
            if (b->sn == 1 && count == NAMED(COLUMNS))
                for (int64_t k = 0; k < b->depth; k++)
                    memcpy(to + k * width, from + k * b->sk, NAMED(COLUMNS) * sizeof *to);
            else
                NAMED(turned)(from, b->sn, count, b->depth, b->sk, to, width);
        }
}

static void NAMED(pack)(const NAMED(factor) *b, REAL *to)
{
    int64_t deep = b->taps_h * b->taps_w * b->depth;
    for (int64_t k = 0; b->flat && k < deep; k++)
        for (int64_t column = 0; column < b->columns; column++)
            to[k * b->columns + column] = b->data[k / b->depth / b->taps_w * b->sh + k / b->depth % b->taps_w * b->sw +
                                                  k % b->depth * b->sk + column * b->sn];
    for (int64_t first = 0; !b->flat && first < b->columns; first += NAMED(COLUMNS))
        NAMED(pack_panel)(b, first, to + first * deep);
}

typedef void NAMED(packing)(const NAMED(factor) *, REAL *to);

/* The panels of a weight, one group of columns behind the other, each of so many elements as `each` says; NULL where
 * they are to be packed for this call: another piece of the weight came first, or there is no memory. */
static const REAL *NAMED(packed_weight)(framefuse_model *model, int place, const NAMED(factor) *b, int64_t groups,
                                        int64_t apart, NAMED(packing) *pack_one, int64_t each)
{
    const int64_t shape[] = {groups, apart, b->taps_h, b->taps_w, b->depth, b->columns, b->sh, b->sw, b->sk, b->sn};
    pack *known = model->replaced ? &model->packs[place] : &shared_packs[place];
    if (__atomic_load_n(&known->panels, __ATOMIC_ACQUIRE) == NULL) {
        pthread_mutex_lock(&packing);
        REAL *panels = known->panels == NULL ? room(groups * each * (int64_t)sizeof(REAL)) : NULL;
        if (panels != NULL) {
            NAMED(factor) part = *b;
            for (int64_t group = 0; group < groups; group++, part.data += apart)
                pack_one(&part, panels + group * each);
            known->data = b->data;
            memcpy(known->shape, shape, sizeof shape);
            __atomic_store_n(&known->panels, panels, __ATOMIC_RELEASE);
        }
        pthread_mutex_unlock(&packing);
    }
    if (known->panels == NULL || known->data != b->data || memcmp(known->shape, shape, sizeof shape))
        return NULL;
    return known->panels;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* Puts the addresses of rows of the left factor and of their results: of each ROWS one tap's behind the other's. */
typedef struct NAMED(work) NAMED(work);
typedef void NAMED(placing)(const NAMED(work) *, int64_t row, int64_t count, const REAL **from, REAL **to);

struct NAMED(work) {
    NAMED(placing) *place;
    const void *what;
    int64_t rows, taps, depth, columns;
    const REAL *packed; /* panels; or where `step` is not 0, rows of the right factor that lie `step` apart */
    int64_t step;
    const REAL *bias; /* as long as the panels are wide */
    int64_t across;   /* from one column of the results to the next */
    int64_t block, panels; /* how many rows are one piece of work */
    tail *behind;          /* what follows the rows of a piece; or NULL */
};

/* Rows of the left factor as they are read for each panel: where each begins at each tap, and its results. */
typedef struct { int64_t rows; const REAL *from[PLACES]; REAL *to[MOST_ROWS]; } NAMED(placed);

/* Copies at most a panel's columns, in pieces whose sizes are known here. */
static inline __attribute__((always_inline)) void NAMED(put_line)(const REAL *from, int64_t columns, REAL *to)
{
    if (columns >= NAMED(LANES)) { /* the last vector once more, with some of the first */
        NAMED(vector) last = *(const NAMED(vector) *)(from + columns - NAMED(LANES));
        *(NAMED(vector) *)to = *(const NAMED(vector) *)from;
        *(NAMED(vector) *)(to + columns - NAMED(LANES)) = last;
        return;
    }
#pragma GCC unroll 4
    for (int64_t some = NAMED(LANES) / 2; some > 0; some /= 2)
        if (columns & some) {
            memcpy(to, from, (size_t)some * sizeof *to);
            to += some;
            from += some;
        }
}

IN_SCALARS static void NAMED(put)(const REAL *tile, int count, int64_t columns, int64_t across, REAL *const *to)
{
    if (across == 1)
        for (int row = 0; row < count; row++)
            NAMED(put_line)(tile + row * NAMED(COLUMNS), columns, to[row]);
    else
        for (int64_t x = 0; x < columns; x++)
            for (int row = 0; row < count; row++)
                to[row][x * across] = tile[row * NAMED(COLUMNS) + x];
}

/* Groups of `count` rows by one panel. Sums of few hundred products are added up, for they round less than one of
 * thousands. */
static void NAMED(groups)(const NAMED(work) *work, NAMED(summing) *sum, int64_t groups, const REAL *const *from,
                          const REAL *b, int64_t step, const REAL *start, REAL *const *to, int64_t first)
{
    int64_t apart = work->taps * ROWS, taps = work->taps, depth = work->depth;
    int64_t each = depth >= DEPTH ? 1 : depth > 0 ? DEPTH / depth : taps, deep = depth >= DEPTH ? DEPTH : depth;
    if (taps <= each && depth <= deep) {
        sum(groups, apart, taps, depth, 0, from, b, step, start, to, first);
        return;
    }
    for (; groups > 0; groups--, from += apart, to += ROWS) {
        const REAL *begin = start;
        for (int64_t tap = 0; tap < taps; tap += each)
            for (int64_t at = 0; at < depth; at += deep, begin = NULL)
                sum(1, apart, taps - tap < each ? taps - tap : each, depth - at < deep ? depth - at : deep, at,
                    from + tap * ROWS, b + (tap * depth + at) * step, step, begin, to, first);
    }
}

static void NAMED(rows)(const NAMED(work) *work, int64_t panel, const NAMED(placed) *at)
{
    static const REAL nothing[NAMED(COLUMNS)];
    REAL tile[ROWS * NAMED(COLUMNS)] __attribute__((aligned(VECTOR))), *lines[ROWS];
    int64_t first = panel * NAMED(COLUMNS), columns = work->columns - first;
    int width = NAMED(width)(work->columns, first);
    const REAL *b = work->packed + first * (work->step ? 1 : work->taps * work->depth);
    const REAL *start = work->bias ? work->bias + first : nothing;
    int64_t step = work->step ? work->step : width, apart = work->taps * ROWS;
    int direct = work->across == 1 && columns >= width;
    if (columns > width)
        columns = width;
    for (int y = 0; y < ROWS; y++)
        lines[y] = tile + y * NAMED(COLUMNS);
    for (int64_t row = 0; row < at->rows;) {
        int which = 0;
        while (NAMED(summings)[which].rows > at->rows - row)
            which++;
        int count = NAMED(summings)[which].rows;
        NAMED(summing) *sum = NAMED(summings)[which].sum[width == NAMED(COLUMNS)];
        const REAL *const *from = at->from + row / ROWS * apart + row % ROWS;
        int64_t groups = direct && count == ROWS ? (at->rows - row) / ROWS : 1;
        NAMED(groups)(work, sum, groups, from, b, step, start, direct ? at->to + row : lines, direct ? first : 0);
        if (!direct) {
            REAL *to[ROWS];
            for (int y = 0; y < count; y++)
                to[y] = at->to[row + y] + first * work->across;
            NAMED(put)(tile, count, columns, work->across, to);
        }
        row += groups * count;
    }
}

static void NAMED(piece)(const void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const NAMED(work) *work = context;
    NAMED(placed) at;
    int64_t panels = work->behind ? 1 : work->panels, each = work->behind ? work->panels : 1;
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / panels * work->block;
        if (item == begin || item % panels == 0) {
            at.rows = work->rows - row < work->block ? work->rows - row : work->block;
            work->place(work, row, at.rows, at.from, at.to);
        }
        for (int64_t panel = item % panels, last = panel + each; panel < last; panel++)
            NAMED(rows)(work, panel, &at);
        if (work->behind)
            follow(work->behind, row * work->columns, (row + at.rows) * work->columns);
    }
}

/* All tiles: a piece of work is some rows by one panel, or where something follows whole rows, by all of them. Rows that
 * are read again for each panel are as many as stay near; several threads have enough pieces to share. */
static void NAMED(tiles)(framefuse_model *model, NAMED(work) *work, int threads)
{
    int64_t deep = work->taps * work->depth;
    int64_t block = NEAR / (int64_t)sizeof(REAL) / (deep > 0 ? deep : 1) / ROWS * ROWS;
    int64_t most = PLACES / work->taps / ROWS * ROWS;
    work->panels = NAMED(panels)(work->columns);
    if (work->behind && block > NEAR / (int64_t)sizeof(REAL) / work->columns)
        block = NEAR / (int64_t)sizeof(REAL) / work->columns / ROWS * ROWS;
    block = block < 4 * ROWS ? 4 * ROWS : block;
    if (threads > 1) {
        int64_t pieces = work->behind ? SHARES * threads : (SHARES * threads + work->panels - 1) / work->panels;
        int64_t share = work->rows / pieces / ROWS * ROWS;
        share = share < 2 * ROWS ? 2 * ROWS : share;
        block = block < share ? block : share;
    }
    block = block < most ? block : most;
    work->block = block < MOST_ROWS ? block : MOST_ROWS;
    int64_t items = (work->behind ? 1 : work->panels) * ((work->rows + work->block - 1) / work->block);
    each(model, NAMED(piece), work, items, threads);
    if (work->behind)
        work->behind->done = 1;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

typedef struct { const REAL *a; int64_t am; REAL *out; int64_t om; } NAMED(lines);

static void NAMED(place_lines)(const NAMED(work) *work, int64_t row, int64_t count, const REAL **from, REAL **to)
{
    const NAMED(lines) *lines = work->what;
    for (int64_t y = 0; y < count; y++) {
        from[y] = lines->a + (row + y) * lines->am;
        to[y] = lines->out + (row + y) * lines->om;
    }
}

typedef struct {
    int64_t batch, m, n, depth;
    const REAL *a; int64_t ab, am, ak;
    const REAL *b; int64_t bb, bk, bn;
    REAL *out; int64_t ob, om, on;
} NAMED(operands);

/* Each row by each column as a sum of its own: where both lie along the sum. */
static void NAMED(dots)(const NAMED(operands) *of, const REAL *a, const REAL *b, REAL *out)
{
    for (int64_t i = 0; i < of->m; i++)
        for (int64_t j = 0; j < of->n; j++) {
            const REAL *left = a + i * of->am, *right = b + j * of->bn;
            NAMED(vector) sums[4] = {{0}};
            int64_t k = 0;
            for (; k + 4 * NAMED(LANES) <= of->depth; k += 4 * NAMED(LANES))
                for (int part = 0; part < 4; part++)
                    sums[part] += *(const NAMED(vector) *)(left + k + part * NAMED(LANES)) *
                                  *(const NAMED(vector) *)(right + k + part * NAMED(LANES));
            for (; k + NAMED(LANES) <= of->depth; k += NAMED(LANES))
                sums[0] += *(const NAMED(vector) *)(left + k) * *(const NAMED(vector) *)(right + k);
            sums[0] = sums[0] + sums[1] + (sums[2] + sums[3]);
            REAL sum = 0;
            for (int lane = 0; lane < NAMED(LANES); lane++)
                sum += sums[0][lane];
            for (; k < of->depth; k++)
                sum += left[k] * right[k];
            out[i * of->om + j * of->on] = sum;
        }
}

typedef struct {
    framefuse_model *model;
    const NAMED(operands) *of;
    const REAL *packed; /* of a weight */
    REAL *scratch;      /* for each worker: its rows, its panels */
    int64_t rows_size, panels_size, stride;
} NAMED(batched);

/* One product of a batch by one worker, or by several. */
static void NAMED(one)(const NAMED(batched) *all, int64_t which, int worker, int threads)
{
    const NAMED(operands) *of = all->of;
    const REAL *a = of->a + which * of->ab, *b = of->b + which * of->bb;
    REAL *out = of->out + which * of->ob;
    REAL *rows = all->scratch + worker * (all->rows_size + all->panels_size), *panels = rows + all->rows_size;
    if (!all->packed && of->m <= 2 && of->ak == 1 && of->bk == 1) {
        NAMED(dots)(of, a, b, out);
        return;
    }
    NAMED(lines) lines = {a, of->am, out, of->om};
    if (all->rows_size) { /* rows that do not lie along the sum, or all in the same lines of the cache */
        if (of->ak == 1)
            for (int64_t i = 0; i < of->m; i++)
                memcpy(rows + i * all->stride, a + i * of->am, (size_t)of->depth * sizeof *rows);
        else
            NAMED(turned)(a, of->ak, of->depth, of->m, of->am, rows, all->stride);
        lines.a = rows;
        lines.am = all->stride;
    }
    NAMED(work) work = {NAMED(place_lines), &lines, of->m, 1, of->depth, of->n, all->packed, 0, NULL, of->on, 0, 0, NULL};
    if (!all->packed && of->bn == 1 && of->m <= 4 * ROWS && of->n % NAMED(LANES) == 0) {
        work.packed = b;
        work.step = of->bk;
    } else if (!all->packed) {
        NAMED(factor) factor = {b, 1, 1, of->depth, of->n, 0, 0, of->bk, of->bn};
        NAMED(pack)(&factor, panels);
        work.packed = panels;
    }
    NAMED(tiles)(all->model, &work, threads);
}

static void NAMED(some)(const void *context, int64_t begin, int64_t end, int worker)
{
    for (int64_t which = begin; which < end; which++)
        NAMED(one)(context, which, worker, 1);
}

/* out[b, i, j] = sum over k of a[b, i, k] * b[b, k, j]; `site` is the place of the panels of a
 * right factor that is a weight, or -1. */
static int NAMED(product)(framefuse_model *model, const NAMED(operands) *given, int site)
{
    NAMED(operands) of = *given;
    if (of.m == 0 || of.n == 0 || of.batch == 0)
        return 0;
    NAMED(batched) all = {model, &of, NULL, NULL, 0, 0, of.depth};
    if (site >= 0 && of.batch == 1) {
        NAMED(factor) factor = {of.b, 1, 1, of.depth, of.n, 0, 0, of.bk, of.bn};
        all.packed = NAMED(packed_weight)(model, site, &factor, 1, 0, NAMED(pack), NAMED(packed_size)(&factor));
    }
    double work = (double)of.m * (double)of.n * (double)of.depth;
    int threads = work * (double)of.batch < WORTH_THREADS ? 1 : model->threads;
    if (of.m > 1 && (of.ak != 1 || of.am * (int64_t)sizeof(REAL) % 4096 == 0)) {
        all.stride = (of.depth + 15) / 16 * 16 + 16;
        if (__builtin_mul_overflow(of.m, all.stride, &all.rows_size))
            return fail(model, "there is no memory for a product");
    } else if (of.ak != 1) {
        all.rows_size = all.stride = (of.depth + 15) / 16 * 16 + 16;
    }
    if (!all.packed)
        all.panels_size = ((of.n + NAMED(LANES) - 1) / NAMED(LANES) * NAMED(LANES)) * of.depth;
    int workers = of.batch > 1 ? threads : 1;
    int64_t bytes = (all.rows_size + all.panels_size) * workers * (int64_t)sizeof(REAL);
    if (scratch(model, bytes))
        return -1;
    all.scratch = model->scratch;
    if (of.batch > 1)
        each(model, NAMED(some), &all, of.batch, threads);
    else
        NAMED(one)(&all, 0, 0, threads);
    return 0;
}
