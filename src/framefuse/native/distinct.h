/* Whether registers hold as many objects as there are registers. */
#ifndef FRAMEFUSE_DISTINCT_H
#define FRAMEFUSE_DISTINCT_H

#include "base.h"

/* Registers that hold different objects, with what they held when that was found last. */
typedef struct {
    int32_t count, room;
    bool known;
    int32_t *registers;
    uintptr_t *seen;
    uintptr_t *table; /* open addressing: a power of two of places, at most half of them taken */
} Distinct;

Distinct *distinct_parse(PyObject *registers); /* NULL with an exception */
bool distinct_holds(Distinct *distinct, PyObject *const *registers);
void distinct_free(Distinct *distinct);

#endif
