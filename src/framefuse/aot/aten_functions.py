"""Gives the functions of torch that do what the operators do which programs of TorchScript and torch.export hold."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from framefuse.aot import own_code
from framefuse.aot.forms import forms
from framefuse.aot.forms.registry import walked
from framefuse.aot.torch_calls import HOLDERS

VIEWS = frozenset((
    "view", "reshape", "flatten", "permute", "transpose", "squeeze", "unsqueeze", "expand", "select", "unbind", "t",
    "diagonal", "narrow", "movedim",
))  # fmt: skip


def as_function(operator: Any) -> Callable[..., Any]:
    """The function that does what an operator of aten does, where that one is known to exports or no operation on
    tensors at all; the operator itself where there is none.
    """
    if operator.namespace != "aten":
        return operator  # type: ignore[no-any-return]
    name = operator._schema.name.partition("::")[2]
    if name in WRITTEN:
        return WRITTEN[name]
    if name in VIEWS:
        return getattr(torch.Tensor, name)  # type: ignore[no-any-return]
    functions: Iterator[Any] = (getattr(holder, name, None) for holder in HOLDERS)
    found: Callable[..., Any] = next((function for function in functions if function in _known()), operator)
    return found


@functools.cache
def _known() -> frozenset[Any]:
    own = (own_code.SORTS, own_code.FIRST, own_code.PLACES, own_code.MATRICES, own_code.PUT, own_code.NONZERO)
    more = (own_code.REPEATED, own_code.BINS, own_code.EXPONENTIALS)
    return frozenset([*forms(), *(function for table in (*own, *more) for function in table)]) - {None}


# ---- operators whose function in Python takes something else ----


def _einsum(equation: str, tensors: Sequence[Tensor], *, path: object = None) -> Tensor:
    return torch.einsum(equation, *tensors)


def _meshgrid(tensors: Sequence[Tensor], *, indexing: str = "ij") -> Sequence[Tensor]:
    return torch.meshgrid(*tensors, indexing=indexing)


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, mode: int | None = None) -> Tensor:
    ways = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
    return torch.cdist(x1, x2, p, ways[mode or 0])


def _stft(
    x: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Tensor | None = None,
    normalized: bool = False, onesided: bool | None = None, return_complex: bool | None = None, *rest: bool | None,
) -> Tensor:  # fmt: skip
    given = {"normalized": normalized, "onesided": onesided, "return_complex": return_complex}
    return torch.stft(x, n_fft, hop_length, win_length, window, False, **given)  # type: ignore[arg-type]


def _embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale: bool = False, mode: int = 0, sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> tuple[Tensor, None, None, None]:  # fmt: skip
    way, padding = ("sum", "mean", "max")[mode], None if padding_idx is None or padding_idx < 0 else padding_idx
    found = F.embedding_bag(
        indices, weight, offsets, None, 2.0, scale, way, sparse, per_sample_weights, include_last_offset, padding
    )
    return found, None, None, None


def _size(x: Tensor, dim: int) -> int:
    return x.shape[dim]


def _transposed(x: Tensor) -> Tensor:
    return x.T


def _matrices_transposed(x: Tensor) -> Tensor:
    return x.mT


def _slice(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    part, every = slice(start, None if end == 0x7FFFFFFFFFFFFFFF else end, step), slice(None)
    return x[(*(every,) * dim, part)] if dim >= 0 else x[(..., part, *(every,) * (-1 - dim))]


def _itself(x: Tensor) -> Tensor:
    return x


def _affine_grid(theta: Tensor, size: list[int], align_corners: bool) -> Tensor:
    return F.affine_grid(theta, size, align_corners)


def _nothing(*args: object, **kwargs: object) -> None:
    """What the exporter saw of dtype and device is that of the recorded call."""


WRITTEN: dict[str, Callable[..., Any]] = {
    "einsum": _einsum, "meshgrid": _meshgrid, "cdist": _cdist, "stft": _stft, "embedding_bag": _embedding_bag,
    "sym_size": _size, "numpy_T": _transposed, "mT": _matrices_transposed, "slice": _slice, "detach_": _itself,
    "lift_fresh_copy": torch.clone, "_assert_tensor_metadata": _nothing,
    "affine_grid_generator": _affine_grid, "linalg_vector_norm": torch.linalg.vector_norm,
    "tensor": torch.tensor,
}  # fmt: skip
walked(*(function for function in WRITTEN.values() if isinstance(function, FunctionType)))
