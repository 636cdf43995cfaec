"""Turns library nodes into items, and says which torch functions may see memory that no user may keep."""

from __future__ import annotations

import torch

from framefuse.fuse.addressing.strided import View
from framefuse.ir.graph import Arg, Node, call_attrs
from framefuse.ir.torch_calls import TABLE
from framefuse.ir.wrapped_calls import part_of, product


def _callables() -> dict[int, object]:
    """By identity: a user's function of the same name is another object."""
    homes, functions = (torch, torch.nn.functional, torch.Tensor), []
    for name in TABLE.names("inside"):
        forms = [getattr(home, name) for home in homes if hasattr(home, name)]
        functions += forms or [getattr(getattr(torch.ops.aten, name, None), "default", None)]
    return {id(function): function for function in functions if function is not None}


INSIDE = _callables()


def may_see_views(node: Node) -> bool:
    """Whether the library call may be given arena memory and views of it. A function of ours says so itself."""
    target = node.attr("target")
    return id(target) in INSIDE or getattr(target, "inside", False) is True


def view_call(view: View) -> Node:
    """A view as a call that gives a tensor which shares the memory of its base."""
    node = view.node
    attrs = call_attrs(part_of, (Arg(0), node.shape, view.of_a_tensor, view.offset), (None,), name="as_strided")
    return Node("library", (view.base,), attrs, node.dtype, node.shape, None, node.line, node.device)


def cat_call(node: Node) -> Node:
    """A cat of many pieces as a call of torch.cat, whose work for an element does not grow with their number."""
    pieces = tuple(Arg(number) for number in range(len(node.inputs)))
    attrs = call_attrs(torch.cat, (pieces, node.attr("axis")), (None,) * len(pieces))
    return Node("library", node.inputs, attrs, node.dtype, node.shape, None, node.line, node.device)


def matmul_call(node: Node) -> Node:
    """A product as a call of torch.matmul, for dtypes that BLAS lacks."""
    attrs = call_attrs(product, (Arg(0), Arg(1)), (None, None), name="matmul")
    return Node("library", node.inputs, attrs, node.dtype, node.shape, None, node.line, node.device)
