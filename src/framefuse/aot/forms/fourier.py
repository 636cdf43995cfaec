"""Discrete Fourier transforms as products with matrices of roots of one, and the windows that are used with them.

The work grows with the square of a length, as that of any product: a transform of 512 places is one of 512 columns.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from framefuse.aot.forms.registry import Given, form
from framefuse.ir.values import Function, Value

LONGEST = 4096  # whose matrix of roots takes 128 MB


def _roots(rows: Value, columns: Value, length: Value, dtype: torch.dtype, sign: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the turns ``row * column / length``, exact where these are whole quarters."""
    turns = (torch.arange(rows).unsqueeze(-1) * torch.arange(columns)) % length
    angles = turns.to(torch.float64) * (sign * 2 * math.pi / length)
    return torch.cos(angles).to(dtype), torch.sin(angles).to(dtype)


def _scale(norm: Value, length: Value, inverse: bool) -> Value:
    if norm == "ortho":
        return 1 / math.sqrt(length)
    return 1 / length if (norm == "forward") != inverse else 1


def _fitted(input: Tensor, n: Value, dim: int) -> Tensor:
    """The first ``n`` places along a dimension, with zeros behind where there are fewer."""
    size = input.shape[dim]
    if n is None or n == size:
        return input
    if n < size:
        return input.narrow(dim, 0, n)
    behind = list(input.shape)
    behind[dim] = n - size
    return torch.cat([input, torch.zeros(behind, dtype=input.dtype)], dim)


def _parts(input: Tensor) -> tuple[Tensor, Value]:
    """The real and the imaginary part, which is None where there is none."""
    if input.is_complex():
        return input.real, input.imag
    real = input if input.dtype.is_floating_point else input.to(torch.float32)
    return real, None


def _along(input: Tensor, n: Value, dim: int, norm: Value, inverse: bool, kept: Value = None) -> Tensor:
    """A transform along one dimension, of which ``kept`` places are wanted; complex."""
    real, imaginary = _parts(_fitted(input, n, dim))
    real = real.transpose(dim, -1)
    size = real.shape[-1]
    cosine, sine = _roots(size, size if kept is None else kept, size, real.dtype, 1 if inverse else -1)
    first, second = torch.matmul(real, cosine), torch.matmul(real, sine)
    if imaginary is not None:
        imaginary = imaginary.transpose(dim, -1)
        first, second = first - torch.matmul(imaginary, sine), second + torch.matmul(imaginary, cosine)
    scale = _scale(norm, size, inverse)
    return torch.view_as_complex(torch.stack([first * scale, second * scale], -1)).transpose(dim, -1)


def _real_along(input: Tensor, n: Value, dim: int, norm: Value) -> Tensor:
    """The real places of which ``input`` is the half of the spectrum."""
    count = 2 * (input.shape[dim] - 1) if n is None else n
    real, imaginary = _parts(_fitted(input, count // 2 + 1, dim))
    real = real.transpose(dim, -1)
    cosine, sine = _roots(count // 2 + 1, count, count, real.dtype, 1)
    place = torch.arange(count // 2 + 1)
    twice = torch.where((place == 0) | (2 * place == count), 1.0, 2.0).to(real.dtype)
    result: Tensor = torch.matmul(real * twice, cosine)
    if imaginary is not None:
        result = result - torch.matmul(imaginary.transpose(dim, -1) * twice, sine)
    scaled: Tensor = result * _scale(norm, count, True)
    return scaled.transpose(dim, -1)


def _is_short(given: Given) -> bool:
    """Whether each length is one that a matrix of roots is made for."""
    input, dims = given["input"], given.get("dim", -1)
    if not isinstance(input, Tensor):
        return False
    dims = range(input.dim()) if dims is None else (dims,) if isinstance(dims, int) else dims
    sizes = given.get("n") or given.get("s") or ()
    named = (sizes,) if isinstance(sizes, int) else sizes
    return all(size <= LONGEST for size in (*(input.shape[dim] for dim in dims), *named))


def _one(inverse: bool) -> Function:
    def transformed(input: Tensor, n: Value = None, dim: int = -1, norm: Value = None) -> Tensor:
        return _along(input, n, dim, norm, inverse)

    return transformed


form(torch.fft.fft, where=_is_short)(_one(False))
form(torch.fft.ifft, where=_is_short)(_one(True))


@form(torch.fft.rfft, where=_is_short)
def rfft(input: Tensor, n: Value = None, dim: int = -1, norm: Value = None) -> Tensor:
    size = input.shape[dim] if n is None else n
    return _along(input, n, dim, norm, False, size // 2 + 1)


@form(torch.fft.irfft, where=_is_short)
def irfft(input: Tensor, n: Value = None, dim: int = -1, norm: Value = None) -> Tensor:
    return _real_along(input, n, dim, norm)


def _each(input: Tensor, s: Value, dim: Value) -> list[tuple[int, Value]]:
    """The dimensions of a transform over several, each with its length or None."""
    if dim is None:
        dim = range(input.dim()) if s is None else range(input.dim() - len(s), input.dim())
    dims = [dim] if isinstance(dim, int) else list(dim)
    return list(
        zip(dims, [None] * len(dims) if s is None else [None if size == -1 else size for size in s], strict=True)
    )


def _several(inverse: bool, default: Value) -> Function:
    def transformed(input: Tensor, s: Value = None, dim: Value = default, norm: Value = None) -> Tensor:
        for axis, size in _each(input, s, dim):
            input = _along(input, size, axis, norm, inverse)
        return input

    return transformed


def _half(default: Value) -> Function:
    def transformed(input: Tensor, s: Value = None, dim: Value = default, norm: Value = None) -> Tensor:
        *others, (last, size) = _each(input, s, dim)
        result = rfft(input, size, last, norm)
        for axis, length in others:
            result = _along(result, length, axis, norm, False)
        return result

    return transformed


def _whole(default: Value) -> Function:
    def transformed(input: Tensor, s: Value = None, dim: Value = default, norm: Value = None) -> Tensor:
        *others, (last, size) = _each(input, s, dim)
        for axis, length in others:
            input = _along(input, length, axis, norm, True)
        return _real_along(input, size, last, norm)

    return transformed


for _kind, _default in (("2", (-2, -1)), ("n", None)):
    form(getattr(torch.fft, f"fft{_kind}"), where=_is_short)(_several(False, _default))
    form(getattr(torch.fft, f"ifft{_kind}"), where=_is_short)(_several(True, _default))
    form(getattr(torch.fft, f"rfft{_kind}"), where=_is_short)(_half(_default))
    form(getattr(torch.fft, f"irfft{_kind}"), where=_is_short)(_whole(_default))


def _is_spectrum(given: Given) -> bool:
    return not given["input"].is_complex() and given["n_fft"] <= LONGEST and given["return_complex"] is True


@form(torch.stft, torch.Tensor.stft, where=_is_spectrum)
def stft(
    input: Tensor, n_fft: int, hop_length: Value = None, win_length: Value = None, window: Value = None,
    center: bool = True, pad_mode: str = "reflect", normalized: bool = False, onesided: Value = None,
    return_complex: Value = None, align_to_window: Value = None,
) -> Tensor:  # fmt: skip
    """Of real signals, as complex numbers."""
    hop, width = n_fft // 4 if hop_length is None else hop_length, n_fft if win_length is None else win_length
    rows = input if input.dim() == 2 else input.unsqueeze(0)
    if center:
        rows = F.pad(rows.unsqueeze(1), (n_fft // 2, n_fft // 2), mode=pad_mode).squeeze(1)
    frames = rows.unfold(-1, n_fft, hop)
    if window is None:
        window = torch.ones([width], dtype=input.dtype)
    frames = frames * F.pad(window, ((n_fft - width) // 2, n_fft - width - (n_fft - width) // 2))
    kept = n_fft if onesided is False else n_fft // 2 + 1
    result = _along(frames, None, -1, "ortho" if normalized else None, False, kept).transpose(-2, -1)
    return result if input.dim() == 2 else result.squeeze(0)


def _is_signal(given: Given) -> bool:
    short = given["n_fft"] <= LONGEST and not given["return_complex"] and given["onesided"] is not False
    return short and given["input"].is_complex()


@form(torch.istft, torch.Tensor.istft, where=_is_signal)
def istft(
    input: Tensor, n_fft: int, hop_length: Value = None, win_length: Value = None, window: Value = None,
    center: bool = True, normalized: bool = False, onesided: Value = None, length: Value = None,
    return_complex: bool = False,
) -> Tensor:  # fmt: skip
    """Real signals again: windows are laid over each other and divided by what they sum to. That this is nowhere zero
    is not checked.
    """
    hop, width = n_fft // 4 if hop_length is None else hop_length, n_fft if win_length is None else win_length
    frames = input if input.dim() == 3 else input.unsqueeze(0)
    count = frames.shape[-1]
    if window is None:
        window = torch.ones([width], dtype=input.real.dtype)
    shape = F.pad(window, ((n_fft - width) // 2, n_fft - width - (n_fft - width) // 2)).unsqueeze(-1)
    parts = _real_along(frames.transpose(-2, -1), n_fft, -1, "ortho" if normalized else None).transpose(-2, -1)
    whole = n_fft + hop * (count - 1)
    sums = [
        F.fold(terms, (1, whole), (1, n_fft), stride=(1, hop)).reshape(terms.shape[0], -1)
        for terms in (parts * shape, (shape * shape).expand(1, n_fft, count))
    ]
    start = n_fft // 2 if center else 0
    end = whole - start if length is None else start + length
    signal, weight = (F.pad(each, (0, max(end - whole, 0)))[:, start:end] for each in sums)
    result = torch.where(weight > 1e-11, signal / weight, signal)
    return result if input.dim() == 3 else result.squeeze(0)


def _is_plain(given: Given) -> bool:
    return given["dtype"] is None and given["layout"] is None and not given["requires_grad"]


def _cosines(*weights: float) -> Function:
    """A window that is a sum of cosines of whole turns."""

    def made(
        window_length: int, periodic: bool = True, *, dtype: Value = None, layout: Value = None, device: Value = None,
        pin_memory: Value = None, requires_grad: bool = False,
    ) -> Tensor:  # fmt: skip
        turn = 2 * math.pi / max(window_length if periodic else window_length - 1, 1)
        angles = torch.arange(window_length, dtype=torch.float64) * turn
        total = torch.zeros_like(angles)
        for number, weight in enumerate(weights):
            total = total + weight * torch.cos(angles * number)
        result = total.to(torch.get_default_dtype())
        return torch.ones_like(result) if window_length == 1 else result

    return made


form(torch.hann_window, where=_is_plain)(_cosines(0.5, -0.5))
form(torch.blackman_window, where=_is_plain)(_cosines(0.42, -0.5, 0.08))
