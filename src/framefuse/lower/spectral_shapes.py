"""Gives the result shapes of Fourier transforms, which stay with the library."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.rules import Shapes, Unsupported, rule


@rule("fft.fftshift", "fft.ifftshift")
def shifted(lo: Lowering, input: Node, dim: Value = None) -> Shapes:
    return Shapes((input.shape,))


@rule("fft.fft", "fft.ifft")
def of_lines(
    lo: Lowering, input: Node, n: Value = None, dim: Value = -1, norm: Value = None, *, out: Value = None
) -> Shapes:
    return _whole(lo, input, None if n is None else (n,), (dim,))


@rule("fft.rfft", "fft.ihfft")
def of_real_lines(
    lo: Lowering, input: Node, n: Value = None, dim: Value = -1, norm: Value = None, *, out: Value = None
) -> Shapes:
    return _halved(lo, input, None if n is None else (n,), (dim,))


@rule("fft.irfft", "fft.hfft")
def to_real_lines(
    lo: Lowering, input: Node, n: Value = None, dim: Value = -1, norm: Value = None, *, out: Value = None
) -> Shapes:
    return _doubled(lo, input, None if n is None else (n,), (dim,))


@rule("fft.fft2", "fft.ifft2")
def of_pictures(
    lo: Lowering, input: Node, s: Value = None, dim: Value = (-2, -1), norm: Value = None, *, out: Value = None
) -> Shapes:
    return _whole(lo, input, s, dim)


@rule("fft.rfft2", "fft.ihfft2")
def of_real_pictures(
    lo: Lowering, input: Node, s: Value = None, dim: Value = (-2, -1), norm: Value = None, *, out: Value = None
) -> Shapes:
    return _halved(lo, input, s, dim)


@rule("fft.irfft2", "fft.hfft2")
def to_real_pictures(
    lo: Lowering, input: Node, s: Value = None, dim: Value = (-2, -1), norm: Value = None, *, out: Value = None
) -> Shapes:
    return _doubled(lo, input, s, dim)


@rule("fft.fftn", "fft.ifftn")
def of_all(
    lo: Lowering, input: Node, s: Value = None, dim: Value = None, norm: Value = None, *, out: Value = None
) -> Shapes:
    return _whole(lo, input, s, dim)


@rule("fft.rfftn", "fft.ihfftn")
def of_real_all(
    lo: Lowering, input: Node, s: Value = None, dim: Value = None, norm: Value = None, *, out: Value = None
) -> Shapes:
    return _halved(lo, input, s, dim)


@rule("fft.irfftn", "fft.hfftn")
def to_real_all(
    lo: Lowering, input: Node, s: Value = None, dim: Value = None, norm: Value = None, *, out: Value = None
) -> Shapes:
    return _doubled(lo, input, s, dim)


@rule("istft")
def istft(
    lo: Lowering, input: Node, n_fft: Value, hop_length: Value = None, win_length: Value = None, window: Value = None,
    center: bool = True, normalized: bool = False, onesided: bool | None = None, length: Value = None,
    return_complex: bool = False,
) -> Shapes:  # fmt: skip
    hop = hop_length if hop_length is not None else n_fft // 4 if isinstance(n_fft, int) else None
    if not isinstance(n_fft, int) or not isinstance(hop, int):
        raise Unsupported("windows of another length at each call")
    *batch, _, frames = input.shape
    whole = n_fft + (frames - 1) * hop - (n_fft // 2 * 2 if center else 0)
    lo.require("<", expr(0), whole, "a signal")
    return Shapes(((*batch, whole if length is None else expr(length)),))


def _whole(lo: Lowering, input: Node, sizes: Value, dims: Value) -> Shapes:
    """Complex numbers of complex numbers, as many."""
    shape, _ = _sized(lo, input, sizes, dims)
    return Shapes((tuple(shape),))


def _halved(lo: Lowering, input: Node, sizes: Value, dims: Value) -> Shapes:
    """Complex numbers of real ones: half of the last dimension."""
    shape, last = _sized(lo, input, sizes, dims)
    shape[last] = shape[last] // 2 + 1
    return Shapes((tuple(shape),))


def _doubled(lo: Lowering, input: Node, sizes: Value, dims: Value) -> Shapes:
    """Real numbers of complex ones, twice as many along the last dimension where no size is given."""
    shape, last = _sized(lo, input, sizes, dims)
    if sizes is None or _is_own(sizes[-1]):
        shape[last] = (input.shape[last] - 1) * 2
        lo.require("<", expr(0), shape[last], "a transform")
    return Shapes((tuple(shape),))


def _sized(lo: Lowering, input: Node, sizes: Value, dims: Value) -> tuple[list[Expr], int]:
    """The shape with the ``sizes`` that are given of the ``dims``, and the last of these."""
    rank = len(input.shape)
    if dims is None:
        dims = range(rank - len(sizes) if sizes is not None else 0, rank)
    elif not isinstance(dims, Sequence):
        dims = (dims,)
    axes = [lo.axis(dim, rank) for dim in dims]
    if not axes or (sizes is not None and len(sizes) != len(axes)):
        raise Unsupported("a transform along no dimension")
    shape = list(input.shape)
    for axis, size in zip(axes, sizes if sizes is not None else (-1,) * len(axes), strict=True):
        if not _is_own(size):
            shape[axis] = expr(size)
        lo.require("<", expr(0), shape[axis], "a transform")
    return shape, axes[-1]


def _is_own(size: Value) -> bool:
    """Whether a size says that it is the operand's."""
    return isinstance(size, int) and size == -1
