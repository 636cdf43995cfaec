/* The interface of framefuse.h over one program: the function `program`, the table `constants` and the text
 * `description` stand before it in the translation unit. */
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

API int framefuse_version(void) { return FRAMEFUSE_VERSION; }
API int framefuse_input_count(void) { return INPUTS; }
API int framefuse_output_count(void) { return OUTPUTS; }
API int framefuse_constant_count(void) { return CONSTANTS; }
API const char *framefuse_description(void) { return description; }
API const char *framefuse_error(const framefuse_model *model) { return model->error; }

API void framefuse_free(framefuse_model *model) {
    if (model == NULL)
        return;
    for (int k = 0; model->own && k < CONSTANTS; k++)
        free(model->own[k]);
    free(model->own);
    free(model->constants);
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
    free(model);
}

API framefuse_model *framefuse_load_with(const char *weights, char *error, size_t size) {
    if (!supported()) {
        snprintf(error, size, "this processor lacks the vector instructions that the program was exported for");
        return NULL;
    }
    framefuse_model *model = calloc(1, sizeof *model);
    if (model != NULL) {
        model->own = calloc(CONSTANTS + 1, sizeof *model->own);
        model->constants = calloc(CONSTANTS + 1, sizeof *model->constants);
        model->packs = calloc(PACKS + 1, sizeof *model->packs);
        model->threads = 1;
        model->crew_of = children;
        if (model->packs != NULL)
            count_model(1);
    }
    if (model == NULL || !model->own || !model->constants || !model->packs) {
        framefuse_free(model);
        snprintf(error, size, "there is no memory for a model");
        return NULL;
    }
    const char *file = weights_of(model, weights, error, size);
    if (file == NULL) {
        framefuse_free(model);
        return NULL;
    }
    for (int k = 0; k < CONSTANTS; k++)
        model->constants[k] = file + constants[k].offset;
    return model;
}

API framefuse_model *framefuse_load(char *error, size_t size) { return framefuse_load_with(NULL, error, size); }

API int framefuse_run(framefuse_model *model, const DLTensor *const *inputs, int input_count, DLManagedTensor **outputs,
                      int output_count) {
    if (input_count != INPUTS || output_count != OUTPUTS)
        return fail(model, "the program takes %d tensors and gives %d, not %d and %d", INPUTS, OUTPUTS, input_count,
                    output_count);
    const DLTensor *given[INPUTS + 1];
    DLTensor laid[INPUTS + 1];
    int64_t steps[STEPS + 1];
    char *taken[INPUTS + 1];
    int answer = 0;
    for (int k = 0, from = 0; k < INPUTS; from += orders[k++].ndim) {
        given[k] = inputs[k];
        taken[k] = NULL;
        if (answer == 0 && orders[k].order != NULL)
            answer = lay(model, &given[k], &laid[k], steps + from, orders[k].ndim, orders[k].order, &taken[k]);
    }
    if (answer == 0)
        answer = program(model, given, outputs);
    for (int k = 0; k < INPUTS; k++)
        give_back(model, taken[k]);
    return answer;
}

static int find_constant(const char *name) {
    for (int k = 0; k < CONSTANTS; k++)
        if (strcmp(constants[k].name, name) == 0)
            return k;
    return -1;
}

static int check_constant(framefuse_model *model, const char *name, const DLTensor *value) {
    int k = find_constant(name);
    if (k < 0)
        return fail(model, "the program has no weight %s", name);
    const constant *known = &constants[k];
    if (check_kind(model, name, value, known->code, known->bits, known->ndim))
        return -1;
    for (int d = 0; d < known->ndim; d++)
        if (check_size(model, name, value, d, known->sizes[d]) || check_stride(model, name, value, d, known->strides[d]))
            return -1;
    return 0;
}

API int framefuse_update_constants(framefuse_model *model, const char *const *names, const DLTensor *const *values,
                                   int count) {
    for (int i = 0; i < count; i++)
        if (check_constant(model, names[i], values[i]))
            return -1;
    char **copies = calloc((size_t)count + 1, sizeof *copies);
    for (int i = 0; copies && i < count; i++) {
        copies[i] = room(constants[find_constant(names[i])].bytes);
        if (copies[i] != NULL)
            continue;
        while (i-- > 0)
            free(copies[i]);
        free(copies);
        copies = NULL;
    }
    if (copies == NULL)
        return fail(model, "there is no memory for the weights");
    for (int i = 0; i < count; i++) {
        int k = find_constant(names[i]);
        memcpy(copies[i], data_of(values[i]), (size_t)constants[k].bytes);
        free(model->own[k]);
        model->constants[k] = model->own[k] = copies[i];
    }
    free(copies);
    drop_packs(model->packs);
    drop_derived(&model->derived);
    model->replaced = 1;
    return 0;
}

API void framefuse_set_threads(framefuse_model *model, int count) { set_threads(model, count); }
