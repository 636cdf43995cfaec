/* Makes the extension module framefuse._native out of its types and functions. */
#include "arena.h"
#include "autograd.h"
#include "bind.h"
#include "cuda.h"
#include "dispatch.h"
#include "exported.h"
#include "frame_hook.h"
#include "frames.h"
#include "guard_set.h"
#include "marks.h"
#include "numbers.h"
#include "objects.h"
#include "plan_type.h"
#include "positions.h"
#include "processor.h"
#include "profile.h"
#include "records.h"
#include "steps.h"
#include "switch.h"
#include "tables.h"
#include "tags.h"
#include "threads.h"
#include "torch_abi.h"
#include "watch.h"

static PyMethodDef functions[] = {
    {"abi_initialise", abi_initialise_py, METH_O, "Sets what is known of torch's binary interface."},
    {"abi_state", abi_state_py, METH_NOARGS, "Torch's thread state as guards read it."},
    {"tensor_facts", tensor_facts_py, METH_O, "What native code reads of a tensor."},
    {"bypass", bypass_py, METH_O, "While on, every Dispatch of this thread calls its original function."},
    {"switch_off", switch_py, METH_VARARGS, "switch_off(off=as it is): sets the process's switch; gives what it was."},
    {"watch_switch", watch_switch_py, METH_VARARGS,
     "watch_switch(modules, tell): where torch's compiler is looked for, and what is called once under a tracer."},
    {"profile_with", profile_with_py, METH_VARARGS,
     "profile_with(variables, name, enter, leave): where a profiler is looked for, and what opens and closes a range."},
    {"headroom", headroom_py, METH_O, "Lets this thread's calls go so many frames deeper, or as many less."},
    {"open_door", open_door_py, METH_VARARGS,
     "open_door(dispatch, first=None): calls of its function itself (with that first argument) reach it."},
    {"forget_first", forget_first_py, METH_VARARGS,
     "forget_first(function, address): no door leads from a first argument that dies."},
    {"behind_door", behind_door_py, METH_VARARGS,
     "behind_door(function, first): the Dispatch that a call reaches, or None."},
    {"close_door", close_door_py, METH_O, "Undoes open_door."},
    {"watch_calls", watch_calls_py, METH_VARARGS,
     "watch_calls(function or code, watcher, outermost=False): watcher(function, first argument) is called before "
     "a call without an open door."},
    {"bound_names", bound_names, METH_O, "The names of the bound arguments of a code object."},
    {"instance_dict", instance_dict_py, METH_O, "The instance dict itself, or None."},
    {"type_lookup", (PyCFunction)(void (*)(void))type_lookup_py, METH_FASTCALL,
     "type_lookup(type, name, default): the raw attribute found along the MRO."},
    {"dict_tag", dict_tag_py, METH_O, "The dict's version tag."},
    {"type_tag", type_tag_py, METH_O, "The type's version tag, 0 for none."},
    {"trust_tags", trust_tags_py, METH_VARARGS, "Says which version tags are sound."},
    {"watch_open", watch_open_py, METH_O,
     "Says whether CPython's reports of changed dicts are sound; False where it has none."},
    {"at_frame", (PyCFunction)(void (*)(void))at_frame_py, METH_FASTCALL,
     "at_frame(prepare, *args): calls as a running frame further out."},
    {"saved_drop", (PyCFunction)(void (*)(void))saved_drop_py, METH_FASTCALL,
     "saved_drop(list, *indices): puts None there."},
    {"raise_versions", (PyCFunction)(void (*)(void))raise_versions_py, METH_FASTCALL,
     "raise_versions(*tensors): one write each, as autograd counts them."},
    {"marks_of", (PyCFunction)(void (*)(void))marks_of_py, METH_FASTCALL,
     "marks_of(*tensors): bytes, equal for as long as these tensors lie where they lay and nobody wrote to them."},
    {"positions_within", (PyCFunction)(void (*)(void))positions_within_py, METH_FASTCALL,
     "positions_within(positions, size, wraps): raises IndexError where one of them is none of a dimension."},
    {"run_exported", (PyCFunction)(void (*)(void))run_exported_py, METH_FASTCALL,
     "run_exported(run, leading, tensors, count, torch, capsule_of, taken_of): calls an exported library."},
    {"load_module", (PyCFunction)(void (*)(void))load_module_py, METH_VARARGS | METH_KEYWORDS,
     "load_module(image, name, shared, device=0): the address of the kernel for launches."},
    {"load_objects", load_objects_py, METH_VARARGS,
     "load_objects(objects, resolve, machine=this one): the code of pairs of a function's name and its object."},
    {"processor", processor_py, METH_NOARGS, "The processor's name, and bytes that say what it can do; or None."},
    {"use_driver", use_driver_py, METH_O, "The library to take for the GPU's driver; None: the driver's own."},
    {"spare_bytes", spare_bytes_py, METH_NOARGS, "The bytes of arenas that no run holds."},
    {"tables", tables_py, METH_NOARGS,
     "The names by which native code tells places, steps, templates and instructions."},
    {"read_records", read_records_py, METH_VARARGS,
     "read_records(rows, records, constants, root): the object that a file of records describes."},
    {"numbers_run", numbers_run_py, METH_VARARGS, "Runs number instructions over raw words."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "framefuse._native",
    "Guards, plans and dispatch of compiled functions.",
    -1,
    functions,
    NULL,
    NULL,
    NULL,
    NULL,
};

static int add_types(PyObject *module)
{
    PyTypeObject *(*const make[])(PyObject *) = {make_guard_set_type, make_plan_type, make_compiled_type,
                                                 make_dispatch_type, make_attach_type, make_loaded_objects_type};
    for (size_t i = 0; i < sizeof make / sizeof *make; i++) {
        PyTypeObject *type = make[i](module);
        if (!type || PyModule_AddType(module, type) < 0)
            return -1;
        Py_DECREF(type); /* the module holds it, and the module is never unloaded */
    }
    Declined = PyErr_NewException("framefuse._native.Declined", NULL, NULL);
    return Declined ? PyModule_AddObjectRef(module, "Declined", Declined) : -1;
}

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && add_types(module) < 0)
        Py_CLEAR(module);
    threads_watch_forks();
    return module;
}
