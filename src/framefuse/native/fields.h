/* Readers of the dataclasses that a plan is made of: 0, or -1 with an exception. */
#ifndef FRAMEFUSE_FIELDS_H
#define FRAMEFUSE_FIELDS_H

#include "base.h"

int wrong(const char *what, PyObject *where); /* -1 with ValueError, or with the exception that is set already */
void *zeros(size_t count, size_t size);       /* NULL with MemoryError */
/* in [least, limit) */
int field_int(PyObject *object, const char *name, Py_ssize_t least, Py_ssize_t limit, int32_t *out);
int field_bool(PyObject *object, const char *name, bool *out);
PyObject *field_tuple(PyObject *object, const char *name); /* a new reference, or NULL with an exception */
int items_as_indices(PyObject *tuple, Py_ssize_t limit, int32_t *out);
/* *out is owned */
int field_indices(PyObject *object, const char *name, Py_ssize_t limit, int32_t **out, int32_t *count);
int field_triple(PyObject *object, const char *name, Py_ssize_t limit, int32_t *out);

#endif
