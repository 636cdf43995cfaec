/* A model that runs on the CPU: it reads the weights where they lie. */
#include "weights_file.c"

static int supported(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 0;
    if (WIDE_VECTORS && !(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")))
        return 0;
#endif
    return 1;
}

static void close_model(framefuse_model *model) {
    for (int k = 0; model->own && k < CONSTANTS; k++)
        free(model->own[k]);
    free(model->arena);
    free(model->scratch);
    for (int k = 0; k < BLOCKS; k++)
        free(model->blocks[k].data);
    set_threads(model, 1);
    if (model->packs != NULL)
        count_model(-1);
    drop_packs(model->packs);
    drop_derived(&model->derived);
    drop_file(&model->file);
    free(model->packs);
}

static int open_model(framefuse_model *model, int device, const char *weights, char *error, size_t size) {
    (void)device;
    if (!supported()) {
        snprintf(error, size, "this processor lacks the vector instructions that the program was exported for");
        return -1;
    }
#ifdef LIBTORCH
    if (open_torch(error, size))
        return -1;
#endif
    model->threads = 1;
    model->crew_of = children;
    model->packs = calloc(PACKS + 1, sizeof *model->packs);
    if (model->packs == NULL) {
        snprintf(error, size, "there is no memory for a model");
        return -1;
    }
    count_model(1);
    const char *file = weights_of(model, weights, error, size);
    for (int k = 0; file && k < CONSTANTS; k++)
        model->constants[k] = file + constants[k].offset;
    return file ? 0 : -1;
}

static int begin_call(framefuse_model *model, void *stream) { (void)model, (void)stream; return 0; }
static int end_call(framefuse_model *model, int answer) { (void)model; return answer; }

static char *copy_of_weight(framefuse_model *model, int64_t bytes, const DLTensor *value) {
    char *copy = check_device(model, "a weight", value) ? NULL : room(bytes);
    if (copy == NULL && value->device.device_type == kDLCPU)
        fail(model, "there is no memory for the weights");
    if (copy != NULL)
        memcpy(copy, data_of(value), (size_t)bytes);
    return copy;
}

static void drop_weight(framefuse_model *model, char *weight) { (void)model; free(weight); }

/* What was made of them is made anew. */
static void forget_weights(framefuse_model *model) {
    drop_packs(model->packs);
    drop_derived(&model->derived);
    model->replaced = 1;
}
