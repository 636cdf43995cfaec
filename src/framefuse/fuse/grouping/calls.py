"""Turns library nodes into items, and says which torch functions may see memory that no user may keep."""

from __future__ import annotations

from typing import Any

import torch

from framefuse.fuse.addressing.strided import View
from framefuse.ir.graph import Arg, Node

# Functions that neither keep nor return the memory of an operand, whatever their arguments.
INSIDE_NAMES = (
    "linear", "bilinear", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "scaled_dot_product_attention", "batch_norm", "group_norm", "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d",
    "avg_pool2d", "avg_pool3d", "cumsum", "cumprod", "sort", "argsort", "topk", "multinomial", "bincount", "nonzero",
    "searchsorted", "logsumexp", "cdist",
)  # fmt: skip
# The same of overloads of torch.ops.aten, as backward graphs call them.
INSIDE_BACKWARD = (
    "convolution_backward", "avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward", "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward",
    "upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward",
    "upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward",
    "upsample_trilinear3d_backward", "embedding_dense_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)  # fmt: skip


def _callables() -> dict[int, Any]:
    """By identity: a user's function of the same name is another object."""
    homes = (torch, torch.nn.functional, torch.Tensor)
    found = [getattr(home, name, None) for home in homes for name in INSIDE_NAMES]
    found += [getattr(getattr(torch.ops.aten, name, None), "default", None) for name in INSIDE_BACKWARD]
    return {id(function): function for function in found if function is not None}


INSIDE = _callables()


def may_see_views(node: Node) -> bool:
    """Whether the library call may be given arena memory and views of it. A function of ours says so itself."""
    target = node.attr("target")
    return id(target) in INSIDE or getattr(target, "inside", False) is True


def view_call(view: View) -> Node:
    """A view as a call that gives a tensor which shares the memory of its base."""
    node = view.node
    attrs: tuple[tuple[str, Any], ...] = (
        ("target", torch.as_strided),
        ("name", "as_strided"),
        ("args", (Arg(0), node.shape, view.of_a_tensor, view.offset)),
        ("kwargs", {}),
        ("random", False),
        ("orders", (None,)),
    )
    return Node("library", (view.base,), attrs, node.dtype, node.shape, None, node.line, node.device)


def cat_call(node: Node) -> Node:
    """A cat of many pieces as a call of torch.cat, whose work for an element does not grow with their number."""
    pieces = tuple(Arg(number) for number in range(len(node.inputs)))
    attrs: tuple[tuple[str, Any], ...] = (
        ("target", torch.cat),
        ("name", "cat"),
        ("args", (pieces, node.attr("axis"))),
        ("kwargs", {}),
        ("random", False),
        ("orders", (None,) * len(pieces)),
    )
    return Node("library", node.inputs, attrs, node.dtype, node.shape, None, node.line, node.device)


def matmul_call(node: Node) -> Node:
    """A product as a call of torch.matmul, for dtypes that BLAS lacks."""
    attrs: tuple[tuple[str, Any], ...] = (
        ("target", torch.matmul),
        ("name", "matmul"),
        ("args", (Arg(0), Arg(1))),
        ("kwargs", {}),
        ("random", False),
        ("orders", (None, None)),
    )
    return Node("library", node.inputs, attrs, node.dtype, node.shape, None, node.line, node.device)
