"""Turns library nodes into items, and says which torch functions may see memory that no user may keep."""

from __future__ import annotations

from typing import Any

import torch

from framefuse.ir.graph import Arg, Node

# Functions that neither keep nor return the memory of an operand, whatever their arguments.
INSIDE_NAMES = (
    "linear", "bilinear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "scaled_dot_product_attention", "batch_norm", "group_norm", "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d",
    "avg_pool2d", "avg_pool3d", "cumsum", "cumprod", "sort", "argsort", "topk", "multinomial", "bincount", "nonzero",
    "searchsorted", "logsumexp", "cdist",
)  # fmt: skip


def _callables() -> dict[int, Any]:
    """By identity: a user's function of the same name is another object."""
    homes = (torch, torch.nn.functional, torch.Tensor, torch.ops.aten)
    found = (getattr(home, name, None) for home in homes[:3] for name in INSIDE_NAMES)
    return {id(function): function for function in found if function is not None}


INSIDE = _callables()


def may_see_views(node: Node) -> bool:
    """Whether the library call may be given arena memory and views of it."""
    return id(node.attr("target")) in INSIDE


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
