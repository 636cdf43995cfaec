"""Holds the functions of torch that torch's own Python code calls: a program may set others in their place."""

from __future__ import annotations

import dis
import functools
import types

import torch

from framefuse.capture.facts.place_names import place_of
from framefuse.capture.program.decoded import DECODED_LIMIT
from framefuse.capture.program.leaves import OPERATORS
from framefuse.capture.recording.recorder import Recorder
from framefuse.capture.recording.replaced_queries import is_torchs, set_on_tensors
from framefuse.ir.own_class import is_a

Chain = tuple[str, ...]  # a global and the attributes behind it
READ: dict[int, tuple[types.CodeType, tuple[Chain, ...]]] = {}  # by id, with the code: to hash one takes long
DEPTH = 4  # functions of torch, one in the other
OF_MODES = ("has_torch_function", "handle_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def calls_program(recorder: Recorder, function: types.FunctionType) -> bool:
    """Whether a function of torch calls what the program set in the place of one of torch's; states what it calls."""
    return _calls_program(recorder, function, set(), DEPTH)


def _calls_program(recorder: Recorder, function: types.FunctionType, seen: set[int], depth: int) -> bool:
    code = function.__code__
    if id(code) in seen or not depth:
        return False
    seen.add(id(code))
    replaced = _set_on_tensors(code)
    for name, *attributes in _read(code):
        holder, value = _module_of(function), function.__globals__.get(name)
        for attribute in attributes:
            if type(value) is not types.ModuleType:
                break
            holder, name, value = value, attribute, vars(value).get(attribute)
        python = is_a(value, types.FunctionType)
        if holder is None or name in OF_MODES or not (python or type(value) is types.BuiltinFunctionType):
            continue
        if not (python or value in OPERATORS):
            continue
        if python and not is_torchs(value):
            replaced = True
        elif is_a(value, types.FunctionType):
            if name.startswith("_"):
                continue
            replaced = _calls_program(recorder, value, seen, depth - 1) or replaced
        sources = recorder.sources
        sources.read_at(sources.root(holder), place_of(holder, "attr", name), "attr", name, value)
    return replaced


def _set_on_tensors(code: types.CodeType) -> bool:
    return set_on_tensors(frozenset(code.co_names)) is not None


def _module_of(function: types.FunctionType) -> types.ModuleType | None:
    return _modules().get(function.__globals__.get("__name__", ""))


@functools.cache
def _modules() -> dict[str, types.ModuleType]:
    """The modules of torch whose functions are calls of a trace and call others."""
    return {module.__name__: module for module in (torch, torch.nn.functional, torch.functional, torch._tensor)}


def _read(code: types.CodeType) -> tuple[Chain, ...]:
    """What the code reads of its globals."""
    known = READ.get(id(code))
    if known is not None:
        return known[1]
    chains: list[list[str]] = []
    open_ = False
    for each in dis.get_instructions(code):
        if each.opname == "LOAD_GLOBAL":
            chains.append([each.argval])
            open_ = True
        elif each.opname in ("LOAD_ATTR", "LOAD_METHOD") and open_:
            chains[-1].append(each.argval)
        elif each.opname != "CACHE":
            open_ = False
    if len(READ) > DECODED_LIMIT:
        READ.clear()
    found = tuple(dict.fromkeys(map(tuple, chains)))
    READ[id(code)] = (code, found)
    return found
