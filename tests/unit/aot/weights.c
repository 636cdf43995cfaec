/* Replaces the weights of an exported linear layer (16 to 4), all or none, and prints what it gives before and after. */
#include <stdio.h>

#include "framefuse.h"

static int shown(framefuse_model *model, const DLTensor *input) {
    DLManagedTensor *output;
    if (framefuse_run(model, &input, 1, &output, 1)) {
        fprintf(stderr, "%s\n", framefuse_error(model));
        return -1;
    }
    for (int i = 0; i < 4; i++) printf("%.9g\n", ((float *)output->dl_tensor.data)[i]);
    output->deleter(output);
    return 0;
}

int main(void) {
    char error[256];
    framefuse_model *model = framefuse_load(error, sizeof error);
    if (!model) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    float x[16], weight[64], bias[4];
    for (int i = 0; i < 16; i++) x[i] = (float)i / 8;
    for (int i = 0; i < 64; i++) weight[i] = 1;
    for (int i = 0; i < 4; i++) bias[i] = (float)i;
    int64_t row[2] = {1, 16}, whole[2] = {4, 16}, few[1] = {4};
    DLDataType single = {kDLFloat, 32, 1};
    DLDevice cpu = {kDLCPU, 0};
    DLTensor input = {x, cpu, 2, single, row, NULL, 0};
    DLTensor weights = {weight, cpu, 2, single, whole, NULL, 0}, biases = {bias, cpu, 1, single, few, NULL, 0};
    const char *names[2] = {"weight", "bias"}, *others[2] = {"weight", "none"};
    const DLTensor *values[2] = {&weights, &biases}, *swapped[2] = {&biases, &weights};
    if (shown(model, &input)) return 1;
    if (framefuse_update_constants(model, others, values, 2) != -1) return 2;
    fprintf(stderr, "%s\n", framefuse_error(model));
    if (framefuse_update_constants(model, names, swapped, 2) != -1) return 2;
    fprintf(stderr, "%s\n", framefuse_error(model));
    if (shown(model, &input)) return 1;
    if (framefuse_update_constants(model, names, values, 2) || shown(model, &input)) return 1;
    framefuse_free(model);
    return 0;
}
