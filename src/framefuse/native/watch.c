/* Turns CPython's reports of changed dicts into marks in the guard sets that rest on them; before 3.12 nothing can
   be watched. */
#include "watch.h"

#include "guard_program.h"

#if PY_VERSION_HEX >= 0x030C0000

typedef struct Listener {
    GuardSet *set; /* borrowed: it forgets its listeners before it goes */
    int32_t index; /* of the dict in the set */
    struct Listener *next;
} Listener;

/* Open addressing over the dicts' addresses; a dict without listeners keeps its place until the table grows. */
typedef struct {
    PyObject *dict; /* borrowed: every listener's set holds it; NULL: free */
    Listener *first;
} Row;

static struct {
    Row *rows;
    size_t room, used; /* room is a power of two */
    int id;            /* of our watcher, -1: none */
    bool trusted;
} table = {.id = -1};

static inline Row *row_of(Row *rows, size_t room, PyObject *dict)
{
    size_t at = ((uintptr_t)dict >> 4) * 0x9E3779B97F4A7C15ull >> 20;
    while (rows[at & (room - 1)].dict && rows[at & (room - 1)].dict != dict)
        at++;
    return &rows[at & (room - 1)];
}

/* Runs before each change of a watched dict, whoever watches it: it has to be quick, and may run nothing. */
static int dict_changes(PyDict_WatchEvent Py_UNUSED(event), PyObject *dict, PyObject *Py_UNUSED(key),
                        PyObject *Py_UNUSED(value))
{
    if (table.room)
        for (Listener *each = row_of(table.rows, table.room, dict)->first; each; each = each->next)
            each->set->dicts[each->index].moved = each->set->reported = true;
    return 0;
}

static bool grow(void)
{
    size_t room = table.room ? table.room : 64, live = 0;
    for (size_t i = 0; i < table.room; i++)
        live += table.rows[i].first != NULL;
    while (room < 4 * (live + 1))
        room *= 2;
    Row *rows = PyMem_Calloc(room, sizeof *rows);
    if (!rows)
        return false;
    for (size_t i = 0; i < table.room; i++)
        if (table.rows[i].first)
            *row_of(rows, room, table.rows[i].dict) = table.rows[i];
    PyMem_Free(table.rows);
    table.rows = rows, table.room = room, table.used = live;
    return true;
}

/* CPython 3.13.0 reports no attribute store while the dict shares the values inside its object (gh-125608): an entry
   taken out and put back gives the dict its own. Nobody can see it: the dict is the same, and so is its order. */
static bool own_values(PyObject *dict)
{
    if (PY_VERSION_HEX < 0x030D0000 || !((PyDictObject *)dict)->ma_values)
        return true;
    if (!PyDict_CheckExact(dict))
        return false;
    PyObject *name = PyDict_GET_SIZE(dict) ? NULL : PyUnicode_FromString("framefuse"), *pair;
    bool done = !name || PyDict_SetItem(dict, name, Py_None) == 0;
    if (done && (pair = PyObject_CallMethod(dict, "popitem", NULL))) {
        done = name || PyDict_SetItem(dict, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1)) == 0;
        Py_DECREF(pair);
    } else {
        done = false;
    }
    Py_XDECREF(name);
    PyErr_Clear();
    return done && !((PyDictObject *)dict)->ma_values;
}

bool watch_dict(PyObject *dict, GuardSet *set, int32_t index)
{
    if (!table.trusted || !own_values(dict) || (2 * table.used >= table.room && !grow()))
        return false;
    Listener *listener = PyMem_Malloc(sizeof *listener);
    Row *row = row_of(table.rows, table.room, dict);
    if (!listener || (!row->first && PyDict_Watch(table.id, dict) < 0)) {
        PyErr_Clear();
        PyMem_Free(listener);
        return false;
    }
    table.used += row->dict == NULL;
    *listener = (Listener){set, index, row->first};
    *row = (Row){dict, listener};
    return true;
}

void watch_move(GuardSet *set, PyObject *dict, int32_t from, int32_t to)
{
    Row *row = row_of(table.rows, table.room, dict);
    for (Listener **each = &row->first; *each; each = &(*each)->next) {
        Listener *listener = *each;
        if (listener->set != set || listener->index != from)
            continue;
        listener->index = to;
        if (to < 0) {
            *each = listener->next;
            PyMem_Free(listener);
            if (!row->first && PyDict_Unwatch(table.id, dict) < 0)
                PyErr_Clear();
        }
        return;
    }
}

void watch_forget(GuardSet *set)
{
    for (int32_t i = 0; i < set->op_count; i++)
        if (set->ops[i].code == G_DICTS && set->ops[i].as.dicts.watched) {
            for (int32_t d = set->ops[i].from; d < set->ops[i].as.dicts.settled; d++)
                watch_move(set, set->blocks[set->dicts[d].block].subject, d, -1);
            set->ops[i].as.dicts.settled = set->ops[i].from;
        }
}

PyObject *watch_open_py(PyObject *Py_UNUSED(module), PyObject *trusted)
{
    int yes = PyObject_IsTrue(trusted);
    if (yes > 0 && table.id < 0 && (table.id = PyDict_AddWatcher(dict_changes)) < 0)
        PyErr_Clear(); /* all eight are taken: tags, or exact checks */
    table.trusted = yes > 0 && table.id >= 0;
    return yes < 0 ? NULL : PyBool_FromLong(table.trusted);
}

#else

bool watch_dict(PyObject *Py_UNUSED(dict), GuardSet *Py_UNUSED(set), int32_t Py_UNUSED(index)) { return false; }
void watch_move(GuardSet *Py_UNUSED(set), PyObject *Py_UNUSED(dict), int32_t Py_UNUSED(from), int32_t Py_UNUSED(to)) {}
void watch_forget(GuardSet *Py_UNUSED(set)) {}
PyObject *watch_open_py(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(trusted)) { Py_RETURN_FALSE; }

#endif
