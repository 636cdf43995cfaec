/* What the program may see of our own frames: nothing, and no less room for its own. */
#ifndef FRAMEFUSE_FRAMES_H
#define FRAMEFUSE_FRAMES_H

#include "base.h"

void headroom(int more);
PyObject *headroom_py(PyObject *module, PyObject *more);
void hide_frames(void);
PyObject *at_frame_py(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
