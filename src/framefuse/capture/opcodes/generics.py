"""Makes type variables, type aliases and generic functions, by CPython's own intrinsics."""

from __future__ import annotations

import dis
import functools
from types import FunctionType

from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import handles
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.versions.py312 import INTRINSICS, INTRINSICS_OF_TWO
from framefuse.ir.values import Function, Value


def _one(value: Value) -> Value:
    return +value


def _two(left: Value, right: Value) -> Value:
    return left + right


@functools.cache
def intrinsic(name: str) -> Function:
    """The function of one or two values that an intrinsic of CPython is; no Python function does the same.

    The bytes of a template's operator are replaced: ``+value`` is an intrinsic itself since 3.12, and that of two
    values fills the place of an addition and its cache.
    """
    table, template = (INTRINSICS, _one) if name in INTRINSICS else (INTRINSICS_OF_TWO, _two)
    operator = "CALL_INTRINSIC_1" if template is _one else "BINARY_OP"
    units = bytearray(template.__code__.co_code)
    at = next(at for at in range(0, len(units), 2) if dis.opname[units[at]] == operator)
    units[at + 1] = table.index(name)
    if template is _two:
        units[at] = dis.opmap["CALL_INTRINSIC_2"]
        units[at + 2 : at + 4] = dis.opmap["NOP"], 0
    return FunctionType(template.__code__.replace(co_code=bytes(units), co_name=name.lower()), globals())


def _run(name: str, count: int) -> None:
    def run(machine: Machine, frame: Frame, argument: int) -> None:
        frame.stack[-count:] = [intrinsic(name)(*frame.stack[-count:])]

    handles(name)(run)


for _name in ("TYPEVAR", "PARAMSPEC", "TYPEVARTUPLE", "SUBSCRIPT_GENERIC", "TYPEALIAS"):
    _run(_name, 1)
for _name in (
    "TYPEVAR_WITH_BOUND", "TYPEVAR_WITH_CONSTRAINTS", "SET_FUNCTION_TYPE_PARAMS", "SET_TYPEPARAM_DEFAULT"
):  # fmt: skip
    _run(_name, 2)
