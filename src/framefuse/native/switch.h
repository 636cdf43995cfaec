/* Whether calls run compiled code at all: the process's own switch, torch's stance, and who traces this thread. */
#ifndef FRAMEFUSE_SWITCH_H
#define FRAMEFUSE_SWITCH_H

#include "base.h"

#include "tags.h"

typedef struct {
    bool off;              /* what the user asked for */
    bool stance_off;       /* torch.compiler.set_stance("force_eager") is in force */
    Py_ssize_t modules;    /* how many modules were imported when torch's compiler was last looked for */
    PyObject *imported;    /* sys.modules */
    PyObject *stance_home; /* the dict that holds torch's stance; NULL while torch's compiler is not imported */
    uint64_t stance_tag;
} Switch;

extern Switch process_switch;
bool switch_looked(void);
bool switch_traced(void);
PyObject *switch_py(PyObject *module, PyObject *args);
PyObject *watch_switch_py(PyObject *module, PyObject *args);

/* True where calls are to run as they would without us. */
static inline bool calls_are_off(void)
{
    Switch *now = &process_switch;
    if (UNLIKELY(PyThreadState_Get()->c_tracefunc != NULL) && switch_traced())
        return true;
    if (UNLIKELY(now->imported && ((PyDictObject *)now->imported)->ma_used != now->modules))
        return switch_looked();
    if (UNLIKELY(now->stance_home && dict_moved(now->stance_home, now->stance_tag)))
        return switch_looked();
    return UNLIKELY(now->off || now->stance_off);
}

#endif
