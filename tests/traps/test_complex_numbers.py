"""Lazy conjugates, parts and their memory: what a complex program leaves is what eager leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold

TABLE = Table()
ROUNDS = range(4)


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, dtype=torch.complex64), torch.randn(3, dtype=torch.complex64)


@TABLE.trap(traces=1, hits=3)
def a_conjugate_is_lazy(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda z, w: (z * w + z / w).conj())
    for _ in ROUNDS:
        result = f(*operands())
        yield result.is_conj(), result._is_view(), result, result.resolve_conj().is_conj()


@TABLE.trap(traces=1, hits=3)
def a_conjugate_shares_memory_with_its_base(compiled: Any) -> Iterator[Any]:
    def pair(z: torch.Tensor, w: torch.Tensor) -> Any:
        y = (z * w + z / w).abs() * z
        return y, y.conj(), y.imag

    f = compiled(pair)
    for _ in ROUNDS:
        y, turned, imaginary = f(*operands())
        y.mul_(2)
        turned[0] = 1j
        yield y, turned, imaginary, y._version, turned._version, imaginary.is_neg(), turned.is_conj()


@TABLE.trap(traces=1, hits=3)
def the_imaginary_part_of_a_conjugate_is_a_negative_view(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda z, w: (z / w * w).conj().imag)
    for _ in ROUNDS:
        result = f(*operands())
        yield result.is_neg(), result.is_conj(), result


@TABLE.trap(traces=1, hits=3)
def a_conjugate_of_an_input_is_a_view_of_it(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda z: (z.conj(), (z.abs() * z).angle()))
    for _ in ROUNDS:
        z, _ = operands()
        turned, angle = f(z)
        z.mul_(2j)
        yield turned, turned.is_conj(), angle, turned.data_ptr() == z.data_ptr()


@TABLE.trap(traces=2, hits=2)
def a_conjugate_as_argument_is_another_trace(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda z: (z / 2j).abs().sum() + z.imag.sum())
    for _ in ROUNDS:
        z, _ = operands()
        yield f(z), f(z.conj()), f(z.conj().resolve_conj())


@TABLE.trap(traces=8, hits=1)
def a_conjugate_crosses_a_break(compiled: Any) -> Iterator[Any]:
    def f(z: torch.Tensor, w: torch.Tensor) -> Any:
        y = (z * w / (w + 2)).conj()
        shown = y.real.sum().item() > 100
        return y * 2, y, y.is_conj(), shown

    f = compiled(f)
    for _ in ROUNDS:
        yield f(*operands())


@TABLE.trap(traces=8, hits=1)
def writes_through_views_of_complex_numbers(compiled: Any) -> Iterator[Any]:
    def f(z: torch.Tensor, w: torch.Tensor) -> Any:
        y = z * w
        y.real.mul_(2)
        y.conj().add_(1j)
        torch.view_as_real(y)[..., 1] = 3
        y[0] *= 1j
        return y, y.abs()

    f = compiled(f)
    for _ in ROUNDS:
        yield f(*operands())


@TABLE.trap(traces=1, hits=3)
def numbers_that_are_no_integers(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda z, w: (z + 1.5, z * 0.5, z - float("inf"), (w + float("inf")).abs(), float("-inf") * w.real))
    for _ in ROUNDS:
        yield f(*operands())


@TABLE.trap(traces=2, hits=2)
def a_conjugate_gradient_comes_in(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda z, w: torch.exp(z * w) / w)
    for _ in ROUNDS:
        z, w = (each.requires_grad_() for each in operands())
        result = f(z, w)
        given = torch.autograd.grad((result.conj() * (1 + 2j)).imag.sum() + result.real.sum(), (z, w))
        yield result.detach(), *given, [each.is_conj() for each in given]


@TABLE.trap(traces=1, hits=3)
def an_input_that_is_written_and_needed_for_a_gradient(compiled: Any) -> Iterator[Any]:
    weight = torch.arange(9.0).reshape(3, 3).to(torch.complex64).requires_grad_()

    @compiled
    def f(y: torch.Tensor) -> Any:
        with torch.no_grad():
            y.add_(1)
        return (y[:2] @ weight).abs() * 2, y * weight * y

    for number in range(4):
        y = (torch.arange(9.0).reshape(3, 3) + 1j * number).to(torch.complex64).requires_grad_()
        first, second = f(y)
        yield torch.autograd.grad(first.sum() + second.abs().sum(), (weight, y)), y


@TABLE.trap(traces=2, hits=6)
def equal_results_have_memory_of_their_own(compiled: Any) -> Iterator[Any]:
    for grad in (False, True):
        f = compiled(lambda z, w: (z * w + 1, z * w + 1, [z * w + 1]))
        for number in range(4):
            z, w = ((torch.arange(6.0) + number + 1j * part).reshape(2, 3) for part in (1, 2))
            first, second, (third,) = f(z.requires_grad_(grad), w)
            first.detach().mul_(2)
            second.detach().add_(1)
            yield first.detach(), second.detach(), third.detach()


@TABLE.trap(traces=1, hits=3)
def equal_gradients_have_memory_of_their_own(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda a, b, x: (a.sum() + b.sum()) * x)
    for number in range(4):
        a, b = (torch.zeros(3, dtype=torch.complex64).requires_grad_() for _ in range(2))
        x = (torch.arange(3.0) + 1j * number).requires_grad_()
        f(a, b, x).sum().abs().backward()
        a.grad.mul_(2)
        yield a.grad, b.grad, x.grad


@TABLE.parametrize()
def test_row(trap: Trap) -> None:
    hold(trap)
