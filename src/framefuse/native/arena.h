/* Memory that runs lend from each other, one after the other. */
#ifndef FRAMEFUSE_ARENA_H
#define FRAMEFUSE_ARENA_H

#include "base.h"

/* Memory for temporaries, 64-byte aligned. */
typedef struct {
    char *memory;        /* owned, or NULL */
    size_t size, needed; /* needed: the most that its run asked for */
} Arena;

bool arena_reach(Arena *arena, int64_t bytes); /* makes it so large at least, keeps what is in it; false: no memory */
void arena_return(Arena *arena);               /* after the run */
void arena_user(int more);                     /* 1 for each plan that takes arenas, -1 when it goes */
PyObject *spare_bytes_py(PyObject *module, PyObject *none);

#endif
