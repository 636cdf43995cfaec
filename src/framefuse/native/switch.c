/* Keeps the process's switch, and looks for torch's stance where it may have changed. */
#include "switch.h"

Switch process_switch;
static PyObject *traced_told; /* called once, when a call first runs eagerly because this thread is traced */
static bool told;

/* Reads torch's stance; true where calls are to run eagerly. Errors of what is read count as no stance. */
bool switch_looked(void)
{
    Switch *now = &process_switch;
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    now->modules = PyDict_GET_SIZE(now->imported);
    if (!now->stance_home) {
        PyObject *module = PyDict_GetItemString(now->imported, "torch._dynamo.eval_frame");
        if (module && PyModule_Check(module)) {
            now->stance_home = PyModule_GetDict(module);
            Py_INCREF(now->stance_home);
        }
    }
    now->stance_off = false;
    if (now->stance_home) {
        now->stance_tag = *dict_tag_word(now->stance_home);
        PyObject *stance = PyDict_GetItemString(now->stance_home, "_stance");
        PyObject *name = stance ? PyObject_GetAttrString(stance, "stance") : NULL;
        now->stance_off = name && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "force_eager") == 0;
        Py_XDECREF(name);
    }
    PyErr_Clear();
    PyErr_Restore(kind, error, trace);
    return now->off || now->stance_off;
}

/* A debugger or a coverage tool listens in this thread: lines that compiled code leaves out would never be seen. */
bool switch_traced(void)
{
    if (told || !traced_told)
        return true;
    told = true;
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyObject *result = PyObject_CallNoArgs(traced_told);
    if (!result)
        PyErr_WriteUnraisable(traced_told);
    Py_XDECREF(result);
    PyErr_Restore(kind, error, trace);
    return true;
}

PyObject *switch_py(PyObject *Py_UNUSED(module), PyObject *args)
{
    int off = -1;
    bool before = process_switch.off;
    if (!PyArg_ParseTuple(args, "|p", &off))
        return NULL;
    if (off >= 0)
        process_switch.off = off;
    return PyBool_FromLong(before);
}

PyObject *watch_switch_py(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *imported, *tell;
    if (!PyArg_ParseTuple(args, "O!O", &PyDict_Type, &imported, &tell))
        return NULL;
    Py_XSETREF(process_switch.imported, Py_NewRef(imported));
    Py_XSETREF(traced_told, Py_NewRef(tell));
    process_switch.modules = -1;
    Py_RETURN_NONE;
}
