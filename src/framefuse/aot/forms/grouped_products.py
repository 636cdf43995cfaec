"""Products of groups of rows, each by a matrix of its own, as mixtures of experts have them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from framefuse.aot.forms.registry import TABLE, Given, form
from framefuse.capture.interp.registry import Form
from framefuse.ir.values import Value

FUNCTIONS = tuple(
    getattr(holder, name) for holder, name in ((F, "grouped_mm"), (torch, "_grouped_mm")) if hasattr(holder, name)
)


def _is_rows_by_matrices(given: Given) -> bool:
    left, right = given["input"], given["weight"]
    plain = given["bias"] is None and given["out_dtype"] is None and given["offs"] is not None
    return plain and left.is_cpu and left.dim() == 2 and right.dim() == 3


@form(*FUNCTIONS, where=_is_rows_by_matrices)
def grouped_mm(
    input: Tensor, weight: Tensor, offs: Value = None, bias: Value = None, out_dtype: Value = None
) -> Tensor:
    """``offs`` has the end of each group; rows behind the last are zeros."""
    group = (torch.arange(input.shape[0]).unsqueeze(1) >= offs).sum(1)
    out = torch.zeros([input.shape[0], weight.shape[2]], dtype=input.dtype)
    for number in range(weight.shape[0]):
        rows = (group == number).nonzero().squeeze(1)
        out = out.index_put((rows,), torch.matmul(input[rows], weight[number]))
    return out


def of_transformers() -> Iterator[tuple[Hashable, Form]]:
    """The operator that transformers has for the same, where it was imported."""
    packet = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    if packet is not None and FUNCTIONS:
        yield packet, TABLE[FUNCTIONS[0]]
