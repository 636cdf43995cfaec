"""Gradients of library calls that write at positions: what is written over gets none, what is written reads its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from framefuse.autodiff.library import arguments, calls, order_in, order_of
from framefuse.autodiff.registry import CallVjp, Given, Gradient, vjp_call
from framefuse.autodiff.rules.views import summed
from framefuse.ir.backward_calls import cleared, elements_cleared, picked, rows_cleared, taken_by
from framefuse.ir.builder import ONE, Builder
from framefuse.ir.dtypes import BOOL, INT64
from framefuse.ir.graph import Node
from framefuse.ir.values import Value

INTEGERS = ("int64", "int32")
Args = dict[str, Value]
# The parameters of each, and which of them is written; what is written over comes first.
PARAMETERS = {
    "scatter_add": ("input dim index src", "src"),
    "index_add": ("input dim index source", "source"),
    "index_copy": ("input dim index source", "source"),
    "index_fill": ("input dim index value", "value"),
    "scatter": ("input dim index src", "src"),
    "masked_scatter": ("input mask source", "source"),
    "index_put": ("input indices values accumulate=False", "values"),
    "__setitem__": ("input index value", "value"),
}


def plain_name(node: Node) -> str:
    """The function's name without the mark of a write in place."""
    name: str = node.attr("name")
    return name if name.endswith("__") else name.removesuffix("_")


def _args(node: Node) -> Args | None:
    """The call's arguments by name, where each operand is one of them; numbers as source are those of a call too."""
    names, written = PARAMETERS[plain_name(node)]
    args = arguments(node, names)
    if args is None and written == "src":
        args = arguments(node, names.replace("src", "value"))
        args = None if args is None else {**args, "src": args["value"]}
    return args


def _path(node: Node) -> tuple[int, ...] | None:
    """Where among the call's results the tensor that was written is; None for a call that writes others."""
    places = getattr(node.attr("target"), "places", None)
    return () if places is None else (1,) if places == (0,) else None


def _holds(node: Node) -> bool:
    args = _args(node)
    if args is None or _path(node) is None or node.attr("random"):
        return False
    written = args[PARAMETERS[plain_name(node)][1]]
    input = args["input"]
    if not isinstance(input, Node) or not input.shape or not input.dtype.is_float:
        return False
    if isinstance(written, Node):
        if written.dtype is not input.dtype or written is input or written.device != input.device:
            return False
    elif isinstance(written, (bool, list, tuple)):
        return False
    return FITS[plain_name(node)](args)


def _along(args: Args) -> bool:
    """Whether rows are written: along one dimension, at a vector of positions."""
    index, input, source = args["index"], args["input"], args.get("source", args["input"])
    good = isinstance(args["dim"], int) and isinstance(index, Node) and index.dtype.name in INTEGERS
    return good and len(index.shape) == 1 and isinstance(source, Node) and len(source.shape) == len(input.shape)


def _elements(args: Args) -> bool:
    index, input, src = args["index"], args["input"], args["src"]
    good = isinstance(args["dim"], int) and isinstance(index, Node) and index.dtype.name in INTEGERS
    return good and len(index.shape) == len(input.shape) and (
        not isinstance(src, Node) or len(src.shape) == len(input.shape)
    )


def _masked(args: Args) -> bool:
    mask = args["mask"]
    return isinstance(mask, Node) and mask.dtype is BOOL and len(mask.shape) <= len(args["input"].shape)


def _positions(args: Args) -> bool:
    """Whether tensors of positions lie at the first dimensions, so that the shape of what they name is known."""
    tensors = positions(args.get("indices", args.get("index")))
    written = args.get("values", args.get("value"))
    if tensors is None or type(args.get("accumulate", False)) is not bool:
        return False
    if not isinstance(written, Node):
        return "index" in args
    ranks = max(len(index.shape) for index in tensors) + len(args["input"].shape) - len(tensors)
    return len(tensors) <= len(args["input"].shape) and len(written.shape) <= ranks


FITS: dict[str, Callable[[Args], bool]] = {
    "scatter_add": lambda args: _elements(args) and isinstance(args["src"], Node),
    "index_add": lambda args: _along(args) and isinstance(args["source"], Node),
    "index_copy": lambda args: _along(args) and isinstance(args["source"], Node),
    "index_fill": lambda args: _along(args) and not isinstance(args["value"], Node),
    "scatter": _elements,
    "masked_scatter": _masked,
    "index_put": _positions,
    "__setitem__": _positions,
}


def positions(index: Value) -> tuple[Node, ...] | None:
    """The tensors of positions of the first dimensions; None for any other index."""
    items = tuple(index) if isinstance(index, (tuple, list)) else (index,)
    tensors = [item for item in items if isinstance(item, Node)]
    if not tensors or len(tensors) != len(items) or any(item.dtype.name not in INTEGERS for item in tensors):
        return None
    return tuple(tensors) if all(item.shape for item in tensors) else None


def _made(
    builder: Builder, node: Node, target: Callable[..., torch.Tensor], args: Sequence[Value], g: Node, like: Node
) -> Node:
    """The call on ``g``, which lies as the call's result does; other operands lie as they did."""
    result = builder.results(node)[_path(node) or ()]
    orders = {operand: order_in(builder, node, operand) for operand in node.inputs}
    same = order_of(builder, result)
    orders[g] = same
    given = [same] if like.shape == g.shape else None
    return calls(builder, target, args, [((), like.dtype, like.shape)], orders=orders, given=given)[0]


# ---- rules -----------------------------------------------------------------------------------------------------------

Made = Callable[[Builder, Node, Args, Node], Node | None]  # (builder, call, its arguments, gradient) -> gradient


def _same(builder: Builder, node: Node, args: Args, g: Node) -> Node:
    return g


def _rows_left(builder: Builder, node: Node, args: Args, g: Node) -> Node:
    return _made(builder, node, rows_cleared, (g, args["dim"], args["index"]), g, g)


def _rows_read(builder: Builder, node: Node, args: Args, g: Node) -> Node:
    index, source = args["index"], args["source"]
    axis = args["dim"] % len(g.shape)
    taken = builder.take(g, builder.cast(index, INT64), axis, False)
    return _fitted(builder, taken, source)


def _elements_left(builder: Builder, node: Node, args: Args, g: Node) -> Node:
    return _made(builder, node, elements_cleared, (g, args["dim"], args["index"]), g, g)


def _elements_read(builder: Builder, node: Node, args: Args, g: Node) -> Node | None:
    index, source = args["index"], args["src"]
    if builder.sizes(index.shape) != builder.sizes(source.shape):  # eager refuses it
        return None
    return _fitted(builder, builder.gather(g, builder.cast(index, INT64), args["dim"] % len(g.shape)), source)


def _left_by_mask(builder: Builder, node: Node, args: Args, g: Node) -> Node:
    zero = builder.full(0, g.dtype, g.shape, g.device)
    mask = builder.expand(args["mask"], builder.broadcast(args["mask"].shape, g.shape))
    return builder.pointwise("where", builder.resized(mask, g.shape), zero, g)


def _read_by_mask(builder: Builder, node: Node, args: Args, g: Node) -> Node:
    source = args["source"]
    return _made(builder, node, taken_by, (g, args["mask"], source.shape), g, source)


def _put_left(builder: Builder, node: Node, args: Args, g: Node) -> Node:
    if args.get("accumulate") is True:
        return g
    return _made(builder, node, cleared, (g, positions(args.get("indices", args.get("index")))), g, g)


def _put_read(builder: Builder, node: Node, args: Args, g: Node) -> Node:
    tensors = positions(args.get("indices", args.get("index")))
    source: Node = args["values"] if "values" in args else args["value"]
    assert tensors is not None
    rest = g.shape[len(tensors) :]
    if len(tensors) == 1:
        return _fitted(builder, builder.take(g, builder.cast(tensors[0], INT64), 0, True), source)
    read = (*builder.broadcast(*(index.shape for index in tensors)), *rest)
    orders = {index: order_in(builder, node, index) for index in tensors}
    (taken,) = calls(builder, picked, (g, list(tensors)), [((), g.dtype, read)], orders=orders)
    return _fitted(builder, taken, source)


def _fitted(builder: Builder, node: Node, like: Node) -> Node:
    """The sum over what ``like`` was repeated along."""
    extra = len(node.shape) - len(like.shape)
    axes = list(range(extra))
    for axis, (mine, other) in enumerate(zip(node.shape[extra:], like.shape, strict=True), extra):
        if builder.size(other) == 1 and builder.size(mine) != 1:
            builder.require("==", other, ONE, "what is written at positions")
            axes.append(axis)
        else:
            builder.require("==", mine, other, "what is written at positions")
    total = summed(builder, node, axes)
    kept = tuple(size for axis, size in enumerate(node.shape) if axis not in axes)
    return builder.resized(builder.resized(total, kept), like.shape) if not axes else builder.reshape(total, like.shape)


RULES: dict[str, tuple[Made, Made | None]] = {
    "scatter_add": (_same, _elements_read),
    "index_add": (_same, _rows_read),
    "index_copy": (_rows_left, _rows_read),
    "index_fill": (_rows_left, None),
    "scatter": (_elements_left, _elements_read),
    "masked_scatter": (_left_by_mask, _read_by_mask),
    "index_put": (_put_left, _put_read),
    "__setitem__": (_put_left, _put_read),
}


def _rule(left: Made, read: Made | None, written: str) -> CallVjp:
    def rule(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
        args, path = _args(node), _path(node)
        if args is None or path is None or set(given) != {path}:
            return None
        parts: list[Gradient] = [None] * len(node.inputs)
        for name, formula in (("input", left), (written, read)):
            operand = args[name]
            if formula is None or not isinstance(operand, Node) or not need[node.inputs.index(operand)]:
                continue
            part = formula(builder, node, args, given[path])
            if part is None:
                return None
            parts[node.inputs.index(operand)] = part
        return parts

    return rule


for _name, (_left, _read) in RULES.items():
    _names = (_name,) if _name.endswith("__") else (_name, f"{_name}_")
    vjp_call(*_names, when=_holds)(_rule(_left, _read, PARAMETERS[_name][1]))
