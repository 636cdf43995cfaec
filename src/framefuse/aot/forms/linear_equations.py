"""Inverses, determinants and factors of matrices, by the functions that exported programs have code for."""

from __future__ import annotations

import torch
from torch import Tensor

from framefuse.aot.forms.registry import form


@form(torch.linalg.inv, torch.inverse, torch.Tensor.inverse)
def inv(A: Tensor) -> Tensor:
    inverse: Tensor = torch.linalg.solve(A, torch.eye(A.shape[-1], dtype=A.dtype).expand(A.shape))
    return inverse


@form(torch.det, torch.Tensor.det)
def det(A: Tensor) -> Tensor:
    determinant: Tensor = torch.linalg.det(A)
    return determinant


@form(torch.cholesky, torch.Tensor.cholesky, where=lambda given: given["upper"] is False)
def cholesky(A: Tensor, upper: bool = False) -> Tensor:
    factor: Tensor = torch.linalg.cholesky(A)
    return factor


@form(torch.linalg.solve_triangular)
def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:  # fmt: skip
    """By the solver of other equations, which finds nothing to exchange in an upper triangle."""
    if not left:
        return solve_triangular(A.mT, B.mT, upper=not upper, unitriangular=unitriangular).mT
    factor = A.triu() if upper else A.tril()
    if unitriangular:
        ones = torch.eye(A.shape[-1], dtype=A.dtype)
        factor = torch.where(ones > 0, ones, factor)
    result: Tensor = torch.linalg.solve(factor, B) if upper else torch.linalg.solve(factor.flip((-2, -1)), B.flip(-2))
    return result if upper else result.flip(-2)
