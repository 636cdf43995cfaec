/* Version tags of dicts and types, and the raw places of attributes. */
#ifndef FRAMEFUSE_TAGS_H
#define FRAMEFUSE_TAGS_H

#include "base.h"

/* The low bits of a dict's tag say who watches it, and come and go. */
#if PY_VERSION_HEX < 0x030C0000
enum { TAG_SHIFT = 0 };
#elif PY_VERSION_HEX < 0x030D0000
enum { TAG_SHIFT = 8 };
#else
enum { TAG_SHIFT = 12 };
#endif

extern bool trust_dict_tags, trust_type_tags;
uint64_t *dict_tag_word(PyObject *dict);
/* Whether a dict has changed since its word was read; true where that cannot be told. */
static inline bool dict_moved(PyObject *dict, uint64_t then)
{
    return !trust_dict_tags || *dict_tag_word(dict) != then;
}
unsigned int type_tag(PyTypeObject *type); /* assigns one if it can; 0: none */
static inline unsigned int type_tag_now(PyTypeObject *type) /* without assigning one */
{
#if PY_VERSION_HEX < 0x030D0000
    return type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG ? type->tp_version_tag : 0;
#else
    return type->tp_version_tag;
#endif
}
PyObject *instance_dict(PyObject *instance);
PyObject *dict_tag_py(PyObject *module, PyObject *dict);
PyObject *type_tag_py(PyObject *module, PyObject *type);
PyObject *trust_tags_py(PyObject *module, PyObject *args);
PyObject *instance_dict_py(PyObject *module, PyObject *instance);
PyObject *type_lookup_py(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
