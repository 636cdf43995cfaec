/* Elements in order along a dimension, and terms at positions along one. Elements are compared as unsigned words that
 * have their order: of floats the sign decides how the rest counts, both zeros are equal, and NaN is above all. */

enum kind { FLOATING, SIGNED, UNSIGNED };

typedef struct { uint64_t word; int64_t place; } keyed;

static uint64_t key_of(const char *data, enum kind kind, int bytes)
{
    uint64_t word = 0, top = (uint64_t)1 << (8 * bytes - 1);
    memcpy(&word, data, (size_t)bytes); /* the low bytes: the library is for little-endian machines */
    if (kind == UNSIGNED)
        return word;
    if (kind == SIGNED)
        return word ^ top;
    uint64_t size = word & (top - 1);
    if (size == 0)
        return top;
    return word & top ? top - size : top + size;
}

/* The word above which a float of so many bytes is no number; `wide` says whether 16 bits are those of bfloat16. */
static uint64_t largest(int bytes, int wide)
{
    uint64_t infinite = bytes == 8 ? UINT64_C(0x7ff) << 52 : bytes == 4 ? UINT64_C(0xff) << 23 : wide ? 0x7f80 : 0x7c00;
    return infinite + ((uint64_t)1 << (8 * bytes - 1));
}

/* A stable merge sort; the result is in `items`. */
static void in_order(keyed *items, keyed *spare, int64_t count)
{
    enum { SHORT = 12 };
    for (int64_t low = 0; low < count; low += SHORT)
        for (int64_t k = low + 1; k < count && k < low + SHORT; k++) {
            keyed item = items[k];
            int64_t at = k;
            for (; at > low && items[at - 1].word > item.word; at--)
                items[at] = items[at - 1];
            items[at] = item;
        }
    keyed *from = items, *to = spare;
    for (int64_t width = SHORT; width < count; width *= 2) {
        for (int64_t low = 0; low < count; low += 2 * width) {
            int64_t middle = low + width < count ? low + width : count;
            int64_t high = low + 2 * width < count ? low + 2 * width : count;
            for (int64_t left = low, right = middle, k = low; k < high; k++)
                to[k] = left < middle && (right == high || from[left].word <= from[right].word) ? from[left++]
                                                                                                : from[right++];
        }
        keyed *turned = from;
        from = to;
        to = turned;
    }
    if (from != items)
        memcpy(items, from, (size_t)count * sizeof *items);
}

typedef struct {
    int ndim, along, bytes, wide, descending;
    enum kind kind;
    const int64_t *sizes;
    int64_t taken; /* of each row of results */
    const char *from; const int64_t *from_strides;
    char *values; const int64_t *value_strides; /* NULL: nobody reads them */
    char *places; const int64_t *place_strides;
} sorting;

static int sorted(framefuse_model *model, const sorting *of)
{
    int64_t place[DIMENSIONS] = {0}, count = of->ndim ? of->sizes[of->along] : 1;
    for (int d = 0; d < of->ndim; d++)
        if (of->sizes[d] == 0)
            return 0;
    if (of->taken > count)
        return fail(model, "there are %lld elements, not %lld", (long long)count, (long long)of->taken);
    if (scratch(model, 2 * count * (int64_t)sizeof(keyed)))
        return -1;
    keyed *items = model->scratch, *spare = items + count;
    int64_t from_step = of->ndim ? of->from_strides[of->along] : 0;
    int64_t value_step = of->ndim && of->values ? of->value_strides[of->along] : 0;
    int64_t place_step = of->ndim && of->places ? of->place_strides[of->along] : 0;
    for (;;) {
        int64_t from = 0, value = 0, where = 0;
        for (int d = 0; d < of->ndim; d++) {
            from += place[d] * of->from_strides[d];
            value += of->values ? place[d] * of->value_strides[d] : 0;
            where += of->places ? place[d] * of->place_strides[d] : 0;
        }
        uint64_t most = of->kind == FLOATING ? largest(of->bytes, of->wide) : UINT64_MAX;
        for (int64_t k = 0; k < count; k++) {
            uint64_t word = key_of(of->from + (from + k * from_step) * of->bytes, of->kind, of->bytes);
            uint64_t least = of->kind == FLOATING ? ((uint64_t)1 << (8 * of->bytes)) - most : 0;
            if (of->kind == FLOATING && of->bytes == 8)
                least = -most;
            if (of->kind == FLOATING && (word > most || word < least))
                word = UINT64_MAX; /* NaN of either sign */
            items[k] = (keyed){of->descending ? ~word : word, k};
        }
        in_order(items, spare, count);
        for (int64_t k = 0; k < of->taken; k++) {
            if (of->values)
                memcpy(of->values + (value + k * value_step) * of->bytes,
                       of->from + (from + items[k].place * from_step) * of->bytes, (size_t)of->bytes);
            if (of->places)
                ((int64_t *)of->places)[where + k * place_step] = items[k].place;
        }
        int d = of->ndim - 1;
        while (d >= 0 && (d == of->along || ++place[d] == of->sizes[d]))
            place[d--] = 0;
        if (d < 0)
            return 0;
    }
}

enum met { ADDED, SET, LARGEST, SMALLEST }; /* what becomes of a term and the element that it meets */

typedef struct {
    enum met met;
    int ndim, along, bytes, position_bytes;
    enum kind kind;
    const int64_t *sizes, *whole; /* of the terms, and of the result */
    const char *places; const int64_t *place_strides;
    const char *terms; const int64_t *term_strides;
    char *to; const int64_t *to_strides;
} placing;

static void add_one(char *to, const char *term, enum kind kind, int bytes)
{
    if (kind == FLOATING && bytes == 4)
        *(float *)to += *(const float *)term;
    else if (kind == FLOATING)
        *(double *)to += *(const double *)term;
    else if (bytes == 8)
        *(uint64_t *)to += *(const uint64_t *)term;
    else if (bytes == 4)
        *(uint32_t *)to += *(const uint32_t *)term;
    else if (bytes == 2)
        *(uint16_t *)to = (uint16_t)(*(uint16_t *)to + *(const uint16_t *)term);
    else
        *(uint8_t *)to = (uint8_t)(*(uint8_t *)to + *(const uint8_t *)term);
}

/* NaN wins against every number, whichever is sought. */
static void place_one(char *to, const char *term, const placing *of)
{
    if (of->met == ADDED) {
        add_one(to, term, of->kind, of->bytes);
        return;
    }
    int wins = of->met == SET;
    if (!wins && of->kind == FLOATING) {
        double is = of->bytes == 4 ? *(const float *)to : *(const double *)to;
        double may = of->bytes == 4 ? *(const float *)term : *(const double *)term;
        wins = may != may || (of->met == SMALLEST ? may < is : may > is);
    } else if (!wins) {
        uint64_t is = key_of(to, of->kind, of->bytes), may = key_of(term, of->kind, of->bytes);
        wins = of->met == SMALLEST ? may < is : may > is;
    }
    if (wins)
        memcpy(to, term, (size_t)of->bytes);
}

static int place_at(framefuse_model *model, const placing *of)
{
    int64_t place[DIMENSIONS] = {0};
    for (int d = 0; d < of->ndim; d++)
        if (of->sizes[d] == 0)
            return 0;
    for (int d = 0; d < of->ndim; d++)
        if (d != of->along && of->sizes[d] > of->whole[d])
            return fail(model, "there are more terms than results: %lld of %lld", (long long)of->sizes[d],
                        (long long)of->whole[d]);
    for (;;) {
        int64_t where = 0, term = 0, to = 0;
        for (int d = 0; d < of->ndim; d++) {
            where += place[d] * of->place_strides[d];
            term += place[d] * of->term_strides[d];
            to += d == of->along ? 0 : place[d] * of->to_strides[d];
        }
        const char *data = of->places + where * of->position_bytes;
        int64_t position = of->position_bytes == 8 ? *(const int64_t *)data : *(const int32_t *)data;
        if (position < 0 || position >= of->whole[of->along])
            return fail(model, "an index is out of bounds: %lld of %lld", (long long)position,
                        (long long)of->whole[of->along]);
        place_one(of->to + (to + position * of->to_strides[of->along]) * of->bytes, of->terms + term * of->bytes, of);
        int d = of->ndim - 1;
        while (d >= 0 && ++place[d] == of->sizes[d])
            place[d--] = 0;
        if (d < 0)
            return 0;
    }
}
