"""Sums and values at positions, by one sum at positions along a dimension."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from framefuse.aot.forms.registry import Given, form
from framefuse.ir.values import Value


@form(torch.index_add, torch.Tensor.index_add)
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Value = 1) -> Tensor:
    shape = [1] * source.dim()
    shape[dim] = -1
    terms = source if alpha == 1 else source * alpha
    return input.scatter_add(dim, index.to(torch.int64).reshape(shape).expand(source.shape), terms)


def _adds(given: Given) -> bool:
    """Whether a write at positions adds: others are kernels. A mask says how many there are as it is read."""
    known = all(index is not None and index.dtype in (torch.int64, torch.int32) for index in given["indices"])
    return bool(given["accumulate"]) and known


@form(torch.index_put, torch.Tensor.index_put, where=_adds)
def index_put(input: Tensor, indices: Value, values: Tensor, accumulate: bool = False) -> Tensor:
    """At integers in the first dimensions, or in all of them."""
    indices = torch.broadcast_tensors(*indices)
    at = None
    for dim, index in enumerate(indices):
        place = torch.where(index < 0, index + input.shape[dim], index).to(torch.int64)
        at = place if at is None else at * input.shape[dim] + place
    assert at is not None
    rest = list(input.shape[len(indices) :])
    terms = values.expand(list(at.shape) + rest).reshape([-1, *rest])
    whole = input.reshape([-1, *rest])
    return index_add(whole, 0, at.reshape(-1), terms).reshape(input.shape)


@form(F.one_hot, where=lambda given: given["num_classes"] >= 0)
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    zeros = torch.zeros(*tensor.shape, num_classes, dtype=torch.int64)
    return zeros.scatter_add(-1, tensor.unsqueeze(-1), torch.ones_like(tensor).unsqueeze(-1))


def _is_even(given: Given) -> bool:
    """Whether all bags have one length, and nothing is changed or left out."""
    return given["input"].dim() == 2 and given["max_norm"] is None and given["padding_idx"] is None


@form(F.embedding_bag, where=_is_even)
def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Value = None, max_norm: Value = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Value = None,
    include_last_offset: bool = False, padding_idx: Value = None,
) -> Tensor:  # fmt: skip
    """Of bags of one length."""
    rows = F.embedding(input, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    return rows.sum(1) if mode == "sum" else rows.mean(1) if mode == "mean" else rows.amax(1)
