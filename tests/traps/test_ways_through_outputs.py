"""Gradients of results and of written arguments themselves, for what was computed from them: the way leads through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold
from torch import Tensor

Function = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _written(x: Tensor, new: Tensor, then: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    x.copy_(new)
    return then(x), x


def _both(y: Tensor, then: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    return then(y), y


def _put(x: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    x[:] = new
    return x * 3, x


def _multiplied(x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(s)
    return x + x, x


MOVED: dict[str, Function] = {
    "copied in place": lambda x, s: _written(x, s * 2, lambda y: y * 3),
    "copied in place, turned": lambda x, s: _written(x, (s * 2 + x).t(), lambda y: y.t() * 3),
    "written whole": _put,
    "multiplied in place": _multiplied,
    "written inside": lambda x, s: _written(x.clone(), s, lambda y: y * 3),
    "flipped": lambda x, s: _both((s * 2).flip(0), lambda y: y * 3),
    "flipped twice": lambda x, s: _both((x * s).flip(0), lambda y: y.flip(0) * 3),
    "repeated": lambda x, s: _both(s.repeat(3, 1), lambda y: y.view(9) * 3),
    "repeated and divided": lambda x, s: _both((x * s).reshape(1, 9).repeat(2, 1), lambda y: y.view(2, 3, 3) * 3),
    "made row-major": lambda x, s: _both((x * s).t().reshape(9), lambda y: y.view(3, 3) * 3),
    "rotated": lambda x, s: _both(torch.rot90(x * s), lambda y: y.t() * 3),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", MOVED)
def test_what_is_computed_from_elements_that_were_moved_rests_on_the_result(name: str, dtype: torch.dtype) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(MOVED[name])
        for number in range(4):
            whole = torch.arange(9).roll(number).reshape(3, 3).to(dtype) - 4
            s = (torch.arange(3) + number).to(dtype).requires_grad_()
            then, y = f(whole, s)
            yield then.detach(), y.detach()
            for each in (then, y):
                slopes = torch.autograd.grad(each.sum(), [y, s], retain_graph=True)
                yield [slope.contiguous() for slope in slopes]

    hold(Trap(program, traces=1, hits=3))


def _behind(x: Tensor) -> tuple[Tensor, Tensor]:
    x.detach().mul_(2)
    return x * 3, x


def _before(x: Tensor) -> tuple[Tensor, Tensor]:
    then = x * 3
    x.detach().mul_(2)
    return then, x


def _on_both_sides(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    earlier = x * 3
    with torch.no_grad():
        x.mul_(2)
    return earlier, x * 5, x


@pytest.mark.parametrize("function", [_behind, _before, _on_both_sides])
@pytest.mark.parametrize("step", [1, 2])
def test_a_view_that_is_written_behind_autograd_keeps_what_is_computed_from_it_then(
    function: Callable[[Tensor], tuple[Tensor, ...]], step: int
) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number, rows in enumerate((3, 2, 4, 3)):
            leaf = torch.randn(rows, 6, generator=torch.Generator().manual_seed(number)).requires_grad_()
            view = leaf[:, ::step]
            results = f(view)
            yield [result.detach().clone() for result in results], view._version
            yield [torch.autograd.grad(each.sum(), [view, leaf], retain_graph=True, allow_unused=True)
                   for each in results]  # fmt: skip

    hold(Trap(program, traces=1, hits=3))


READ_WITHOUT_GRADIENT: dict[str, Callable[[Tensor], Tensor]] = {
    "indices": lambda view: (view * 2).topk(2, -1).indices.sum(),
    "compared": lambda view: (view > 1).sum(),
    "integers": lambda view: view.long().sum(),
}


@pytest.mark.parametrize("name", READ_WITHOUT_GRADIENT)
@pytest.mark.parametrize("first", [True, False])
def test_a_view_that_another_result_reads_without_gradient_keeps_its_history(name: str, first: bool) -> None:
    def function(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        begun = x * 2
        between = torch.tanh(s)
        view = torch.exp(between * 3)[1:]
        other = (begun * READ_WITHOUT_GRADIENT[name](view)).sum()
        return (view, other, between) if first else (other, between * 2, view)

    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number, rows in enumerate((3, 2, 4, 3)):
            draw = torch.Generator().manual_seed(number)
            x, s = (torch.randn(rows, 5, generator=draw, dtype=torch.float64).requires_grad_() for _ in range(2))
            for each in f(x, s):
                yield each.detach(), each.grad_fn is None, each.is_leaf
                yield torch.autograd.grad(each.sum(), [x, s], retain_graph=True, allow_unused=True)

    hold(Trap(program, traces=1, hits=3))
