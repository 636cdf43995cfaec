/* Tensors that show a part of memory: what indexing, views and transposition make of one. */
enum { MOST_DIMENSIONS = 16 };
typedef struct { char *data; int element, ndim; int64_t sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS]; } view;

static view view_of(char *data, int element, int ndim, const int64_t *sizes, const int64_t *strides)
{
    view v = {data, element, ndim, {0}, {0}};
    for (int d = 0; d < ndim; d++) {
        v.sizes[d] = sizes[d];
        v.strides[d] = strides[d];
    }
    return v;
}

/* The whole of a tensor of the caller, of any dtype and number of dimensions. */
static int read_input(framefuse_model *model, const char *what, const DLTensor *tensor, view *v)
{
    if (tensor == NULL)
        return fail(model, "%s is missing", what);
    if (check_kind(model, what, tensor, tensor->dtype.code, tensor->dtype.bits, tensor->ndim))
        return -1;
    if (tensor->ndim > MOST_DIMENSIONS)
        return fail(model, "%s has %d dimensions, more than %d", what, (int)tensor->ndim, MOST_DIMENSIONS);
    *v = (view){data_of(tensor), (tensor->dtype.bits * tensor->dtype.lanes + 7) / 8, tensor->ndim, {0}, {0}};
    for (int d = 0; d < v->ndim; d++) {
        v->sizes[d] = tensor->shape[d];
        v->strides[d] = stride_of(tensor, d);
    }
    return 0;
}

static int64_t elements_of(const view *v)
{
    int64_t count = 1;
    for (int d = 0; d < v->ndim; d++)
        count *= v->sizes[d];
    return count;
}

static int no_view(framefuse_model *model)
{
    return fail(model, "the inputs have sizes for which a result cannot be a view of another");
}

/* The dimension that is meant, of `ndim`; -1 where there is none. */
static int dimension(int64_t d, int ndim) { d += d < 0 ? ndim : 0; return d >= 0 && d < ndim ? (int)d : -1; }

static int view_select(framefuse_model *model, view *v, const int64_t *a, int count)
{
    int d = dimension(a[0], v->ndim);
    int64_t at = d < 0 ? 0 : a[1] < 0 ? a[1] + v->sizes[d] : a[1];
    (void)count;
    if (d < 0 || at < 0 || at >= v->sizes[d])
        return fail(model, "an index is out of bounds");
    v->data += at * v->strides[d] * v->element;
    v->ndim--;
    for (; d < v->ndim; d++) {
        v->sizes[d] = v->sizes[d + 1];
        v->strides[d] = v->strides[d + 1];
    }
    return 0;
}

/* Dimension, start, stop, step; INT64_MIN and INT64_MAX stand for the ends. */
static int view_slice(framefuse_model *model, view *v, const int64_t *a, int count)
{
    int d = dimension(a[0], v->ndim);
    (void)count;
    if (d < 0 || a[3] <= 0)
        return no_view(model);
    int64_t size = v->sizes[d], start = a[1] < 0 && a[1] != INT64_MIN ? a[1] + size : a[1];
    int64_t stop = a[2] < 0 && a[2] != INT64_MIN ? a[2] + size : a[2];
    start = start < 0 ? 0 : start > size ? size : start;
    stop = stop < start ? start : stop > size ? size : stop;
    v->data += start * v->strides[d] * v->element;
    v->sizes[d] = (stop - start + a[3] - 1) / a[3];
    v->strides[d] *= a[3];
    return 0;
}

/* Dimension, size, step: windows along the dimension, whose places become the last one. */
static int view_unfold(framefuse_model *model, view *v, const int64_t *a, int count)
{
    int d = dimension(a[0], v->ndim);
    (void)count;
    if (d < 0 || v->ndim == MOST_DIMENSIONS || a[1] < 0 || a[1] > v->sizes[d] || a[2] <= 0)
        return no_view(model);
    v->sizes[v->ndim] = a[1];
    v->strides[v->ndim++] = v->strides[d];
    v->sizes[d] = (v->sizes[d] - a[1]) / a[2] + 1;
    v->strides[d] *= a[2];
    return 0;
}

/* Pairs of the last dimension as complex numbers, and back. */
static int view_as_complex(framefuse_model *model, view *v, const int64_t *a, int count)
{
    (void)a, (void)count;
    if (v->ndim == 0 || v->sizes[v->ndim - 1] != 2 || v->strides[v->ndim - 1] != 1)
        return no_view(model);
    v->ndim--;
    v->element *= 2;
    for (int d = 0; d < v->ndim; d++) {
        if (v->strides[d] % 2 && v->sizes[d] > 1)
            return no_view(model);
        v->strides[d] /= 2;
    }
    return 0;
}

static int view_as_real(framefuse_model *model, view *v, const int64_t *a, int count)
{
    (void)a, (void)count;
    if (v->ndim == MOST_DIMENSIONS)
        return no_view(model);
    v->element /= 2;
    for (int d = 0; d < v->ndim; d++)
        v->strides[d] *= 2;
    v->sizes[v->ndim] = 2;
    v->strides[v->ndim++] = 1;
    return 0;
}

static int view_unsqueeze(framefuse_model *model, view *v, const int64_t *a, int count)
{
    int d = dimension(a[0], v->ndim + 1);
    (void)count;
    if (d < 0 || v->ndim == MOST_DIMENSIONS)
        return no_view(model);
    int64_t stride = d < v->ndim ? v->sizes[d] * v->strides[d] : 1;
    for (int k = v->ndim++; k > d; k--) {
        v->sizes[k] = v->sizes[k - 1];
        v->strides[k] = v->strides[k - 1];
    }
    v->sizes[d] = 1;
    v->strides[d] = stride;
    return 0;
}

/* Drops dimensions of size 1: all, or of those that are named. */
static int view_squeeze(framefuse_model *model, view *v, const int64_t *a, int count)
{
    int named[MOST_DIMENSIONS] = {0}, kept = 0;
    for (int k = 0; k < count; k++) {
        int d = dimension(a[k], v->ndim);
        if (d < 0)
            return no_view(model);
        named[d] = 1;
    }
    for (int d = 0; d < v->ndim; d++)
        if (v->sizes[d] != 1 || (count > 0 && !named[d])) {
            v->sizes[kept] = v->sizes[d];
            v->strides[kept++] = v->strides[d];
        }
    v->ndim = kept;
    return 0;
}

static int view_permute(framefuse_model *model, view *v, const int64_t *a, int count)
{
    view old = *v;
    if (count != v->ndim)
        return no_view(model);
    for (int k = 0; k < count; k++) {
        int d = dimension(a[k], count);
        if (d < 0)
            return no_view(model);
        v->sizes[k] = old.sizes[d];
        v->strides[k] = old.strides[d];
    }
    return 0;
}

/* So many dimensions, and where each goes; the others keep their order. */
static int view_movedim(framefuse_model *model, view *v, const int64_t *a, int count)
{
    int64_t order[MOST_DIMENSIONS];
    int moved[MOST_DIMENSIONS] = {0}, pairs = count / 2, next = 0;
    for (int d = 0; d < v->ndim; d++)
        order[d] = -1;
    for (int k = 0; k < pairs; k++) {
        int from = dimension(a[k], v->ndim), to = dimension(a[pairs + k], v->ndim);
        if (from < 0 || to < 0)
            return no_view(model);
        order[to] = from;
        moved[from] = 1;
    }
    for (int d = 0; d < v->ndim; d++) {
        if (order[d] >= 0)
            continue;
        while (next < v->ndim && moved[next])
            next++;
        order[d] = next++;
    }
    return view_permute(model, v, order, v->ndim);
}

static int view_transpose(framefuse_model *model, view *v, const int64_t *a, int count)
{
    int first = dimension(a[0], v->ndim), second = dimension(a[1], v->ndim);
    view old = *v;
    (void)count;
    if (v->ndim < 2) /* t of a vector */
        return 0;
    if (first < 0 || second < 0)
        return no_view(model);
    v->sizes[first] = old.sizes[second];
    v->strides[first] = old.strides[second];
    v->sizes[second] = old.sizes[first];
    v->strides[second] = old.strides[first];
    return 0;
}

static int view_reversed(framefuse_model *model, view *v, const int64_t *a, int count)
{
    view old = *v;
    (void)model, (void)a, (void)count;
    for (int d = 0; d < v->ndim; d++) {
        v->sizes[d] = old.sizes[v->ndim - 1 - d];
        v->strides[d] = old.strides[v->ndim - 1 - d];
    }
    return 0;
}

/* Offset and two dimensions: the places where they are equal, or as far apart, become the last dimension. */
static int view_diagonal(framefuse_model *model, view *v, const int64_t *a, int count)
{
    int rows = dimension(a[1], v->ndim), columns = dimension(a[2], v->ndim), kept = 0;
    view old = *v;
    (void)count;
    if (rows < 0 || columns < 0 || rows == columns)
        return no_view(model);
    int64_t down = a[0] < 0 ? -a[0] : 0, right = a[0] > 0 ? a[0] : 0;
    int64_t high = old.sizes[rows] - down, wide = old.sizes[columns] - right;
    int64_t size = high < wide ? high : wide;
    for (int d = 0; d < old.ndim; d++)
        if (d != rows && d != columns) {
            v->sizes[kept] = old.sizes[d];
            v->strides[kept++] = old.strides[d];
        }
    v->sizes[kept] = size > 0 ? size : 0;
    v->strides[kept] = old.strides[rows] + old.strides[columns];
    v->ndim = kept + 1;
    if (size > 0)
        v->data += (down * old.strides[rows] + right * old.strides[columns]) * v->element;
    return 0;
}

/* The same elements with other sizes, of which one may be -1, as far as strides can say so. */
static int view_view(framefuse_model *model, view *v, const int64_t *a, int count)
{
    view old = *v;
    int64_t all = elements_of(v), known = 1, left = 0;
    int open = -1;
    if (count > MOST_DIMENSIONS)
        return no_view(model);
    for (int d = 0; d < count; d++) {
        v->sizes[d] = a[d];
        if (a[d] == -1)
            open = d;
        else
            known *= a[d];
    }
    if (open >= 0 && (known == 0 || all % known))
        return no_view(model);
    if (open >= 0)
        v->sizes[open] = all / known;
    v->ndim = count;
    if (elements_of(v) != all)
        return no_view(model);
    if (all == 0) {
        for (int64_t d = count - 1, stride = 1; d >= 0; stride *= v->sizes[d] > 1 ? v->sizes[d] : 1, d--)
            v->strides[d] = stride;
        return 0;
    }
    int to = count - 1;
    int64_t chunk = 1, base = old.ndim ? old.strides[old.ndim - 1] : 1;
    for (int d = old.ndim - 1; d >= 0; d--) {
        chunk *= old.sizes[d];
        if (d > 0 && (old.sizes[d - 1] == 1 || old.strides[d - 1] == chunk * base))
            continue;
        for (left = 1; to >= 0 && (left < chunk || v->sizes[to] == 1); to--) {
            v->strides[to] = left * base;
            left *= v->sizes[to];
        }
        if (left != chunk)
            return no_view(model);
        chunk = 1;
        base = d > 0 ? old.strides[d - 1] : 1;
    }
    for (; to >= 0; to--)
        v->strides[to] = base;
    return 0;
}

static int view_flatten(framefuse_model *model, view *v, const int64_t *a, int count)
{
    int first = dimension(a[0], v->ndim), last = dimension(a[1], v->ndim), to = 0;
    int64_t sizes[MOST_DIMENSIONS], whole = 1;
    (void)count;
    if (v->ndim == 0)
        return view_unsqueeze(model, v, (const int64_t[]){0}, 1);
    if (first < 0 || last < first)
        return no_view(model);
    if (first == last)
        return 0;
    for (int d = 0; d < v->ndim; d++) {
        if (d >= first && d <= last)
            whole *= v->sizes[d];
        if (d < first || d > last)
            sizes[to++] = v->sizes[d];
        else if (d == last)
            sizes[to++] = whole;
    }
    return view_view(model, v, sizes, to);
}

static int view_expand(framefuse_model *model, view *v, const int64_t *a, int count)
{
    view old = *v;
    int lead = count - v->ndim;
    if (lead < 0 || count > MOST_DIMENSIONS)
        return no_view(model);
    v->ndim = count;
    for (int d = count - 1; d >= 0; d--) {
        int64_t size = d < lead ? 1 : old.sizes[d - lead], stride = d < lead ? 0 : old.strides[d - lead];
        if (a[d] != -1 && a[d] != size && size != 1)
            return no_view(model);
        v->strides[d] = a[d] == -1 || a[d] == size ? (d < lead && d + 1 < count ? v->sizes[d + 1] * v->strides[d + 1] : d < lead ? 1 : stride) : 0;
        v->sizes[d] = a[d] == -1 ? size : a[d];
    }
    return 0;
}

/* Sizes, strides, offset. */
static int view_strided(framefuse_model *model, view *v, const int64_t *a, int count)
{
    v->ndim = (count - 1) / 2;
    if (v->ndim > MOST_DIMENSIONS)
        return no_view(model);
    for (int d = 0; d < v->ndim; d++) {
        v->sizes[d] = a[d];
        v->strides[d] = a[v->ndim + d];
    }
    v->data += a[count - 1] * v->element;
    return 0;
}

/* Dimension, count of pieces, the piece. */
static int view_chunk(framefuse_model *model, view *v, const int64_t *a, int count)
{
    int d = dimension(a[0], v->ndim);
    if (d < 0)
        return no_view(model);
    int64_t size = (v->sizes[d] + a[1] - 1) / a[1];
    return view_slice(model, v, (const int64_t[]){d, a[2] * size, (a[2] + 1) * size, 1}, count);
}

enum { AT = 0, SLICE = 1, NEW = 2, REST = 3 };

/* What stands between brackets: AT and a position; SLICE, start, stop, step; NEW; REST and how many dimensions those
 * behind it take. */
static int view_item(framefuse_model *model, view *v, const int64_t *a, int count)
{
    int d = 0;
    for (int k = 0; k < count;) {
        int64_t kind = a[k++];
        if (kind == AT && view_select(model, v, (const int64_t[]){d, a[k]}, 2))
            return -1;
        if (kind == SLICE && view_slice(model, v, (const int64_t[]){d, a[k], a[k + 1], a[k + 2]}, 4))
            return -1;
        if (kind == NEW && view_unsqueeze(model, v, (const int64_t[]){d}, 1))
            return -1;
        d = kind == REST ? v->ndim - (int)a[k] : d + (kind != AT);
        k += kind == AT || kind == REST ? 1 : kind == SLICE ? 3 : 0;
    }
    return 0;
}

static int is_other(framefuse_model *model, const view *v, int ndim, const int64_t *sizes)
{
    for (int d = 0; d < ndim; d++)
        if (v->ndim != ndim || v->sizes[d] != sizes[d])
            return no_view(model);
    return 0;
}

/* The bytes from the first element to behind the last one; -1 where they are more than there can be. */
static int64_t spanned_bytes(int ndim, const int64_t *sizes, const int64_t *strides, int64_t element)
{
    int64_t last = 0, far;
    for (int d = 0; d < ndim; d++)
        if (sizes[d] == 0)
            return 0;
    for (int d = 0; d < ndim; d++)
        if (sizes[d] < 0 || __builtin_mul_overflow(sizes[d] - 1, strides[d], &far) ||
            __builtin_add_overflow(last, far, &last))
            return -1;
    return __builtin_add_overflow(last, 1, &last) || __builtin_mul_overflow(last, element, &last) ? -1 : last;
}

/* The elements in memory of their own, dense, with their dimensions in the same order; NULL where there is no room. */
static char *copied(framefuse_model *model, view *v)
{
    view from = *v;
    int order[MOST_DIMENSIONS];
    for (int d = 0; d < v->ndim; d++) {
        int k = d;
        for (; k > 0 && v->strides[order[k - 1]] < v->strides[d] && v->sizes[d] > 1; k--)
            order[k] = order[k - 1];
        order[k] = d;
    }
    int64_t stride = 1;
    for (int k = v->ndim - 1; k >= 0; k--) {
        v->strides[order[k]] = stride;
        stride *= v->sizes[order[k]] > 1 ? v->sizes[order[k]] : 1;
    }
    v->data = lasting(model, dense_bytes(v->ndim, v->sizes, v->element));
    if (v->data != NULL && elements_of(v) > 0 &&
        move(model, v->ndim, v->sizes, from.data, from.strides, v->data, v->strides, v->element)) {
        let_go(v->data);
        v->data = NULL;
    }
    return v->data;
}

/* Gives a tensor of the caller in the order of dimensions that the program reads, outermost first: a copy, to be given
 * back, where it lies otherwise. What is no such tensor stays as it is, for the program to tell. */
static int lay(framefuse_model *model, const DLTensor **tensor, DLTensor *laid, int64_t *steps, int ndim,
               const int *order, char **taken) {
    const DLTensor *given = *tensor;
    int64_t stride = 1, strides[DIMENSIONS];
    int lies = 1;
    *taken = NULL;
    if (given == NULL || given->ndim != ndim || given->device.device_type != device_of(model).device_type || given->shape == NULL)
        return 0;
    for (int place = ndim - 1; place >= 0; place--) {
        int d = order[place];
        if (given->shape[d] <= 0 || __builtin_mul_overflow(stride, given->shape[d], &steps[d]))
            return 0;
        strides[d] = stride_of(given, d);
        lies &= given->shape[d] == 1 || strides[d] == stride;
        int64_t next = steps[d];
        steps[d] = stride;
        stride = next;
    }
    int64_t element = given->dtype.bits / 8 * given->dtype.lanes, bytes = dense_bytes(ndim, given->shape, element);
    if (lies || element == 0 || bytes < 0 || given->data == NULL)
        return 0;
    if ((*taken = take(model, bytes)) == NULL)
        return fail(model, "there is no memory for an input in the order of the program");
    if (move(model, ndim, given->shape, data_of(given), strides, *taken, steps, element))
        return -1;
    *laid = *given;
    laid->data = *taken;
    laid->byte_offset = 0;
    laid->strides = steps;
    *tensor = laid;
    return 0;
}
