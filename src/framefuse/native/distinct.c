/* Tells whether registers hold as many objects as there are registers, and remembers the addresses for which they
   did. */
#include "distinct.h"

Distinct *distinct_parse(PyObject *registers)
{
    Py_ssize_t count = PyTuple_GET_SIZE(registers);
    Distinct *distinct = PyMem_Calloc(1, sizeof *distinct);
    if (!distinct)
        return (Distinct *)PyErr_NoMemory();
    distinct->count = (int32_t)count;
    distinct->room = 4;
    while (distinct->room < 2 * count)
        distinct->room *= 2;
    distinct->registers = PyMem_Calloc((size_t)count + 1, sizeof *distinct->registers);
    distinct->seen = PyMem_Calloc((size_t)count + 1, sizeof *distinct->seen);
    distinct->table = PyMem_Calloc((size_t)distinct->room, sizeof *distinct->table);
    if (!distinct->registers || !distinct->seen || !distinct->table)
        PyErr_NoMemory();
    for (int32_t i = 0; i < distinct->count && !PyErr_Occurred(); i++)
        distinct->registers[i] = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(registers, i));
    if (!PyErr_Occurred())
        return distinct;
    distinct_free(distinct);
    return NULL;
}

void distinct_free(Distinct *distinct)
{
    PyMem_Free(distinct->registers);
    PyMem_Free(distinct->seen);
    PyMem_Free(distinct->table);
    PyMem_Free(distinct);
}

/* Puts an address into the table; false where it lies there already. */
static bool enter(Distinct *distinct, uintptr_t address)
{
    uintptr_t mask = (uintptr_t)distinct->room - 1, at = (address >> 4) * 0x9e3779b97f4a7c15u >> 32 & mask;
    for (; distinct->table[at]; at = (at + 1) & mask)
        if (distinct->table[at] == address)
            return false;
    distinct->table[at] = address;
    return true;
}

/* Whether two objects are one is a question about addresses alone, so that the answer of an earlier check stands for
   the same addresses. */
bool distinct_holds(Distinct *distinct, PyObject *const *registers)
{
    bool same = distinct->known;
    for (int32_t i = 0; i < distinct->count; i++) {
        uintptr_t address = (uintptr_t)registers[distinct->registers[i]];
        same &= address == distinct->seen[i];
        distinct->seen[i] = address;
    }
    if (LIKELY(same))
        return true;
    memset(distinct->table, 0, (size_t)distinct->room * sizeof *distinct->table);
    distinct->known = false;
    for (int32_t i = 0; i < distinct->count; i++)
        if (!enter(distinct, distinct->seen[i]))
            return false;
    return distinct->known = true;
}
