/* The interface of framefuse.h over one program: the function `program`, the table `constants` and the text
 * `description` stand before it in the translation unit, and
 * what opens and closes a model on its device. */

API int framefuse_version(void) { return FRAMEFUSE_VERSION; }
API int framefuse_input_count(void) { return INPUTS; }
API int framefuse_output_count(void) { return OUTPUTS; }
API int framefuse_constant_count(void) { return CONSTANTS; }
API const char *framefuse_description(void) { return description; }
API const char *framefuse_error(const framefuse_model *model) { return model->error; }

API void framefuse_free(framefuse_model *model) {
    if (model == NULL)
        return;
    close_model(model);
    free(model->own);
    free(model->constants);
    free(model);
}

API framefuse_model *framefuse_load_on(int device, const char *weights, char *error, size_t size) {
    framefuse_model *model = calloc(1, sizeof *model);
    if (model != NULL) {
        model->own = calloc(CONSTANTS + 1, sizeof *model->own);
        model->constants = calloc(CONSTANTS + 1, sizeof *model->constants);
    }
    if (model == NULL || !model->own || !model->constants) {
        framefuse_free(model);
        snprintf(error, size, "there is no memory for a model");
        return NULL;
    }
    if (open_model(model, device, weights, error, size)) {
        framefuse_free(model);
        return NULL;
    }
    return model;
}

API framefuse_model *framefuse_load_with(const char *weights, char *error, size_t size) {
    return framefuse_load_on(0, weights, error, size);
}

API framefuse_model *framefuse_load(char *error, size_t size) { return framefuse_load_with(NULL, error, size); }

API int framefuse_run_on(framefuse_model *model, void *stream, const DLTensor *const *inputs, int input_count,
                         DLManagedTensor **outputs, int output_count) {
    if (input_count != INPUTS || output_count != OUTPUTS)
        return fail(model, "the program takes %d tensors and gives %d, not %d and %d", INPUTS, OUTPUTS, input_count,
                    output_count);
    if (begin_call(model, stream))
        return -1;
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
    return end_call(model, answer);
}

API int framefuse_run(framefuse_model *model, const DLTensor *const *inputs, int input_count, DLManagedTensor **outputs,
                      int output_count) {
    return framefuse_run_on(model, NULL, inputs, input_count, outputs, output_count);
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
    if (check_form(model, name, value, known->code, known->bits, known->ndim))
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
    if (begin_call(model, NULL))
        return -1;
    char **copies = calloc((size_t)count + 1, sizeof *copies);
    int made = 0, answer = copies ? 0 : fail(model, "there is no memory for the weights");
    for (; answer == 0 && made < count; made++) {
        copies[made] = copy_of_weight(model, constants[find_constant(names[made])].bytes, values[made]);
        answer = copies[made] ? 0 : -1;
    }
    for (int i = 0; i < made; i++) {
        char **old = answer ? &copies[i] : &model->own[find_constant(names[i])];
        drop_weight(model, *old);
        if (answer == 0)
            model->constants[find_constant(names[i])] = *old = copies[i];
    }
    free(copies);
    if (answer == 0)
        forget_weights(model);
    return end_call(model, answer);
}

API void framefuse_set_threads(framefuse_model *model, int count) { set_threads(model, count); }
