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
