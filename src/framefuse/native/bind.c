/* Binds the arguments of a call into the order of the function's locals, as CPython does before a frame starts. */
#include "bind.h"

int signature_read(Signature *signature, PyCodeObject *code)
{
    Py_XSETREF(signature->code, (PyCodeObject *)Py_NewRef((PyObject *)code));
    signature->positional = code->co_argcount;
    signature->positional_only = code->co_posonlyargcount;
    signature->keyword_only = code->co_kwonlyargcount;
    signature->var_positional = code->co_flags & CO_VARARGS;
    signature->var_keywords = code->co_flags & CO_VARKEYWORDS;
    signature->total =
        signature->positional + signature->keyword_only + signature->var_positional + signature->var_keywords;
    return 0;
}

PyObject *bound_names(PyObject *Py_UNUSED(module), PyObject *code)
{
    if (!PyCode_Check(code))
        return PyErr_Format(PyExc_TypeError, "not a code object");
    Signature signature = {0};
    signature_read(&signature, (PyCodeObject *)code);
    PyObject *names = PyTuple_GetSlice(((PyCodeObject *)code)->co_localsplusnames, 0, signature.total);
    Py_XDECREF(signature.code);
    return names;
}

/* The parameter of that name which may be passed by keyword, or -1. */
static int parameter_named(const Signature *signature, PyObject *name)
{
    PyObject *const *names = ((PyTupleObject *)signature->code->co_localsplusnames)->ob_item;
    int end = signature->positional + signature->keyword_only;
    for (int i = signature->positional_only; i < end; i++)
        if (names[i] == name)
            return i;
    for (int i = signature->positional_only; i < end; i++) /* keywords are interned as a rule */
        if (PyUnicode_Compare(names[i], name) == 0)
            return i;
    return -1;
}

static int bind_keywords(const Signature *signature, PyObject *const *values, PyObject *names, PyObject *rest,
                         PyObject **bound)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        int at = PyUnicode_Check(name) ? parameter_named(signature, name) : -1;
        if (at >= 0) {
            if (bound[at])
                return 0;
            bound[at] = Py_NewRef(values[i]);
        } else if (!rest || !PyUnicode_Check(name)) {
            return 0;
        } else if (PyDict_SetItem(rest, name, values[i]) < 0) {
            return -1;
        }
    }
    return 1;
}

static int bind_defaults(const Signature *signature, PyFunctionObject *function, PyObject **bound)
{
    PyObject *defaults = function->func_defaults, *keyword = function->func_kwdefaults;
    Py_ssize_t count = defaults ? PyTuple_GET_SIZE(defaults) : 0;
    for (int i = 0; i < signature->positional; i++) {
        Py_ssize_t at = i - (signature->positional - count);
        if (bound[i])
            continue;
        if (at < 0)
            return 0;
        bound[i] = Py_NewRef(PyTuple_GET_ITEM(defaults, at));
    }
    for (int i = signature->positional; i < signature->positional + signature->keyword_only; i++) {
        if (bound[i])
            continue;
        PyObject *name = PyTuple_GET_ITEM(signature->code->co_localsplusnames, i);
        PyObject *value = keyword ? PyDict_GetItemWithError(keyword, name) : NULL;
        if (!value)
            return PyErr_Occurred() ? -1 : 0;
        bound[i] = Py_NewRef(value);
    }
    return 1;
}

int bind_call(const Signature *signature, PyFunctionObject *function, PyObject *first, PyObject *const *args,
              Py_ssize_t nargs, PyObject *names, PyObject **bound)
{
    memset(bound, 0, (size_t)signature->total * sizeof *bound);
    Py_ssize_t given = nargs + (first != NULL), shift = first != NULL;
    if (given > signature->positional && !signature->var_positional)
        return 0;
    Py_ssize_t direct = given < signature->positional ? given : signature->positional;
    for (Py_ssize_t i = 0; i < direct; i++)
        bound[i] = Py_NewRef(i < shift ? first : args[i - shift]);
    int end = signature->positional + signature->keyword_only;
    if (signature->var_positional) {
        PyObject *rest = PyTuple_New(given - direct);
        if (!rest)
            return -1;
        for (Py_ssize_t i = direct; i < given; i++)
            PyTuple_SET_ITEM(rest, i - direct, Py_NewRef(i < shift ? first : args[i - shift]));
        bound[end] = rest;
    }
    PyObject *rest = NULL;
    if (signature->var_keywords && !(rest = bound[end + signature->var_positional] = PyDict_New()))
        return -1;
    int status = names ? bind_keywords(signature, args + nargs, names, rest, bound) : 1;
    return status == 1 ? bind_defaults(signature, function, bound) : status;
}
