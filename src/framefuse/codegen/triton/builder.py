"""Collects the lines of one kernel's body: names values, remembers what was computed in the open loops, indents."""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from framefuse.ir.dtypes import DType

# How Triton names the element types.
TYPES = {
    "bool": "tl.int1", "uint8": "tl.uint8", "int8": "tl.int8", "int16": "tl.int16", "int32": "tl.int32",
    "int64": "tl.int64", "float16": "tl.float16", "bfloat16": "tl.bfloat16", "float32": "tl.float32",
    "float64": "tl.float64",
}  # fmt: skip
RESERVED = frozenset(("tl", "triton", "libdevice", "device", "maths", "range", "float", *keyword.kwlist))
UNBOUNDED = -math.inf, math.inf


@dataclass(frozen=True, slots=True)
class Tile:
    """A value of the kernel: a name or literal, and the dimensions of the tile along which its elements differ.

    ``constant`` is the value of a literal, whose type is that of what it is combined with. ``bounds`` are what a float
    lies between, but for its rounding, where it is not NaN.
    """

    text: str
    dtype: DType
    axes: frozenset[int] = frozenset()
    constant: bool | int | float | None = None
    bounds: tuple[float, float] = UNBOUNDED

    @property
    def typed(self) -> str:
        """The text of an expression that has this dtype whatever it is combined with."""
        if self.constant is None:
            return self.text
        return f"tl.full((), {self.text}, {TYPES[self.dtype.name]})"


class Builder:
    """The text under construction. ``helpers`` are the functions of ``device`` that it calls."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.taken: set[str] = set(RESERVED)
        self._counters: dict[str, int] = {}
        self._indent = 1
        self._memo: list[dict[str, str]] = [{}]

    def fresh(self, wanted: str) -> str:
        """A name that nothing has: ``wanted`` itself, or with a number behind it."""
        name, base = wanted, wanted.rstrip("0123456789")
        while name in self.taken:
            number = self._counters.get(base, 0)
            self._counters[base] = number + 1
            name = f"{base}{number}"
        self.taken.add(name)
        return name

    def line(self, text: str) -> None:
        self.lines.append("    " * self._indent + text)

    def named(self, text: str, wanted: str = "w0", version: str = "") -> str:
        """The name of the value of an expression, computed once for each point of the loops that are open.

        Equal texts are equal values, since a name is given once; of what is read from memory ``version`` tells the
        state of it.
        """
        found = self.known(text, version)
        if found is not None:
            return found
        name = self._memo[-1][text + version] = self.fresh(wanted)
        self.line(f"{name} = {text}")
        return name

    def known(self, text: str, version: str = "") -> str | None:
        """The name that the value of an expression already has."""
        return next((memo[text + version] for memo in reversed(self._memo) if text + version in memo), None)

    def remember(self, text: str, version: str, name: str) -> None:
        """Notes that the value of an expression is already in ``name``."""
        self._memo[-1][text + version] = name

    @contextmanager
    def loop(self, head: str) -> Iterator[None]:
        """The body of a loop: what is computed in it is not known behind it."""
        self.line(head)
        self._indent += 1
        self._memo.append({})
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.line("pass")
        self._memo.pop()
        self._indent -= 1
