/* Builds Python values from templates over the slots, numbers and registers of a plan's frame. */
#include "template.h"

#include "frame.h"

static const char *const NAMES[TEMPLATE_COUNT] = {
#define X(tag, name) name,
    TEMPLATE_TAGS(X)
#undef X
};

static int bad(PyObject *tuple)
{
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "bad template %R", tuple);
    return -1;
}

static int read_index(PyObject *tuple, Py_ssize_t limit, Template *out)
{
    Py_ssize_t index = PyTuple_GET_SIZE(tuple) == 2 ? PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, 1)) : -1;
    if (index < 0 || index >= limit)
        return bad(tuple);
    out->index = (int32_t)index;
    return 0;
}

static int parse_pair(PyObject *pair, Template *out, Py_ssize_t slots, Py_ssize_t numbers)
{
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2)
        return bad(pair);
    return template_parse(PyTuple_GET_ITEM(pair, 0), &out[0], slots, numbers) < 0 ? -1
         : template_parse(PyTuple_GET_ITEM(pair, 1), &out[1], slots, numbers);
}

/* ("object", class, builtin, ((key, value)...), ((name, value)...)): the parts are keys and values of the entries,
   then names and values. */
static int parse_object(PyObject *tuple, Template *out, Py_ssize_t slots, Py_ssize_t numbers)
{
    PyObject *cls, *builtin, *pairs[2];
    const char *tag;
    if (!PyArg_ParseTuple(tuple, "sO!O!O!O!", &tag, &PyType_Type, &cls, &PyType_Type, &builtin, &PyTuple_Type,
                          &pairs[0], &PyTuple_Type, &pairs[1])
        || !((PyTypeObject *)builtin)->tp_new || !PyType_IsSubtype((PyTypeObject *)cls, (PyTypeObject *)builtin)) {
        PyErr_Clear();
        return bad(tuple);
    }
    Py_ssize_t entries = PyTuple_GET_SIZE(pairs[0]), count = 2 * (entries + PyTuple_GET_SIZE(pairs[1]));
    if (entries && !PyType_IsSubtype((PyTypeObject *)builtin, &PyDict_Type))
        return bad(tuple);
    if (!(out->parts = PyMem_Calloc((size_t)count + 1, sizeof *out->parts)))
        return PyErr_NoMemory(), -1;
    out->object = cls, out->builtin = (PyTypeObject *)builtin, out->index = (int32_t)entries,
    out->count = (int32_t)count;
    if (Py_EnterRecursiveCall(" in a template"))
        return -1;
    int status = 0;
    for (Py_ssize_t i = 0; i < count / 2 && status == 0; i++)
        status = parse_pair(PyTuple_GET_ITEM(pairs[i >= entries], i < entries ? i : i - entries), &out->parts[2 * i],
                            slots, numbers);
    Py_LeaveRecursiveCall();
    return status;
}

/* Whether a class in C has so many fields; torch.Size, like tuple itself, has any number. */
static bool has_fields(PyTypeObject *builtin, Py_ssize_t count)
{
    PyObject *fields = PyObject_GetAttrString((PyObject *)builtin, "n_fields");
    bool fits = fields ? PyLong_AsSsize_t(fields) == count : true;
    PyErr_Clear();
    Py_XDECREF(fields);
    return fits;
}

/* ("namedtuple", class, builtin, parts...): its first three items. */
static int parse_named(PyObject *tuple, Template *out)
{
    PyObject *cls = PyTuple_GET_SIZE(tuple) > 2 ? PyTuple_GET_ITEM(tuple, 1) : NULL;
    PyObject *builtin = cls ? PyTuple_GET_ITEM(tuple, 2) : NULL;
    if (!cls || !PyType_Check(cls) || !PyType_Check(builtin)
        || !PyType_IsSubtype((PyTypeObject *)builtin, &PyTuple_Type)
        || !PyType_IsSubtype((PyTypeObject *)cls, (PyTypeObject *)builtin)
        || !has_fields((PyTypeObject *)builtin, PyTuple_GET_SIZE(tuple) - 3))
        return bad(tuple);
    out->object = cls;
    return 0;
}

int template_parse(PyObject *tuple, Template *out, Py_ssize_t slots, Py_ssize_t numbers)
{
    memset(out, 0, sizeof *out);
    out->tag = TAG_CONST;
    const char *name = PyTuple_Check(tuple) && PyTuple_GET_SIZE(tuple) && PyUnicode_Check(PyTuple_GET_ITEM(tuple, 0))
                     ? PyUnicode_AsUTF8(PyTuple_GET_ITEM(tuple, 0)) : "";
    int tag = 0;
    while (tag < TEMPLATE_COUNT && strcmp(NAMES[tag], name))
        tag++;
    if (tag == TEMPLATE_COUNT)
        return bad(tuple);
    Py_ssize_t first = tag == TAG_NAMED ? 3 : tag == TAG_BUILD ? 2 : 1, size = PyTuple_GET_SIZE(tuple);
    out->tag = (uint8_t)tag;
    switch (tag) {
    case TAG_TENSOR: return read_index(tuple, slots, out);
    case TAG_INT: case TAG_REAL: return read_index(tuple, numbers, out);
    case TAG_REGISTER: return read_index(tuple, INT32_MAX, out);
    case TAG_CONST:
        if (size != 2)
            return bad(tuple);
        out->object = PyTuple_GET_ITEM(tuple, 1);
        return 0;
    case TAG_OBJECT: return parse_object(tuple, out, slots, numbers);
    case TAG_SLICE:
        if (size != 4)
            return bad(tuple);
        break;
    case TAG_NAMED:
        if (parse_named(tuple, out) < 0)
            return -1;
        break;
    case TAG_BUILD:
        if (size < 2 || !PyCallable_Check(PyTuple_GET_ITEM(tuple, 1)))
            return bad(tuple);
        out->object = PyTuple_GET_ITEM(tuple, 1);
        break;
    default: break;
    }
    Py_ssize_t width = tag == TAG_DICT ? 2 : 1;
    out->parts = PyMem_Calloc((size_t)(size - first) * (size_t)width + 1, sizeof *out->parts);
    if (!out->parts) {
        PyErr_NoMemory();
        return -1;
    }
    /* the parts not yet read are all zero, and clearing them does nothing */
    out->count = (int32_t)((size - first) * width);
    if (Py_EnterRecursiveCall(" in a template"))
        return -1;
    int status = 0;
    for (Py_ssize_t i = first; i < size && status == 0; i++) {
        PyObject *part = PyTuple_GET_ITEM(tuple, i);
        Template *to = &out->parts[(i - first) * width];
        status = tag == TAG_DICT ? parse_pair(part, to, slots, numbers) : template_parse(part, to, slots, numbers);
    }
    Py_LeaveRecursiveCall();
    return status;
}

void template_clear(Template *template)
{
    for (int32_t i = 0; i < template->count; i++)
        template_clear(&template->parts[i]);
    PyMem_Free(template->parts);
    template->parts = NULL, template->count = 0;
}

int template_walk(Template *template, int (*each)(Template *, void *), void *context)
{
    int status = each(template, context);
    for (int32_t i = 0; i < template->count && status == 0; i++)
        status = template_walk(&template->parts[i], each, context);
    return status;
}

/* A tuple of a class, NULL for tuple itself: as tuple's own `__new__` makes it, no code of the class runs. */
static PyObject *build_tuple(const Template *template, PyTypeObject *cls, Frame *frame)
{
    PyObject *tuple = cls ? cls->tp_alloc(cls, template->count) : PyTuple_New(template->count);
    for (int32_t i = 0; tuple && i < template->count; i++) {
        PyObject *part = template_build(&template->parts[i], frame);
        if (!part)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, part);
    }
    return tuple;
}

static PyObject *build_list(const Template *template, Frame *frame)
{
    PyObject *list = PyList_New(template->count);
    for (int32_t i = 0; list && i < template->count; i++) {
        PyObject *part = template_build(&template->parts[i], frame);
        if (!part)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, part);
    }
    return list;
}

static PyObject *build_dict(const Template *template, Frame *frame)
{
    PyObject *dict = PyDict_New();
    for (int32_t i = 0; dict && i < template->count; i += 2) {
        PyObject *key = template_build(&template->parts[i], frame),
                 *value = key ? template_build(&template->parts[i + 1], frame) : NULL;
        if (!value || PyDict_SetItem(dict, key, value) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return dict;
}

/* As `builtin.__new__(class)`, `builtin.__setitem__` and `object.__setattr__` make it: no code of the class runs. */
static PyObject *build_object(const Template *template, Frame *frame)
{
    PyObject *none = PyTuple_New(0),
             *made = none ? template->builtin->tp_new((PyTypeObject *)template->object, none, NULL) : NULL;
    Py_XDECREF(none);
    for (int32_t i = 0; made && i < template->count; i += 2) {
        PyObject *key = template_build(&template->parts[i], frame),
                 *value = key ? template_build(&template->parts[i + 1], frame) : NULL;
        int status = !value ? -1
                   : i / 2 < template->index ? template->builtin->tp_as_mapping->mp_ass_subscript(made, key, value)
                                             : PyObject_GenericSetAttr(made, key, value);
        if (status < 0)
            Py_CLEAR(made);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return made;
}

/* What is made of a tuple of its parts. */
static PyObject *build_from_parts(const Template *template, Frame *frame)
{
    PyObject *parts = build_tuple(template, NULL, frame), *result = NULL;
    if (!parts)
        return NULL;
    PyObject *const *items = ((PyTupleObject *)parts)->ob_item;
    switch (template->tag) {
    case TAG_SET: result = PySet_New(parts); break;
    case TAG_FROZENSET: result = PyFrozenSet_New(parts); break;
    case TAG_SLICE: result = PySlice_New(items[0], items[1], items[2]); break;
    default: result = PyObject_Vectorcall(template->object, items, (size_t)template->count, NULL);
    }
    Py_DECREF(parts);
    return result;
}

PyObject *template_build(const Template *template, Frame *frame)
{
    switch (template->tag) {
    case TAG_TENSOR: return frame_tensor(frame, template->index);
    case TAG_INT: return PyLong_FromLongLong(frame->numbers[template->index]);
    case TAG_REAL: return frame_real(frame, template->index);
    case TAG_CONST: return Py_NewRef(template->object);
    case TAG_REGISTER: return Py_NewRef(frame->registers[template->index]);
    case TAG_TUPLE: return build_tuple(template, NULL, frame);
    case TAG_NAMED: return build_tuple(template, (PyTypeObject *)template->object, frame);
    case TAG_LIST: return build_list(template, frame);
    case TAG_DICT: return build_dict(template, frame);
    case TAG_OBJECT: return build_object(template, frame);
    default: return build_from_parts(template, frame);
    }
}
