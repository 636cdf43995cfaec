"""Tells the user's comparisons, hashes and texts that only read their objects: native code may run them unseen."""

from __future__ import annotations

import builtins
import functools
import types
from dataclasses import dataclass

from framefuse.capture.interp.machine import Machine
from framefuse.capture.program.lookups import python_method, type_get
from framefuse.capture.program.markers import MISSING
from framefuse.capture.program.versions import CURRENT
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

READING = frozenset(
    """LOAD_FAST LOAD_CONST LOAD_ATTR LOAD_GLOBAL LOAD_DEREF COPY_FREE_VARS STORE_FAST BUILD_TUPLE BUILD_STRING
    FORMAT_VALUE CONVERT_VALUE COMPARE_OP IS_OP BINARY_OP UNARY_NOT UNARY_NEGATIVE TO_BOOL COPY SWAP POP_TOP CALL
    RETURN_VALUE JUMP_FORWARD POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
    JUMP_IF_FALSE_OR_POP JUMP_IF_TRUE_OR_POP""".split()
)
ASKED = frozenset((hash, isinstance, type, len, repr, str, bool, abs, id))
NAMES = frozenset(("__class__", "__name__", "__qualname__"))


@dataclass(frozen=True, slots=True)
class Reads:
    """What a method reads: ``attributes`` of its arguments, ``called`` and ``named`` globals, whether it ``computes``
    with what it read.
    """

    attributes: frozenset[str]
    called: frozenset[str]
    named: frozenset[str]
    computes: bool


@functools.lru_cache(maxsize=1024)
def _reads(code: types.CodeType) -> Reads | None:
    """None for a method that does more than reading."""
    assert CURRENT is not None
    steps, _ = CURRENT.instructions(code)
    if any(step.name not in READING for step in steps) or code.co_flags & 0x2A8:  # *args, generators, coroutines
        return None
    loads = [step.argument for step in steps if step.name == "LOAD_GLOBAL"]
    return Reads(
        frozenset(code.co_names[step.argument] for step in steps if step.name == "LOAD_ATTR"),
        frozenset(code.co_names[argument >> 1] for argument in loads if argument & 1),
        frozenset(code.co_names[argument >> 1] for argument in loads if not argument & 1),
        any(step.name == "BINARY_OP" for step in steps),
    )


def underlying(method: Value) -> Value:
    """The function that dataclasses and reprlib wrap against endless texts."""
    if type(method) is types.FunctionType and method.__globals__.get("__name__") in WRAPPING:
        return getattr(method, "__wrapped__", method)
    return method


WRAPPING = ("dataclasses", "reprlib")


def only_reads(machine: Machine, value: Value, name: str) -> bool | None:
    """Whether special method ``name`` of ``value`` is native, or ``value`` was made during the call and the method
    reads nothing but its attributes; states what else that rests on. None for one that also computes with them.
    """
    kind, sources = type(value), machine.recorder.sources
    method = underlying(type_get(kind, name))
    if type(method) is not types.FunctionType:
        return python_method(kind, name) is None
    reads = _reads(method.__code__)
    if reads is None or sources.knows(value):
        return False
    state = getattr(value, "__dict__", None) or {}
    for key in reads.attributes - NAMES:
        on_class = type_get(kind, key)
        if key not in state and type(on_class) is not types.MemberDescriptorType:
            return False
        slot = type(on_class) is types.MemberDescriptorType
        if on_class is not MISSING and hasattr(type(on_class), "__set__") and not slot:
            return False
    held: list[Value] = []
    for key in reads.called | reads.named:
        held.append(method.__globals__.get(key, vars(builtins).get(key)))
        machine.recorder.functions.read_global(method, key, held[-1], False)
    for cell in method.__closure__ or ():
        held.append(machine.recorder.functions.read_cell(cell, cell.cell_contents, False))
    if not all(_harmless(part) for part in held):
        return False
    if any(method.__globals__.get(key, vars(builtins).get(key)) not in ASKED for key in reads.called):
        return False
    sources.guard_version(kind)
    return None if reads.computes else True


def _harmless(value: Value) -> bool:
    if value is NotImplemented:
        return True
    if is_a(value, type):
        return type_get(type(value), "__instancecheck__") is type.__instancecheck__
    return type(value) is types.BuiltinFunctionType and value in ASKED
