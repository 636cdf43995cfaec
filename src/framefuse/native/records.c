/* Makes the objects of a file of records: tuples and instances with slots at once, all others by calls of Python. */
#include "records.h"

#include <structmember.h>

enum { MOST = 48 }; /* parts that are passed, or filled in, without a list */

typedef struct {
    PyObject *make;
    enum { LIST, TUPLE, SPREAD, SLOTS } how;
    Py_ssize_t count;
    Py_ssize_t offsets[MOST];
} Row;

/* Where the slots of a class lie in its instances. */
static int parse_slots(Row *row, PyObject *slots)
{
    row->how = SLOTS;
    row->count = PyTuple_GET_SIZE(slots);
    bool fit = PyType_Check(row->make) && row->count <= MOST;
    for (Py_ssize_t i = 0; i < row->count && fit; i++) {
        PyObject *slot = PyTuple_GET_ITEM(slots, i);
        fit = Py_IS_TYPE(slot, &PyMemberDescr_Type) &&
              PyType_IsSubtype((PyTypeObject *)row->make, PyDescr_TYPE(slot)) &&
              ((PyMemberDescrObject *)slot)->d_member->type == T_OBJECT_EX;
        if (fit)
            row->offsets[i] = ((PyMemberDescrObject *)slot)->d_member->offset;
    }
    if (!fit)
        PyErr_Format(PyExc_ValueError, "no slots of %R", row->make);
    return fit ? 0 : -1;
}

static int parse_row(Row *row, PyObject *given)
{
    PyObject *how;
    if (!PyArg_ParseTuple(given, "OO", &row->make, &how))
        return -1;
    if (PyTuple_Check(how))
        return parse_slots(row, how);
    row->how = how == Py_True ? SPREAD : row->make == (PyObject *)&PyTuple_Type ? TUPLE : LIST;
    return 0;
}

/* The object of a number, borrowed: one of those made so far, or a constant. */
static PyObject *held(PyObject *number, PyObject *const *made, Py_ssize_t count, PyObject *constants)
{
    Py_ssize_t at = PyLong_AsSsize_t(number);
    if (at >= 0 && at < count)
        return made[at];
    if (at < 0 && -1 - at < PyList_GET_SIZE(constants) && !PyErr_Occurred())
        return PyList_GET_ITEM(constants, -1 - at);
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "a record names %zd of %zd", at, count);
    return NULL;
}

static PyObject *instance(const Row *row, PyObject *const *parts, Py_ssize_t count)
{
    PyTypeObject *type = (PyTypeObject *)row->make;
    if (count != row->count)
        return PyErr_Format(PyExc_ValueError, "%zd parts of %R", count, row->make);
    PyObject *object = type->tp_alloc(type, 0);
    for (Py_ssize_t i = 0; object && i < count; i++)
        *(PyObject **)((char *)object + row->offsets[i]) = Py_NewRef(parts[i]);
    return object;
}

/* The object of parts that stand in a sequence of C, or in a list. */
static PyObject *of_parts(const Row *row, PyObject *const *parts, Py_ssize_t count)
{
    if (row->how == SLOTS)
        return instance(row, parts, count);
    if (row->how == SPREAD)
        return PyObject_Vectorcall(row->make, parts, (size_t)count, NULL);
    PyObject *all = row->how == TUPLE ? PyTuple_New(count) : PyList_New(count);
    for (Py_ssize_t i = 0; all && i < count; i++) {
        PyObject *part = Py_NewRef(parts[i]);
        if (row->how == TUPLE)
            PyTuple_SET_ITEM(all, i, part);
        else
            PyList_SET_ITEM(all, i, part);
    }
    if (!all || row->how == TUPLE)
        return all;
    PyObject *object = PyObject_CallOneArg(row->make, all);
    Py_DECREF(all);
    return object;
}

static PyObject *make(const Row *rows, Py_ssize_t row_count, PyObject *record, PyObject *const *made, Py_ssize_t place,
                      PyObject *constants)
{
    if (!PyTuple_Check(record) || PyTuple_GET_SIZE(record) < 1)
        return PyErr_Format(PyExc_ValueError, "record %zd is none", place);
    Py_ssize_t kind = PyLong_AsSsize_t(PyTuple_GET_ITEM(record, 0)), count = PyTuple_GET_SIZE(record) - 1;
    if (kind < 0 || kind >= row_count)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "no row %zd", kind);
    PyObject *few[MOST], **parts = few, *object = NULL;
    if (count > MOST && !(parts = PyMem_Malloc((size_t)count * sizeof *parts)))
        return PyErr_NoMemory();
    Py_ssize_t i = 0;
    while (i < count && (parts[i] = held(PyTuple_GET_ITEM(record, i + 1), made, place, constants)))
        i++;
    if (i == count)
        object = of_parts(&rows[kind], parts, count);
    if (parts != few)
        PyMem_Free(parts);
    return object;
}

PyObject *read_records_py(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *given, *records, *constants, *root, *result = NULL;
    if (!PyArg_ParseTuple(args, "O!O!O!O", &PyTuple_Type, &given, &PyList_Type, &records, &PyList_Type, &constants,
                          &root))
        return NULL;
    Py_ssize_t row_count = PyTuple_GET_SIZE(given), count = PyList_GET_SIZE(records), place = 0;
    Row *rows = PyMem_Calloc((size_t)row_count + 1, sizeof *rows);
    PyObject **made = PyMem_Calloc((size_t)count + 1, sizeof *made);
    if (!rows || !made)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < row_count && !PyErr_Occurred(); i++)
        parse_row(&rows[i], PyTuple_GET_ITEM(given, i));
    /* A maker is code of Python, which could shorten the lists. */
    while (!PyErr_Occurred() && place < count && place < PyList_GET_SIZE(records)) {
        made[place] = make(rows, row_count, PyList_GET_ITEM(records, place), made, place, constants);
        place += made[place] != NULL;
    }
    if (!PyErr_Occurred())
        result = Py_XNewRef(held(root, made, place, constants));
    while (place > 0)
        Py_DECREF(made[--place]);
    PyMem_Free(made);
    PyMem_Free(rows);
    return result;
}
