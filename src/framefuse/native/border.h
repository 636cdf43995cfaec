/* The border between Python and C: every struct that both sides see, who owns it, how long it lives and who holds the references.

   Registers hold what a guard program read of the call. A register is borrowed: an argument lives as long as its caller's call, an object below a
   long-lived dict as long as the dict is unchanged, and what `getattr` made is owned by the guard set until `guards_release`. A plan therefore takes
   its own references of the registers that it needs before it runs anything. Those that are settled, the parameters of a model, it keeps from call
   to call in one tuple, and takes another when a check has read one of their dicts again. */
#ifndef FRAMEFUSE_BORDER_H
#define FRAMEFUSE_BORDER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "torch_abi.h"

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* ---- numbers.c: instructions over 64-bit words (int64 or the bits of a double) ---- */

typedef struct {
    uint8_t op;
    int32_t to, left, right;
    int64_t value; /* of a constant */
} Number;

int number_parse(PyObject *instruction, Py_ssize_t count, Number *out); /* 0, or -1 with ValueError */
bool number_run(const Number *number, int64_t *words);                  /* false: declines */
bool number_is_unary(const Number *number);
bool number_is_const(const Number *number);
PyObject *numbers_run_py(PyObject *module, PyObject *args);

/* ---- guards.c ---- */

typedef struct GuardSet GuardSet;
extern PyTypeObject *GuardSet_Type;
extern PyTypeObject *make_guard_set_type(PyObject *module);

/* -2 is a hit, -3 says that a check of this set is under way, so that its registers are in use; else the index of the instruction that failed,
   -1 for the global state. Never leaves an exception. */
#define GUARDS_HIT (-2)
#define GUARDS_BUSY (-3)
Py_ssize_t guards_check(GuardSet *set, PyObject *const *arguments, Py_ssize_t count, const State *state);
PyObject **guards_registers(GuardSet *set);
const int64_t *guards_numbers(GuardSet *set);
Py_ssize_t guards_register_count(GuardSet *set);
Py_ssize_t guards_number_count(GuardSet *set);
bool guards_need_state(GuardSet *set);
const bool *guards_settled(GuardSet *set);  /* of each register, whether it holds what it held while the age is the same */
uint64_t guards_age(GuardSet *set);
void guards_release(GuardSet *set); /* drops what getattr made; call it when the registers are no longer read */

/* ---- template.c: Python values over slots, numbers and registers ---- */

typedef struct Template Template;
typedef struct Frame Frame;

struct Template {
    uint8_t tag;
    int32_t index;     /* slot, number or register; how many entries an object has */
    int32_t count;     /* parts */
    Template *parts;   /* owned */
    PyObject *object;  /* borrowed from the plan: the constant, the callable or the class */
    PyTypeObject *builtin; /* borrowed: of an object, the class written in C that it is made as */
};

int template_parse(PyObject *tuple, Template *out, Py_ssize_t slots, Py_ssize_t numbers);
PyObject *template_build(const Template *template, Frame *frame); /* a new reference */
void template_clear(Template *template);

/* Calls `each(template, context)` for the template and all its parts. */
int template_walk(Template *template, int (*each)(Template *, void *), void *context);

enum { T_TENSOR, T_INT, T_REAL, T_CONST, T_REGISTER, T_TUPLE, T_LIST, T_SET, T_FROZENSET, T_DICT, T_SLICE, T_BUILD, T_OBJECT };

/* ---- plan.c ---- */

typedef struct PlanProgram PlanProgram;
extern PyTypeObject *PlanProgram_Type;
extern PyObject *Declined;
extern PyTypeObject *make_plan_type(PyObject *module);

/* Memory for temporaries, 64-byte aligned. */
typedef struct {
    char *memory; /* owned, or NULL */
    size_t size, needed; /* needed: the most that its run asked for */
} Arena;

/* The same on another device: a tensor of bytes, which lives for one run. Torch's allocator gives its memory to whoever comes next on the same
   stream, where the launched kernels are done with it by then. */
typedef struct {
    PyObject *tensor; /* owned, or NULL */
    char *memory;
    int64_t size;
} DeviceArena;

/* What one run of a plan works on. A plan owns one for its usual run; a run that finds it busy makes another. */
struct Frame {
    const PlanProgram *plan; /* borrowed: the runner holds it */
    int64_t *numbers;
    PyObject **tensors;   /* NULL where the slot has no tensor object (arena, view) or is released; owned, but for kept inputs. One is free in front */
    PyObject *kept;       /* owned: the tuple that holds the kept inputs which stand in `tensors`, NULL: none stand there */
    char **data;          /* of each slot; valid from the slot's step on */
    PyObject **registers; /* owned: those that the plan's templates name, in the plan's own order */
    Arena arena;          /* owned, during a run */
    DeviceArena *arenas;  /* owned: those of other devices, in the plan's order */
    PyObject *states;     /* owned, during a run: the states of the plan's generators before it */
    bool busy, committed; /* committed: something that must not happen twice has happened, or must be seen */
};

PyObject *frame_tensor(Frame *frame, int32_t slot); /* the slot as a tensor, a new reference; arena and view slots are wrapped for the occasion */

enum { RUN_DECLINED, RUN_DONE };
/* RUN_DONE: *result is the value, or NULL with the exception that the program itself raised. RUN_DECLINED: no exception, call the original. */
int plan_run(PlanProgram *plan, PyObject *const *registers, const int64_t *numbers, uint64_t age, PyObject **result);
#define AGE_UNKNOWN UINT64_MAX /* for `age`, that of the guards: any register may have changed */
int plan_keep(PlanProgram *plan, const bool *settled); /* once: the inputs to keep from call to call. 0, or -1 with an exception */
void plan_forget(PlanProgram *plan);                   /* keeps no inputs until the next run; may run Python code */
bool plan_swapped(PlanProgram *plan);                  /* since it was asked last, a kept input was replaced */
Py_ssize_t plan_registers_needed(PlanProgram *plan);
Py_ssize_t plan_numbers_bound(PlanProgram *plan);

/* ---- arena.c ---- */

bool arena_reach(Arena *arena, int64_t bytes); /* makes it so large at least, and keeps what is in it; false: no memory */
void arena_return(Arena *arena);               /* after the run */
void arena_user(int more);                     /* 1 for each plan that takes arenas, -1 when it goes */
PyObject *spare_bytes_py(PyObject *module, PyObject *none);

/* ---- cuda.c: the driver of a GPU, which is looked for at its first use; -1 and NULL come with RuntimeError ---- */

int driver_ready(int32_t device); /* 0: kernels can be loaded for the device and launched on it */
int driver_launch(uint64_t function, int32_t device, unsigned grid, unsigned threads, unsigned shared, void *stream, void **parameters);
bool driver_is_stand_in(void);    /* a test's, for which any memory will do */
PyObject *load_module_py(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *use_driver_py(PyObject *module, PyObject *path);

/* ---- threads.c ---- */

typedef int64_t (*Kernel)(char **buffers, const int64_t *numbers, int64_t begin, int64_t end);

/* Runs the kernel over [0, extent) in `threads` pieces; the first non-zero answer of a piece is the answer. */
int64_t threads_run(Kernel kernel, char **buffers, const int64_t *numbers, int64_t extent, int threads);
typedef void (*Piece)(void *context, int64_t begin, int64_t end);
void threads_each(Piece piece, void *context, int64_t extent, int threads);
int threads_usable(void); /* 1 without libgomp and in a forked child */
void threads_watch_forks(void);

/* ---- bind.c ---- */

typedef struct {
    PyCodeObject *code; /* owned: the layout below is of this code object */
    int positional, positional_only, keyword_only, total;
    bool var_positional, var_keywords;
} Signature;

int signature_read(Signature *signature, PyCodeObject *code);

/* Fills `bound` (signature->total entries) with new references. `first` is prepended when not NULL. 1 bound, 0 cannot be bound, -1 error. */
int bind_call(const Signature *signature, PyFunctionObject *function, PyObject *first, PyObject *const *args, Py_ssize_t nargs,
              PyObject *names, PyObject **bound);
PyObject *bound_names(PyObject *module, PyObject *code);

/* ---- dispatch.c ---- */

extern PyTypeObject *make_dispatch_type(PyObject *module);
extern PyTypeObject *make_compiled_type(PyObject *module);
PyObject *bypass_py(PyObject *module, PyObject *on);
void headroom(int more);
PyObject *headroom_py(PyObject *module, PyObject *more);
PyObject *dispatch_call(PyObject *dispatch, PyObject *const *args, size_t flags, PyObject *names);
PyObject *dispatch_function(PyObject *dispatch); /* borrowed; NULL for what is no Dispatch, or has an owner */

/* Which calls reach a Dispatch: those of its function, of this code, with a first argument of this address (an int) if there is one. */
typedef struct {
    PyObject *code, *first; /* owned, or NULL */
} Door;
Door *dispatch_door(PyObject *dispatch);

/* For a frame of `code` that has its arguments and has not started: its result, or `plain` and no exception to run the frame. */
PyObject *dispatch_frame(PyObject *dispatch, PyObject *code, PyObject *const *bound, bool *plain);

/* ---- autograd.c ---- */

extern PyTypeObject *make_attach_type(PyObject *module);
bool is_attach(PyObject *object);
PyObject *saved_drop_py(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* ---- frame_hook.c ---- */

PyObject *door_pass(PyObject *function); /* what to give to door_passed after the call */
void door_passed(PyObject *before);
void door_close(PyObject *dispatch);
PyObject *open_door_py(PyObject *module, PyObject *args);
PyObject *forget_first_py(PyObject *module, PyObject *args);
PyObject *behind_door_py(PyObject *module, PyObject *args);
void hide_frames(void);
PyObject *at_frame_py(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *close_door_py(PyObject *module, PyObject *dispatch);
PyObject *watch_calls_py(PyObject *module, PyObject *args);

/* ---- tags.c: version tags of dicts and types ---- */

/* The low bits of a dict's tag say who watches it, and come and go. */
#if PY_VERSION_HEX < 0x030C0000
enum { TAG_SHIFT = 0 };
#elif PY_VERSION_HEX < 0x030D0000
enum { TAG_SHIFT = 8 };
#else
enum { TAG_SHIFT = 12 };
#endif

extern bool trust_dict_tags, trust_type_tags;
uint64_t *dict_tag_word(PyObject *dict);
unsigned int type_tag(PyTypeObject *type); /* assigns one if it can; 0: none */
static inline unsigned int type_tag_now(PyTypeObject *type) /* without assigning one */
{
#if PY_VERSION_HEX < 0x030D0000
    return type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG ? type->tp_version_tag : 0;
#else
    return type->tp_version_tag;
#endif
}
PyObject *watch_open_py(PyObject *module, PyObject *trusted); /* watch.c */
PyObject *dict_tag_py(PyObject *module, PyObject *dict);
PyObject *type_tag_py(PyObject *module, PyObject *type);
PyObject *trust_tags_py(PyObject *module, PyObject *args);
PyObject *instance_dict(PyObject *instance);
PyObject *instance_dict_py(PyObject *module, PyObject *instance);
PyObject *type_lookup_py(PyObject *module, PyObject *args);

static inline double as_real(int64_t word) { double value; memcpy(&value, &word, 8); return value; }
static inline int64_t as_word(double value) { int64_t word; memcpy(&word, &value, 8); return word; }

#endif
