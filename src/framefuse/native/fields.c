/* Reads the fields of the dataclasses that a plan is made of, and refuses values out of range. */
#include "fields.h"

int wrong(const char *what, PyObject *where)
{
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%s in %R", what, where);
    return -1;
}

void *zeros(size_t count, size_t size)
{
    void *memory = PyMem_Calloc(count + 1, size);
    if (!memory)
        PyErr_NoMemory();
    return memory;
}

/* An int field; -1 with an exception, or where it is out of [least, limit). */
int field_int(PyObject *object, const char *name, Py_ssize_t least, Py_ssize_t limit, int32_t *out)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    Py_ssize_t number = value ? PyLong_AsSsize_t(value) : -1;
    Py_XDECREF(value);
    if (PyErr_Occurred())
        return -1;
    *out = (int32_t)number;
    return number < least || number >= limit ? wrong(name, object) : 0;
}

int field_bool(PyObject *object, const char *name, bool *out)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    int truth = value ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    *out = truth == 1;
    return truth < 0 ? -1 : 0;
}

PyObject *field_tuple(PyObject *object, const char *name)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    if (value && !PyTuple_Check(value)) {
        wrong("a field that is no tuple", object);
        Py_CLEAR(value);
    }
    return value;
}

int items_as_indices(PyObject *tuple, Py_ssize_t limit, int32_t *out)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        Py_ssize_t value = PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, i));
        if (PyErr_Occurred() || value < 0 || value >= limit)
            return wrong("an index out of range", tuple);
        out[i] = (int32_t)value;
    }
    return 0;
}

/* A tuple of indices below the limit as an owned array. */
int field_indices(PyObject *object, const char *name, Py_ssize_t limit, int32_t **out, int32_t *count)
{
    PyObject *tuple = field_tuple(object, name);
    int status = -1;
    if (tuple && (*out = zeros((size_t)PyTuple_GET_SIZE(tuple), sizeof **out))) {
        *count = (int32_t)PyTuple_GET_SIZE(tuple);
        status = items_as_indices(tuple, limit, *out);
    }
    Py_XDECREF(tuple);
    return status;
}

int field_triple(PyObject *object, const char *name, Py_ssize_t limit, int32_t *out)
{
    PyObject *tuple = field_tuple(object, name);
    int status = !tuple                         ? -1
                 : PyTuple_GET_SIZE(tuple) != 3 ? wrong("not three strides", object)
                                                : items_as_indices(tuple, limit, out);
    Py_XDECREF(tuple);
    return status;
}
