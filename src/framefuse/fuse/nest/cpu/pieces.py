"""Cuts a vector loop where the pieces of joined values end, so that no element asks in which piece it lies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from framefuse.fuse.addressing.ranges import ONE, ZERO, never_negative
from framefuse.fuse.grouping.cells import Cell, Mask
from framefuse.fuse.nest.nest import Nest
from framefuse.fuse.nest.piece import Piece
from framefuse.ir import costs
from framefuse.ir.dtypes import INT64
from framefuse.ir.loops import Index, Let, Loop, LoopKind
from framefuse.ir.numbers import Expr, Symbol, expr, maximum, minimum


def pieces(nest: Nest, lane: Symbol) -> list[Piece]:
    """The parts of a vector loop: one for each piece of a cat along it, or along a loop around it, where each part is
    all of it or has no point. Those of several cats (a roll of two dimensions) are cut by each other, and those that
    read the same are one. The whole loop where there is no such cat, and around the loops over a row; the loops of a
    scan are inside of it.
    """
    if nest.shape.group.rows is not None:
        return [Piece(ZERO, nest.loops.extents[lane])]
    within = nest.loops.absorbed.union([lane], *(scan.inner for scan in nest.group.scans))
    return _cut_by(nest, lane, [axis for axis in nest.loops.axes if axis not in within])


def row_pieces(nest: Nest, lane: Symbol, vector: bool = True) -> list[Piece]:
    """The same of the innermost loop over a row, where the loops around it are open; of one that is no ``vector`` loop,
    rows are lanes, which have one length.
    """
    around = nest.emitter.scopes[-1].axes - nest.loops.absorbed if vector else frozenset()
    return _cut_by(nest, lane, [axis for axis in nest.loops.axes if axis in around])


def _cut_by(nest: Nest, lane: Symbol, around: Sequence[Symbol]) -> list[Piece]:
    found = [Piece(ZERO, nest.loops.extents[lane])]
    cats = [cell for cell in nest.shape.order if cell.node.op == "cat" and cell.kind == "op" and cell.tests]
    cuts = dict.fromkeys(cut for cell in cats if (cut := _cut(nest, cell, lane, around)) is not None)
    for axis, ends in sorted(cuts, key=lambda cut: cut[0] is not lane):  # along the loop first: these decide the most
        if len(found) * (len(ends) + 1) <= costs.CPU_CAT_PIECES + 1:
            parts = _parts(nest, axis, ends)
            found = [_both(nest, lane, axis, one, other) for one in found for other in parts]
    return _joined(nest, found) if len(found) > 1 else found


def _joined(nest: Nest, found: Sequence[Piece]) -> list[Piece]:
    """The pieces, of which those are one that read the same: neighbours, and equal parts of the loop at several points
    of the loops around it. What is around a block that was written is whole rows.
    """
    rows: dict[Expr, list[tuple[Piece, Hashable]]] = {}
    numbers: dict[Hashable, int] = {}
    for piece in found:
        row = rows.setdefault(piece.inside, [])
        read = _read(nest, piece, numbers)
        if row and row[-1][1] == read and row[-1][0].last is piece.first:
            row[-1] = replace(row[-1][0], last=piece.last), read
        else:
            row.append((piece, read))
    equal: dict[Hashable, list[Piece]] = {}
    for row in rows.values():
        for piece, read in row:
            equal.setdefault((piece.first, piece.last, read), []).append(piece)
    return [
        replace(same[0], inside=ONE if len(same) == len(rows) else sum((one.inside for one in same), ZERO))
        for same in equal.values()
    ]


def _read(nest: Nest, piece: Piece, numbers: dict[Hashable, int]) -> Hashable:
    """What the points of a piece are computed from; equal for pieces in whose loops the same would be written.
    ``numbers`` are those of the values met so far.
    """
    read: dict[Cell, int] = {}
    outcomes = piece.outcomes
    for cell in nest.shape.order:
        kids: tuple[object, ...] = ()
        if cell.kind == "load":
            kids = tuple(test for test in cell.mask if outcomes.get(test) is not True)
        elif cell.node.op == "cat" and cell.kind == "op":
            pieces_read = []
            for tests, kid in zip((*cell.tests, ()), cell.kids, strict=True):
                if any(outcomes.get(test) is False for test in tests):
                    continue
                left = tuple(test for test in tests if test not in outcomes)
                pieces_read.append((left, read[kid]))
                if not left:
                    break
            if len(pieces_read) == 1:
                read[cell] = pieces_read[0][1]
                continue
            kids = tuple(pieces_read)
        else:
            kids = (cell.tests, cell.inner, cell.inner_index, *(read[kid] for kid in cell.kids))
        read[cell] = numbers.setdefault((cell.kind, cell.node, cell.index, kids), len(numbers))
    return tuple(read[cell] for cell in (*nest.group.roots.values(), *nest.group.reduces) if cell in read)



def _cut(nest: Nest, cell: Cell, lane: Symbol, around: Sequence[Symbol]) -> tuple[Symbol, tuple[Expr, ...]] | None:
    """The loop that a cat runs along and where its pieces end there, all but the last."""
    for axis in (lane, *around):
        ends = tuple(end for tests in cell.tests if (end := _end(nest, tests, axis)) is not None)
        if len(ends) == len(cell.tests) and (axis is lane or _decided_inside(nest, lane, axis, ends)):
            return axis, ends
    return None


def _parts(nest: Nest, axis: Symbol, ends: Sequence[Expr]) -> list[Piece]:
    """The points of the loop over ``axis`` in each piece."""
    length = nest.loops.extents[axis]
    cuts = [ZERO, *(_within(nest, _alone(nest, end), length) for end in ends), length]
    found = []
    for number, (first, last) in enumerate(itertools.pairwise(cuts)):
        outcomes = {axis.expr - end: place < number for place, end in enumerate(ends)}
        outcomes |= {end - 1 - axis.expr: place >= number for place, end in enumerate(ends)}
        found.append(Piece(first, last, ONE, outcomes))
    return found


def _both(nest: Nest, lane: Symbol, axis: Symbol, one: Piece, other: Piece) -> Piece:
    """The part of a vector loop in which the loop over ``axis``, itself or one around it, is in a piece of its own."""
    outcomes = one.outcomes | other.outcomes
    if axis is not lane:
        inside = minimum(axis.expr - other.first + 1, other.last - axis.expr)  # above zero in this piece
        return Piece(one.first, one.last, one.inside * maximum(ZERO, minimum(expr(1), inside)), outcomes)
    if one.first is ZERO and one.last is nest.loops.extents[lane]:
        return Piece(other.first, other.last, one.inside, outcomes)
    first = maximum(one.first, other.first)
    return Piece(first, maximum(first, minimum(one.last, other.last)), one.inside, outcomes)


def part(nest: Nest, lane: Symbol, piece: Piece, low: Expr, high: Expr, inside: Callable[[], None]) -> None:
    """The vector loop over the points of a piece from ``low`` to ``high``, expressions over the kernel's axes, at the
    end of the innermost scope.
    """
    parameters, outer = nest.emitter.parameters, nest.emitter.scopes[-1].body
    start, step = nest.new_axis(), nest.new_axis()
    outer.append(Let(start.name, Index(maximum(low, parameters.index(piece.first)), INT64)))
    parameters.name(lane, start.expr + step.expr)
    with nest.settled(piece), nest.scope((lane,)) as scope:
        inside()
    length = maximum(ZERO, minimum(high, parameters.index(piece.last)) - start.expr)
    outer.append(Loop(step, length * parameters.index(piece.inside), tuple(scope.body), LoopKind.VECTOR))


def _decided_inside(nest: Nest, lane: Symbol, axis: Symbol, ends: Sequence[Expr]) -> bool:
    """Whether all that these ends along a loop around it decide is computed in the vector loop: a value computed before
    it is one for all of its parts.
    """
    tests = {test for end in ends for test in (axis.expr - end, end - 1 - axis.expr)}
    for cell in nest.shape.order:
        asked = cell.mask if cell.kind == "load" else itertools.chain(*cell.tests)
        if not tests.isdisjoint(asked) and lane not in nest.shape.axes[cell]:
            return False
    return True


def _end(nest: Nest, tests: Mask, lane: Symbol) -> Expr | None:
    """Where along ``lane`` a piece ends, if that is all that its tests say."""
    if len(tests) != 1:
        return None
    slope = tests[0].coefficient(lane)
    end = tests[0] + lane.expr + 1
    left = _alone(nest, end).symbols
    if slope is None or slope.constant != -1 or left & (nest.group.axes.keys() | nest.shape.positions.keys()):
        return None
    return end


def _alone(nest: Nest, value: Expr) -> Expr:
    """The value without the axes that are part of others."""
    return value.substitute(dict.fromkeys(nest.loops.absorbed & value.symbols, 0))


def _within(nest: Nest, end: Expr, total: Expr) -> Expr:
    """The end of a piece, or the nearer end of the loop where it lies outside (of a slice of a cat)."""
    end = end if never_negative(end, nest.group.axes) else maximum(ZERO, end)
    return end if never_negative(total - end, nest.group.axes) else minimum(total, end)
