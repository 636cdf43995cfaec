/* Loads an exported program and runs it on rows of numbers: what a server without Python would do. */
#include "framefuse.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* program LIBRARY ROWS COLUMNS CALLS: prints the first result, and microseconds a call. With a fifth argument the input
 * holds tokens. */
int main(int count, char **arguments) {
    if (count < 5)
        return 2;
    int tokens = count > 5;
    int64_t sizes[] = {atoll(arguments[2]), atoll(arguments[3])};
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return fprintf(stderr, "%s\n", dlerror()), 1;
    framefuse_model *(*load)(char *, size_t) = (framefuse_model * (*)(char *, size_t)) dlsym(library, "framefuse_load");
    int (*run)(framefuse_model *, const DLTensor *const *, int, DLManagedTensor **, int) =
        (int (*)(framefuse_model *, const DLTensor *const *, int, DLManagedTensor **, int))dlsym(library, "framefuse_run");
    const char *(*error)(const framefuse_model *) =
        (const char *(*)(const framefuse_model *))dlsym(library, "framefuse_error");
    void (*drop)(framefuse_model *) = (void (*)(framefuse_model *))dlsym(library, "framefuse_free");

    char text[256];
    framefuse_model *model = load(text, sizeof text);
    if (model == NULL)
        return fprintf(stderr, "%s\n", text), 1;
    int (*output_count)(void) = (int (*)(void))dlsym(library, "framefuse_output_count");
    int outs = output_count();
    int64_t *data = malloc((size_t)(sizes[0] * sizes[1]) * sizeof *data);
    for (int64_t k = 0; k < sizes[0] * sizes[1]; k++)
        if (tokens)
            data[k] = k % 17;
        else
            ((float *)data)[k] = (float)(k % 17) / 8 - 1;
    DLDataType dtype = {tokens ? kDLInt : kDLFloat, tokens ? 64 : 32, 1};
    DLTensor input = {data, {kDLCPU, 0}, 2, dtype, sizes, NULL, 0};
    const DLTensor *inputs[] = {&input};
    DLManagedTensor *outputs[8];
    double begin = now();
    for (int64_t call = 0, calls = atoll(arguments[4]); call < calls; call++) {
        if (run(model, inputs, 1, outputs, outs)) {
            fprintf(stderr, "%s\n", error(model));
            return drop(model), free(data), 1;
        }
        for (int k = 0; call < calls - 1 && k < outs; k++)
            outputs[k]->deleter(outputs[k]);
    }
    double took = (now() - begin) / atof(arguments[4]);
    DLManagedTensor *output = outputs[0];
    int64_t elements = 1;
    for (int d = 0; d < output->dl_tensor.ndim; d++)
        elements *= output->dl_tensor.shape[d];
    for (int64_t k = 0; k < elements; k++)
        printf("%.9g\n", ((float *)output->dl_tensor.data)[k]);
    printf("%.3f\n", took);
    for (int k = 0; k < outs; k++)
        outputs[k]->deleter(outputs[k]);
    drop(model);
    free(data);
    return 0;
}
