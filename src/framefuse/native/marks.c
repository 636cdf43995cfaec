/* Gives bytes that are equal for the same tensors in the same memory with the same count of writes: what was computed
   from parameters and buffers is right for as long as these are. */
#include "marks.h"

#include "torch_abi.h"

typedef struct {
    PyObject *tensor; /* not held: who keeps marks watches whether the tensor lives */
    char *data;
    int64_t version;
} Mark;

PyObject *marks_of_py(PyObject *Py_UNUSED(module), PyObject *const *tensors, Py_ssize_t count)
{
    PyObject *marks = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(Mark));
    if (!marks)
        return NULL;
    Mark *mark = (Mark *)PyBytes_AS_STRING(marks);
    for (Py_ssize_t i = 0; i < count; i++, mark++) {
        mark->tensor = tensors[i];
        if (!abi_is_tensor(tensors[i]) || !abi_data(tensors[i], &mark->data)
            || !abi_version(tensors[i], &mark->version)) {
            Py_DECREF(marks);
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "marks_of takes tensors that count writes");
        }
    }
    return marks;
}
