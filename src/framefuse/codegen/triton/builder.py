"""Collects the lines of one kernel's body: gives names, remembers what has one in the open loops, indents."""

from __future__ import annotations

import keyword
import math
from collections.abc import Hashable, Iterator
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
        self._tiles: dict[Hashable, Tile] = {}
        self._names: dict[Hashable, str] = {}
        self._opened: list[tuple[list[Hashable], list[Hashable]]] = [([], [])]  # what each open loop has added to these

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

    def named(self, text: str, wanted: str = "w0") -> str:
        """A new name for the value of an expression."""
        name = self.fresh(wanted)
        self.line(f"{name} = {text}")
        return name

    def once(self, key: Hashable, text: str, wanted: str) -> str:
        """The name of an expression that only tiles have, such as a mask: given once where the loops are open that are
        open at its first use. ``key`` tells it from others.
        """
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = self.named(text, wanted)
            self._opened[-1][1].append(key)
        return name

    def either(self, test: str, one: str, other: str) -> None:
        """One line where the test holds, else another."""
        for text in (f"if {test}:", f"    {one}", "else:", f"    {other}"):
            self.line(text)

    def known(self, key: Hashable) -> Tile | None:
        """The tile that was remembered in one of the open loops."""
        return self._tiles.get(key)

    def remember(self, key: Hashable, tile: Tile) -> Tile:
        """Notes a tile until the innermost open loop is closed."""
        self._tiles[key] = tile
        self._opened[-1][0].append(key)
        return tile

    @contextmanager
    def loop(self, head: str) -> Iterator[None]:
        """The body of a loop: what is computed in it is not known behind it."""
        self.line(head)
        self._indent += 1
        self._opened.append(([], []))
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.line("pass")
        tiles, names = self._opened.pop()
        for key in tiles:
            del self._tiles[key]
        for key in names:
            del self._names[key]
        self._indent -= 1
