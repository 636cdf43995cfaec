/* Runs an exported library on tensors of Python, without the microsecond that ctypes takes for each argument. */
#include "exported.h"

#include "../aot/framefuse.h"

enum { FEW = 16, LEADING = 2 };

static const char UNTAKEN[] = "dltensor"; /* the name of a capsule until somebody takes its tensor */

typedef struct {
    PyTypeObject *tensor;
    PyObject *strided, *to, *from;
} Torch; /* borrowed from the caller's tuple; all NULL without torch */

static void drop_untaken(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, UNTAKEN))
        return;
    DLManagedTensor *tensor = PyCapsule_GetPointer(capsule, UNTAKEN);
    tensor->deleter(tensor);
}

/* What is asked of a tensor of torch, in this order; each answer is an object that lives on. */
enum { REQUIRES_GRAD, IS_CPU, IS_CUDA, LAYOUT, IS_CONJ, IS_NEG, NAMES };
static PyObject *names[NAMES];

static bool intern_names(void)
{
    static const char *const texts[NAMES] = {"requires_grad", "is_cpu", "is_cuda", "layout", "is_conj", "is_neg"};
    for (int k = 0; k < NAMES; k++)
        if (!names[k] && !(names[k] = PyUnicode_InternFromString(texts[k])))
            return false;
    return true;
}

/* 1 where the attribute, or what the method gives, is this object, 0 where not, -1 with an exception. */
static int has(PyObject *tensor, int name, PyObject *wanted)
{
    PyObject *found = name < IS_CONJ ? PyObject_GetAttr(tensor, names[name])
                                     : PyObject_CallMethodNoArgs(tensor, names[name]);
    Py_XDECREF(found);
    return found ? found == wanted : -1;
}

/* Whether torch's function may make the capsule: a dense tensor without a gradient that is what its memory says. */
static int is_plain(PyObject *tensor, const Torch *torch)
{
    if (Py_TYPE(tensor) != torch->tensor)
        return 0;
    int plain = has(tensor, IS_CPU, Py_True);
    if (plain == 0)
        plain = has(tensor, IS_CUDA, Py_True);
    PyObject *const wanted[NAMES] = {[REQUIRES_GRAD] = Py_False, [LAYOUT] = torch->strided,
                                     [IS_CONJ] = Py_False, [IS_NEG] = Py_False};
    for (int k = 0; plain > 0 && k < NAMES; k++)
        if (wanted[k])
            plain = has(tensor, k, wanted[k]);
    return plain;
}

static PyObject *capsule_of(PyObject *tensor, const Torch *torch, PyObject *others)
{
    int plain = torch->tensor ? is_plain(tensor, torch) : 0;
    return plain < 0 ? NULL : PyObject_CallOneArg(plain ? torch->to : others, tensor);
}

/* The tensors of the capsules; false with an exception. `keep` has the capsules, which hold the tensors. */
static bool lend(PyObject *tensors, const Torch *torch, PyObject *others, PyObject *keep, void **given, bool *of_torch)
{
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(keep); k++) {
        PyObject *tensor = PySequence_Fast_GET_ITEM(tensors, k);
        PyObject *capsule = capsule_of(tensor, torch, others);
        if (!capsule)
            return false;
        PyTuple_SET_ITEM(keep, k, capsule);
        if (!(given[k] = PyCapsule_GetPointer(capsule, UNTAKEN)))
            return false;
        *of_torch |= torch->tensor && PyObject_TypeCheck(tensor, torch->tensor);
    }
    return true;
}

static int run(void *address, PyObject *leading, void **given, int inputs, DLManagedTensor **outputs, int count)
{
    typedef int (*plain)(void *, void *, int, DLManagedTensor **, int);
    typedef int (*with_stream)(void *, void *, void *, int, DLManagedTensor **, int);
    void *first = PyLong_AsVoidPtr(PyTuple_GET_ITEM(leading, 0));
    bool streams = PyTuple_GET_SIZE(leading) == LEADING;
    void *stream = streams ? PyLong_AsVoidPtr(PyTuple_GET_ITEM(leading, 1)) : NULL;
    int answer = -1;
    if (PyErr_Occurred())
        return answer;
    Py_BEGIN_ALLOW_THREADS
    answer = streams ? ((with_stream)address)(first, stream, given, inputs, outputs, count)
                     : ((plain)address)(first, given, inputs, outputs, count);
    Py_END_ALLOW_THREADS
    return answer;
}

/* All results at once as capsules, so that none is lost where one of them cannot be taken. */
static PyObject *results_of(DLManagedTensor **outputs, int count, PyObject *taker)
{
    PyObject *results = PyList_New(count);
    for (int k = 0; k < count; k++) {
        PyObject *capsule = results ? PyCapsule_New(outputs[k], UNTAKEN, drop_untaken) : NULL;
        if (capsule)
            PyList_SET_ITEM(results, k, capsule);
        else {
            outputs[k]->deleter(outputs[k]);
            Py_CLEAR(results);
        }
    }
    for (int k = 0; results && k < count; k++) {
        PyObject *capsule = PyList_GET_ITEM(results, k);
        PyObject *taken = PyObject_CallOneArg(taker, capsule);
        if (!taken)
            Py_CLEAR(results);
        else {
            PyList_SET_ITEM(results, k, taken);
            Py_DECREF(capsule);
        }
    }
    return results;
}

static PyObject *called(PyObject *const *args, PyObject *tensors, int count, void **given, DLManagedTensor **outputs)
{
    PyObject *const *of = args[4] == Py_None ? NULL : &PyTuple_GET_ITEM(args[4], 0);
    Torch torch = {0};
    if (of)
        torch = (Torch){(PyTypeObject *)of[0], of[1], of[2], of[3]};
    PyObject *keep = PyTuple_New(PySequence_Fast_GET_SIZE(tensors));
    PyObject *results = NULL;
    bool of_torch = false;
    void *address = PyLong_AsVoidPtr(args[0]);
    if (keep && !PyErr_Occurred() && lend(tensors, &torch, args[5], keep, given, &of_torch)) {
        int answer = run(address, args[1], given, (int)PyTuple_GET_SIZE(keep), outputs, count);
        if (answer == 0)
            results = results_of(outputs, count, of_torch ? torch.from : args[6]);
        else if (!PyErr_Occurred())
            results = Py_NewRef(Py_None);
    }
    Py_XDECREF(keep);
    return results;
}

PyObject *run_exported_py(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!intern_names())
        return NULL;
    bool fits = count == 7 && PyTuple_Check(args[1]) && PyTuple_GET_SIZE(args[1]) >= 1
                && PyTuple_GET_SIZE(args[1]) <= LEADING
                && (args[4] == Py_None || (PyTuple_Check(args[4]) && PyTuple_GET_SIZE(args[4]) == 4));
    if (!fits)
        return PyErr_Format(PyExc_TypeError, "run_exported takes a function, addresses, tensors and who makes them");
    long outputs = PyLong_AsLong(args[3]);
    PyObject *tensors = PySequence_Fast(args[2], "tensors stand in a sequence");
    if (!tensors || PyErr_Occurred()) {
        Py_XDECREF(tensors);
        return NULL;
    }
    Py_ssize_t all = PySequence_Fast_GET_SIZE(tensors) + outputs;
    void *few[FEW], **room = all <= FEW ? few : PyMem_Calloc((size_t)all, sizeof *room);
    PyObject *results = room ? called(args, tensors, (int)outputs, room + outputs, (DLManagedTensor **)room)
                             : PyErr_NoMemory();
    if (room != few)
        PyMem_Free(room);
    Py_DECREF(tensors);
    return results;
}
