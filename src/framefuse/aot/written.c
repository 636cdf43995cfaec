/* Values that are written to a part of a tensor, or read from it, whose positions, along some of its dimensions, lie in
 * tensors. */

typedef struct { const char *data; int bytes, ndim; const int64_t *sizes, *strides; } positioned;

/* The sizes that tensors of positions have together, in `sizes`; how many dimensions these are, or -1. */
static int shared_sizes(framefuse_model *model, int count, const positioned *at, int64_t *sizes)
{
    int lead = 0;
    for (int k = 0; k < count; k++)
        lead = at[k].ndim > lead ? at[k].ndim : lead;
    for (int d = 0; d < lead; d++)
        sizes[d] = 1;
    for (int k = 0; k < count; k++)
        for (int d = 0; d < at[k].ndim; d++) {
            int64_t *size = &sizes[lead - at[k].ndim + d];
            if (at[k].sizes[d] != 1 && *size != 1 && *size != at[k].sizes[d])
                return fail(model, "positions of %lld and %lld do not fit together", (long long)*size,
                            (long long)at[k].sizes[d]);
            *size = at[k].sizes[d] == 1 ? *size : at[k].sizes[d];
        }
    return lead;
}

/* Element k of the result's dimensions is one of the tensor's that no positions are for, up to `front`, then those of
 * the positions, then the other ones; `values` are spread over them, or have them all and are what is read. */
static int at_positions(framefuse_model *model, const view *to, int count, const int *dims, const positioned *at,
                        int front, const view *values, int reads)
{
    int64_t lead_sizes[MOST_DIMENSIONS], place[MOST_DIMENSIONS] = {0};
    int lead = shared_sizes(model, count, at, lead_sizes), rest = 0;
    if (lead < 0)
        return -1;
    int64_t sizes[2 * MOST_DIMENSIONS], steps[2 * MOST_DIMENSIONS];
    int64_t rest_sizes[MOST_DIMENSIONS], to_steps[MOST_DIMENSIONS], from_steps[MOST_DIMENSIONS];
    for (int d = 0, k = 0; d < to->ndim; d++) {
        if (k < count && dims[k] == d) {
            k++;
            continue;
        }
        rest_sizes[rest] = to->sizes[d];
        to_steps[rest++] = to->strides[d];
    }
    int whole = rest + lead;
    for (int d = 0; d < whole; d++) {
        int inner = d < front ? d : d - lead;
        sizes[d] = d >= front && d < front + lead ? lead_sizes[d - front] : rest_sizes[inner];
        if (sizes[d] == 0)
            return 0;
    }
    for (int d = 0; d < whole; d++) {
        int own = d - (whole - values->ndim);
        steps[d] = own < 0 || values->sizes[own] == 1 ? 0 : values->strides[own];
        if (reads ? own < 0 || values->sizes[own] != sizes[d]
                  : own >= 0 && values->sizes[own] != 1 && values->sizes[own] != sizes[d])
            return fail(model, "values of size %lld are %s where there are %lld",
                        (long long)(own < 0 ? 1 : values->sizes[own]), reads ? "read" : "written", (long long)sizes[d]);
    }
    for (int own = 0; own < values->ndim - whole; own++)
        if (values->sizes[own] != 1)
            return fail(model, "values have more dimensions than what they are written to");
    for (int d = 0; d < rest; d++)
        from_steps[d] = steps[d < front ? d : d + lead];
    for (;;) {
        char *target = to->data, *value = values->data;
        for (int d = 0; d < lead; d++)
            value += place[d] * steps[front + d] * to->element;
        for (int k = 0; k < count; k++) {
            int64_t offset = 0, size = to->sizes[dims[k]];
            for (int d = 0; d < at[k].ndim; d++)
                offset += at[k].sizes[d] == 1 ? 0 : place[lead - at[k].ndim + d] * at[k].strides[d];
            const char *where = at[k].data + offset * at[k].bytes;
            int64_t position = at[k].bytes == 8 ? *(const int64_t *)where : *(const int32_t *)where;
            if (position < -size || position >= size)
                return fail(model, "an index is out of bounds: %lld of %lld", (long long)position, (long long)size);
            target += (position < 0 ? position + size : position) * to->strides[dims[k]] * to->element;
        }
        if (reads)
            copy(rest, rest_sizes, target, to_steps, value, from_steps, to->element);
        else
            copy(rest, rest_sizes, value, from_steps, target, to_steps, to->element);
        int d = lead - 1;
        while (d >= 0 && ++place[d] == lead_sizes[d])
            place[d--] = 0;
        if (d < 0)
            return 0;
    }
}
