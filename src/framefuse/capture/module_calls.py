"""Enters the forward of a module without hooks at once, with the frames and facts that interpreting its call leaves."""

from __future__ import annotations

import dis
import functools
import itertools
import types
from typing import Any

import torch
from torch.nn.modules import module as modules

from framefuse.capture.attributes import type_get
from framefuse.capture.code import decode
from framefuse.capture.frame import MISSING, UNBOUND, Frame, enter

CALL: Any = torch.nn.Module.__call__
INNER: Any = torch.nn.Module._call_impl
OWN_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
METHODS = ("_compiled_call_impl", "_call_impl", "forward")
GLOBAL_HOOKS = (
    "_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks", "_global_forward_pre_hooks"
)  # fmt: skip
# What the two functions read before they call forward, in torch's versions that are known.
READ = {"_slow_forward", "torch", "_C", "_get_tracing_state", "forward", *OWN_HOOKS, *GLOBAL_HOOKS}


@functools.cache
def steps_after_calls() -> tuple[int, int] | None:
    """Where the frames of the two functions go on once forward has returned; None in a torch that calls otherwise."""
    if CALL.__code__.co_names != ("_compiled_call_impl", "_call_impl"):
        return None
    read = set()
    for instruction in dis.get_instructions(INNER.__code__):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL"):
            read.add(instruction.argval)
        if instruction.opname == "CALL_FUNCTION_EX":
            break
    outer, inner = _calls(CALL.__code__), _calls(INNER.__code__)
    return (outer[1] + 1, inner[0] + 1) if read == READ and len(outer) == 2 and inner else None


def _calls(code: types.CodeType) -> list[int]:
    """The steps of the calls with a tuple and a dict of arguments whose result is returned."""
    steps = decode(code).steps
    names = [handler.__name__ for handler, _ in steps]
    return [at for at, pair in enumerate(itertools.pairwise(names)) if pair == ("call_function_ex", "return_value")]


def enter_module(machine: Any, args: tuple[Any, ...], kwargs: dict[str, Any], then: Any) -> bool:
    """Pushes the frames of a call of ``nn.Module.__call__`` up to that of ``forward``; False where the two functions
    must be interpreted: the first call of a recording, which states what all have in common, and modules with hooks.
    """
    recorder, module = machine.recorder, args[0] if args else None
    if not recorder.alive or not _is_ordinary(module) or (machine.points is not None and machine.points.learnt):
        return False
    if recorder.first_module_call:
        recorder.first_module_call = False
        return False
    steps = steps_after_calls()
    forward = type_get(type(module), "forward")
    if steps is None or type(forward) is not types.FunctionType:
        return False
    outer, inner = enter(CALL, args, kwargs), enter(INNER, args, kwargs)
    outer.step, inner.step, outer.then = *steps, then
    _fill_cells(inner, {"forward_call": types.MethodType(forward, module)})
    machine.push(outer)
    machine.push(inner)
    _state_reads(machine, module)
    machine.call(inner, forward, args, kwargs)
    return True


def _state_reads(machine: Any, module: Any) -> None:
    """The facts of the attributes that the two functions read of an ordinary module."""
    sources, state = machine.recorder.sources, module.__dict__
    sources.version(type(module))
    if id(module) not in sources.known:
        return
    sources.typed(module)
    for name in METHODS:
        if name in state:
            sources.read(module, "attr", name, state[name])
        else:
            sources.absent(module, name)
    for name in OWN_HOOKS:
        machine.truth(sources.read(module, "attr", name, state[name]))


def _is_ordinary(module: Any) -> bool:
    """Whether the call of a module does nothing but call the ``forward`` of its class."""
    kind = type(module)
    if not isinstance(module, torch.nn.Module) or type_get(kind, "__getattribute__") is not object.__getattribute__:
        return False
    state = module.__dict__
    return (
        type_get(kind, "_call_impl") is INNER
        and type_get(kind, "_compiled_call_impl") is None
        and state.get("_compiled_call_impl") is None
        and "forward" not in state
        and "_call_impl" not in state
        and all(type(state.get(name)) in HOOK_TABLES and not state[name] for name in OWN_HOOKS)
        and all(type_get(kind, name) is MISSING for name in OWN_HOOKS)
        and not any(getattr(modules, name) for name in GLOBAL_HOOKS)
        and torch._C._get_tracing_state() is None
    )


HOOK_TABLES = (dict, type(torch.nn.Module()._forward_hooks))


def _fill_cells(frame: Frame, values: dict[str, Any]) -> None:
    """What the instructions at the head of a function do: its cells are made, and here filled."""
    names, cells = frame.code.local_names, set(frame.code.code.co_cellvars)
    for place, name in enumerate(names):
        if name in values:
            frame.locals[place] = values[name]
        if name in cells:
            held = frame.locals[place]
            frame.locals[place] = types.CellType() if held is UNBOUND else types.CellType(held)
