"""Inverses, determinants and solutions of equations, by the functions that exported programs have code for."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from framefuse.aot.forms.decompositions import pinv
from framefuse.aot.forms.registry import Given, form
from framefuse.ir.values import Value


@form(torch.linalg.inv, torch.inverse, torch.Tensor.inverse)
def inv(A: Tensor) -> Tensor:
    inverse: Tensor = torch.linalg.solve(A, torch.eye(A.shape[-1], dtype=A.dtype).expand(A.shape))
    return inverse


@form(torch.linalg.solve, where=lambda given: _is_unlike(given) or not given["left"])
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """Of batches of as many dimensions, with the unknowns behind the matrix."""
    if not left:
        return solve(A.mT, B.mT).mT
    if B.dim() == A.dim() - 1 and B.shape == A.shape[:-1]:
        found: Tensor = torch.linalg.solve(A, B.unsqueeze(-1))
        return found.squeeze(-1)
    rank = max(A.dim(), B.dim())
    A, B = (part.reshape([1] * (rank - part.dim()) + list(part.shape)) for part in (A, B))
    solution: Tensor = torch.linalg.solve(A, B)
    return solution


def _is_unlike(given: Given) -> bool:
    ranks = given["A"].dim(), given["B"].dim()
    return ranks[0] != ranks[1] and ranks != (2, 1)


@form(torch.det, torch.Tensor.det)
def det(A: Tensor) -> Tensor:
    determinant: Tensor = torch.linalg.det(A)
    return determinant


@form(torch.slogdet, torch.Tensor.slogdet)
def slogdet(A: Tensor) -> Value:
    return torch.linalg.slogdet(A)


@form(torch.logdet, torch.Tensor.logdet)
def logdet(A: Tensor) -> Tensor:
    sign, size = torch.linalg.slogdet(A)
    return torch.where(sign < 0, torch.nan, size)


@form(torch.cholesky, torch.Tensor.cholesky)
def cholesky(A: Tensor, upper: bool = False) -> Tensor:
    if upper:
        return cholesky(A.mT).mT
    factor: Tensor = torch.linalg.cholesky(A)
    return factor


@form(torch.linalg.cholesky, where=lambda given: given["upper"])
def upper_cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    return cholesky(A, upper)


@form(torch.cholesky_solve, torch.Tensor.cholesky_solve)
def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    factor = L.mT if upper else L
    between = torch.linalg.solve_triangular(factor, B, upper=False)
    solution: Tensor = torch.linalg.solve_triangular(factor.mT, between, upper=True)
    return solution


@form(torch.cholesky_inverse, torch.Tensor.cholesky_inverse)
def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    return cholesky_solve(torch.eye(L.shape[-1], dtype=L.dtype).expand(L.shape), L, upper)


@form(
    torch.linalg.solve_triangular,
    where=lambda given: not given["left"] or given["unitriangular"] or given["A"].dim() != given["B"].dim(),
)
def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:  # fmt: skip
    if not left:
        return solve_triangular(A.mT, B.mT, upper=not upper, unitriangular=unitriangular).mT
    if unitriangular:
        ones = torch.eye(A.shape[-1], dtype=A.dtype)
        A = torch.where(ones > 0, ones, A)
    rank = max(A.dim(), B.dim())
    A, B = (part.reshape([1] * (rank - part.dim()) + list(part.shape)) for part in (A, B))
    result: Tensor = torch.linalg.solve_triangular(A, B, upper=upper)
    return result


class Solution(NamedTuple):
    """What of a least squares problem is the same for all matrices: who unpacks more is told that there is no more."""

    solution: Tensor


@form(torch.linalg.lstsq, where=lambda given: given["driver"] is None)
def lstsq(A: Tensor, B: Tensor, rcond: Value = None, *, driver: Value = None) -> Solution:
    return Solution(torch.matmul(pinv(A, rtol=rcond), B))
