"""Turns a kernel into the pairs of buffers that may be one memory: each element is read last before it is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from framefuse.ir.loops import Kernel, Load, Loop, Statement, Store
from framefuse.ir.loops.key import with_buffers
from framefuse.ir.loops.walk import in_order, values
from framefuse.ir.numbers import Expr, Symbol

Path = tuple[Expr, ...]
Overwritable = dict[str, tuple[str, ...]]  # by the name of a written buffer: names of read ones


@dataclass(frozen=True, slots=True)
class Touch:
    """A load or store in textual order; ``index`` and the extents of the loops around it are over loop depths."""

    buffer: str
    store: bool
    masked: bool
    index: Expr
    path: Path


def overwritable(kernel: Kernel) -> Overwritable:
    """For each written buffer the read buffers whose memory it may take; none of a product, whose operands many
    programs read at any time.
    """
    if kernel.product is not None:
        return {}
    touches = list(_touches(kernel.body, (), {}))
    by_written: dict[str, tuple[str, ...]] = {}
    for written in kernel.buffers:
        if not written.written:
            continue
        places = [place for place, touch in enumerate(touches) if touch.store and touch.buffer == written.name]
        sources = [
            read.name
            for read in kernel.buffers
            if not read.written and read.dtype.size == written.dtype.size and _precedes(touches, read.name, places)
        ]
        if sources:
            by_written[written.name] = tuple(sources)
    return by_written


def in_place(kernel: Kernel, pairs: dict[str, str]) -> Kernel:
    """The kernel with written buffers that are the memory of read ones."""
    buffers = tuple(replace(buffer, aliases=pairs.get(buffer.name)) for buffer in kernel.buffers)
    return with_buffers(kernel, buffers)


def _precedes(touches: Sequence[Touch], read: str, stores: Sequence[int]) -> bool:
    """Whether all loads of ``read`` come before the first store, and at each point load elements that are written
    there; of a point that writes several, no other point writes one.
    """
    if not stores:
        return False
    path = touches[stores[0]].path
    places = [place for place, touch in enumerate(touches) if touch.buffer == read]
    written = {touches[p].index for p in stores}
    same = all(touches[p].path == path for p in (*places, *stores))
    same = same and all(touches[p].index in written for p in places)
    apart = len(written) == 1 or _are_neighbours(written, Symbol(f"@d{len(path) - 1}"))
    return same and apart and not any(touches[p].masked for p in places) and bool(places) and places[-1] < stores[0]


def _are_neighbours(written: set[Expr], axis: Symbol) -> bool:
    """Whether a turn of the innermost loop writes neighbours, beginning where those of the turn before it end."""
    first, count = next(iter(written)), len(written)
    step, places = first.coefficient(axis), [(index - first).constant for index in written]
    if step is None or step.constant != count or any(place is None for place in places):
        return False
    least = min(place for place in places if place is not None)
    return {place - least for place in places if place is not None} == set(range(count))


def _touches(body: Iterable[Statement], path: Path, depths: dict[Symbol, Expr]) -> Iterator[Touch]:
    for statement in body:
        if isinstance(statement, Loop):
            deeper = {**depths, statement.axis: Symbol(f"@d{len(path)}").expr}
            yield from _touches(statement.body, (*path, statement.extent.substitute(depths)), deeper)
            continue
        for value in values(statement):
            for part in in_order(value, ()):
                if isinstance(part, Load):
                    yield Touch(part.buffer, False, part.mask is not None, part.index.substitute(depths), path)
        if isinstance(statement, Store):  # what is added to atomically was begun by another kernel
            yield Touch(statement.buffer, True, False, statement.index.substitute(depths), path)
