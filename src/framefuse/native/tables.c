/* Tells Python the names that native code gives to places, steps, templates, kinds of arguments and instructions. */
#include "tables.h"

#include "guard_program.h"
#include "launch.h"
#include "numbers.h"
#include "plan.h"

#define NAME(tag, name) name,
#define OWN_NAME(name) #name,
static const char *const PLACES[] = {SLOT_PLACES(NAME) NULL}, *const STEPS[] = {STEP_KINDS(NAME) NULL},
                         *const TEMPLATES[] = {TEMPLATE_TAGS(NAME) NULL},
                         *const ARGUMENTS[] = {LAUNCH_ARGUMENTS(NAME) NULL},
                         *const NUMBERS[] = {NUMBER_OPERATIONS(NAME) NULL},
                         *const GUARDS[] = {GUARD_OPERATIONS(OWN_NAME) NULL},
                         *const RELATIONS[] = {NUMBER_RELATIONS(NAME) NULL},
                         *const UNSET[] = {UNSET_KIND_NAMES(NAME) NULL};

static const struct {
    const char *name;
    const char *const *rows; /* ends with NULL */
} TABLES[] = {
    {"places", PLACES},       {"steps", STEPS},     {"templates", TEMPLATES},
    {"arguments", ARGUMENTS}, {"numbers", NUMBERS}, {"guards", GUARDS},
    {"relations", RELATIONS}, {"unset", UNSET},
};

static PyObject *names_of(const char *const *rows)
{
    Py_ssize_t count = 0;
    while (rows[count])
        count++;
    PyObject *names = PyTuple_New(count);
    for (Py_ssize_t i = 0; names && i < count; i++) {
        PyObject *name = PyUnicode_FromString(rows[i]);
        if (name)
            PyTuple_SET_ITEM(names, i, name);
        else
            Py_CLEAR(names);
    }
    return names;
}

PyObject *tables_py(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    PyObject *tables = PyDict_New();
    for (size_t i = 0; tables && i < sizeof TABLES / sizeof *TABLES; i++) {
        PyObject *names = names_of(TABLES[i].rows);
        if (!names || PyDict_SetItemString(tables, TABLES[i].name, names) < 0)
            Py_CLEAR(tables);
        Py_XDECREF(names);
    }
    return tables;
}
