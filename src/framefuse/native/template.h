/* Python values over slots, numbers and registers. */
#ifndef FRAMEFUSE_TEMPLATE_H
#define FRAMEFUSE_TEMPLATE_H

#include "base.h"

typedef struct Frame Frame;
typedef struct Template Template;

/* The tags, as TEMPLATES of framefuse.ir.plan. */
#define TEMPLATE_TAGS(X) \
    X(TAG_TENSOR, "tensor") X(TAG_INT, "int") X(TAG_REAL, "real") X(TAG_CONST, "const") X(TAG_REGISTER, "register") \
    X(TAG_TUPLE, "tuple") X(TAG_LIST, "list") X(TAG_SET, "set") X(TAG_FROZENSET, "frozenset") X(TAG_DICT, "dict") \
    X(TAG_SLICE, "slice") X(TAG_NAMED, "namedtuple") X(TAG_OBJECT, "object") \
    X(TAG_BUILD, "build")
enum {
#define X(tag, name) tag,
    TEMPLATE_TAGS(X)
#undef X
    TEMPLATE_COUNT
};

struct Template {
    uint8_t tag;
    int32_t index;         /* slot, number or register; how many entries an object has */
    int32_t count;         /* parts */
    Template *parts;       /* owned */
    PyObject *object;      /* borrowed from the plan: the constant, the callable or the class */
    PyTypeObject *builtin; /* borrowed: of an object, the class written in C that it is made as */
};

int template_parse(PyObject *tuple, Template *out, Py_ssize_t slots, Py_ssize_t numbers);
PyObject *template_build(const Template *template, Frame *frame); /* a new reference */
void template_clear(Template *template);

/* Calls `each(template, context)` for the template and all its parts. */
int template_walk(Template *template, int (*each)(Template *, void *), void *context);

#endif
