"""Turns the index of an element of a view into the index of the element of its operand, staying affine where it can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from framefuse.fuse.addressing.ranges import (
    ONE,
    ZERO,
    divide,
    exact_quotient,
    extreme,
    nonnegative,
    positive_symbols,
    recombined,
)
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, Symbol

Index = tuple[Expr, ...]
MOVES = ("expand", "reshape", "permute", "slice", "diagonal", "windows")


class Split(Exception):
    """Asks for ``axis`` to become ``outer * inner + rest``: a reshape divides the index at this radix."""

    def __init__(self, axis: Symbol, inner: Expr) -> None:
        super().__init__(f"{axis} at {inner}")
        self.axis = axis
        self.inner = inner


def operand_index(
    node: Node, index: Index, extents: Mapping[Symbol, Expr], hints: Mapping[Symbol, int], may_split: bool = True
) -> Index:
    """The index into ``node.inputs[0]`` of the element that the view ``node`` (op of :data:`MOVES`) has at ``index``.

    ``extents`` gives the ranges of the axes in ``index``. Raises :class:`Split` when the index is affine only after an
    axis is split and ``may_split`` is true; otherwise such an index holds a division and a remainder.
    """
    source = node.inputs[0]
    if node.op == "permute":
        moved: list[Expr] = [ZERO] * len(index)
        for position, axis in zip(index, node.attr("axes"), strict=True):
            moved[axis] = position
        return tuple(moved)
    if node.op == "slice":
        starts, steps = node.attr("starts"), node.attr("steps")
        return tuple(position * step + start for position, start, step in zip(index, starts, steps, strict=True))
    if node.op == "diagonal":
        return (*index, index[-1])
    if node.op == "windows":
        axis, step, (*places, inside) = node.attr("axis"), node.attr("step"), index
        return tuple(place * step + inside if number == axis else place for number, place in enumerate(places))
    if node.op == "expand":
        skipped = len(index) - len(source.shape)
        pairs = zip(index[skipped:], source.shape, node.shape[skipped:], strict=True)
        return tuple(ZERO if _is_stretched(size, out, hints) else position for position, size, out in pairs)
    return reshaped_index(index, node.shape, source.shape, extents, may_split)


def _is_stretched(size: Expr, out: Expr, hints: Mapping[Symbol, int]) -> bool:
    """Whether a size is 1 where the result's is not; sizes that differ by symbol were compared by the lowering, which
    guards what the recorded call showed: that the size is 1, or, where both were 1, that the two are equal.
    """
    if size is out or size.constant is not None:
        return size.constant == 1
    try:
        return size.evaluate(hints) == 1 and out.evaluate(hints) != 1
    except KeyError:
        return False


def reshaped_index(
    index: Sequence[Expr],
    shape: Sequence[Expr],
    source: Sequence[Expr],
    extents: Mapping[Symbol, Expr],
    may_split: bool,
) -> Index:
    """The index in a tensor of sizes ``source`` of the element at ``index`` of its reshape to ``shape``."""
    out = [(position, size) for position, size in zip(index, shape, strict=True) if size.constant != 1]
    wanted = [axis for axis, size in enumerate(source) if size.constant != 1]
    result: list[Expr] = [ZERO] * len(source)
    for outs, ins in _segments([size for _, size in out], [source[axis] for axis in wanted]):
        axes = wanted[ins[0] : ins[1]]
        pieces = out[outs[0] : outs[1]]
        if len(axes) == 1 and len(pieces) == 1:
            result[axes[0]] = pieces[0][0]
            continue
        linear = ZERO
        step = ONE
        for position, size in reversed(pieces):
            linear = linear + position * step
            step = step * size
        linear = recombined(linear)
        for axis in reversed(axes[1:]):
            linear, result[axis] = _digit(linear, source[axis], extents, may_split)
        if axes:
            result[axes[0]] = linear
    return tuple(result)


def _segments(left: Sequence[Expr], right: Sequence[Expr]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of ranges of dimensions with equal products, as fine as possible."""
    ends = {}
    step = ONE
    for number, size in enumerate(left):
        step = step * size
        ends[step] = number + 1
    segments: list[tuple[tuple[int, int], tuple[int, int]]] = []
    a = b = 0
    step = ONE
    for number, size in enumerate(right):
        step = step * size
        end = ends.get(step)
        if end is not None and end > a:
            segments.append(((a, end), (b, number + 1)))
            a, b = end, number + 1
    if a < len(left) or b < len(right):
        # Sizes whose products are equal at run time but not by form: one segment takes all that is left.
        segments.append(((a, len(left)), (b, len(right))))
    return segments


def _digit(linear: Expr, radix: Expr, extents: Mapping[Symbol, Expr], may_split: bool) -> tuple[Expr, Expr]:
    """``divmod(linear, radix)``."""
    if radix.constant == 0:
        return ZERO, ZERO
    whole, rest = divide(linear, radix)
    if rest.constant == 0:
        return whole, ZERO
    high, low = extreme(rest, extents, top=True), extreme(rest, extents, top=False)
    if high is not None and low is not None:
        positive = positive_symbols([*extents.values(), radix])
        if nonnegative(low, positive) and nonnegative(radix - 1 - high, positive):
            return whole, rest
    if may_split:
        for axis in rest.symbols & extents.keys():
            slope = rest.coefficient(axis)
            rises = slope is not None and len(slope.terms) == 1 and nonnegative(slope)
            inner = exact_quotient(radix, slope) if slope is not None and rises else None
            if inner is None or inner.constant == 1:
                continue
            outer = exact_quotient(extents[axis], inner)
            if outer is not None and outer.constant != 1 and outer.constant != 0:
                raise Split(axis, inner)
    return linear // radix, linear % radix
