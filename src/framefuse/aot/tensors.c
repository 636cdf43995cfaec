/* Tensors that come from a caller and go to one, their sizes and the numbers that follow from these. The device that runs
 * the program has its model, `check_device`, `device_of` and `let_go` before this, or declares them there. */

static __attribute__((format(printf, 2, 3))) int fail(framefuse_model *model, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(model->error, sizeof model->error, format, values);
    va_end(values);
    return -1;
}

/* The bytes of a dense tensor; -1 where they are more than there can be. */
static int64_t dense_bytes(int ndim, const int64_t *sizes, int64_t element) {
    int64_t bytes = element;
    for (int d = 0; d < ndim; d++)
        if (sizes[d] < 0 || __builtin_mul_overflow(bytes, sizes[d], &bytes))
            return -1;
    return bytes;
}

/* ---- tensors that come and go ----------------------------------------------------------------------------------- */

static void *data_of(const DLTensor *tensor) { return (char *)tensor->data + tensor->byte_offset; }

/* Whether a tensor has this dtype and number of dimensions, wherever it lies. */
static int check_form(framefuse_model *model, const char *what, const DLTensor *tensor, int code, int bits, int ndim) {
    if (tensor == NULL)
        return fail(model, "%s is missing", what);
    if (tensor->dtype.code != code || tensor->dtype.bits != bits || tensor->dtype.lanes != 1)
        return fail(model, "%s has the dtype (code %d, %d bits), not (code %d, %d bits)", what, tensor->dtype.code,
                    tensor->dtype.bits, code, bits);
    if (tensor->ndim != ndim)
        return fail(model, "%s has %d dimensions, not %d", what, (int)tensor->ndim, ndim);
    if (ndim > 0 && tensor->shape == NULL)
        return fail(model, "%s has no sizes", what);
    int64_t elements = 1;
    for (int d = 0; d < ndim; d++) {
        if (tensor->shape[d] < 0)
            return fail(model, "%s has the size %lld", what, (long long)tensor->shape[d]);
        if (__builtin_mul_overflow(elements, tensor->shape[d], &elements))
            return fail(model, "%s has too many elements", what);
    }
    if (tensor->data == NULL && elements > 0)
        return fail(model, "%s has no memory", what);
    return 0;
}

/* The same of a tensor that lies where the program runs. */
static int check_kind(framefuse_model *model, const char *what, const DLTensor *tensor, int code, int bits, int ndim) {
    if (tensor != NULL && check_device(model, what, tensor))
        return -1;
    return check_form(model, what, tensor, code, bits, ndim);
}

static int check_size(framefuse_model *model, const char *what, const DLTensor *tensor, int d, int64_t wanted) {
    if (tensor->shape[d] == wanted)
        return 0;
    return fail(model, "%s has size %lld in dimension %d, not %lld", what, (long long)tensor->shape[d], d,
                (long long)wanted);
}

static int64_t stride_of(const DLTensor *tensor, int d) {
    if (tensor->strides)
        return tensor->strides[d];
    int64_t stride = 1;
    for (int inner = tensor->ndim - 1; inner > d; inner--)
        stride *= tensor->shape[inner];
    return stride;
}

static int is_empty(const DLTensor *tensor) {
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] == 0)
            return 1;
    return 0;
}

static int check_stride(framefuse_model *model, const char *what, const DLTensor *tensor, int d, int64_t wanted) {
    if (tensor->shape[d] <= 1 || is_empty(tensor) || stride_of(tensor, d) == wanted)
        return 0;
    return fail(model, "%s has stride %lld in dimension %d, not %lld: copy it into the order in which it was recorded",
                what, (long long)stride_of(tensor, d), d, (long long)wanted);
}

/* A tensor of the caller: `owners` counts those that share its memory, where there are several. */
typedef struct { DLManagedTensor tensor; void *memory; int *owners; int64_t numbers[]; } result;

static void drop(DLManagedTensor *tensor) {
    result *whole = tensor->manager_ctx;
    if (whole->owners == NULL || __atomic_sub_fetch(whole->owners, 1, __ATOMIC_ACQ_REL) == 0) {
        let_go(whole->memory);
        free(whole->owners);
    }
    free(whole);
}

/* Takes memory over into a tensor that begins at `data`; NULL where there is no room for it. */
static DLManagedTensor *give(framefuse_model *model, char *memory, char *data, int *owners, int code, int bits, int ndim,
                             const int64_t *sizes, const int64_t *strides) {
    result *whole = malloc(sizeof *whole + 2 * (size_t)ndim * sizeof(int64_t));
    if (whole == NULL)
        return NULL;
    for (int d = 0; d < ndim; d++) {
        whole->numbers[d] = sizes[d];
        whole->numbers[ndim + d] = strides[d];
    }
    whole->memory = memory;
    whole->owners = owners;
    whole->tensor.dl_tensor = (DLTensor){data, device_of(model), ndim, {(uint8_t)code, (uint8_t)bits, 1}, whole->numbers,
                                         whole->numbers + ndim, 0};
    whole->tensor.manager_ctx = whole;
    whole->tensor.deleter = drop;
    return &whole->tensor;
}

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

static int64_t floor_divide(int64_t a, int64_t b) { int64_t q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }
static int64_t floor_remainder(int64_t a, int64_t b) { int64_t r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }

/* Rounded by itself, as in Python: within a sum the compiler may round the two as one. */
__attribute__((noinline, unused)) static double times(double a, double b) { return a * b; }

static int divides(int64_t a, int64_t b) { return b != 0 && !(a == INT64_MIN && b == -1); }
