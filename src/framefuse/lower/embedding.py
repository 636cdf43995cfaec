"""Lowers embedding to reads of rows."""

from __future__ import annotations

from framefuse.ir.builder import ZERO
from framefuse.ir.graph import Node
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.rules import Unsupported, rule


@rule("F.embedding")
def embedding(
    lo: Lowering, input: Node, weight: Node, padding_idx: Value = None, max_norm: Value = None, norm_type: Value = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Node:  # fmt: skip
    if max_norm is not None or len(weight.shape) != 2 or input.dtype.name not in ("int64", "int32"):
        raise Unsupported("rows are renormalised")
    for size in weight.shape:  # eager refuses an empty table, and checks positions in rows that hold nothing
        lo.require("!=", size, ZERO, "embedding")
    if lo.differentiable and sparse:
        raise Unsupported("a sparse gradient")
    padding: Value = -1 if padding_idx is None else padding_idx if padding_idx >= 0 else weight.shape[0] + padding_idx
    rows = lo.take(weight, input, 0, False)
    return lo.derived(rows, "embedding", (weight, input), padding, bool(scale_grad_by_freq))


@rule("torch.embedding")
def embedding_of_torch(
    lo: Lowering, weight: Node, indices: Node, padding_idx: Value = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Node:  # fmt: skip
    padding = None if padding_idx == -1 else padding_idx
    return embedding(lo, indices, weight, padding, None, 2.0, scale_grad_by_freq, sparse)
