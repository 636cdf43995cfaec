"""Gradients of windows: each element of the input gathers from the windows that it lies in; nothing is scattered."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from framefuse.autodiff.registry import Gradient, vjp_derived
from framefuse.ir.builder import ONE, ZERO, Builder, Shape, compute_dtype
from framefuse.ir.dtypes import INT32
from framefuse.ir.graph import Node, Scalar
from framefuse.ir.numbers import Expr, expr

NOWHERE = -(1 << 20)  # what a place outside of a window counts as: no sum with places inside is one
UNUSED = 255  # the number of no element


class Around:
    """The windows that an element of a dimension with ``size`` elements lies in, nearest first: window ``q - turn``
    with ``q = (element + pad) // step``, at place ``(element + pad) % step + turn * step``.
    """

    def __init__(self, size: Expr, count: Expr, kernel: int, step: int, pad: int) -> None:
        self.size, self.count, self.kernel, self.step, self.pad = size, count, kernel, step, pad
        self.turns = range(-(-kernel // step))
        self.room = (size + pad + step - 1) // step  # windows that begin before the last element

    @property
    def ragged(self) -> bool:
        """Whether a window that begins near enough may end before the element."""
        return self.kernel % self.step != 0

    def place(self, builder: Builder, turn: int, device: str) -> Node:
        """Of each element: its place in the window, or :data:`NOWHERE`."""
        begins = self.pad + turn * self.step
        if self.step == 1:
            return builder.full(turn, INT32, (self.size,), device)
        row = builder.iota(turn * self.step, 1, INT32, expr(self.step), device)
        long = builder.reshape(builder.expand(row, (self.room, expr(self.step))), (self.room * self.step,))
        places = builder.narrow(long, 0, self.pad, self.size)
        if (turn + 1) * self.step <= self.kernel:
            return places
        assert begins >= 0

        def number(value: int) -> Node:
            return builder.full(value, INT32, places.shape, device)

        inside = builder.pointwise("lt", places, number(self.kernel))
        return builder.pointwise("where", inside, places, number(NOWHERE))


def _around(node: Node, source: Node) -> list[Around]:
    numbers = node.attr("parameters")
    rank = len(numbers) // 3
    kernel, step, pad = numbers[:rank], numbers[rank : 2 * rank], numbers[2 * rank :]
    lead = len(source.shape) - len(kernel)
    columns = zip(source.shape[lead:], node.shape[lead:], kernel, step, pad, strict=True)
    return [Around(*column) for column in columns]


def _gathered(builder: Builder, value: Node, axes: Sequence[Around], turns: Sequence[int], fill: Scalar) -> Node:
    """What ``value`` holds of one of the windows of each element; ``fill`` where there is none."""
    lead = len(value.shape) - len(axes)
    nothing: list[Expr] = [ZERO] * lead
    before = [*nothing, *(expr(axis.turns[-1]) for axis in axes)]
    after = [*nothing, *(axis.room - axis.count for axis in axes)]
    wide = builder.pad(value, before, after, fill)
    starts = [*nothing, *(expr(axis.turns[-1] - turn) for axis, turn in zip(axes, turns, strict=True))]
    near = (*value.shape[:lead], *(axis.room for axis in axes))
    values = builder.slice(wide, starts, [1] * len(near), near)
    apart, long, flat = list(near[:lead]), list(near[:lead]), list(near[:lead])
    for axis in axes:
        apart += [axis.room, ONE]
        long += [axis.room, expr(axis.step)]
        flat.append(axis.room * axis.step)
    if any(axis.step > 1 for axis in axes):
        values = builder.reshape(builder.expand(builder.reshape(values, tuple(apart)), tuple(long)), tuple(flat))
    starts = [*nothing, *(expr(axis.pad) for axis in axes)]
    return builder.slice(values, starts, [1] * len(near), (*near[:lead], *(axis.size for axis in axes)))


def _along(builder: Builder, row: Node, axis: int, shape: Shape) -> Node:
    lying = tuple(row.shape[0] if place == axis else ONE for place in range(len(shape)))
    return builder.expand(builder.reshape(row, lying), shape)


def _number(builder: Builder, axes: Sequence[Around], turns: Sequence[int], shape: Shape, device: str) -> Node:
    """The number of each element in one of its windows; negative where it is not in it."""
    lead, step = len(shape) - len(axes), 1
    total = builder.full(0, INT32, shape, device)
    for place in reversed(range(len(axes))):
        row = axes[place].place(builder, turns[place], device)
        row = builder.pointwise("mul", row, builder.full(step, INT32, row.shape, device))
        total = builder.pointwise("add", total, _along(builder, row, lead + place, shape))
        step *= axes[place].kernel
    return total


def _summed(
    builder: Builder, g: Node, axes: Sequence[Around], hit: Callable[[Sequence[int]], Node | None]
) -> Node:
    """The sum over windows of the gradient where ``hit`` says so, or of all of it; farthest first, as eager adds."""
    terms: Iterator[tuple[int, ...]] = itertools.product(*(reversed(axis.turns) for axis in axes))
    total: Node | None = None
    for turns in terms:
        part, test = _gathered(builder, g, axes, turns, 0.0), hit(turns)
        if test is not None:
            part = builder.pointwise("where", test, part, builder.full(0, g.dtype, part.shape, g.device))
        total = part if total is None else builder.pointwise("add", total, part)
    assert total is not None
    return total


def _beside(builder: Builder, gradient: Node, source: Node) -> Node:
    """The gradient, of which that of the input is zeros, as from eager's own calls."""
    return builder.derived(gradient, "replaced", (gradient, source))


@vjp_derived("max_pool")
def max_pool(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Of the greatest element of each window, whose number in it operand b names."""
    source, kept = node.inputs[1:]
    axes = _around(node, source)

    def hit(turns: Sequence[int]) -> Node:
        winner = builder.cast(_gathered(builder, kept, axes, turns, UNUSED), INT32)
        return builder.pointwise("eq", winner, _number(builder, axes, turns, source.shape, g.device))

    return [None, _beside(builder, _summed(builder, g, axes, hit), source), None]


@vjp_derived("average_pool")
def average_pool(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Of the mean of each window, which was divided by operand b. One number divides the sum of what comes from all
    windows: a division is more instructions than all else that is done with an element of a window.
    """
    source, divisor = node.inputs[1:]
    axes, once = _around(node, source), divisor.op == "full"
    share = g if once else builder.pointwise("div", g, builder.detach(divisor))

    def hit(turns: Sequence[int]) -> Node | None:
        cut = [(axis.turns[-1] == turn and axis.ragged) for axis, turn in zip(axes, turns, strict=True)]
        if not any(cut):
            return None
        number = _number(builder, axes, turns, source.shape, g.device)
        return builder.pointwise("ge", number, builder.full(0, INT32, number.shape, g.device))

    total = _summed(builder, share, axes, hit)
    if once:
        total = builder.pointwise("div", total, builder.full(divisor.attr("value"), g.dtype, total.shape, g.device))
    return [None, _beside(builder, total, source), None]


@vjp_derived("repeated")
def repeated(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Of elements that were repeated along the last dimensions: the sum over all places of each."""
    source, scales = node.inputs[1], node.attr("parameters")
    lead = len(source.shape) - len(scales)
    wide, total = builder.cast(g, compute_dtype(g.dtype)), None
    for place in itertools.product(*map(range, scales)):
        part = builder.slice(wide, [0] * lead + list(place), [1] * lead + list(scales), source.shape)
        total = part if total is None else builder.pointwise("add", total, part)
    assert total is not None
    return [None, builder.cast(total, g.dtype)]
