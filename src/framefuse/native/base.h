/* What every source includes: CPython, integers of fixed width, and hints of which way a branch goes. */
#ifndef FRAMEFUSE_BASE_H
#define FRAMEFUSE_BASE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

#endif
