/* A step that multiplies matrices. */
#ifndef FRAMEFUSE_MATMUL_H
#define FRAMEFUSE_MATMUL_H

#include "base.h"

typedef struct Slot Slot;

typedef struct {
    int32_t out, a, c, batch, m, n, k;
    int32_t a_strides[3], c_strides[3], out_strides[3];
    bool accumulate;
} MatmulInfo;

/* 0, or -1: declines */
int matmul_run(const MatmulInfo *info, const int64_t *numbers, char *out, char *a, char *c, const Slot *slot);

#endif
