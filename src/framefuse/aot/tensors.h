/* What every file of an exported library knows: numbers, weights, and the headers of the system. */
#define _GNU_SOURCE /* dladdr */
#include "framefuse.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define DIMENSIONS 64

/* Long functions that call one step after the other: more than this is half of the compiler's time, and makes them a
 * tenth slower. */
#if defined(__GNUC__) && !defined(__clang__)
#define SEQUENCE __attribute__((optimize("O1"), noinline))
#else
#define SEQUENCE __attribute__((noinline))
#endif

typedef union { int64_t i; double r; } word;
typedef struct { const char *name; uint8_t code, bits; int32_t ndim; const int64_t *sizes, *strides; uint64_t offset;
                 int64_t bytes; } constant;

/* A file of weights in memory; two with equal marks are one. */
typedef struct { const char *data; dev_t device; ino_t number; struct timespec changed; } weights_file;
