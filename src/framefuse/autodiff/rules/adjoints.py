"""The adjoints of library calls that move elements, where a call or primitives of their own give them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from framefuse.autodiff.library import arguments, calls, order_in
from framefuse.ir.backward_calls import (
    added_where_read,
    columns_added,
    columns_of,
    put_by_mask,
    put_flat,
    windows_added,
)
from framefuse.ir.builder import ZERO, Builder
from framefuse.ir.dtypes import BOOL
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr
from framefuse.ir.values import Value

# (builder, call, gradient of its one result) -> the gradient of its one operand of floats; None: not of this call
Adjoint = Callable[[Builder, Node, Node], Node | None]
ADJOINTS: dict[str, Adjoint] = {}


def adjoint(*names: str) -> Callable[[Adjoint], Adjoint]:
    """The adjoint of library calls of these names."""

    def keep(rule: Adjoint) -> Adjoint:
        ADJOINTS.update(dict.fromkeys(names, rule))
        return rule

    return keep


def _is(node: Node, *targets: Value) -> bool:
    return any(node.attr("target") is target for target in targets)


def _called(builder: Builder, node: Node, target: Callable[..., torch.Tensor], args: Sequence[Value]) -> Node:
    """A call that gives the gradient of the operand, row-major; positions and masks lie as they did."""
    source = node.inputs[0]
    orders = {operand: order_in(builder, node, operand) for operand in node.inputs[1:]}
    return calls(builder, target, args, [((), source.dtype, source.shape)], orders=orders)[0]


# ---- reads at positions ----------------------------------------------------------------------------------------------


@adjoint("__getitem__")
def getitem(builder: Builder, node: Node, g: Node) -> Node | None:
    args = arguments(node, "input index")
    return None if args is None else _read(builder, node, g, args["index"])


@adjoint("index")
def index(builder: Builder, node: Node, g: Node) -> Node | None:
    args = arguments(node, "input indices")
    if args is None or not isinstance(args["indices"], (tuple, list)):
        return None
    return _read(builder, node, g, tuple(slice(None) if part is None else part for part in args["indices"]))


def _read(builder: Builder, node: Node, g: Node, index: Value) -> Node | None:
    source = node.inputs[0]
    items = index if isinstance(index, tuple) else (index,)
    if not all(_known(item) for item in items):
        return None
    if len(items) == 1 and isinstance(items[0], Node) and items[0].dtype is BOOL:
        return masked(builder, node, g, items[0])
    return _called(builder, node, added_where_read, (g, index, source.shape))


def _known(item: Value) -> bool:
    if isinstance(item, Node):
        return item.dtype.name in ("int64", "int32") or (item.dtype is BOOL and bool(item.shape))
    if isinstance(item, list):
        return all(type(place) is int for place in item)
    return item is None or item is ... or isinstance(item, (Expr, slice)) or type(item) is int


@adjoint("masked_select")
def masked_select(builder: Builder, node: Node, g: Node) -> Node | None:
    args = arguments(node, "input mask")
    return None if args is None else masked(builder, node, g, args["mask"])


def masked(builder: Builder, node: Node, g: Node, mask: Node) -> Node | None:
    """Of what a mask of the operand's shape selects."""
    source = node.inputs[0]
    if builder.sizes(mask.shape) != builder.sizes(source.shape):
        one = node.attr("name") == "masked_select"
        return None if one else _called(builder, node, added_where_read, (g, mask, source.shape))
    for mine, other in zip(source.shape, mask.shape, strict=True):
        builder.require("==", mine, other, "a mask")
    return _called(builder, node, put_by_mask, (g, mask, source.shape))


@adjoint("take")
def take(builder: Builder, node: Node, g: Node) -> Node | None:
    args = arguments(node, "input index")
    return None if args is None else _called(builder, node, put_flat, (g, args["index"], node.inputs[0].shape))


# ---- diagonals -------------------------------------------------------------------------------------------------------


def _start(offset: int) -> tuple[int, int]:
    """The row and the column in which a diagonal starts."""
    return max(-offset, 0), max(offset, 0)


def _numbers(args: dict[str, Value] | None, rank: int) -> tuple[int, int, int] | None:
    if args is None or any(type(args[name]) is not int for name in ("offset", "dim1", "dim2")):
        return None
    return args["offset"], args["dim1"] % rank, args["dim2"] % rank


@adjoint("diag_embed")
def diag_embed(builder: Builder, node: Node, g: Node) -> Node | None:
    source = node.inputs[0]
    numbers = _numbers(arguments(node, "input offset=0 dim1=-2 dim2=-1"), len(g.shape))
    if numbers is None:
        return None
    offset, first, second = numbers
    row, column = _start(offset)
    lead, length = source.shape[:-1], source.shape[-1]
    order = [axis for axis in range(len(g.shape)) if axis not in (first, second)]
    starts = [*([ZERO] * len(order)), expr(row), expr(column)]
    turned = builder.permute(g, [*order, first, second])
    return builder.diagonal(builder.slice(turned, starts, [1] * len(starts), (*lead, length, length)))


# ---- windows ---------------------------------------------------------------------------------------------------------


NUMBERS = "dilation=1 padding=0 stride=1"


@adjoint("unfold")
def unfold(builder: Builder, node: Node, g: Node) -> Node | None:
    source = node.inputs[0]
    if _is(node, functional.unfold):
        args = arguments(node, f"input kernel_size {NUMBERS}")
        if args is None:
            return None
        numbers = (args["kernel_size"], args["dilation"], args["padding"], args["stride"])
        return _called(builder, node, columns_added, (g, source.shape[-2:], *numbers))
    args = arguments(node, "input dimension size step")
    if args is None or not _is(node, torch.Tensor.unfold) or not source.shape:
        return None
    return _called(builder, node, windows_added, (g, source.shape, args["dimension"], args["size"], args["step"]))


@adjoint("fold")
def fold(builder: Builder, node: Node, g: Node) -> Node | None:
    args = arguments(node, f"input output_size kernel_size {NUMBERS}")
    if args is None or not _is(node, functional.fold):
        return None
    return _called(
        builder, node, columns_of, (g, args["kernel_size"], args["dilation"], args["padding"], args["stride"])
    )
