"""Checks what a special method gave as the builtin that asked for it does, with CPython's errors."""

from __future__ import annotations

import operator
from collections.abc import Callable

from framefuse.capture.facts.numbers import Float, Integer, bare, plain_number
from framefuse.capture.program.frame import InterpretedGenerator
from framefuse.ir.values import Value

BUILTINS: dict[str, Callable[[Value], Value]] = {
    "__len__": len, "__bool__": bool, "__str__": str, "__repr__": repr, "__hash__": hash, "__int__": int,
    "__float__": float, "__iter__": iter, "__index__": operator.index,
    "__format__": format,
}  # fmt: skip
EXPECTED: dict[str, tuple[type, ...]] = {
    "__bool__": (bool,), "__str__": (str,), "__repr__": (str,), "__int__": (int, Integer), "__float__": (float, Float),
    "__index__": (int, Integer), "__format__": (str,),
}  # fmt: skip
SMALL, WORD = 1 << 60, 1 << 63


def checked(name: str, kind: type, value: Value) -> Value:
    """``value``, given by the method ``name`` of a ``kind``, as its builtin passes it on; raises as that does."""
    given = type(value)
    if name == "__len__":
        fits = given in (int, Integer) and 0 <= value < SMALL
    elif name == "__hash__":
        fits = given in (int, Integer) and bare(value) != -1 and -WORD <= bare(value) < WORD
    elif name == "__iter__":
        fits = given is InterpretedGenerator or hasattr(given, "__next__")
    else:
        fits = given in EXPECTED[name]
    if fits:
        return value
    value = plain_number(value)
    asked = type(kind.__name__, (), {name: lambda self, *spec: value})
    return BUILTINS[name](asked())
