/* The compiled form of a guard program: operations, single words to compare, and blocks that run again when their dict or type has changed. */
#ifndef FRAMEFUSE_GUARDS_H
#define FRAMEFUSE_GUARDS_H

#include "border.h"

/* One row an instruction of GUARD_OPS; `watch` and `object` leave no operation behind. */
#define GUARD_OPERATIONS(X) \
    X(arg) X(dict) X(item_dict) X(item_seq) X(entry) X(global) X(cell) X(type) X(type_attr) X(getattr) X(context) X(func) X(self) \
    X(is) X(type_is) X(int_eq) X(float_eq) X(str_eq) X(length) X(keys) X(absent) X(present) X(type_absent) X(unset) \
    X(tensor) X(integer) X(real) X(scalar) X(count) X(code) X(same) X(different) X(disjoint) X(apart) X(distinct) X(address) X(version) X(relation) X(real_relation) X(number)

enum {
#define X(name) G_##name,
    GUARD_OPERATIONS(X)
#undef X
    G_WORDS,      /* compare words [from, to) */
    G_BLOCK,      /* run block `index`, whatever its tag says */
    G_TYPE_BLOCK, /* run block `index` unless the type's tag is `tag` */
    G_DICTS,      /* the dicts [from, to) are unchanged, else run the blocks of those that are not */
};

typedef uint64_t Pair __attribute__((vector_size(16), aligned(8), may_alias));

/* Equal checks that bind nothing are one object, so that the parameters of a model ask for few lines of memory. */
typedef struct {
    int32_t users;
    PyTypeObject *type;
    uint64_t keys;
    int64_t word;     /* dtype and device bytes, -1 to use the getters */
    int64_t expected; /* what `word` becomes once a tensor of another device than the CPU has them so; -1: nothing */
    int32_t dtype, device_type, device_index;
    int ndim;
    int64_t *sizes;       /* -1: free */
    int64_t *strides;     /* NULL: dense in `order`; -1: free */
    int32_t *order;
    int8_t requires_grad; /* -1: not looked at */
    int binds;
    struct TensorBind { bool stride; int32_t dimension, number; } *bind;
    bool flat; /* the TensorImpl agrees where it holds `words` under `masks`: a quick yes for up to two known sizes */
    Pair words[4], masks[4];
} TensorCheck;

int tensor_check_parse(PyObject *spec, PyObject *numbers, Py_ssize_t count, TensorCheck *out);
bool tensor_check_slowly(TensorCheck *check, PyObject *object, int64_t *numbers);
bool tensor_check_same(const TensorCheck *left, const TensorCheck *right);
void tensor_check_free(TensorCheck *check); /* by one user */
/* True is a quick yes; false says nothing. */
static inline bool tensor_flat(const TensorCheck *check, PyObject *object)
{
    if (UNLIKELY(!check->flat || Py_TYPE(object) != check->type))
        return false;
    const char *impl = abi_impl(object);
    Pair different = (*(const Pair *)(impl + abi.ndim) ^ check->words[0]) & check->masks[0];
    different |= (*(const Pair *)(impl + abi.ndim + 16) ^ check->words[1]) & check->masks[1];
    different |= (*(const Pair *)(impl + abi.strides) ^ check->words[2]) & check->masks[2];
    different |= (*(const Pair *)(impl + abi.dtype) ^ check->words[3]) & check->masks[3];
    return !(different[0] | different[1]) && (check->requires_grad < 0 || abi_requires_grad(object) == check->requires_grad);
}

bool tensors_disjoint(PyObject *left, PyObject *right);

/* Tensors of which the first `written` overlap no other one in memory, with where they lay when that was found last. */
typedef struct {
    int32_t count, written;
    bool known;
    struct ApartTensor { int32_t reg; int64_t bytes; char *begin, *end; } *tensors; /* bytes -1: only the tensor tells */
    int32_t *order; /* by place in memory */
} Apart;

Apart *apart_parse(PyObject *registers, Py_ssize_t written, PyObject *bytes); /* NULL with an exception */
bool apart_holds(Apart *apart, PyObject *const *registers);
void apart_free(Apart *apart);

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

typedef struct {
    uint8_t code;
    bool holds;           /* of a comparison of floats: how it comes out */
    int32_t to, from;     /* registers, or numbers of a relation */
    int32_t instruction;  /* its index in the program */
    Py_ssize_t index;     /* argument, element, cell, number, length, relation, word or block; how many checks of tensors stand here in a row */
    PyObject *object;     /* borrowed from the program: key, name, expected object */
    Py_hash_t hash;       /* of a key */
    union {
        Apart *apart;        /* owned */
        Distinct *distinct;  /* owned */
        TensorCheck *tensor; /* owned, with the other operations that use it */
        Number number;
        struct { PyObject *defaults, *keyword_defaults; } code_of; /* borrowed */
        PyObject *kind;      /* borrowed: of an unset place */
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

/* A dict on which a block depends. Tags are never reused and only grow, so that the sum of several is the same only while each is. */
typedef struct {
    uint64_t seen;    /* its tag when the block held; 0: never */
    uint64_t checked; /* the number of the check in which its block ran last */
    int32_t block;
    uint8_t moves;    /* how often in a row it changed within SOON checks */
    bool moved;       /* reported by CPython since the block held, or never run */
} WatchedDict;

/* A dict that changes again and again leaves those that are looked at together: its own tag is compared, or its block always runs. */
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
    int32_t op_count, word_count, block_count, dict_count;
    PyObject **registers;
    int64_t *numbers;
    Py_ssize_t register_count, number_count;
    bool *settled; /* of each register: a long-lived object, or what a block read: it changes only when `reruns` does */
    PyObject **owned; /* strong references of getattr and context, by its position among them */
    int32_t owned_count;
    bool has_state, busy, dead;
    State state;
    struct { int32_t device_type, dtype; } autocast[4];
    int autocast_count;
    PyObject *default_device; /* strong */
    uint64_t checks, reruns;
};

int guards_compile(GuardSet *set); /* 0, or -1 with an exception */
int guard_state_parse(GuardSet *set, PyObject *state); /* 0, or -1 with an exception */
bool guard_state_agrees(GuardSet *set, const State *state);
bool guard_op_run(GuardSet *set, const GuardOp *op, PyObject *const *arguments, Py_ssize_t count);
bool atoms_equal(PyObject *left, PyObject *right);
PyObject **closure_cell(PyObject *function, Py_ssize_t index); /* the place of its contents, NULL when there is none */

/* ---- watch.c: changes of dicts as CPython 3.12 and later report them ---- */

bool watch_dict(PyObject *dict, GuardSet *set, int32_t index); /* false: it cannot be watched */
void watch_move(GuardSet *set, PyObject *dict, int32_t from, int32_t to); /* its index has changed; -1: no longer watched */
void watch_forget(GuardSet *set);                              /* all that the set watches */

#endif
