"""What follows from the factors of matrices that exported programs have code for: norms, ranks, pseudo-inverses."""

from __future__ import annotations

import torch
from torch import Tensor

from framefuse.aot.forms.registry import form
from framefuse.ir.values import Value


@form(torch.matrix_exp, torch.Tensor.matrix_exp)
def matrix_exp(A: Tensor) -> Tensor:
    exponential: Tensor = torch.linalg.matrix_exp(A)
    return exponential


@form(torch.qr, torch.Tensor.qr)
def qr(A: Tensor, some: bool = True) -> Value:
    return torch.linalg.qr(A, mode="reduced" if some else "complete")


@form(torch.linalg.qr, where=lambda given: given["mode"] == "r")
def triangle(A: Tensor, mode: str = "reduced") -> Value:
    return torch.empty([0], dtype=A.dtype), torch.linalg.qr(A)[1]


@form(torch.linalg.eigh, where=lambda given: given["UPLO"] != "L")
def eigh(A: Tensor, UPLO: str = "L") -> Value:
    return torch.linalg.eigh(A.mT if UPLO in ("U", "u") else A)


@form(torch.linalg.eigvalsh)
def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    values: Tensor = eigh(A, UPLO)[0]
    return values


@form(torch.linalg.svd, where=lambda given: given["driver"] is not None)
def svd(A: Tensor, full_matrices: bool = True, *, driver: Value = None) -> Value:
    return torch.linalg.svd(A, full_matrices=full_matrices)


@form(torch.svd, torch.Tensor.svd)
def old_svd(A: Tensor, some: bool = True, compute_uv: bool = True) -> Value:
    left, values, right = torch.linalg.svd(A, full_matrices=not some)
    return left, values, right.mT


@form(torch.linalg.svdvals)
def svdvals(A: Tensor, *, driver: Value = None) -> Tensor:
    values: Tensor = torch.linalg.svd(A, full_matrices=False)[1]
    return values


def _least(A: Tensor, values: Tensor, atol: Value, rtol: Value) -> Value:
    """The singular value from which on one counts."""
    if rtol is None:
        rtol = torch.finfo(A.dtype).eps * max(A.shape[-2], A.shape[-1]) if atol is None else 0.0
    relative = values.amax(-1, keepdim=True) * (rtol.unsqueeze(-1) if isinstance(rtol, Tensor) else rtol)
    if atol is None:
        return relative
    return torch.maximum(relative, atol.unsqueeze(-1) if isinstance(atol, Tensor) else torch.full_like(relative, atol))


@form(torch.linalg.pinv)
def pinv(
    A: Tensor, rcond: Value = None, hermitian: bool = False, *, atol: Value = None, rtol: Value = None
) -> Tensor:  # fmt: skip
    left, values, right = torch.linalg.svd(A, full_matrices=False)
    counts = values > _least(A, values, atol, rtol if rcond is None else rcond)
    return torch.matmul(right.mT * torch.where(counts, 1 / values, 0).unsqueeze(-2), left.mT)


@form(torch.pinverse, torch.Tensor.pinverse)
def pinverse(A: Tensor, rcond: Value = 1e-15) -> Tensor:
    return pinv(A, rcond)


@form(torch.linalg.matrix_rank)
def matrix_rank(
    A: Tensor, tol: Value = None, hermitian: bool = False, *, atol: Value = None, rtol: Value = None
) -> Tensor:  # fmt: skip
    values = svdvals(A)
    counted: Tensor = (values > _least(A, values, atol if tol is None else tol, rtol)).sum(-1)
    return counted


@form(torch.linalg.cond, where=lambda given: given["p"] in (None, 2, -2))
def cond(A: Tensor, p: Value = None) -> Tensor:
    values = svdvals(A)
    first, last = values.amax(-1), values.amin(-1)
    return last / first if p == -2 else first / last
