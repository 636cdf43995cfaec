/* Convolutions by windows of 3 by 3 places without steps, by Winograd's F(2x2, 3x3): 16 products where the sums of four
 * results have 36. Sums and differences of 4 by 4 places of a picture are multiplied by such sums of the weights, one
 * product of matrices for each of the 16; results are sums and differences of these. It rounds as little as the sums
 * themselves do. Where a result is not finite, a place may be the cause that its window does not reach: then the
 * convolution is done in the plain way. Included once for each type. */



typedef struct {
    framefuse_model *model;
    const NAMED(convolved) *of;
    const REAL *packed, *bias; /* bias: NULL for none */
    REAL *scratch;             /* of each worker: sums of pictures, products */
    int64_t down, across;      /* squares of two by two results in a picture */
    int64_t block;             /* squares that are one piece of work */
    int64_t left, right;       /* from one square to the next in sums and products */
    int64_t each_packed;
    int *infinite;             /* whether a result is not finite */
    tail *behind; /* what follows whole lines on one thread; or NULL */
} NAMED(squares);

/* The weights' sums as panels, those of one of the 16 behind the other's. */
static void NAMED(pack_squares)(const NAMED(factor) *b, REAL *to)
{
    int64_t apart = NAMED(packed_size)(b) / b->taps_h / b->taps_w;
    memset(to, 0, (size_t)(SQUARE * apart) * sizeof *to);
    for (int64_t o = 0; o < b->columns; o++) {
        int64_t first = o / NAMED(COLUMNS) * NAMED(COLUMNS), width = NAMED(width)(b->columns, first);
        for (int64_t k = 0; k < b->depth; k++) {
            const REAL *w = b->data + k * b->sk + o * b->sn;
            REAL lines[4][3], *sum = to + first * b->depth + k * width + o - first;
            for (int c = 0; c < 3; c++) {
                REAL above = w[c * b->sw], middle = w[b->sh + c * b->sw], below = w[2 * b->sh + c * b->sw];
                lines[0][c] = above;
                lines[1][c] = (above + below + middle) / 2;
                lines[2][c] = (above + below - middle) / 2;
                lines[3][c] = below;
            }
            for (int r = 0; r < 4; r++, sum += 4 * apart) {
                sum[0] = lines[r][0];
                sum[apart] = (lines[r][0] + lines[r][2] + lines[r][1]) / 2;
                sum[2 * apart] = (lines[r][0] + lines[r][2] - lines[r][1]) / 2;
                sum[3 * apart] = lines[r][2];
            }
        }
    }
}

/* One vector of channels: 4 by 4 places become their 16 sums, which lie `apart` from each other. */
static inline __attribute__((always_inline)) void NAMED(sums_of_square)(const REAL *const *from, int64_t at, REAL *to,
                                                                        int64_t apart)
{
    NAMED(vector) lines[4][4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        NAMED(vector) place[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++)
            place[r] = *(const NAMED(vector) *)(from[4 * r + c] + at);
        lines[0][c] = place[0] - place[2];
        lines[1][c] = place[1] + place[2];
        lines[2][c] = place[2] - place[1];
        lines[3][c] = place[1] - place[3];
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        *(NAMED(vector) *)(to + at + (4 * r) * apart) = lines[r][0] - lines[r][2];
        *(NAMED(vector) *)(to + at + (4 * r + 1) * apart) = lines[r][1] + lines[r][2];
        *(NAMED(vector) *)(to + at + (4 * r + 2) * apart) = lines[r][2] - lines[r][1];
        *(NAMED(vector) *)(to + at + (4 * r + 3) * apart) = lines[r][1] - lines[r][3];
    }
}

/* One vector of channels: 16 products become the four results of a square; NULL: beyond the picture. Returns zeros,
 * and NaN for channels of which a result is not finite. */
static inline __attribute__((always_inline)) NAMED(vector) NAMED(results_of_square)(const REAL *from, int64_t apart,
                                                                                    int64_t at, NAMED(vector) bias,
                                                                                    REAL *const *to)
{
    NAMED(vector) infinite = {0};
    NAMED(vector) lines[2][4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        NAMED(vector) product[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++)
            product[r] = *(const NAMED(vector) *)(from + at + (4 * r + c) * apart);
        lines[0][c] = product[0] + product[1] + product[2];
        lines[1][c] = product[1] - product[2] - product[3];
    }
#pragma GCC unroll 2
    for (int r = 0; r < 2; r++) {
        NAMED(vector) left = lines[r][0] + lines[r][1] + lines[r][2] + bias;
        NAMED(vector) right = lines[r][1] - lines[r][2] - lines[r][3] + bias;
        if (to[2 * r])
            *(NAMED(vector) *)(to[2 * r] + at) = left;
        if (to[2 * r + 1])
            *(NAMED(vector) *)(to[2 * r + 1] + at) = right;
        infinite += (left - left) + (right - right);
    }
    return infinite;
}

/* The square's places in the picture, those beyond its borders as zeros, and its results. */
static void NAMED(place_square)(const NAMED(squares) *all, int64_t square, const REAL **from, REAL **to)
{
    const NAMED(convolved) *of = all->of;
    int64_t w = square % all->across * 2, h = square / all->across % all->down * 2;
    int64_t n = square / all->across / all->down;
    const REAL *picture = of->x + n * of->xn;
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++) {
            int64_t line = h - of->pad_h + r, place = w - of->pad_w + c;
            int inside = line >= 0 && line < of->height && place >= 0 && place < of->width;
            from[4 * r + c] = inside ? picture + line * of->xh + place * of->xw : of->zeros;
        }
    for (int r = 0; r < 2; r++)
        for (int c = 0; c < 2; c++) {
            int inside = h + r < of->out_height && w + c < of->out_width;
            to[2 * r + c] = inside ? of->out + n * of->on + (h + r) * of->oh + (w + c) * of->ow : NULL;
        }
}

/* Channels in whole vectors: the last one once more, with some before it. */
static inline int64_t NAMED(vector_at)(int64_t at, int64_t channels)
{
    return at + NAMED(LANES) <= channels ? at : channels - NAMED(LANES);
}

/* The lines of results that the first squares make whole. */
static int64_t NAMED(whole_lines)(const NAMED(squares) *all, int64_t squares)
{
    int64_t rows = squares / all->across, lines = rows % all->down * 2;
    return rows / all->down * all->of->out_height + lines;
}

static void NAMED(some_squares)(const void *context, int64_t begin, int64_t end, int worker)
{
    const NAMED(squares) *all = context;
    const NAMED(convolved) *of = all->of;
    int64_t total = of->batch * all->down * all->across, left = all->block * all->left;
    int64_t right = all->block * all->right;
    REAL *sums = all->scratch + worker * SQUARE * (left + right), *products = sums + SQUARE * left;
    const REAL *from[SQUARE];
    REAL *to[4];
    NAMED(vector) infinite = {0};
    int64_t done = 0;
    for (int64_t item = begin; item < end; item++) {
        int64_t first = item * all->block, count = total - first < all->block ? total - first : all->block;
        for (int64_t k = 0; k < count; k++) {
            NAMED(place_square)(all, first + k, from, to);
            for (int64_t at = 0; at < of->channels; at += NAMED(LANES))
                NAMED(sums_of_square)(from, NAMED(vector_at)(at, of->channels), sums + k * all->left, left);
        }
        for (int k = 0; k < SQUARE; k++) {
            NAMED(lines) lines = {sums + k * left, all->left, products + k * right, all->right};
            NAMED(work) work = {NAMED(place_lines), &lines, count, 1, of->channels, of->out_channels,
                                all->packed + k * all->each_packed, 0, NULL, 1, 0, 0, NULL};
            NAMED(tiles)(all->model, &work, 1);
        }
        for (int64_t k = 0; k < count; k++) {
            NAMED(place_square)(all, first + k, from, to);
            for (int64_t at = 0; at < of->out_channels; at += NAMED(LANES)) {
                int64_t place = NAMED(vector_at)(at, of->out_channels);
                NAMED(vector) bias = {0};
                if (all->bias)
                    bias = *(const NAMED(vector) *)(all->bias + place);
                infinite += NAMED(results_of_square)(products + k * all->right, right, place, bias, to);
            }
        }
        if (all->behind) {
            int64_t near = NAMED(whole_lines)(all, first + count) * of->out_width * of->out_channels;
            follow(all->behind, done, near);
            done = near;
        }
    }
    for (int lane = 0; lane < NAMED(LANES); lane++)
        if (infinite[lane] != 0)
            __atomic_store_n(all->infinite, 1, __ATOMIC_RELAXED);
}

/* Whether a convolution is faster so: enough squares share what is read of the weights, whose sums are larger. */
static int NAMED(in_squares)(const NAMED(convolved) *of)
{
    int alike = of->taps_h == 3 && of->taps_w == 3 && of->stride_h == 1 && of->stride_w == 1 && of->hole_h == 1 &&
                of->hole_w == 1 && of->groups == 1 && of->xc == 1 && of->oc == 1;
    return alike && of->channels >= 16 && of->out_channels >= 16 &&
           of->batch * ((of->out_height + 1) / 2) * ((of->out_width + 1) / 2) >= FEW_SQUARES;
}

/* Does it where the weight is one that is packed once and all results are finite; else 1. */
static int NAMED(by_squares)(framefuse_model *model, NAMED(convolved) *of, const NAMED(factor) *factor, int site,
                             int threads, tail *behind)
{
    int64_t each_packed = NAMED(packed_size)(factor) / factor->taps_h / factor->taps_w;
    const REAL *packed = NAMED(packed_weight)(model, site, factor, 1, 0, NAMED(pack_squares), SQUARE * each_packed);
    if (packed == NULL)
        return 1;
    int infinite = 0;
    NAMED(squares) all = {model, of, packed, NULL, NULL, (of->out_height + 1) / 2, (of->out_width + 1) / 2, 0,
                          of->channels + NAMED(LANES), of->out_channels + NAMED(LANES), each_packed, &infinite,
                          behind};
    int64_t total = of->batch * all.down * all.across, one = SQUARE * (all.left + all.right);
    int64_t most = SQUARES_NEAR / one / (int64_t)sizeof(REAL);
    most = most < LEAST_SQUARES ? LEAST_SQUARES : most;
    int64_t pieces = (total + most - 1) / most;
    pieces = threads > 1 && pieces < 2 * threads ? 2 * threads : pieces;
    all.block = ((total + pieces - 1) / pieces + ROWS - 1) / ROWS * ROWS;
    all.scratch = NAMED(edges)(model, of, of->bias != NULL, one * all.block * threads, &all.bias);
    if (all.scratch == NULL)
        return -1;
    each(model, NAMED(some_squares), &all, (total + all.block - 1) / all.block, threads);
    if (behind)
        behind->done = 1;
    return infinite;
}
