"""Finds what each point of a tile reads or writes as neighbours in memory, as what alternates in a stack is: the tile
moves it as one that is so many times as wide, by whole vectors, and takes it apart or joins it in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from framefuse.codegen.triton.builder import Builder
from framefuse.ir.dtypes import BOOL
from framefuse.ir.loops import Kernel, Let, Load, Local, Loop, LoopKind, Store
from framefuse.ir.loops.once import once
from framefuse.ir.loops.walk import statements, values_of
from framefuse.ir.numbers import Expr, Symbol, expr

COUNTS = 2, 4  # neighbours that are taken apart by halves
Place = tuple[str, Expr]  # an element of a buffer


@dataclass(frozen=True, slots=True)
class Run:
    """The ``count`` neighbours from ``first`` on, at each point of a loop."""

    first: Expr
    count: int

    def number(self, index: Expr) -> int:
        """Which of them lies at ``index``."""
        return (index - self.first).constant or 0


@dataclass(frozen=True, slots=True)
class Runs:
    """The neighbours that the innermost loop over ``axis`` loads, by the place of each, and those that it stores, by
    the last store (its identity); the others are ``joined`` with that.
    """

    axis: Symbol | None = None
    loads: dict[Place, Run] = field(default_factory=dict)
    stores: dict[int, tuple[Run, tuple[Store, ...]]] = field(default_factory=dict)
    joined: frozenset[int] = frozenset()

    @property
    def widest(self) -> int:
        """The largest number of neighbours; 1 where there are none."""
        return max((run.count for run in (*self.loads.values(), *(run for run, _ in self.stores.values()))), default=1)


NONE = Runs()


@once
def runs_of(kernel: Kernel) -> Runs:
    """The neighbours of the kernel's one innermost vector loop, where it stores behind all that it loads."""
    inner = [loop for loop in statements(kernel.body) if isinstance(loop, Loop) and _is_innermost(loop)]
    if len(inner) != 1:
        return NONE
    (loop,) = inner
    first = next((at for at, s in enumerate(loop.body) if isinstance(s, Store)), len(loop.body))
    behind = loop.body[first:]
    if not all(isinstance(s, Store) and isinstance(s.value, Local) for s in behind):
        return NONE
    # Positions that the points find from theirs, as by a division: what is neighbours at one is none at the next.
    found = {Symbol(s.name) for s in loop.body if isinstance(s, Let)}
    loads: dict[Place, Run] = {}
    read = [v for v in values_of(loop.body) if isinstance(v, Load) and not found & v.index.symbols]
    groups: dict[Place, dict[int, Expr]] = {}
    for value in read:
        if value.mask is None and value.dtype is not BOOL and _count(value.index, loop.axis):
            moving, at = _apart(value.index)
            groups.setdefault((value.buffer, moving), {})[at] = value.index
    for (buffer, _), places in groups.items():
        run = _run(places, loop.axis)
        if run is not None:
            loads |= {(buffer, index): run for index in places.values()}
    plain = [s for s in behind if isinstance(s, Store) and not found & s.index.symbols]
    stores, joined = _stores(plain, loop.axis) if len(plain) == len(behind) else ({}, set())
    return Runs(loop.axis, loads, stores, frozenset(joined)) if loads or stores else NONE


def _stores(found: Sequence[Store], axis: Symbol) -> tuple[dict[int, tuple[Run, tuple[Store, ...]]], set[int]]:
    stores: dict[int, tuple[Run, tuple[Store, ...]]] = {}
    joined: set[int] = set()
    at = 0
    while at < len(found):
        count = _count(found[at].index, axis)
        part = tuple(found[at : at + max(1, count)])
        run = Run(part[0].index, count)
        follow = all(s.buffer == part[0].buffer and s.value.dtype is part[0].value.dtype for s in part)
        follow = follow and all((s.index - run.first).constant == n for n, s in enumerate(part))
        if count and len(part) == count and follow and part[0].value.dtype is not BOOL:
            stores[id(part[-1])] = run, part
            joined |= {id(s) for s in part[:-1]}
            at += count
        else:
            at += 1
    return stores, joined


def _run(places: dict[int, Expr], axis: Symbol) -> Run | None:
    first = min(places)
    count = _count(places[first], axis)
    return Run(places[first], count) if sorted(places) == list(range(first, first + count)) else None


def _count(index: Expr, axis: Symbol) -> int:
    """The elements between those of neighbouring points, where so many may be moved together; else 0."""
    step = index.coefficient(axis)
    return step.constant or 0 if step is not None and step.constant in COUNTS else 0


def _apart(index: Expr) -> tuple[Expr, int]:
    """An index as what moves and the number that is added."""
    number = sum(factor for atoms, factor in index.terms if not atoms)
    return index - expr(number), number


def _is_innermost(loop: Loop) -> bool:
    return loop.kind is LoopKind.VECTOR and not any(isinstance(inner, Loop) for inner in loop.body)


def taken_apart(b: Builder, text: str, count: int, shape: Sequence[str]) -> list[str]:
    """The names of tiles of ``shape`` for each of ``count`` neighbours in the tile ``text``."""
    halves = ", ".join("2" for _ in range(count.bit_length() - 1))
    parts = [b.named(f"tl.reshape({text}, ({', '.join(shape)}, {halves}))", "pair")]
    step = 1
    while step < count:  # the last dimension counts neighbours by ones, the one before it by twos
        found = []
        for part in parts:
            one, other = b.fresh("one"), b.fresh("other")
            b.line(f"{one}, {other} = tl.split({part})")
            found.append((one, other))
        parts = [one for one, _ in found] + [other for _, other in found]
        step *= 2
    return parts


def put_together(texts: Sequence[str], shape: Sequence[str]) -> str:
    """One tile of neighbours, of tiles of ``shape``."""
    parts = list(texts)
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [f"tl.join({one}, {other})" for one, other in zip(parts[:half], parts[half:], strict=True)]
    wide = (*shape[:-1], f"{len(texts)} * {shape[-1]}")
    return f"tl.reshape({parts[0]}, ({', '.join(wide)},))"
