/* Copies elements from some strides to others on the device. The kernel is in the driver's own language, which it
 * compiles for its device. */

extern const char framefuse_copies[];
__asm__(".pushsection .rodata\n.globl framefuse_copies\n.hidden framefuse_copies\n"
        "framefuse_copies: .incbin \"gpu_copies.ptx\"\n.byte 0\n.popsection\n");

enum { COPIED_DIMENSIONS = 16, COPY_THREADS = 256 };
typedef struct {
    const char *from;
    char *to;
    int64_t count, element, ndim, sizes[COPIED_DIMENSIONS], from_strides[COPIED_DIMENSIONS], to_strides[COPIED_DIMENSIONS];
} copying; /* as the kernel has it */

/* The function is loaded when it is first needed. */
static void *copier(framefuse_model *model) {
    gpu *on = model->gpu;
    pthread_mutex_lock(&loading);
    int code = 0;
    if (on->functions[CODES] == NULL && !(code = driver.load(&on->modules[CODES], framefuse_copies)))
        code = driver.function(&on->functions[CODES], on->modules[CODES], "framefuse_copy");
    pthread_mutex_unlock(&loading);
    return told(model, "the kernel that copies could not be loaded", code) ? NULL : on->functions[CODES];
}

/* Neighbours that both sides have one behind the other become one dimension. */
static int move(framefuse_model *model, int ndim, const int64_t *sizes, const char *from, const int64_t *from_strides,
                char *to, const int64_t *to_strides, int64_t element) {
    copying of = {from, to, 1, element, 0, {0}, {0}, {0}};
    for (int d = 0; d < ndim; d++) {
        int64_t k = of.ndim - 1;
        if (sizes[d] == 0)
            return 0;
        of.count *= sizes[d];
        if (sizes[d] == 1)
            continue;
        if (k >= 0 && of.from_strides[k] == from_strides[d] * sizes[d] && of.to_strides[k] == to_strides[d] * sizes[d]) {
            of.sizes[k] *= sizes[d];
        } else {
            if (++k == COPIED_DIMENSIONS)
                return fail(model, "a tensor has too many dimensions");
            of.sizes[k] = sizes[d];
            of.ndim = k + 1;
        }
        of.from_strides[k] = from_strides[d];
        of.to_strides[k] = to_strides[d];
    }
    if (of.ndim == 0 || (of.ndim == 1 && of.from_strides[0] == 1 && of.to_strides[0] == 1))
        return told(model, "memory could not be copied",
                    driver.within((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, (size_t)(of.count * element),
                                  model->stream));
    int64_t programs = (of.count - 1) / COPY_THREADS + 1;
    if (programs > INT_MAX)
        return fail(model, "a tensor has too many elements");
    void *parameters[] = {&of}, *function = copier(model);
    if (function == NULL)
        return -1;
    return told(model, "a copy could not be launched",
                driver.launch(function, (unsigned)programs, 1, 1, COPY_THREADS, 1, 1, 0, model->stream,
                              parameters, NULL));
}
