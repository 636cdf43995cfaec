"""Turns equal groups into one kernel, written once: equal layers, and what an optimizer does to each parameter."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.grouping.cells import Cell, Group
from framefuse.fuse.nest.nest import Built, Partial
from framefuse.fuse.nest.sweeps import needed_cells
from framefuse.ir.builder import attributes_key
from framefuse.ir.graph import Node
from framefuse.ir.loops.key import with_lines
from framefuse.ir.numbers import Real
from framefuse.ir.source import Line
from framefuse.ir.values import Value

Build = Callable[[Group, Callable[[Node], Strides]], list[Built]]


@dataclass(frozen=True, slots=True)
class Known:
    """Kernels of an earlier group, with its nodes and numbers in the order of their group's key."""

    nodes: tuple[Node, ...]
    reals: tuple[Real, ...]
    kernels: list[Built]


class Kernels:
    """The kernels written so far, by what decides them: groups of equal keys differ in nothing but which nodes they
    load and leave in memory, which run-time floats they take, and in the user's lines.
    """

    def __init__(self, strides_of: Callable[[Node], Strides]) -> None:
        self.strides_of = strides_of
        self.found: dict[Hashable, Known] = {}

    def of(self, group: Group, build: Build) -> list[Built]:
        """The kernels of a group: those of an equal one called with the nodes of this, or those that ``build`` makes,
        which is told the layout of what is part of the key alone.
        """
        cells = needed_cells(group)
        nodes = tuple(dict.fromkeys(cell.node for cell in cells))
        reals = _reals(nodes)
        memory = {*(cell.node for cell in cells if cell.kind == "load"), *group.roots}
        strides = {node: self.strides_of(node) for node in nodes if node in memory}
        key = _key(group, cells, nodes, reals, strides)
        known = self.found.get(key)
        if known is None:
            known = self.found[key] = Known(nodes, reals, build(group, strides.__getitem__))
            return known.kernels
        others: dict[object, Value] = dict(zip((*known.nodes, *known.reals), (*nodes, *reals), strict=True))
        lines = tuple(dict.fromkeys(cell.node.line for cell in cells if cell.node.line is not None))
        return [_called(built, others, lines) for built in known.kernels]


def _reals(nodes: Sequence[Node]) -> tuple[Real, ...]:
    """The run-time floats that are constants of a kernel, where that is all that they are."""
    reals: dict[Real, None] = {}
    for node in nodes:
        if node.op in ("input", "result"):
            continue
        real = _real(node)
        if real is not None:
            reals[real] = None
        elif any(isinstance(value, Real) for _, value in node.attrs):
            return ()
    return tuple(reals)


def _real(node: Node) -> Real | None:
    """The run-time float that a constant node is."""
    value = node.attr("value") if node.op == "full" else None
    return value if isinstance(value, Real) else None


def _attributes(node: Node, numbers: dict[Real, int]) -> Hashable:
    if node.op in ("input", "result"):  # in memory: which one it is, is not part of the kernel
        return ()
    real = _real(node)
    return attributes_key(node.op, node.attrs) if real not in numbers else numbers[real]


def _key(
    group: Group,
    cells: Sequence[Cell],
    nodes: tuple[Node, ...],
    reals: tuple[Real, ...],
    strides: dict[Node, Strides],
) -> Hashable:
    """What decides the kernels of a group, but for which nodes and floats it is about."""
    places = {cell: place for place, cell in enumerate(cells)}
    values_of = {node: number for number, node in enumerate(nodes)}
    numbers = {real: number for number, real in enumerate(reals)}
    computed = tuple(
        (
            cell.kind,
            values_of[cell.node],
            cell.index,
            cell.mask,
            tuple([places[kid] for kid in cell.kids]) if cell.kind != "load" else (),
            cell.tests,
            cell.inner,
            cell.inner_index,
            cell.position,
        )
        for cell in cells
    )
    values = tuple(
        (
            node.op,
            _attributes(node, numbers),
            node.dtype.name,
            node.shape,
            tuple([(operand.dtype.name, operand.shape) for operand in node.inputs]),
            strides.get(node),
        )
        for node in nodes
    )
    roots = tuple(places[cell] for cell in group.roots.values())
    return tuple(group.axes.items()), group.domain, group.rows, group.adds, group.device, roots, computed, values


def _called(built: Built, others: dict[object, Value], lines: tuple[Line, ...]) -> Built:
    """A kernel called with other nodes and floats, and with memory of its own between two stages."""
    for part in built.buffers:
        if isinstance(part, Partial):
            others.setdefault(part, replace(part))
    return replace(
        built,
        kernel=with_lines(built.kernel, lines),
        buffers=tuple(others[part] for part in built.buffers),
        numbers=tuple(others.get(number, number) for number in built.numbers),
    )
