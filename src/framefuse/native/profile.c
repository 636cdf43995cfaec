/* Opens and closes ranges of torch's profiler. Nothing that goes wrong here is an error of the call. */
#include "profile.h"

Profile profile;

bool profile_looked(void)
{
    profile.tag = *dict_tag_word(profile.home);
    PyObject *on = PyDict_GetItem(profile.home, profile.name);
    profile.listens = on == Py_True;
    return profile.listens;
}

/* The names of the steps of a plan, and behind them that of the whole; NULL where it has none. */
PyObject *profile_labels(PyObject *plan)
{
    PyObject *make = PyObject_GetAttrString(plan, "labels"), *labels = NULL;
    if (make && make != Py_None)
        labels = PyObject_CallNoArgs(make);
    Py_XDECREF(make);
    if (labels && !PyTuple_Check(labels))
        Py_CLEAR(labels);
    if (!labels)
        PyErr_Clear();
    return labels;
}

PyObject *profile_enter(PyObject *labels, Py_ssize_t place)
{
    if (!labels || place >= PyTuple_GET_SIZE(labels))
        return NULL;
    PyObject *label = PyTuple_GET_ITEM(labels, place);
    PyObject *range = PyUnicode_Check(label) && PyUnicode_GET_LENGTH(label) ? PyObject_CallOneArg(profile.enter, label)
                                                                            : NULL;
    if (!range)
        PyErr_Clear();
    return range;
}

/* Takes the range. An exception that is on its way stays. */
void profile_leave(PyObject *range)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyObject *done = PyObject_CallOneArg(profile.leave, range);
    if (!done)
        PyErr_Clear();
    Py_XDECREF(done);
    Py_DECREF(range);
    PyErr_Restore(kind, error, trace);
}

PyObject *profile_with_py(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *home, *name, *enter, *leave;
    if (!PyArg_ParseTuple(args, "O!UOO", &PyDict_Type, &home, &name, &enter, &leave))
        return NULL;
    Py_XSETREF(profile.home, Py_NewRef(home));
    Py_XSETREF(profile.name, Py_NewRef(name));
    Py_XSETREF(profile.enter, Py_NewRef(enter));
    Py_XSETREF(profile.leave, Py_NewRef(leave));
    profile_looked();
    Py_RETURN_NONE;
}
