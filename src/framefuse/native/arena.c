/* Lends memory for the temporaries of a run and takes it back after it, so that plans that do not run at the same
   time share it. */
#include "arena.h"

enum { ALIGNMENT = 64, SPARES = 4, WINDOW = 256 };

/* Arenas that no run holds. All of this is used with the GIL held. */
static Arena spares[SPARES];
static Py_ssize_t users; /* plans that take arenas */
/* Of every WINDOW runs the most that one took: a spare arena of more than twice that is given up, so that one large
   call is not paid for ever. */
static size_t most;
static int runs;

static bool make(Arena *arena, size_t size)
{
    *arena = (Arena){NULL, 0, 0};
    size_t room = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    arena->memory = aligned_alloc(ALIGNMENT, room);
    arena->size = arena->memory ? room : 0;
    return arena->memory != NULL;
}

static void drop(Arena *arena)
{
    free(arena->memory);
    *arena = (Arena){NULL, 0, 0};
}

/* The smallest spare arena that is large enough; else a new one in place of the largest. */
static bool take(Arena *arena, size_t size)
{
    Arena *best = NULL;
    for (Arena *spare = spares; spare < spares + SPARES; spare++)
        if (spare->memory
            && (!best
                || (best->size < size ? spare->size > best->size : spare->size >= size && spare->size < best->size)))
            best = spare;
    if (best && best->size >= size) {
        *arena = *best;
        *best = (Arena){NULL, 0, 0};
        return true;
    }
    if (best)
        drop(best);
    return make(arena, size);
}

/* Grows what is held: a size that only a step's result tells may come while earlier slots are in use. */
static bool grow(Arena *arena, size_t size)
{
    Arena grown;
    if (!make(&grown, size))
        return false;
    memcpy(grown.memory, arena->memory, arena->size);
    free(arena->memory);
    *arena = grown;
    return true;
}

bool arena_reach(Arena *arena, int64_t bytes)
{
    if (bytes < 0 || bytes > (int64_t)1 << 46)
        return false;
    size_t size = bytes ? (size_t)bytes : 1;
    if (size > arena->size && !(arena->memory ? grow(arena, size) : take(arena, size)))
        return false;
    arena->needed = size > arena->needed ? size : arena->needed;
    return true;
}

void arena_return(Arena *arena)
{
    most = arena->needed > most ? arena->needed : most;
    arena->needed = 0;
    Arena *place = spares;
    for (Arena *spare = spares; spare < spares + SPARES; spare++)
        if (spare->size < place->size)
            place = spare;
    if (!users || place->size > arena->size) {
        drop(arena);
    } else {
        drop(place);
        *place = *arena;
        *arena = (Arena){NULL, 0, 0};
    }
    if (LIKELY(++runs < WINDOW))
        return;
    for (Arena *spare = spares; spare < spares + SPARES; spare++)
        if (spare->size / 2 > most)
            drop(spare);
    runs = 0, most = 0;
}

void arena_user(int more)
{
    users += more;
    for (Arena *spare = spares; !users && spare < spares + SPARES; spare++)
        drop(spare);
}

PyObject *spare_bytes_py(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    size_t total = 0;
    for (Arena *spare = spares; spare < spares + SPARES; spare++)
        total += spare->size;
    return PyLong_FromSize_t(total);
}
