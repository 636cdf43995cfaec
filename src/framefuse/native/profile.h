/* Tells torch's profiler what a run does: one range for each compiled call, kernel, product and library call. */
#ifndef FRAMEFUSE_PROFILE_H
#define FRAMEFUSE_PROFILE_H

#include "base.h"

#include "tags.h"

typedef struct {
    PyObject *home;        /* the dict of torch.autograd.profiler; NULL before `profile_with` */
    PyObject *name;        /* of the variable there that says whether a profiler listens */
    PyObject *enter, *leave;
    uint64_t tag;
    bool listens;
} Profile;

extern Profile profile;
bool profile_looked(void);
PyObject *profile_labels(PyObject *plan);
PyObject *profile_enter(PyObject *labels, Py_ssize_t place);
void profile_leave(PyObject *range);
PyObject *profile_with_py(PyObject *module, PyObject *args);

/* Whether a profiler of torch's listens. */
static inline bool profile_listens(void)
{
    if (UNLIKELY(profile.home && dict_moved(profile.home, profile.tag)))
        return profile_looked();
    return profile.listens;
}

#endif
