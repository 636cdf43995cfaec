/* The compiled form of a guard program: operations, blocks under a version tag, and single words to compare. */
#ifndef FRAMEFUSE_GUARDS_H
#define FRAMEFUSE_GUARDS_H

#include "border.h"

/* One row an instruction of GUARD_OPS; `watch` and `object` leave no operation behind. */
#define GUARD_OPERATIONS(X) \
    X(arg) X(dict) X(item_dict) X(item_seq) X(global) X(cell) X(type) X(type_attr) X(getattr) X(func) X(self) \
    X(is) X(type_is) X(int_eq) X(float_eq) X(str_eq) X(length) X(keys) X(absent) X(present) X(type_absent) X(unset) \
    X(tensor) X(integer) X(real) X(count) X(code) X(same) X(different) X(disjoint) X(version) X(relation) X(number)

enum {
#define X(name) G_##name,
    GUARD_OPERATIONS(X)
#undef X
    G_WORDS,      /* compare words [from, to) */
    G_BLOCK,      /* run block `index`, whatever its tag says */
    G_TYPE_BLOCK, /* run block `index` unless the type's tag is `tag` */
};

typedef struct {
    PyTypeObject *type;
    uint64_t keys;
    int64_t word; /* dtype and device bytes, -1 to use the getters */
    int32_t dtype, device_type, device_index;
    int ndim;
    int64_t *sizes;       /* -1: free */
    int64_t *strides;     /* NULL: dense in `order`; -1: free */
    int32_t *order;
    int8_t requires_grad; /* -1: not looked at */
    int binds;
    struct TensorBind { bool stride; int32_t dimension, number; } *bind;
} TensorCheck;

int tensor_check_parse(PyObject *spec, PyObject *numbers, Py_ssize_t count, TensorCheck *out);
bool tensor_check_run(const TensorCheck *check, PyObject *object, int64_t *numbers);
void tensor_check_free(TensorCheck *check);
bool tensors_disjoint(PyObject *left, PyObject *right);

typedef struct {
    uint8_t code;
    int32_t to, from;     /* registers, or numbers of a relation */
    int32_t instruction;  /* its index in the program */
    Py_ssize_t index;     /* argument, element, cell, number, length, relation, word or block */
    PyObject *object;     /* borrowed from the program: key, name, expected object */
    Py_hash_t hash;       /* of a key */
    union {
        TensorCheck *tensor; /* owned */
        Number number;
        struct { PyObject *defaults, *keyword_defaults; } code_of; /* borrowed */
        PyObject *kind;      /* borrowed: of an unset place */
        unsigned int tag;    /* of a type */
        struct { Py_ssize_t index; } second;
    } as;
} GuardOp;

typedef struct {
    const uint64_t *address;
    uint64_t expected;
} Word;

typedef struct {
    int32_t instruction;
    int32_t block; /* -1: the word itself is the fact */
} WordOrigin;

typedef struct {
    PyObject *subject; /* borrowed: the dict or type that it depends on */
    GuardOp *ops;      /* owned */
    int32_t count;
} Block;

struct GuardSet {
    PyObject_HEAD
    PyObject *program;      /* strong; holds every object that the arrays below borrow */
    PyObject *instructions; /* strong */
    GuardOp *ops;
    Word *words;
    WordOrigin *origins;
    Block *blocks;
    int32_t op_count, word_count, block_count;
    PyObject **registers;
    int64_t *numbers;
    Py_ssize_t register_count, number_count;
    PyObject **owned; /* strong references of getattr, by its position among them */
    int32_t owned_count;
    bool has_state, busy, dead;
    State state;
    struct { int32_t device_type, dtype; } autocast[4];
    int autocast_count;
    PyObject *default_device; /* strong */
    uint64_t checks, reruns;
};

int guards_compile(GuardSet *set); /* 0, or -1 with an exception */
bool guard_op_run(GuardSet *set, const GuardOp *op, PyObject *const *arguments, Py_ssize_t count);
bool atoms_equal(PyObject *left, PyObject *right);
PyObject **closure_cell(PyObject *function, Py_ssize_t index); /* the place of its contents, NULL when there is none */

#endif
