"""Lowers functions that rearrange, cut, repeat and join tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.ir.builder import ONE, Shape
from framefuse.ir.dtypes import BOOL
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, cancelled, expr, product
from framefuse.ir.strides import row_major
from framefuse.ir.values import Value
from framefuse.lower.borders import BORDERS, bordered
from framefuse.lower.context import Lowering
from framefuse.lower.counted_shapes import repeated
from framefuse.lower.gradients import REPLACED
from framefuse.lower.promotion import is_number, result_dtype
from framefuse.lower.rules import Shapes, Unsupported, rule
from framefuse.lower.same_elements import aligned

# ---- other shapes ----------------------------------------------------------------------------------------------------


def fill_in(lo: Lowering, total: Expr, shape: Shape) -> Shape:
    """``shape`` with its -1 replaced by what is left of ``total``."""
    if not any(size.constant == -1 for size in shape):
        return shape
    rest = product(size for size in shape if size.constant != -1)
    if lo.size(rest) == 0:
        raise Unsupported("a size is undetermined")
    if rest.constant is None:
        lo.require("!=", rest, expr(0), "a size of -1")
    left = _quotient(lo, *lo.cancelled(total, rest))
    return tuple(left if size.constant == -1 else size for size in shape)


def _quotient(lo: Lowering, total: Expr, rest: Expr) -> Expr:
    """``total // rest``, as a product of run-time sizes with a quotient of others where that has no rest."""
    (known,) = lo.cancelled(total)
    if known is total or lo.size(known) % lo.size(rest):
        return total // rest
    more = total // known
    known, rest = cancelled((known, rest), rest.symbols)  # none of which is zero
    quotient = known // rest if rest.constant is not None else expr(lo.size(known) // lo.size(rest))
    lo.require("==", quotient * rest, known, "a size of -1")
    return more * quotient


@rule("reshape", "Tensor.view", "Tensor.view_as", "Tensor.reshape_as", "aten._unsafe_view", "view_copy")
def reshape(lo: Lowering, input: Node, *shape: Value, **named: Value) -> Node:
    given = (named["shape"],) if "shape" in named else (named["size"],) if "size" in named else shape
    if len(given) == 1 and isinstance(given[0], Node):
        return lo.reshape(input, given[0].shape)
    if len(given) == 1 and isinstance(given[0], torch.dtype):
        if given[0] is not input.dtype.torch:
            raise Unsupported("bits as another dtype")
        return input
    whole = fill_in(lo, lo.count(input.shape), lo.shape_of(*given))
    return lo.reshape(input, aligned(lo, input.shape, whole))


@rule("flatten")
def flatten(lo: Lowering, input: Node, start_dim: Value = 0, end_dim: Value = -1) -> Node:
    rank = len(input.shape)
    if rank == 0:
        return lo.reshape(input, (ONE,))
    start, end = lo.axis(start_dim, rank), lo.axis(end_dim, rank)
    return lo.reshape(input, (*input.shape[:start], product(input.shape[start : end + 1]), *input.shape[end + 1 :]))


@rule("ravel")
def ravel(lo: Lowering, input: Node) -> Node:
    return flatten(lo, input)


@rule("unflatten")
def unflatten(lo: Lowering, input: Node, dim: Value, sizes: Value) -> Node:
    axis = lo.axis(dim, len(input.shape))
    inner = fill_in(lo, input.shape[axis], lo.shape_of(sizes))
    return lo.reshape(input, (*input.shape[:axis], *inner, *input.shape[axis + 1 :]))


@rule("squeeze")
def squeeze(lo: Lowering, input: Node, dim: Value = None) -> Node:
    axes = lo.axes(dim, len(input.shape)) if dim != () else ()
    gone = []
    for axis in axes:
        size = input.shape[axis]
        if lo.size(size) == 1:
            lo.require("==", size, ONE, "squeeze")
            gone.append(axis)
        elif size.constant is None:
            lo.require("!=", size, ONE, "squeeze")
    return lo.reshape(input, tuple(size for axis, size in enumerate(input.shape) if axis not in gone))


@rule("unsqueeze")
def unsqueeze(lo: Lowering, input: Node, dim: Value) -> Node:
    axis = lo.axis(dim, len(input.shape) + 1)
    return lo.reshape(input, (*input.shape[:axis], ONE, *input.shape[axis:]))


@rule("atleast_1d")
def atleast_1d(lo: Lowering, input: Node) -> Node:
    return lo.reshape(input, input.shape or (ONE,))


# ---- other orders ----------------------------------------------------------------------------------------------------


@rule("permute")
def permute(lo: Lowering, input: Node, *dims: Value, **named: Value) -> Node:
    given = named["dims"] if "dims" in named else dims[0] if dims and isinstance(dims[0], (tuple, list)) else dims
    if len(given) != len(input.shape):
        raise Unsupported("dimensions")
    return lo.permute(input, [lo.axis(dim, len(given)) for dim in given])


@rule("transpose", "swapaxes", "swapdims")
def transpose(lo: Lowering, input: Node, dim0: Value, dim1: Value) -> Node:
    rank = len(input.shape)
    order = list(range(rank))
    a, b = lo.axis(dim0, rank), lo.axis(dim1, rank)
    if rank:
        order[a], order[b] = order[b], order[a]
    return lo.permute(input, order)


@rule("Tensor.H", "Tensor.mH", "adjoint")
def adjoint(lo: Lowering, input: Node) -> Node:
    return matrix_transpose(lo, input)


@rule("t", "Tensor.mT")
def matrix_transpose(lo: Lowering, input: Node) -> Node:
    if len(input.shape) < 2:
        return input
    return transpose(lo, input, -2, -1)


@rule("Tensor.T", "numpy_T")
def reverse_axes(lo: Lowering, input: Node) -> Node:
    return lo.permute(input, tuple(reversed(range(len(input.shape)))))


@rule("movedim", "moveaxis")
def movedim(lo: Lowering, input: Node, source: Value, destination: Value) -> Node:
    rank = len(input.shape)
    sources = [lo.axis(dim, rank) for dim in (source if isinstance(source, (tuple, list)) else [source])]
    places = [lo.axis(dim, rank) for dim in (destination if isinstance(destination, (tuple, list)) else [destination])]
    order = [-1] * rank
    for axis, place in zip(sources, places, strict=True):
        order[place] = axis
    rest = iter(axis for axis in range(rank) if axis not in sources)
    return lo.permute(input, [axis if axis >= 0 else next(rest) for axis in order])


# ---- repetition ------------------------------------------------------------------------------------------------------


@rule("expand", "broadcast_to", "expand_copy")
def expand(lo: Lowering, input: Node, *sizes: Value, **named: Value) -> Node:
    target = lo.shape_of(*((named["size"],) if "size" in named else sizes))
    extra = len(target) - len(input.shape)
    if extra < 0:
        raise Unsupported("fewer dimensions")
    own = (ONE,) * extra + input.shape
    shape = tuple(
        mine if size.constant == -1 else lo.broadcast((mine,), (size,))[0]
        for size, mine in zip(target, own, strict=True)
    )
    for size, wanted in zip(shape, target, strict=True):
        if wanted.constant != -1 and size is not wanted:
            lo.require("==", size, wanted, "expand")
    return lo.expand(input, shape)


@rule("expand_as")
def expand_as(lo: Lowering, input: Node, other: Node) -> Node:
    return expand(lo, input, other.shape)


@rule("repeat", "tile", "Tensor.repeat")
def repeat(lo: Lowering, input: Node, *sizes: Value, **named: Value) -> Node | Shapes:
    given = named.get("repeats", named.get("dims"))
    wanted = sizes if given is None else (given,)
    if len(sizes) > 1 and any(isinstance(size, Node) for size in sizes):
        return repeated(input.shape, sizes)
    counts = lo.shape_of(*wanted)
    extra = len(counts) - len(input.shape)
    if extra < 0:  # only tile allows it: the missing counts are 1
        counts, extra = (ONE,) * -extra + counts, 0
    own = (ONE,) * extra + input.shape
    apart, whole, narrow = [], [], []
    for count, size in zip(counts, own, strict=True):
        narrow += [ONE, size]
        apart += [count, size]
        whole.append(count * size)
    return lo.reshape(lo.expand(lo.reshape(input, tuple(narrow)), tuple(apart)), tuple(whole))


@rule("repeat_interleave")
def repeat_interleave(
    lo: Lowering, input: Node, repeats: Value, dim: Value = None, *, output_size: Value = None
) -> Node:
    if not isinstance(repeats, (int, Expr)):
        raise Unsupported("a tensor of counts")
    if dim is None:
        input, dim = flatten(lo, input), 0
    axis = lo.axis(dim, len(input.shape))
    before, size, after = input.shape[:axis], input.shape[axis], input.shape[axis + 1 :]
    apart = lo.expand(lo.reshape(input, (*before, size, ONE, *after)), (*before, size, expr(repeats), *after))
    return lo.reshape(apart, (*before, size * repeats, *after))


@rule("broadcast_tensors")
def broadcast_tensors(lo: Lowering, *tensors: Value) -> tuple[Node, ...]:
    nodes = tensors[0] if isinstance(tensors[0], (tuple, list)) else tensors
    shape = lo.broadcast(*(node.shape for node in nodes))
    return tuple(lo.expand(node, shape) for node in nodes)


@rule("meshgrid")
def meshgrid(lo: Lowering, *tensors: Value, indexing: str | None = None) -> tuple[Node, ...]:
    nodes = tensors[0] if isinstance(tensors[0], (tuple, list)) else tensors
    lines = [node if node.shape else lo.reshape(node, (ONE,)) for node in nodes]
    swap = indexing == "xy" and len(lines) >= 2
    order = [1, 0, *range(2, len(lines))] if swap else list(range(len(lines)))
    shape = tuple(lines[place].shape[0] for place in order)
    return tuple(lo.expand(lo.along(line, order.index(place), len(lines)), shape) for place, line in enumerate(lines))


@rule("cartesian_prod")
def cartesian_prod(lo: Lowering, *tensors: Node) -> Node:
    if len(tensors) == 1 or len({node.dtype for node in tensors}) > 1:
        raise Unsupported("one tensor, or several dtypes")
    columns = meshgrid(lo, *tensors, indexing="ij")
    count = lo.count(columns[0].shape)
    return lo.cat([lo.reshape(column, (count, ONE)) for column in columns], 1)


# ---- turns and steps -------------------------------------------------------------------------------------------------


@rule("flip")
def flip(lo: Lowering, input: Node, *dims: Value, **named: Value) -> Node:
    given = named["dims"] if "dims" in named else dims[0] if dims and isinstance(dims[0], (tuple, list)) else dims
    if not given:
        raise Unsupported("no dimension")
    turned = {lo.axis(dim, len(input.shape)) for dim in given} if input.shape else set()
    starts = [size - 1 if axis in turned else expr(0) for axis, size in enumerate(input.shape)]
    steps = [-1 if axis in turned else 1 for axis in range(len(input.shape))]
    return lo.slice(input, starts, steps, input.shape)


@rule("roll")
def roll(lo: Lowering, input: Node, shifts: Value, dims: Value = None) -> Node:
    moves = shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    if dims is None or dims == ():
        if len(moves) != 1:
            raise Unsupported("several shifts")
        rows = input.device == "cpu" and type(moves[0]) is int and _lies_apart(lo, input)
        if rows and abs(moves[0]) < lo.size(input.shape[-1]):
            return _roll_rows(lo, input, len(input.shape) - 1, moves[0])
        line = lo.reshape(input, (lo.count(input.shape),))
        return lo.reshape(_roll(lo, line, 0, moves[0]), input.shape)
    axes = dims if isinstance(dims, (tuple, list)) else (dims,)
    for move, dim in zip(moves, axes, strict=True):
        input = _roll(lo, input, lo.axis(dim, len(input.shape)), move)
    return input


def _lies_apart(lo: Lowering, node: Node) -> bool:
    """Whether a node is a view of an input, or an input, whose elements do not follow each other in memory."""
    base = node
    while base.op in ("permute", "expand", "slice"):
        base = base.inputs[0]
    if base.strides is None or not node.shape or 0 in lo.sizes(node.shape):
        return False
    return base is not node or lo.sizes(base.strides) != row_major(lo.sizes(base.shape))


def _roll_rows(lo: Lowering, node: Node, axis: int, shift: int) -> Node:
    """The roll of all elements in row-major order up to ``axis``, by less than one of its rows: what leaves a row comes
    from the row beside it. So no element is looked for by division, as in the line of all.
    """
    size = node.shape[axis]
    if shift == 0 or axis < 0:
        return node
    lo.require("<=", expr(abs(shift)), size, "roll")
    beside = _roll_rows(lo, node, axis - 1, 1 if shift > 0 else -1) if axis else node
    if shift > 0:
        parts = lo.narrow(beside, axis, size - shift, expr(shift)), lo.narrow(node, axis, 0, size - shift)
    else:
        parts = lo.narrow(node, axis, -shift, size + shift), lo.narrow(beside, axis, 0, expr(-shift))
    return lo.cat(parts, axis)


def _roll(lo: Lowering, node: Node, axis: int, shift: Value) -> Node:
    size = node.shape[axis]
    if not isinstance(shift, int) or lo.size(size) == 0:
        raise Unsupported("a run-time shift or nothing to roll")
    place = shift % lo.size(size) if size.constant is not None else shift
    if place == 0:
        return node
    if place < 0:
        front, back = expr(-place), size + place
    else:
        front, back = size - place, expr(place)
    if size.constant is None:
        lo.require("<=", expr(abs(place)), size, "roll")
    return lo.cat([lo.narrow(node, axis, front, back), lo.narrow(node, axis, 0, front)], axis)


# ---- joins -----------------------------------------------------------------------------------------------------------


@rule("cat", "concat", "concatenate")
def cat(lo: Lowering, tensors: Sequence[Node], dim: Value = 0, *, out: Value = None, axis: Value = None) -> Node:
    skipped = [node for node in tensors if _skipped(lo, node)]
    nodes = [node for node in tensors if node not in skipped]
    if not nodes:
        raise Unsupported("nothing to join")
    place = lo.axis(dim if axis is None else axis, len(nodes[0].shape))
    dtype = result_dtype(tensors, lo.default)
    joined = join(lo, [lo.cast(node, dtype) for node in nodes], place)
    for node in skipped:  # what it was cut from gets zeros
        joined = lo.derived(joined, REPLACED, (joined, node))
    return joined


def _skipped(lo: Lowering, node: Node) -> bool:
    """cat leaves out tensors of shape (0,), whatever the others' shapes."""
    if len(node.shape) == 1 and lo.size(node.shape[0]) == 0:
        if node.shape[0].constant is None:
            raise Unsupported("an empty tensor of run-time size")
        return True
    return False


def join(lo: Lowering, nodes: Sequence[Node], axis: int) -> Node:
    """cat of nodes of one dtype; their other sizes must agree."""
    first = nodes[0].shape
    for node in nodes[1:]:
        if len(node.shape) != len(first):
            raise Unsupported("different ranks")
        for place, size in enumerate(node.shape):
            if place != axis:
                lo.require("==", first[place], size, "sizes beside the joined dimension")
    _require_halves(lo, [node.shape[axis] for node in nodes])
    return lo.cat(nodes, axis)


def _require_halves(lo: Lowering, sizes: Sequence[Expr]) -> None:
    """What a size is cut into by ``size // 2`` is halves where it was, as rotated positions are: a kernel then knows
    that their elements lie side by side.
    """
    if len(sizes) == 2 and sizes[0] is not sizes[1] and lo.size(sizes[0]) == lo.size(sizes[1]):
        whole = sizes[0] + sizes[1]
        if whole // 2 in sizes and lo.size(sizes[0]):
            lo.require("==", whole // 2 * 2, whole, "pieces of one size")


@rule("stack")
def stack(lo: Lowering, tensors: Sequence[Node], dim: Value = 0, *, out: Value = None) -> Node:
    axis = lo.axis(dim, len(tensors[0].shape) + 1)
    dtype = result_dtype(tensors, lo.default)
    rows = [lo.reshape(node, (*node.shape[:axis], ONE, *node.shape[axis:])) for node in tensors]
    return join(lo, [lo.cast(node, dtype) for node in rows], axis)


@rule("pad")
def pad(lo: Lowering, input: Node, pad: Value, mode: str = "constant", value: Value = None) -> Node:
    rank = len(input.shape)
    amounts = lo.shape_of(pad)
    fill = 0 if value is None else value
    if len(amounts) % 2 or len(amounts) > 2 * rank or not is_number(fill):
        raise Unsupported("amounts")
    if mode in BORDERS and (input.device == "cpu" or not lo.differentiable):  # a GPU's library has the gradient
        return bordered(lo, input, amounts, mode)
    if mode != "constant":
        raise Unsupported("a mode that reads the border")
    before, after = [expr(0)] * rank, [expr(0)] * rank
    for place in range(len(amounts) // 2):
        axis = rank - 1 - place
        low, high = amounts[2 * place], amounts[2 * place + 1]
        input, before[axis] = _crop(lo, input, axis, low, True)
        input, after[axis] = _crop(lo, input, axis, high, False)
    if input.dtype.is_integral and not isinstance(fill, int):
        kind = bool if input.dtype is BOOL else int
        fill = kind(fill) if isinstance(fill, float) else fill
    return lo.pad(input, before, after, fill)


def _crop(lo: Lowering, node: Node, axis: int, amount: Expr, front: bool) -> tuple[Node, Expr]:
    """A negative amount cuts; what is left to pad is returned with the node."""
    if lo.size(amount) >= 0:
        lo.require("<=", expr(0), amount, "padding")
        return node, amount
    lo.require("<=", amount, expr(0), "negative padding")
    size = node.shape[axis] + amount
    lo.require("<=", expr(0), size, "negative padding")
    return lo.narrow(node, axis, -amount if front else 0, size), expr(0)


def _with_elements(lo: Lowering, input: Node) -> Shape:
    """The shape of a tensor that has elements: eager does something of its own with one that has none."""
    for size in input.shape:
        lo.require("!=", size, expr(0), "a picture with elements")
    return input.shape


def _factor(lo: Lowering, input: Node, factor: Value) -> Expr:
    """How many neighbours are shuffled: the recorded number where kernels are cut into tiles by it."""
    target = lo.targets(input.device)
    return expr(lo.fixed(factor, "a factor") if target is not None and target.tiles else factor)


@rule("pixel_shuffle")
def pixel_shuffle(lo: Lowering, input: Node, upscale_factor: Value) -> Node:
    *lead, channels, high, wide = _with_elements(lo, input)
    r = _factor(lo, input, upscale_factor)
    inner = channels // (r * r)
    rank = len(lead)
    apart = lo.reshape(input, (*lead, inner, r, r, high, wide))
    order = [*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2]
    return lo.reshape(lo.permute(apart, order), (*lead, inner, high * r, wide * r))


@rule("pixel_unshuffle")
def pixel_unshuffle(lo: Lowering, input: Node, downscale_factor: Value) -> Node:
    *lead, channels, high, wide = _with_elements(lo, input)
    r = _factor(lo, input, downscale_factor)
    rank = len(lead)
    apart = lo.reshape(input, (*lead, channels, high // r, r, wide // r, r))
    order = [*range(rank), rank, rank + 2, rank + 4, rank + 1, rank + 3]
    return lo.reshape(lo.permute(apart, order), (*lead, channels * r * r, high // r, wide // r))


@rule("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(lo: Lowering, input: Node, groups: Value) -> Node:
    batch, channels, *rest = input.shape
    count = _factor(lo, input, groups)
    inner = channels // count
    apart = lo.reshape(input, (batch, count, inner, *rest))
    order = [0, 2, 1, *range(3, 3 + len(rest))]
    return lo.reshape(lo.permute(apart, order), input.shape)


@rule("diff")
def diff(
    lo: Lowering,
    input: Node,
    n: Value = 1,
    dim: Value = -1,
    prepend: Value = None,
    append: Value = None,
    *,
    out: Value = None,
) -> Node:
    axis = lo.axis(dim, len(input.shape))
    pieces = [node for node in (prepend, input, append) if node is not None]
    if type(n) is not int or not 1 <= n <= 4 or any(node.dtype is not input.dtype for node in pieces):
        raise Unsupported("no difference, or a high one")
    node = join(lo, pieces, axis)
    for _ in range(n):
        length = node.shape[axis] - 1
        lo.require("<=", expr(0), length, "the length of a difference")
        later, earlier = lo.narrow(node, axis, 1, length), lo.narrow(node, axis, 0, length)
        if node.dtype is BOOL:
            node = lo.pointwise("ne", later, earlier)
        else:
            node = lo.compute(lambda a, b: a - b, later, earlier)
    return node


@rule("rot90")
def rot90(lo: Lowering, input: Node, k: Value = 1, dims: Value = (0, 1)) -> Node:
    if type(k) is not int or len(dims) != 2:
        raise Unsupported("a run-time turn")
    first, second = (lo.axis(dim, len(input.shape)) for dim in dims)
    if k % 4 == 0:
        return input
    if k % 4 == 2:
        return flip(lo, input, first, second)
    return transpose(lo, flip(lo, input, second if k % 4 == 1 else first), first, second)


@rule("fliplr")
def fliplr(lo: Lowering, input: Node) -> Node:
    return flip(lo, input, 1)


@rule("flipud")
def flipud(lo: Lowering, input: Node) -> Node:
    return flip(lo, input, 0)


@rule("constant_pad_nd")
def constant_pad_nd(lo: Lowering, input: Node, amounts: Value, value: Value = 0) -> Node:
    return pad(lo, input, amounts, "constant", value)


@rule("hstack")
def hstack(lo: Lowering, tensors: Sequence[Node], *, out: Value = None) -> Node:
    return cat(lo, [atleast_1d(lo, node) for node in tensors], 0 if len(tensors[0].shape) <= 1 else 1)


@rule("vstack", "row_stack")
def vstack(lo: Lowering, tensors: Sequence[Node], *, out: Value = None) -> Node:
    rows = [lo.reshape(node, (ONE,) * (2 - len(node.shape)) + node.shape) for node in tensors]
    return cat(lo, rows, 0)
