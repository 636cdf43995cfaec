"""Reads and writes locals, cells, globals and imports."""

from __future__ import annotations

import sys
from types import CellType

from framefuse.capture.facts.atoms import CARRIED
from framefuse.capture.facts.numbers import bare
from framefuse.capture.facts.settle import cell_contents
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import handles
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.lookups import python_method
from framefuse.capture.program.markers import MISSING, NULL, UNBOUND
from framefuse.capture.recording.mode_stack import unrecorded
from framefuse.ir.values import Value


@handles("LOAD_FAST")
def load_fast(machine: Machine, frame: Frame, argument: int) -> None:
    value = frame.locals[argument]
    if value is UNBOUND:
        name = frame.code.local_names[argument]
        raise UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
    frame.stack.append(value)


@handles("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(machine: Machine, frame: Frame, argument: int) -> None:
    """Puts away the variable that a comprehension uses as its own; it may be unbound, and STORE_FAST brings it back."""
    frame.stack.append(frame.locals[argument])
    frame.locals[argument] = UNBOUND


@handles("LOAD_CLOSURE")
def load_closure(machine: Machine, frame: Frame, argument: int) -> None:
    frame.stack.append(frame.locals[argument])


@handles("STORE_FAST")
def store_fast(machine: Machine, frame: Frame, argument: int) -> None:
    frame.locals[argument] = frame.stack.pop()


@handles("DELETE_FAST")
def delete_fast(machine: Machine, frame: Frame, argument: int) -> None:
    load_fast(machine, frame, argument)
    frame.stack.pop()
    frame.locals[argument] = UNBOUND


@handles("MAKE_CELL")
def make_cell(machine: Machine, frame: Frame, argument: int) -> None:
    value = frame.locals[argument]
    frame.locals[argument] = CellType() if value is UNBOUND else CellType(value)


@handles("COPY_FREE_VARS")
def copy_free_vars(machine: Machine, frame: Frame, argument: int) -> None:
    frame.locals[frame.code.free_start :] = frame.function.__closure__ or ()


def _unset(machine: Machine, frame: Frame, argument: int) -> NameError:
    """The error of a cell that holds nothing, which the program may catch: so it has to be empty again."""
    machine.recorder.functions.guard_unset_cell(frame.locals[argument])
    name = frame.code.local_names[argument]
    if argument >= frame.code.free_start:
        return NameError(
            f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
        )
    return UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")


@handles("LOAD_DEREF")
def load_deref(machine: Machine, frame: Frame, argument: int) -> None:
    cell = frame.locals[argument]
    held = cell_contents(cell)
    if not held:
        raise _unset(machine, frame, argument)
    value = held[0]
    free = (type(value) in (int, float) and frame.code.local_names[argument] in frame.code.stores) or CARRIED
    frame.stack.append(machine.recorder.functions.read_cell(cell, value, free))


@handles("LOAD_CLASSDEREF")
def load_classderef(machine: Machine, frame: Frame, argument: int) -> None:
    value = MISSING if frame.space is None else _named(machine, frame.space, frame.code.local_names[argument])
    if value is MISSING:
        load_deref(machine, frame, argument)
    else:
        frame.stack.append(value)


@handles("STORE_DEREF")
def store_deref(machine: Machine, frame: Frame, argument: int) -> None:
    cell, value = frame.locals[argument], frame.stack.pop()
    if machine.recorder.sources.knows(cell):
        machine.recorder.journal.place("cell", cell, None, value, *(cell_contents(cell) or (MISSING,)))
        value = bare(value)
    cell.cell_contents = value


@handles("DELETE_DEREF")
def delete_deref(machine: Machine, frame: Frame, argument: int) -> None:
    cell = frame.locals[argument]
    held = cell_contents(cell)
    if not held:
        raise _unset(machine, frame, argument)
    del cell.cell_contents
    if machine.recorder.sources.knows(cell):
        machine.recorder.journal.place("delcell", cell, None, MISSING, held[0])


@handles("LOAD_GLOBAL")
def load_global(machine: Machine, frame: Frame, argument: int) -> None:
    name = frame.code.names[argument >> 1]
    if argument & 1:
        frame.stack.append(NULL)
    frame.stack.append(_global(machine, frame, name))


def _global(machine: Machine, frame: Frame, name: str) -> Value:
    value = frame.globals.get(name, MISSING)
    if value is MISSING:
        value = frame.builtins.get(name, MISSING)
        if value is MISSING:
            machine.recorder.functions.guard_unset_global(frame.function, name)
            raise NameError(f"name '{name}' is not defined", name=name)
    free = (type(value) in (int, float) and name in frame.code.stores) or CARRIED
    return machine.recorder.functions.read_global(frame.function, name, value, free)


@handles("LOAD_NAME")
def load_name(machine: Machine, frame: Frame, argument: int) -> None:
    name = frame.code.names[argument]
    value = MISSING if frame.space is None else _named(machine, frame.space, name)
    frame.stack.append(_global(machine, frame, name) if value is MISSING else value)


@handles("STORE_NAME")
def store_name(machine: Machine, frame: Frame, argument: int) -> None:
    _set_named(machine, frame, frame.code.names[argument], frame.stack.pop())


@handles("DELETE_NAME")
def delete_name(machine: Machine, frame: Frame, argument: int) -> None:
    name, space = frame.code.names[argument], frame.space
    if _named(machine, space, name) is MISSING:
        raise NameError(f"name '{name}' is not defined", name=name)
    method = python_method(type(space), "__delitem__")
    if method is not None:
        machine.call_nested(method, (space, name))
    else:
        machine.natives.value(frame, type(space).__delitem__, (space, name), {})


@handles("LOAD_LOCALS")
def load_locals(machine: Machine, frame: Frame, argument: int) -> None:
    frame.stack.append(frame.space)


@handles("SETUP_ANNOTATIONS")
def setup_annotations(machine: Machine, frame: Frame, argument: int) -> None:
    if _named(machine, frame.space, "__annotations__") is MISSING:
        _set_named(machine, frame, "__annotations__", {})


def _set_named(machine: Machine, frame: Frame, name: str, value: Value) -> None:
    """Writes a name of a class's namespace."""
    space = frame.space
    method = python_method(type(space), "__setitem__")
    if method is not None:
        machine.call_nested(method, (space, name, value))
    elif type(space) is dict and not machine.recorder.sources.knows(space):
        space[name] = value
    else:
        machine.natives.value(frame, type(space).__setitem__, (space, name, value), {})


def _named(machine: Machine, space: Value, name: str) -> Value:
    """What a class's namespace holds under ``name``, MISSING for nothing."""
    method = python_method(type(space), "__getitem__")
    try:
        if method is not None:
            return machine.call_nested(method, (space, name))
        machine.recorder.contents.guard_membership(space, name)
        return machine.recorder.contents.item(space, name, space[name])
    except KeyError:
        return MISSING


@handles("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_dict_or_globals(machine: Machine, frame: Frame, argument: int) -> None:
    name = frame.code.names[argument]
    value = _named(machine, frame.stack.pop(), name)
    frame.stack.append(_global(machine, frame, name) if value is MISSING else value)


@handles("LOAD_FROM_DICT_OR_DEREF")
def load_from_dict_or_deref(machine: Machine, frame: Frame, argument: int) -> None:
    value = _named(machine, frame.stack.pop(), frame.code.local_names[argument])
    if value is MISSING:
        load_deref(machine, frame, argument)
    else:
        frame.stack.append(value)


@handles("STORE_GLOBAL")
def store_global(machine: Machine, frame: Frame, argument: int) -> None:
    name, value = frame.code.names[argument], frame.stack.pop()
    machine.recorder.journal.global_variable(frame.function, name, value, frame.globals.get(name, MISSING))
    frame.globals[name] = bare(value)


@handles("DELETE_GLOBAL")
def delete_global(machine: Machine, frame: Frame, argument: int) -> None:
    name = frame.code.names[argument]
    if name not in frame.globals:
        machine.recorder.functions.guard_unset_global(frame.function, name)
        raise NameError(f"name '{name}' is not defined", name=name)
    before = frame.globals[name]
    machine.recorder.functions.read_global(frame.function, name, before, False)  # it was there
    machine.recorder.journal.global_variable(frame.function, name, MISSING, before)
    del frame.globals[name]


@handles("IMPORT_NAME")
def import_name(machine: Machine, frame: Frame, argument: int) -> None:
    wanted = frame.stack.pop()
    level = frame.stack.pop()
    name = frame.code.names[argument]
    sources, contents = machine.recorder.sources, machine.recorder.contents
    importer = frame.builtins["__import__"]
    sources.root(sys.modules)
    try:
        with unrecorded(machine.recorder.mode):  # what a module does when it is first imported, later calls do not
            module = importer(name, frame.globals, None, wanted, level)
    except ImportError:
        contents.guard_membership(sys.modules, name)
        raise
    for dotted in {name, name.partition(".")[0]} if level == 0 else ():
        if dotted in sys.modules:
            contents.item(sys.modules, dotted, sys.modules[dotted])
    frame.stack.append(module)


@handles("IMPORT_FROM")
def import_from(machine: Machine, frame: Frame, argument: int) -> None:
    module, name = frame.stack[-1], frame.code.names[argument]
    try:
        attribute = machine.attributes.attribute_now(frame, module, name)
    except AttributeError:
        attribute = sys.modules.get(f"{module.__name__}.{name}", MISSING)
    if attribute is MISSING:
        place = getattr(module, "__file__", None) or "unknown location"
        text = f"cannot import name '{name}' from '{module.__name__}' ({place})"
        raise ImportError(text, name=module.__name__, path=place)
    frame.stack.append(attribute)
