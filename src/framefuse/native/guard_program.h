/* The compiled form of a guard program: operations, single words to compare, and blocks that run again when their dict
   or type has changed. */
#ifndef FRAMEFUSE_GUARD_PROGRAM_H
#define FRAMEFUSE_GUARD_PROGRAM_H

#include "distinct.h"
#include "guards.h"
#include "numbers.h"
#include "tensor_check.h"

/* One row an instruction of GUARD_OPS of framefuse.ir.plan; `watch` and `object` leave no operation behind. */
#define GUARD_OPERATIONS(X) \
    X(arg) X(dict) X(item_dict) X(item_seq) X(entry) X(global) X(cell) X(type) X(type_attr) X(getattr) X(context) \
    X(func) X(self) X(is) X(type_is) X(int_eq) X(float_eq) X(str_eq) X(answer) X(length) X(keys) X(absent) X(present) \
    X(type_absent) X(bare) X(unset) X(tensor) X(integer) X(real) X(scalar) X(count) X(address) X(code) X(same) \
    X(different) X(disjoint) X(apart) X(distinct) X(version) X(relation) X(real_relation) X(number)

/* The comparisons of numbers, as RELATIONS of framefuse.ir.plan, and what may be unset, as UNSET_KINDS. */
#define NUMBER_RELATIONS(X) X(Py_EQ, "==") X(Py_NE, "!=") X(Py_LT, "<") X(Py_LE, "<=")
#define UNSET_KIND_NAMES(X) \
    X(UNSET_CELL, "cell") X(UNSET_GETATTR, "getattr") X(UNSET_CONTEXT, "context") X(UNSET_ATTR, "attr") \
    X(UNSET_ITEM, "item") X(UNSET_GLOBAL, "global")
enum {
#define X(kind, name) kind,
    UNSET_KIND_NAMES(X)
#undef X
    UNSET_COUNT
};

#define ASKED 8 /* room for the arguments of a question about a string */

enum {
#define X(name) G_##name,
    GUARD_OPERATIONS(X)
#undef X
    G_WORDS,      /* compare words [from, to) */
    G_BLOCK,      /* run block `index`, whatever its tag says */
    G_TYPE_BLOCK, /* run block `index` unless the type's tag is `tag` */
    G_DICTS,      /* the dicts [from, to) are unchanged, else run the blocks of those that are not */
    G_EMPTIES,    /* the dicts [from, to) that blocks found empty still are */
};

typedef struct GuardOp {
    uint8_t code;
    bool holds;           /* of a comparison of floats: how it comes out */
    int32_t to, from;     /* registers, or numbers of a relation */
    int32_t instruction;  /* its index in the program */
    /* argument, element, cell, number, length, relation, word or block; checks of tensors in a row */
    Py_ssize_t index;
    PyObject *object;     /* borrowed from the program: key, name, names, expected object */
    Py_hash_t hash;       /* of a key */
    union {
        Apart *apart;        /* owned */
        Distinct *distinct;  /* owned */
        TensorCheck *tensor; /* owned, with the other operations that use it */
        Number number;
        struct { PyObject *defaults, *keyword_defaults; } code_of; /* borrowed */
        int unset;           /* the kind of a place that is unset */
        PyObject *empties;   /* borrowed: names of dicts without an entry, whose places begin at `index`; -1: nowhere */
        unsigned int tag;    /* of a type */
        struct {
            uint64_t sum;     /* of the tags of dicts [from, settled) when their blocks held */
            int32_t settled;  /* those from here on change often and are looked at one by one */
            bool watched;     /* CPython reports changes: no tag is read */
        } dicts;
    } as;
} GuardOp;

typedef struct {
    const uint64_t *address;
    uint64_t expected;
} Word;

/* A dict on which a block depends. Tags are never reused and only grow, so that the sum of several is the same only
   while each is. */
typedef struct {
    uint64_t seen;    /* its tag when the block held; 0: never */
    uint64_t checked; /* the number of the check in which its block ran last */
    int32_t block;
    uint8_t moves;    /* how often in a row it changed within SOON checks */
    bool moved;       /* reported by CPython since the block held, or never run */
} WatchedDict;

/* A dict that changes again and again leaves those that are looked at together: its own tag is compared, or its block
   always runs. */
enum { SOON = 16, OFTEN = 8 };

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
    int32_t *word_instructions;
    Block *blocks;
    const uint64_t **tags; /* of each dict: the place of its tag */
    WatchedDict *dicts;
    bool reported; /* some dict may have `moved` */
    PyObject **empties; /* each borrowed from a dict whose block found it, and which is unchanged when it is read */
    int32_t op_count, word_count, block_count, dict_count, empty_count;
    PyObject **registers;
    int64_t *numbers;
    Py_ssize_t register_count, number_count;
    bool *settled; /* of each register: a long-lived object, or what a block read: changes only when `reruns` does */
    PyObject **owned; /* strong references of getattr and context, by its position among them */
    int32_t owned_count;
    bool has_state, busy, dead;
    State state;
    struct { int32_t device_type, dtype; } autocast[4];
    int autocast_count;
    PyObject *default_device; /* strong */
    uint64_t checks, reruns;
};

#endif
