"""Turns pointwise work into tiles of one or two sides, or into one loop over all elements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from framefuse.fuse.nest.forms import crossing_axis, is_along, primary
from framefuse.fuse.nest.gpu.decode import decode, decode_elements, joined
from framefuse.fuse.nest.gpu.unrolled import each_piece, unrolled_axis
from framefuse.fuse.nest.loop_order import memory_order, vector_axis
from framefuse.fuse.nest.nest import Built, Nest
from framefuse.fuse.nest.sweeps import Sweep
from framefuse.ir import costs
from framefuse.ir.dtypes import INT64
from framefuse.ir.loops import Index, Let, Loop, LoopKind
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, minimum, product


def pointwise(nest: Nest, only: Sweep, title: str, work: Expr) -> Built:
    group = nest.group
    order = memory_order(group.domain, primary(nest), group.hints)
    if not order:
        with nest.scope() as scope:
            nest.point(only, ())
        return nest.built(title, scope.body, expr(1), work, False)
    pieces = unrolled_axis(nest, order)
    order = [axis for axis in order if axis is not pieces]
    lane = vector_axis(order, nest.accesses, nest.hinted())
    axes = nest.join([*(axis for axis in order if axis is not lane), lane])
    across = crossing_axis(nest, axes, costs.GPU_CROSSED) or crossing_axis(nest, axes, costs.GPU_CROSSED, written=True)
    sides = _sides(nest, axes, across, pieces)

    def inside() -> None:
        if pieces is None:
            nest.point(only, ())
        else:
            each_piece(nest, pieces, lambda: nest.point(only, ()))

    if sides:
        return _tiles(nest, axes, sides, inside, title, work)
    with nest.scope() as top:
        nest.emitter.floor = 1
        with joined(nest, axes, LoopKind.PARALLEL_VECTOR):
            inside()
    return nest.built(title, top.body, product(nest.loops.extents[axis] for axis in axes), work, True)


Sides = list[tuple[tuple[Symbol, ...], int]]


def _sides(nest: Nest, axes: Sequence[Symbol], across: Symbol | None, pieces: Symbol | None) -> Sides:
    """The axes of each side of a tile, outermost first, with its size; none where a tile would be small or hardly
    filled. Each of its points is one in all ``pieces``.
    """
    hints = nest.hinted()
    lane = axes[-1]
    count = 1 if pieces is None else power(hints[pieces])
    if across is not None:
        square = costs.GPU_SQUARE if _window(nest, lane) < costs.GPU_WINDOW_LOADS else costs.GPU_WINDOW_SQUARE
        return [((axis,), min(square, power(hints[axis]))) for axis in (across, lane)]
    crossed = _crossed_pair(nest, axes) if pieces is None else []
    if crossed:
        return crossed
    if len(axes) == 1 or (pieces is None and _is_spread(nest, lane)):
        return []
    most = _most(_window(nest, lane)) // count
    wide = _filled(hints[lane], costs.GPU_TILE // count)
    if wide is None or wide < min(costs.GPU_NARROW, costs.GPU_TILE):
        runs = _runs(nest, axes)
        if runs or wide is None or not _is_shuffled(nest, axes):
            return runs
    if wide >= costs.GPU_TILE // count:
        return [((lane,), wide)]
    wide = min(wide, most)
    if most < costs.GPU_TILE // count and wide == most and hints[axes[-2]] > 1:
        wide //= 2  # with two sides: what is divided is one number for all of a tile then
    high = _filled(hints[axes[-2]], most // wide)
    if high is None or high * wide < costs.GPU_TILE_LEAST // count:
        return []
    return [((axes[-2],), high), ((lane,), wide)] if high > 1 else [((lane,), wide)]


def _crossed_pair(nest: Nest, axes: Sequence[Symbol]) -> Sides:
    """A square of two axes that lie in memory as one, such as groups and the few channels of each, and of one along
    which the other of what is read and written is contiguous: a group norm that turns channels-last into contiguous.
    """
    hints, extents, lane = nest.hinted(), nest.loops.extents, axes[-1]

    def near(axis: Symbol, weight: int) -> list[Expr]:
        return [a.address for a in nest.accesses if a.weight == weight and is_along(a.address, axis)]

    for short in axes:
        few = extents[short].constant
        if few is None or not 1 < few < costs.GPU_CROSSED:
            continue
        for weight, other in ((1, 2), (2, 1)):
            rest = [axis for axis in axes if axis is not short]
            slopes = [(axis, each.coefficient(axis)) for each in near(short, weight) for axis in rest]
            outer = [axis for axis, slope in slopes if slope is not None and slope.constant == few]
            across = [axis for axis in reversed(rest) if axis not in outer and near(axis, other)]
            if outer and across and hints[outer[0]] * few >= costs.GPU_CROSSED <= hints[across[0]]:
                pair = ((outer[0], short), min(costs.GPU_SQUARE, power(hints[outer[0]] * few)))
                single = ((across[0],), min(costs.GPU_SQUARE, power(hints[across[0]])))
                return [single, pair] if short is lane else [pair, single]
    return []


def _is_spread(nest: Nest, lane: Symbol) -> bool:
    """Whether wide elements are read a few apart, as pixel_unshuffle by 3 reads them: the rows of a tile would be short
    and loads of neighbours far from each other (H100, 12 x 24 x 252 x 252 by 3 and 8 x 16 x 400 x 400 by 5: 0.77 and
    0.64 of eager's speed, by one loop 1.0 and 1.2; in bfloat16 by 3 1.1 and 0.9).
    """
    if any(cell.node.dtype.size < costs.GPU_SPREAD_BYTES for cell in nest.group.roots.values()):
        return False
    steps = (access.address.coefficient(lane) for access in nest.accesses if access.weight == 1)
    return any(step is not None and step.constant is not None and step.constant in costs.GPU_SPREAD for step in steps)


def _runs(nest: Nest, axes: Sequence[Symbol]) -> Sides:
    """A side of two axes where the last one is short and of a constant length, as that of pixel_shuffle: only what is
    divided by a constant is found for each point. The other side is of two axes too where the nearer one is short
    (H100, by 2 of 32 x 128 x 57 x 57: 1.24 of eager's speed, by one loop over all elements 0.47; of 64 x 256 x 28 x 28
    1.18 and 0.33; in bfloat16 of 16 x 64 x 127 x 127 1.73, in tiles of 128 x 2 points 1.23).
    """
    hints, extents = nest.hinted(), nest.loops.extents
    if len(axes) < 3 or extents[axes[-1]].constant is None or any(hints[axis] == 0 for axis in axes):
        return []
    length = hints[axes[-2]] * hints[axes[-1]]
    if length < costs.GPU_RUN_LEAST:
        return []
    wide = _filled(length, costs.GPU_TILE) or 1
    if wide < min(length, costs.GPU_RUN):
        wide = min(power(length), costs.GPU_TILE)
    run, most, before = ((axes[-2], axes[-1]), wide), costs.GPU_TILE // wide, axes[-3]
    above = axes[-4:-2] if hints[before] < most and extents[before].constant is not None else [before]
    high = _filled(math.prod(hints[axis] for axis in above), most)
    if high is None or high * wide < costs.GPU_TILE_LEAST:
        return []
    return [(tuple(above), high), run] if high > 1 else [run]


def _most(loads: int) -> int:
    """The points of a tile each of which reads so many elements of one operand."""
    if loads < costs.GPU_WINDOW_LOADS:
        return costs.GPU_TILE
    return costs.GPU_NINE_TILE if loads == costs.GPU_NINE else costs.GPU_WINDOW_TILE


def _window(nest: Nest, lane: Symbol) -> int:
    """How many elements of one operand each point reads, as those of a window, at most."""
    loads = Counter(
        cell.node
        for cell in nest.shape.order
        if cell.kind == "load" and any(lane in position.symbols for position in cell.index)
    )
    return max(loads.values(), default=0)


def _is_shuffled(nest: Nest, axes: Sequence[Symbol]) -> bool:
    """Whether a load of each element runs along the axis before the narrow last one, a power of two, as that of a
    transposed matrix of two rows does: the tile moves whole vectors, where one loop over all elements would divide for
    each of them.
    """
    narrow = nest.loops.extents[axes[-1]].constant
    if narrow is None or narrow != power(narrow):
        return False
    loads = [access.address for access in nest.accesses if access.weight == 1 and axes[-1] in access.address.symbols]
    return any(is_along(address, axes[-2]) for address in loads)


def _filled(extent: int, most: int) -> int | None:
    """The largest power of two up to ``most`` in whose multiples an extent nearly fits."""
    size = most
    while size > 1 and extent < costs.GPU_FILLED * size * -(-extent // size):
        size //= 2
    return size if extent else None


def power(extent: int) -> int:
    return 1 << max(0, extent - 1).bit_length()


def _tiles(
    nest: Nest, axes: Sequence[Symbol], sides: Sides, inside: Callable[[], None], title: str, work: Expr
) -> Built:
    """``for tile in parallel(...)``: where it begins, then vector loops over its sides."""
    extents, parameters = nest.loops.extents, nest.emitter.parameters
    inner = [side for side, _ in sides]
    outer = [axis for axis in axes if not any(axis in side for side in inner)]
    lengths = [product(extents[axis] for axis in side) for side in inner]
    counts = [*(extents[axis] for axis in outer), *map(ceildiv, lengths, (size for _, size in sides))]
    with nest.scope() as top:
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        with nest.loop(tuple(outer), symbol, product(counts), LoopKind.PARALLEL) as scope:
            places = [Symbol(f"@p{number}") for number in range(len(sides))]
            decode(nest, symbol.expr, [*outer, *places], counts)
            steps: list[tuple[Symbol, Expr, Expr]] = []
            for place, (side, size), length in zip(places, sides, lengths, strict=True):
                start, step = nest.new_axis(), nest.new_axis()
                scope.body.append(Let(start.name, Index(parameters.index(place.expr) * size, INT64)))
                where = start.expr + step.expr
                if len(side) == 1:
                    parameters.name(side[0], where)
                steps.append((step, _length(parameters.index(length), size, start), where))
            _nested(nest, inner, steps, inside)
    return nest.built(title, top.body, product(counts), work, True)


def _length(extent: Expr, size: int, start: Symbol) -> Expr:
    """The points of one tile along a side: all of them where it divides the extent."""
    if extent.constant is not None and extent.constant % size == 0:
        return expr(size)
    return minimum(expr(size), extent - start.expr)


def _nested(
    nest: Nest, sides: Sequence[tuple[Symbol, ...]], steps: Sequence[tuple[Symbol, Expr, Expr]],
    inside: Callable[[], None],
) -> None:  # fmt: skip
    """A vector loop for each side, one in the other; extents and places are over the kernel's own symbols."""
    if not sides:
        inside()
        return
    outer, side, (step, length, where) = nest.emitter.scopes[-1], sides[0], steps[0]
    with nest.scope(side) as scope:
        if len(side) > 1:
            decode_elements(nest, where, side, [nest.loops.extents[axis] for axis in side])
        _nested(nest, sides[1:], steps[1:], inside)
    outer.body.append(Loop(step, length, tuple(scope.body), LoopKind.VECTOR))
