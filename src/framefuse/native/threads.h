/* Work that is split over the threads of the pool that torch has. */
#ifndef FRAMEFUSE_THREADS_H
#define FRAMEFUSE_THREADS_H

#include "base.h"

typedef int64_t (*Kernel)(char **buffers, const int64_t *numbers, int64_t begin, int64_t end);

/* Runs the kernel over [0, extent) in `threads` pieces; the first non-zero answer of a piece is the answer. */
int64_t threads_run(Kernel kernel, char **buffers, const int64_t *numbers, int64_t extent, int threads);
typedef void (*Piece)(void *context, int64_t begin, int64_t end);
void threads_each(Piece piece, void *context, int64_t extent, int threads);
int threads_usable(void); /* 1 without libgomp and in a forked child */
void threads_watch_forks(void);

#endif
