"""What is said of many elements by few: covariances, norms of matrices, integrals, medians, moments."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from framefuse.aot.forms.decompositions import svdvals
from framefuse.aot.forms.ordering import Placed
from framefuse.aot.forms.registry import Given, form
from framefuse.ir.values import Value


def _is_of_numbers(given: Given) -> bool:
    return given["input"].dtype is not torch.bool and not given["input"].dtype.is_complex


def _is_unweighted(given: Given) -> bool:
    return given["fweights"] is None and given["aweights"] is None and _is_of_numbers(given)


@form(torch.cov, torch.Tensor.cov, where=_is_unweighted)
def cov(input: Tensor, *, correction: int = 1, fweights: Value = None, aweights: Value = None) -> Tensor:
    if not input.dtype.is_floating_point:
        input = input.to(torch.get_default_dtype())
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    apart = rows - rows.mean(1, keepdim=True)
    return (torch.matmul(apart, apart.mT) / max(rows.shape[1] - correction, 0)).squeeze()


@form(torch.corrcoef, torch.Tensor.corrcoef, where=_is_of_numbers)
def corrcoef(input: Tensor) -> Tensor:
    shared = cov(input)
    if shared.dim() == 0:
        return shared / shared
    spread = shared.diagonal().sqrt()
    return (shared / spread.unsqueeze(-1) / spread).clamp(-1, 1)


@form(torch.nanmedian, torch.Tensor.nanmedian)
def nanmedian(input: Tensor, dim: Value = None, keepdim: bool = False) -> Value:
    along = -1 if dim is None else dim
    values, places = torch.sort(input.reshape(-1) if dim is None else input, dim=along, stable=True)
    known = values.shape[along] - torch.isnan(values).sum(along, keepdim=True)
    middle = ((known - 1) // 2).clamp(min=0)
    found = torch.gather(values, along, middle), torch.gather(places, along, middle)
    if dim is None:
        return found[0].reshape([])
    return Placed(*(part if keepdim else part.squeeze(along) for part in found))


@form(torch.linalg.matrix_norm, where=lambda given: given["dtype"] is None)
def matrix_norm(
    A: Tensor, ord: Value = "fro", dim: Value = (-2, -1), keepdim: bool = False, *, dtype: Value = None
) -> Tensor:  # fmt: skip
    rows, columns = (axis % A.dim() for axis in dim)
    if ord == "fro":
        length: Tensor = torch.linalg.vector_norm(A, 2, (rows, columns), keepdim)
        return length
    if ord in ("nuc", 2, -2):
        values = svdvals(A.movedim((rows, columns), (-2, -1)))
        result = values.sum(-1) if ord == "nuc" else values.amax(-1) if ord == 2 else values.amin(-1)
        for axis in sorted((rows, columns)) if keepdim else ():
            result = result.unsqueeze(axis)
        return result
    summed, left = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = A.abs().sum(summed, keepdim=True)
    result = sums.amax(left, keepdim=True) if ord > 0 else sums.amin(left, keepdim=True)
    return result if keepdim else result.sum((rows, columns))


def _is_of_matrices(given: Given) -> bool:
    dim, order = given["dim"], given["ord"]
    pair = given["A"].dim() == 2 if dim is None else isinstance(dim, (tuple, list)) and len(dim) == 2
    return pair and order is not None and given["dtype"] is None


@form(torch.linalg.norm, where=_is_of_matrices)
def norm(
    A: Tensor, ord: Value = None, dim: Value = None, keepdim: bool = False, *, dtype: Value = None
) -> Tensor:  # fmt: skip
    return matrix_norm(A, ord, (0, 1) if dim is None else dim, keepdim)


@form(torch.norm, torch.Tensor.norm, where=lambda given: given["p"] == "nuc")
def nuclear_norm(
    input: Tensor, p: Value = "fro", dim: Value = None, keepdim: bool = False, dtype: Value = None
) -> Tensor:  # fmt: skip
    return matrix_norm(input, "nuc", (-2, -1) if dim is None else dim, keepdim)


@form(torch.renorm, torch.Tensor.renorm)
def renorm(input: Tensor, p: Value, dim: int, maxnorm: Value) -> Tensor:
    others = [axis for axis in range(input.dim()) if axis != dim % input.dim()]
    norms = torch.linalg.vector_norm(input, p, others, keepdim=True)
    return torch.where(norms > maxnorm, input * (maxnorm / (norms + 1e-7)), input)


@form(torch.trapezoid, torch.trapz)
def trapezoid(y: Tensor, x: Value = None, *, dx: Value = None, dim: int = -1) -> Tensor:
    size = y.shape[dim]
    pairs = y.narrow(dim, 1, size - 1) + y.narrow(dim, 0, size - 1)
    if x is None:
        return pairs.sum(dim) * (0.5 if dx is None else dx / 2)
    widths = x.narrow(dim if x.dim() == y.dim() else -1, 1, size - 1) - x.narrow(
        dim if x.dim() == y.dim() else -1, 0, size - 1
    )
    if x.dim() != y.dim():
        shape = [1] * y.dim()
        shape[dim] = -1
        widths = widths.reshape(shape)
    doubled: Tensor = (pairs * widths).sum(dim)
    return doubled / 2


def _is_even(given: Given) -> bool:
    return given["edge_order"] == 1 and (given["spacing"] is None or isinstance(given["spacing"], (int, float)))


@form(torch.gradient, where=_is_even)
def gradient(input: Tensor, *, spacing: Value = None, dim: Value = None, edge_order: int = 1) -> tuple[Tensor, ...]:
    """By the two neighbours of each element, and at the edges by one."""
    dims = range(input.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    return tuple(_slope(input, axis, 1 if spacing is None else spacing) for axis in dims)


def _slope(input: Tensor, dim: int, apart: Value) -> Tensor:
    steps = input.diff(dim=dim)
    size = steps.shape[dim]
    between = (steps.narrow(dim, 1, size - 1) + steps.narrow(dim, 0, size - 1)) / 2
    slopes: Tensor = torch.cat([steps.narrow(dim, 0, 1), between, steps.narrow(dim, size - 1, 1)], dim) / apart
    return slopes


@form(torch.mode, torch.Tensor.mode)
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Placed:
    """The least one of those that are there most often, and where the last of them is."""
    values, places = torch.sort(input, dim=dim, stable=True)
    lines = values.movedim(dim, -1)
    counts = (lines.unsqueeze(-1) == lines.unsqueeze(-2)).sum(-1)
    first = counts.argmax(-1, keepdim=True)
    last = first + counts.gather(-1, first) - 1
    found, where = lines.gather(-1, first), places.movedim(dim, -1).gather(-1, last)
    return Placed(*(part.movedim(-1, dim) if keepdim else part.squeeze(-1) for part in (found, where)))


def _has_no_running_ones(given: Given) -> bool:
    return given["training"] and given["running_mean"] is None and given["running_var"] is None


@form(F.batch_norm, where=_has_no_running_ones)
def batch_norm(
    input: Tensor, running_mean: Value, running_var: Value, weight: Value = None, bias: Value = None,
    training: bool = False, momentum: Value = 0.1, eps: Value = 1e-5,
) -> Tensor:  # fmt: skip
    """By the moments of the batch, as nets use it to normalise their own weights."""
    others = [axis for axis in range(input.dim()) if axis != 1]
    apart = input - input.mean(others, keepdim=True)
    result = apart * torch.rsqrt((apart * apart).mean(others, keepdim=True) + eps)
    shape = [1, -1] + [1] * (input.dim() - 2)
    if weight is not None:
        result = result * weight.reshape(shape)
    return result if bias is None else result + bias.reshape(shape)
