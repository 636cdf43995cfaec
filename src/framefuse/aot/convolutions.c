/* Convolutions of pictures whose channels lie next to each other, by the tiles of products.c; included once for each
 * type. Other pictures, and those of few channels, are copied first, with their borders. */

typedef struct {
    int64_t batch, channels, height, width, out_channels, out_height, out_width, taps_h, taps_w, groups;
    int64_t stride_h, stride_w, pad_h, pad_w, hole_h, hole_w;
    const REAL *x; int64_t xn, xc, xh, xw;
    const REAL *weight; int64_t wo, wi, wh, ww;
    const REAL *bias; int64_t bias_stride;
    REAL *out; int64_t on, oc, oh, ow;
    const REAL *zeros; /* for taps beyond the borders */
} NAMED(convolved);

/* The addresses of the taps of windows, and of their results: of windows in one line and in one group of rows at a time,
 * that all reach a border at the sides or none. */
static void NAMED(place_windows)(const NAMED(work) *work, int64_t row, int64_t count, const REAL **from, REAL **to)
{
    const NAMED(convolved) *of = work->what;
    int64_t w = row % of->out_width, h = row / of->out_width % of->out_height, n = row / of->out_width / of->out_height;
    int64_t wide = (of->taps_w - 1) * of->hole_w, aside = of->hole_w * of->xw, step = of->stride_w * of->xw;
    for (int64_t y = 0, some; y < count; y += some) {
        int64_t top = h * of->stride_h - of->pad_h, left = w * of->stride_w - of->pad_w;
        int64_t within = of->width - wide - left; /* how many places the first one could move aside */
        int inside = left >= 0 && within > 0;
        int64_t alike = inside ? (within + of->stride_w - 1) / of->stride_w
                      : left < 0 ? (of->stride_w - 1 - left) / of->stride_w : count;
        some = ROWS - y % ROWS;
        some = some < count - y ? some : count - y;
        some = some < of->out_width - w ? some : of->out_width - w;
        some = some < alike ? some : alike;
        const REAL *picture = of->x + n * of->xn, **tap = from + y / ROWS * of->taps_h * of->taps_w * ROWS + y % ROWS;
        for (int64_t th = 0, line = top; th < of->taps_h; th++, line += of->hole_h) {
            const REAL *first = picture + line * of->xh + left * of->xw;
            int known = line >= 0 && line < of->height;
            for (int64_t tw = 0, place = left; tw < of->taps_w; tw++, place += of->hole_w, tap += ROWS, first += aside) {
                if (known && inside && some == ROWS)
                    for (int r = 0; r < ROWS; r++)
                        tap[r] = first + r * step;
                else if (known && inside)
                    for (int r = 0; r < some; r++)
                        tap[r] = first + r * step;
                else
                    for (int64_t r = 0, at = place; r < some; r++, at += of->stride_w)
                        tap[r] = known && at >= 0 && at < of->width ? first + r * step : of->zeros;
            }
        }
        REAL *out = of->out + n * of->on + h * of->oh + w * of->ow;
        for (int r = 0; r < some; r++)
            to[y + r] = out + r * of->ow;
        w += some;
        if (w == of->out_width) {
            w = 0;
            if (++h == of->out_height) {
                h = 0;
                n++;
            }
        }
    }
}

/* ---- a window of each channel alone ------------------------------------------------------------------------------ */

static inline __attribute__((always_inline)) void NAMED(channels)(const int pixels, const int vectors, int64_t taps,
                                                                  int64_t at, const REAL *const *from,
                                                                  const REAL *weight, int64_t step, const REAL *bias,
                                                                  REAL *const *to)
{
    NAMED(vector) sums[ROWS][2];
#pragma GCC unroll 12
    for (int row = 0; row < pixels; row++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sums[row][v] = *(const NAMED(vector) *)(bias + at + v * NAMED(LANES));
    for (int64_t tap = 0; tap < taps; tap++, from += ROWS, weight += step) {
        NAMED(vector) factors[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            factors[v] = *(const NAMED(vector) *)(weight + at + v * NAMED(LANES));
#pragma GCC unroll 12
        for (int row = 0; row < pixels; row++) {
            const REAL *place = from[row] + at;
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                sums[row][v] += factors[v] * *(const NAMED(vector) *)(place + v * NAMED(LANES));
        }
    }
#pragma GCC unroll 12
    for (int row = 0; row < pixels; row++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            *(NAMED(vector) *)(to[row] + at + v * NAMED(LANES)) = sums[row][v];
}

static inline __attribute__((always_inline)) void NAMED(all_channels)(const int pixels, int64_t count, int64_t taps,
                                                                      const REAL *const *from, const REAL *weight,
                                                                      const REAL *bias, REAL *const *to)
{
    int64_t at = 0;
    for (; at + NAMED(COLUMNS) <= count; at += NAMED(COLUMNS))
        NAMED(channels)(pixels, 2, taps, at, from, weight, count, bias, to);
    for (; at + NAMED(LANES) <= count; at += NAMED(LANES))
        NAMED(channels)(pixels, 1, taps, at, from, weight, count, bias, to);
    if (at < count && count >= NAMED(LANES)) /* the last ones once more, with some before them */
        NAMED(channels)(pixels, 1, taps, count - NAMED(LANES), from, weight, count, bias, to);
    else
        for (; at < count; at++)
            for (int row = 0; row < pixels; row++) {
                REAL sum = bias[at];
                for (int64_t tap = 0; tap < taps; tap++)
                    sum += from[tap * ROWS + row][at] * weight[tap * count + at];
                to[row][at] = sum;
            }
}

/* Rows of results, the last ones once more with some before them; the panels of a weight are here (tap, channel). */
static void NAMED(depthwise_rows)(const NAMED(work) *work, int64_t first, int64_t last)
{
    const NAMED(convolved) *of = work->what;
    const REAL *from[PLACES];
    REAL *to[ROWS];
    int64_t taps = work->taps;
    for (int64_t row = first; row < last;) {
        if (last - row < ROWS && last - first >= ROWS)
            row = last - ROWS;
        int count = last - row < ROWS ? 1 : ROWS;
        NAMED(place_windows)(work, row, count, from, to);
        if (count == 1)
            NAMED(all_channels)(1, of->channels, taps, from, work->packed, work->bias, to);
        else
            NAMED(all_channels)(ROWS, of->channels, taps, from, work->packed, work->bias, to);
        row += count;
    }
}

/* Pieces of so many rows as a block has, and what follows them. */
static void NAMED(depthwise)(const void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const NAMED(work) *work = context;
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item * work->block, last = row + work->block < work->rows ? row + work->block : work->rows;
        NAMED(depthwise_rows)(work, row, last);
        if (work->behind)
            follow(work->behind, row * work->columns, last * work->columns);
    }
}

/* All rows: as many at a time as stay near, and on several threads enough pieces to share. */
static void NAMED(each_depthwise)(framefuse_model *model, NAMED(work) *work, int threads)
{
    int64_t block = NEAR / 2 / (int64_t)sizeof(REAL) / work->columns / ROWS * ROWS;
    int64_t share = work->rows / (SHARES * threads) / ROWS * ROWS;
    share = share < 2 * ROWS ? 2 * ROWS : share;
    if (threads > 1 && block > share)
        block = share;
    work->block = block < ROWS ? ROWS : block;
    each(model, NAMED(depthwise), work, (work->rows + work->block - 1) / work->block, threads);
    if (work->behind)
        work->behind->done = 1;
}

/* ---- pictures that are copied ------------------------------------------------------------------------------------ */

typedef struct { const NAMED(convolved) *of; REAL *to; int64_t height, width; } NAMED(copied);

static inline __attribute__((always_inline)) void NAMED(joined)(const int channels, const REAL *from, int64_t apart,
                                                                int64_t width, REAL *to)
{
    for (int64_t place = 0; place < width; place++)
        for (int c = 0; c < channels; c++)
            to[place * channels + c] = from[c * apart + place];
}

/* Lines of pictures with their borders, the channels of each place next to each other. */
static void NAMED(copy_lines)(const void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const NAMED(copied) *copy = context;
    const NAMED(convolved) *of = copy->of;
    for (int64_t item = begin; item < end; item++) {
        int64_t n = item / copy->height, line = item % copy->height - of->pad_h;
        REAL *to = copy->to + item * copy->width * of->channels;
        int64_t before = of->pad_w * of->channels, all = copy->width * of->channels;
        int64_t behind = before + of->width * of->channels;
        int inside = line >= 0 && line < of->height;
        memset(to, 0, (size_t)(inside ? before : all) * sizeof *to);
        if (!inside)
            continue;
        memset(to + behind, 0, (size_t)(all - behind) * sizeof *to);
        to += before;
        const REAL *from = of->x + n * of->xn + line * of->xh;
        if (of->channels == 3 && of->xw == 1)
            NAMED(joined)(3, from, of->xc, of->width, to);
        else if (of->channels == 1 && of->xw == 1)
            memcpy(to, from, (size_t)of->width * sizeof *to);
        else
            NAMED(turned)(from, of->xc, of->channels, of->width, of->xw, to, of->channels);
    }
}

/* Memory for a convolution beside its operands: zeros for what lies beyond borders, the bias as wide as panels, and
 * `more` elements, whose address it returns; NULL where there is none. */
static REAL *NAMED(edges)(framefuse_model *model, NAMED(convolved) *of, int biased, int64_t more, const REAL **bias)
{
    int64_t border = (of->channels + 2 * NAMED(COLUMNS) - 1) / NAMED(COLUMNS) * NAMED(COLUMNS);
    int64_t wide = biased ? (of->out_channels + 2 * NAMED(COLUMNS) - 1) / NAMED(COLUMNS) * NAMED(COLUMNS) : 0;
    if (scratch(model, (border + wide + more) * (int64_t)sizeof(REAL)))
        return NULL;
    REAL *place = model->scratch;
    memset(place, 0, (size_t)(border + wide) * sizeof *place);
    of->zeros = place;
    place += border;
    for (int64_t c = 0; of->bias && c < of->out_channels; c++)
        place[c] = of->bias[c * of->bias_stride];
    *bias = wide ? place : NULL;
    return place + wide;
}

#include "winograd.c"

/* ---- the whole ---------------------------------------------------------------------------------------------------- */

static int64_t NAMED(reach)(int64_t size, int64_t pad, int64_t out, int64_t stride, int64_t taps, int64_t hole)
{
    int64_t read = (out - 1) * stride + (taps - 1) * hole + 1;
    return size + pad > read ? size + pad : read;
}

/* Whether the rows of results lie one behind the other, as many as a tail has turns for. */
static int NAMED(lie_in_order)(const NAMED(convolved) *of, const tail *behind)
{
    int64_t line = of->out_width * of->ow, picture = of->out_height * line;
    return of->oc == 1 && of->ow == of->out_channels && of->oh == line && of->on == picture &&
           behind->extent == of->batch * picture;
}

/* `behind`: what may follow the result on the way, and is to be finished; or NULL. */
static int NAMED(convolution)(framefuse_model *model, const NAMED(convolved) *given, int site, tail *behind)
{
    NAMED(convolved) of = *given;
    of.pad_h = of.pad_h < 0 ? of.hole_h * (of.taps_h - 1) / 2 : of.pad_h; /* "same" */
    of.pad_w = of.pad_w < 0 ? of.hole_w * (of.taps_w - 1) / 2 : of.pad_w;
    int64_t rows = of.batch * of.out_height * of.out_width, inner = of.channels / of.groups;
    int64_t outer = of.out_channels / of.groups, taps = of.taps_h * of.taps_w;
    if (rows == 0 || of.out_channels == 0)
        return 0;
    int alone = inner == 1 && outer == 1 && of.channels > 1 && of.oc == 1;
    double size = (double)rows * (double)of.out_channels * (double)taps * (double)inner;
    int threads = size < WORTH_THREADS ? 1 : model->threads;

    int few = of.groups == 1 && of.channels < 16 && of.taps_w > 1 && of.hole_w == 1;
    int copies = few || (of.xc != 1 && of.channels > 1) || taps > TAPS;
    int64_t height = NAMED(reach)(of.height, of.pad_h, of.out_height, of.stride_h, of.taps_h, of.hole_h);
    int64_t width = NAMED(reach)(of.width, of.pad_w, of.out_width, of.stride_w, of.taps_w, of.hole_w);
    NAMED(factor) factor = {of.weight, of.taps_h, of.taps_w, inner, outer, of.wh, of.ww, of.wi, of.wo, alone};
    if (alone)
        factor.columns = of.channels;
    int64_t panels = NAMED(packed_size)(&factor) * (alone ? 1 : of.groups) + NAMED(COLUMNS);
    int64_t copy = copies ? of.batch * height * width * of.channels + NAMED(COLUMNS) : 0;
    if ((of.groups > 1 && !alone) || (behind && !NAMED(lie_in_order)(&of, behind)))
        behind = NULL;
    if (site >= 0 && NAMED(in_squares)(&of)) {
        int answer = NAMED(by_squares)(model, &of, &factor, site + 1, threads, threads > 1 ? NULL : behind);
        if (answer <= 0)
            return answer;
        if (behind)
            behind->done = 0;
        behind = NULL;
    }
    if (threads > 1 && rows < 2 * ROWS * threads) /* what is divided is the columns */
        behind = NULL;
    const REAL *bias;
    REAL *place = NAMED(edges)(model, &of, of.bias || alone, panels + copy, &bias);
    if (place == NULL)
        return -1;
    NAMED(work) work = {NAMED(place_windows), &of, rows, taps, inner, outer, NULL, 0, bias, of.oc, 0, 0, behind};
    int64_t each_packed = NAMED(packed_size)(&factor);
    if (site >= 0)
        work.packed = NAMED(packed_weight)(model, site, &factor, alone ? 1 : of.groups, outer * of.wo, NAMED(pack),
                                           each_packed);
    for (int64_t group = 0; work.packed == NULL && group < (alone ? 1 : of.groups); group++, factor.data += outer * of.wo)
        NAMED(pack)(&factor, place + group * each_packed);
    work.packed = work.packed ? work.packed : place;
    place += panels;

    if (copies) {
        NAMED(copied) lines = {&of, place, height, width};
        each(model, NAMED(copy_lines), &lines, of.batch * height, threads);
        of.x = place;
        of.xn = height * width * of.channels;
        of.xh = width * of.channels;
        of.xw = of.channels;
        of.height = height;
        of.width = width;
        of.pad_h = of.pad_w = 0;
        if (of.groups == 1 && of.hole_w == 1) { /* the taps of a line lie one behind the other */
            work.depth = inner * of.taps_w;
            work.taps = of.taps_h;
            of.taps_w = 1;
        }
    }
    if (work.taps > TAPS)
        return fail(model, "a window of %lld places is larger than convolutions here", (long long)taps);
    if (alone) {
        work.columns = of.channels;
        NAMED(each_depthwise)(model, &work, threads);
        return 0;
    }
    for (int64_t group = 0; group < of.groups; group++) {
        NAMED(tiles)(model, &work, threads);
        of.x += inner;
        of.out += outer * of.oc;
        work.packed += each_packed;
        work.bias = work.bias ? work.bias + outer : NULL;
    }
    return 0;
}
