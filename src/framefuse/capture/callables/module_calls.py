"""Enters the forward of a module without hooks at once, with the frames and facts that interpreting its call leaves."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import types
from typing import NamedTuple

import torch
from torch.nn.modules import module as modules

from framefuse.capture.callables.parallel_layers import enter_parallel
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import SHORTCUTS
from framefuse.capture.program.decoded import decode
from framefuse.capture.program.frame import Frame, Pending
from framefuse.capture.program.lookups import LOOKUPS, type_get
from framefuse.capture.program.markers import MISSING
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Keywords, Value

CALL: types.FunctionType = vars(torch.nn.Module)["__call__"]
INNER: types.FunctionType = vars(torch.nn.Module)["_call_impl"]
OWN_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
METHODS = ("_compiled_call_impl", "_call_impl", "forward")
GLOBAL_HOOKS = (
    "_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks", "_global_forward_pre_hooks"
)  # fmt: skip
# What the two functions read before they call forward, in torch's versions that are known.
READ = {"_slow_forward", "torch", "_C", "_get_tracing_state", "forward", *OWN_HOOKS, *GLOBAL_HOOKS}


class Shape(NamedTuple):
    """Where the frames of the two functions go on once forward has returned, and what the slots of the second hold:
    slot, which of the module, the arguments, the keywords and its ``forward`` (None: nothing), whether in a cell.
    """

    outer: int
    inner: int
    slots: tuple[tuple[int, int | None, bool], ...]


@functools.cache
def shape_of_calls() -> Shape | None:
    """What holds of the two functions; None in a torch that calls otherwise."""
    if CALL.__code__.co_names != ("_compiled_call_impl", "_call_impl"):
        return None
    if not all(map(_takes_anything, (CALL.__code__, INNER.__code__))):
        return None
    read = set()
    for instruction in dis.get_instructions(INNER.__code__):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL"):
            read.add(instruction.argval)
        if instruction.opname == "CALL_FUNCTION_EX":
            break
    outer, inner = _calls(CALL.__code__), _calls(INNER.__code__)
    if read != READ or len(outer) != 2 or not inner:
        return None
    given = {name: place for place, name in enumerate((*INNER.__code__.co_varnames[:3], "forward_call"))}
    cells = INNER.__code__.co_cellvars
    names = enumerate(decode(INNER.__code__).local_names)
    slots = tuple((at, given.get(name), name in cells) for at, name in names if name in given or name in cells)
    return Shape(outer[1] + 1, inner[0] + 1, slots)


def _takes_anything(code: types.CodeType) -> bool:
    """Whether a method takes any arguments after the module."""
    star, stars = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS
    alone = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount) == (1, 0, 0)
    return alone and code.co_flags & (star | stars) == star | stars and code.co_varnames[0] == "self"


def _calls(code: types.CodeType) -> list[int]:
    """The steps of the calls with a tuple and a dict of arguments whose result is returned."""
    steps = decode(code).steps
    names = [handler.__name__ for handler, _ in steps]
    return [at for at, pair in enumerate(itertools.pairwise(names)) if pair == ("call_function_ex", "return_value")]


def enter_module(machine: Machine, args: Arguments, kwargs: Keywords, continuation: Pending | None) -> bool:
    """Pushes the frames of a call of ``nn.Module.__call__`` up to that of ``forward``; False where the two functions
    must be interpreted: the first call of a recording, which states what all have in common, and modules with hooks.
    """
    recorder, module = machine.recorder, args[0] if args else None
    points = machine.exits.points
    if recorder.alive and enter_parallel(machine, args, kwargs, continuation):
        return True
    if not recorder.alive or not _is_ordinary(module) or (points is not None and points.learnt):
        return False
    if not recorder.takes_module_call():
        return False
    shape = shape_of_calls()
    forward = type_get(type(module), "forward")
    if shape is None or type(forward) is not types.FunctionType or "self" in kwargs:
        return False
    outer, inner = Frame(CALL, decode(CALL.__code__)), Frame(INNER, decode(INNER.__code__))
    outer.locals[:3] = module, args[1:], dict(kwargs)
    given = (module, args[1:], dict(kwargs), types.MethodType(forward, module))
    for place, which, in_cell in shape.slots:  # as the instructions at the head of the function leave them
        if which is None:
            inner.locals[place] = types.CellType()
        else:
            inner.locals[place] = types.CellType(given[which]) if in_cell else given[which]
    outer.step, inner.step, outer.continuation = shape.outer, shape.inner, continuation
    machine.push(outer)
    machine.push(inner)
    _state_reads(machine, module)
    machine.calls.call(inner, forward, args, kwargs)
    return True


def _state_reads(machine: Machine, module: Value) -> None:
    """The facts of the attributes that the two functions read of an ordinary module."""
    sources, state = machine.recorder.sources, module.__dict__
    sources.guard_version(type(module))
    if not sources.knows(module):
        return
    sources.guard_type(module)
    compiled = "_compiled_call_impl" in state
    if compiled:
        sources.read(module, "attr", "_compiled_call_impl", state["_compiled_call_impl"])
    absent = METHODS[compiled:]
    if machine.recorder.contents.guard_bare(module, absent, OWN_HOOKS):
        return
    sources.guard_absent_names(module, absent)
    done = machine.recorder.contents.guard_empty_dicts(module, OWN_HOOKS)
    for name in OWN_HOOKS[done:]:
        machine.operations.truth(sources.read(module, "attr", name, state[name]))


def _is_ordinary(module: Value) -> bool:
    """Whether the call of a module does nothing but call the ``forward`` of its class."""
    if not is_a(module, torch.nn.Module) or not _is_ordinary_class(type(module)):
        return False
    state = module.__dict__
    if "forward" in state or "_call_impl" in state or state.get("_compiled_call_impl") is not None:
        return False
    for name in OWN_HOOKS:
        if type(state.get(name)) not in HOOK_TABLES or state[name]:
            return False
    for name in GLOBAL_HOOKS:
        if getattr(modules, name):
            return False
    return torch._C._get_tracing_state() is None


def _is_ordinary_class(kind: type) -> bool:
    """Whether the class gives its instances no way of their own to be called or read, and no hooks."""
    for base, names in LOOKUPS.names(kind):
        if base is not torch.nn.Module and base is not object and not names.isdisjoint(DECIDING):
            return False
    own = torch.nn.Module.__dict__
    if own.get("_call_impl") is not INNER or own.get("_compiled_call_impl", MISSING) is not None:
        return False
    return own.keys().isdisjoint(UNSET)


UNSET = frozenset((*OWN_HOOKS, "__getattribute__"))
DECIDING = UNSET | {"_call_impl", "_compiled_call_impl"}
HOOK_TABLES = (dict, type(torch.nn.Module()._forward_hooks))


SHORTCUTS[CALL] = enter_module
