/* Reads version tags of dicts and types, and the raw places of attributes, where CPython offers no function for it. */
#include "tags.h"

/* Set after a probe on scratch objects: 3.13.0 stores attributes into a dict's shared values without moving its tag. */
bool trust_dict_tags, trust_type_tags;

/* A 32-bit or wider word that moves with each change; CPython deprecates the field in 3.12 in favour of watchers. */
uint64_t *dict_tag_word(PyObject *dict)
{
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wdeprecated-declarations\"")
    return &((PyDictObject *)dict)->ma_version_tag;
    _Pragma("GCC diagnostic pop")
}

unsigned int type_tag(PyTypeObject *type)
{
    static PyObject *name;
    if (!name && !(name = PyUnicode_InternFromString("__class__"))) {
        PyErr_Clear();
        return 0;
    }
    _PyType_Lookup(type, name); /* a look-up assigns the tag */
    return type_tag_now(type);
}

PyObject *dict_tag_py(PyObject *Py_UNUSED(module), PyObject *dict)
{
    if (!PyDict_Check(dict))
        return PyErr_Format(PyExc_TypeError, "not a dict");
    return PyLong_FromUnsignedLongLong(*dict_tag_word(dict));
}

PyObject *type_tag_py(PyObject *Py_UNUSED(module), PyObject *type)
{
    if (!PyType_Check(type))
        return PyErr_Format(PyExc_TypeError, "not a type");
    return PyLong_FromUnsignedLong(type_tag((PyTypeObject *)type));
}

PyObject *trust_tags_py(PyObject *Py_UNUSED(module), PyObject *args)
{
    int dicts, types;
    if (!PyArg_ParseTuple(args, "pp", &dicts, &types))
        return NULL;
    trust_dict_tags = dicts, trust_type_tags = types;
    Py_RETURN_NONE;
}

/* The instance dict, borrowed. One that CPython has not made yet is empty, and is made here as reading __dict__
   makes it; no collection runs meanwhile, as the caller may hold other borrowed objects. */
PyObject *instance_dict(PyObject *instance)
{
    PyObject **place = _PyObject_GetDictPtr(instance);
    if (place && !*place) {
        int collecting = PyGC_Disable();
        PyObject *made = PyObject_GenericGetDict(instance, NULL);
        if (collecting)
            PyGC_Enable();
        if (!made)
            PyErr_Clear();
        Py_XDECREF(made);
    }
    return place && *place && PyDict_Check(*place) ? *place : NULL;
}

PyObject *instance_dict_py(PyObject *Py_UNUSED(module), PyObject *instance)
{
    PyObject *found = instance_dict(instance);
    return Py_NewRef(found ? found : Py_None);
}

PyObject *type_lookup_py(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count < 2 || count > 3 || !PyType_Check(args[0]) || !PyUnicode_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "type_lookup() takes a type, a name and perhaps a default");
        return NULL;
    }
    PyObject *found = _PyType_Lookup((PyTypeObject *)args[0], args[1]);
    if (!found && count == 2)
        return PyErr_Format(PyExc_AttributeError, "%U", args[1]);
    return Py_NewRef(found ? found : args[2]);
}
