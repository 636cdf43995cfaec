/* Results whose sizes depend on values: where a mask is true, what lies there, how often a value is there. Each has a
 * function that counts, for the size, and one that writes so many. */

/* How many elements of a mask are true. */
static int64_t count_true(const view *mask)
{
    int64_t place[MOST_DIMENSIONS] = {0}, count = 0;
    int last = mask->ndim - 1;
    for (int d = 0; d < mask->ndim; d++)
        if (mask->sizes[d] == 0)
            return 0;
    if (mask->ndim == 0)
        return *mask->data != 0;
    for (;;) {
        const char *line = mask->data;
        for (int d = 0; d < last; d++)
            line += place[d] * mask->strides[d];
        for (int64_t k = 0; k < mask->sizes[last]; k++)
            count += line[k * mask->strides[last]] != 0;
        int d = last - 1;
        while (d >= 0 && ++place[d] == mask->sizes[d])
            place[d--] = 0;
        if (d < 0)
            return count;
    }
}

/* The places where a mask is true: a line of numbers for each, which begin `to_strides[0]` apart. */
static void places(const view *mask, char *data, const int64_t *to_strides)
{
    int64_t *to = (int64_t *)data;
    int64_t place[MOST_DIMENSIONS] = {0};
    for (int d = 0; d < mask->ndim; d++)
        if (mask->sizes[d] == 0)
            return;
    for (;;) {
        const char *at = mask->data;
        for (int d = 0; d < mask->ndim; d++)
            at += place[d] * mask->strides[d];
        if (*at) {
            for (int d = 0; d < mask->ndim; d++)
                to[d * to_strides[1]] = place[d];
            to += to_strides[0];
        }
        int d = mask->ndim - 1;
        while (d >= 0 && ++place[d] == mask->sizes[d])
            place[d--] = 0;
        if (d < 0)
            return;
    }
}

/* What lies where a mask over the dimensions from `axis` on is true, next to each other in one dimension. */
static int chosen(framefuse_model *model, const view *from, const view *mask, int axis, char *to,
                  const int64_t *to_strides)
{
    int rest = axis + mask->ndim;
    if (rest > from->ndim)
        return fail(model, "a mask has more dimensions than what it chooses from");
    for (int d = 0; d < mask->ndim; d++)
        if (mask->sizes[d] != from->sizes[axis + d])
            return fail(model, "a mask has size %lld in dimension %d, not %lld", (long long)mask->sizes[d], d,
                        (long long)from->sizes[axis + d]);
    int64_t place[MOST_DIMENSIONS] = {0}, lines = 0;
    for (int d = 0; d < rest; d++)
        if (from->sizes[d] == 0)
            return 0;
    for (;;) {
        const char *at = mask->data, *part = from->data;
        char *target = to + lines * to_strides[axis] * from->element;
        for (int d = 0; d < rest; d++) {
            part += place[d] * from->strides[d] * from->element;
            at += d < axis ? 0 : place[d] * mask->strides[d - axis];
            target += d < axis ? place[d] * to_strides[d] * from->element : 0;
        }
        if (*at) {
            copy(from->ndim - rest, from->sizes + rest, part, from->strides + rest, target, to_strides + axis + 1,
                 from->element);
            lines++;
        }
        int d = rest - 1;
        while (d >= axis && ++place[d] == from->sizes[d])
            place[d--] = 0;
        if (d >= axis)
            continue;
        for (lines = 0; d >= 0 && ++place[d] == from->sizes[d];)
            place[d--] = 0;
        if (d < 0)
            return 0;
    }
}

/* A signed integer of a line. */
static int64_t integer_at(const view *line, int64_t k)
{
    const char *at = line->data + k * line->strides[0] * line->element;
    return line->element == 8 ? *(const int64_t *)at : line->element == 4 ? *(const int32_t *)at
         : line->element == 2 ? *(const int16_t *)at : *(const int8_t *)at;
}

/* How many places those are that are repeated so often; -1 where one is repeated less often than never. */
static int64_t count_repeated(framefuse_model *model, const view *times)
{
    int64_t count = 0;
    for (int64_t k = 0; k < times->sizes[0]; k++) {
        if (integer_at(times, k) < 0)
            return fail(model, "repeats can not be negative");
        if (__builtin_add_overflow(count, integer_at(times, k), &count))
            return fail(model, "repeats are too many");
    }
    return count;
}

static void repeated(const view *times, char *to, const int64_t *to_strides)
{
    for (int64_t k = 0; k < times->sizes[0]; k++)
        for (int64_t left = integer_at(times, k); left > 0; left--, to += to_strides[0] * times->element) {
            if (times->element == 8)
                *(int64_t *)to = k;
            else
                *(int32_t *)to = (int32_t)k;
        }
}

/* The size of a table of how often each integer is there, which has `least` places. */
static int64_t count_bins(framefuse_model *model, const view *values, int64_t least)
{
    int64_t count = least;
    for (int64_t k = 0; k < values->sizes[0]; k++) {
        int64_t value = integer_at(values, k);
        if (value < 0 || value > INT64_MAX - 1)
            return fail(model, "bincount takes no negative integers");
        count = value >= count ? value + 1 : count;
    }
    return count;
}

static void bins(const view *values, int64_t count, char *data, const int64_t *to_strides)
{
    int64_t *to = (int64_t *)data;
    for (int64_t k = 0; k < count; k++)
        to[k * to_strides[0]] = 0;
    for (int64_t k = 0; k < values->sizes[0]; k++)
        to[integer_at(values, k) * to_strides[0]]++;
}
