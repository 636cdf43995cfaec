"""Sums, means and largest ones of bags of rows of a table."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from framefuse.aot.forms.registry import Given, form
from framefuse.aot.forms.writes_at_positions import index_add
from framefuse.ir.values import Value


def _is_unchanged(given: Given) -> bool:
    """Whether the table stays what it is; in an older order of arguments it comes first."""
    return given["max_norm"] is None and not given["input"].dtype.is_floating_point


@form(F.embedding_bag, where=_is_unchanged)
def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Value = None, max_norm: Value = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Value = None,
    include_last_offset: bool = False, padding_idx: Value = None,
) -> Tensor:  # fmt: skip
    rows = F.embedding(input, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if input.dim() == 2 and padding_idx is None:  # bags of one length
        return rows.sum(1) if mode == "sum" else rows.mean(1) if mode == "mean" else rows.amax(1)
    if input.dim() == 2:
        count = input.shape[0]
        bag = torch.arange(count).unsqueeze(1).expand(input.shape).reshape(-1)
        input, rows = input.reshape(-1), rows.flatten(0, 1)
    else:
        count = offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]
        begins = torch.zeros([input.shape[0] + 1], dtype=torch.int64)
        begins = begins.scatter_add(0, offsets.to(torch.int64), torch.ones_like(offsets, dtype=torch.int64))
        bag = begins.cumsum(0)[:-1] - 1
    if padding_idx is not None:
        bag = torch.where(input == padding_idx % weight.shape[0], count, bag)
    empty = torch.zeros([count + 1, weight.shape[1]], dtype=weight.dtype)  # the last one is of what is left out
    if mode == "max":
        largest = torch.scatter_reduce(
            empty, 0, bag.unsqueeze(-1).expand(rows.shape), rows, "amax", include_self=False
        )
        return largest[:-1]
    total = index_add(empty, 0, bag, rows)
    if mode == "mean":
        sizes = torch.zeros([count + 1], dtype=torch.int64).scatter_add(0, bag, torch.ones_like(bag))
        total = total / sizes.clamp(min=1).unsqueeze(-1)
    return total[:-1]
