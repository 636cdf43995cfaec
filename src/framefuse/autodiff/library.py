"""Makes the library nodes of backward graphs: a torch callable on nodes, with results whose shapes are known."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from framefuse.ir.builder import Builder, Shape
from framefuse.ir.dtypes import DType
from framefuse.ir.graph import Arg, Node, call_attrs, node_of, template_of
from framefuse.ir.strides import dense_order, dense_strides
from framefuse.ir.values import Value

Order = tuple[int, ...]
Function = TypeVar("Function", bound=Callable[..., Value])


def call(builder: Builder, target: Callable[..., Value], args: Sequence[Value], *, like: Node, **kwargs: Value) -> Node:
    """``target(*args)`` where nodes among the arguments stand for tensors; the result is one row-major tensor of the
    shape and dtype of ``like``.
    """
    return calls(builder, target, args, [((), like.dtype, like.shape)], kwargs)[0]


def calls(
    builder: Builder,
    target: Callable[..., Value],
    args: Sequence[Value],
    results: Sequence[tuple[tuple[int, ...], DType, Shape]],
    kwargs: dict[str, Value] | None = None,
    name: str | None = None,
    orders: Mapping[Node, Order] | None = None,
    given: Sequence[Order] | None = None,
) -> tuple[Node, ...]:
    """``target(*args, **kwargs)`` with one result for each (path, dtype, shape). Memory is row-major but for operands
    in ``orders`` and results whose orders are ``given``. What the graph calls already is not called again: a sweep that
    is repeated finds the results that an earlier one chose to save.
    """
    operands: list[Node] = []
    template, named = template_of(tuple(args), operands), template_of(kwargs or {}, operands)
    name = name or getattr(target, "__name__", "call").removesuffix(".default")
    lie = [(orders or {}).get(node) or tuple(range(len(node.shape))) for node in operands]
    attrs = call_attrs(target, template, lie, name=name, kwargs=named)
    device = operands[0].device
    orders_of = given or [tuple(range(len(shape))) for _, _, shape in results]
    lies = {path: dense_strides(shape, order) for (path, _, shape), order in zip(results, orders_of, strict=True)}
    node = builder.call(tuple(operands), attrs)
    known = {} if node is None else builder.results(node)
    if node is None or any(path not in known or known[path].strides != strides for path, strides in lies.items()):
        node, known = builder.opaque("library", tuple(operands), attrs, results[0][1], (), None, device), {}
    nodes = []
    for path, dtype, shape in results:
        shared = known.get(path)
        nodes.append(shared or builder.opaque("result", (node,), (("path", path),), dtype, shape, lies[path], device))
    return tuple(nodes)


def copied(node: Node) -> Node:
    """A row-major copy of a node, by the library."""
    attrs = call_attrs(torch.clone, (Arg(0),), (None,), kwargs={"memory_format": torch.contiguous_format})
    call = Node("library", (node,), attrs, node.dtype, (), None, node.line, node.device)
    strides = row_major(node.shape)
    return Node("result", (call,), (("path", ()),), node.dtype, node.shape, strides, node.line, node.device)


def row_major(shape: Shape) -> Shape:
    """The strides of a dense tensor whose last dimension is innermost, in elements."""
    return dense_strides(shape, range(len(shape)))


def arguments(node: Node, names: str) -> dict[str, Value] | None:
    """The arguments of a library node by name, with its operands in place of their templates; None when the call has
    others. ``names`` are the parameters in order, each with ``=default`` where it has one (Python constants).
    """
    by_name: dict[str, Value] = {}
    given = [node_of(value, node.inputs) for value in node.attr("args")]
    named = {name: node_of(value, node.inputs) for name, value in node.attr("kwargs").items()}
    for word in names.split():
        name, _, default = word.partition("=")
        if given:
            by_name[name] = given.pop(0)
        elif name in named:
            by_name[name] = named.pop(name)
        elif default:
            by_name[name] = ast.literal_eval(default)
        else:
            return None
    return None if given or named else by_name


def order_of(builder: Builder, node: Node) -> tuple[int, ...]:
    """The order, outermost dimension first, in which the memory of an input or of a call's result lies; row-major for
    what has no memory of its own.
    """
    rows = tuple(range(len(node.shape)))
    if node.strides is None:
        return rows
    return dense_order(builder.sizes(node.shape), builder.sizes(node.strides)) or rows


def order_in(builder: Builder, call: Node, operand: Node) -> tuple[int, ...]:
    """The order in which a call's operand lies in memory."""
    return call.attr("orders")[call.inputs.index(operand)] or order_of(builder, operand)

