"""Inputs and results written through ``.data`` between forward and backward, which eager does not notice: what it saved
follows the write, what it computed before does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold
from torch import Tensor
from torch.nn import functional as F

import framefuse

Function = Callable[[Tensor, Tensor, Tensor], Any]


def normed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


FUNCTIONS: dict[str, Function] = {
    "product beside a sine": lambda w, v, x: (w * v).sum() + (w * 2).sin().sum(),
    "sines of what is computed": lambda w, v, x: (w * v).sum() + ((w * 2 + 1).sin() * x).cos().sum(),
    "softmax": lambda w, v, x: (w * v).sum() + (w.softmax(-1) * x).sum(),
    "log_softmax": lambda w, v, x: (w * v).sum() + (w.log_softmax(-1) * x).sum(),
    "cross entropy": lambda w, v, x: (w * v).sum() + F.cross_entropy(w, torch.arange(len(w)) % 3),
    "relu": lambda w, v, x: (w * v).sum() + (w.relu() * x).sum(),
    "relu of a copy": lambda w, v, x: (w.clone() * v).sum() + (w * x.sin()).sum(),
    "copy beside itself": lambda w, v, x: (w * v).sum() + (w.clone() * v * 2).sum(),
    "copy turned": lambda w, v, x: (w * v).sum() + (w.t().contiguous() * v.t()).sin().sum(),
    "view turned": lambda w, v, x: (w * v).sum() + (w.t() * v.t()).sin().sum(),
    "exp": lambda w, v, x: (w * v).sum() + w.exp().sum(),
    "tanh times itself": lambda w, v, x: (w * w.tanh()).sum() + v.sum() * 0,
    "gelu": lambda w, v, x: (F.gelu(w) * v).sum(),
    "gelu, then a product": lambda w, v, x: (F.gelu(w) @ x.t()).sin().sum() + v.sum() * 0,
    "silu with its operand": lambda w, v, x: (w + F.silu(w) * v).cos().sum(),
    "quotient": lambda w, v, x: (w / (v * v + 1)).sum() + (x / (w * w + 2)).sum(),
    "quotient of both": lambda w, v, x: (w / v.clamp(min=0.5)).sin().sum() + (w * v).sum(),
    "norm": lambda w, v, x: (w / w.norm(dim=-1, keepdim=True) * v).sum(),
    "mean and variance": lambda w, v, x: (v.sin() / (w.var(-1, keepdim=True) + w.mean(0)) * v).sum(),
    "layer norm": lambda w, v, x: (F.layer_norm(x * 2, (x.shape[-1],), w[0], v[0]) @ x.t()).sin().sum(),
    "layer norm and a linear layer": lambda w, v, x: F.linear(normed(w, v[0], v[1]), w, x[:, 0]).sin().sum(),
    "weight of one plus": lambda w, v, x: ((1 + w) * v * x).sum() + (w * x.sin()).sum(),
    "weight normed": lambda w, v, x: F.linear(x, w * (v / w.norm(dim=1, keepdim=True))).tanh().sum(),
    "cat": lambda w, v, x: (w * v).sum() + (torch.cat([w, v], 1).sin() * 2).sum(),
    # The 32-bit sum is small beside the other, to whose digits both are compared.
    "cast": lambda w, v, x: (w * v).sum() + (w.float() * v.float() * 2e-3).sum(),
    "half": lambda w, v, x: (w.bfloat16() * v.bfloat16()).sum().float() + (w * v).sum(),
    "where": lambda w, v, x: torch.where(w > 0, w * v, v.sin()).sum(),
    "clamp": lambda w, v, x: (w.clamp(-0.5, 0.5) * v).sum() + (w * v).sum(),
    "maximum": lambda w, v, x: (torch.maximum(w, v) * x).sum() + (w * v).sum(),
    "largest": lambda w, v, x: (w.max(-1).values * v[:, 0]).sum() + (w * v).sum(),
    "power": lambda w, v, x: (w.abs() ** 2.5).sum() + ((w * w + 1) ** v).sum(),
    "dropout": lambda w, v, x: (F.dropout(w * v, 0.5) * x).sum() + (w * x).sum(),
    "cumulative sum": lambda w, v, x: (w.cumsum(0) * v).sin().sum() + (w * v).sum(),
    "an output": lambda w, v, x: (y := w.exp(), ((y * 2).sin() * v).sum() + (y * v).sum()),
    "an output that is a product": lambda w, v, x: (y := w * v, ((y * 2).sin() * v + y * x).sum() + (y * y).sum()),
}  # fmt: skip


def _program(function: Function, scale: float) -> Callable[[Any], Iterator[Any]]:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number, rows in enumerate((4, 3, 5, 40, 3)):
            generator = torch.Generator().manual_seed(number)
            sizes = rows, 70 if rows == 40 else rows
            w, v, x = (torch.randn(sizes, generator=generator, dtype=torch.float64) for _ in range(3))
            w, v = w.requires_grad_(), v.requires_grad_()
            torch.manual_seed(number)
            found = f(w, v, x)
            seen = found[:-1] if isinstance(found, tuple) else ()
            loss = found[-1] if isinstance(found, tuple) else found
            w.data.mul_(scale)
            v.data.add_(0.5)
            for output in seen:
                output.data.mul_(-2)
            yield loss, [slope.contiguous() for slope in torch.autograd.grad(loss, (w, v))]

    return program


@pytest.mark.parametrize("scale", [3.0, -1.0])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_writes_behind_autograd(name: str, scale: float) -> None:
    hold(Trap(_program(FUNCTIONS[name], scale), traces=2, hits=3))


def _written_inside(w: Tensor, v: Tensor, scale: float) -> Tensor:
    made = (w * 2).exp()
    product = made * v
    made.data.mul_(scale)
    return product.sum()


def _written_row_inside(w: Tensor, v: Tensor, scale: float) -> Tensor:
    made, total = w * 2, v * 1
    total.mul_(made)
    made.data[0].mul_(scale)
    return total.sum()


def _written_first(w: Tensor, v: Tensor, scale: float) -> Tensor:
    made = w * 2
    made.data.mul_(scale)
    return (made * v).sum()


def _argument_written_inside(w: Tensor, v: Tensor, scale: float) -> Tensor:
    total = v * 1
    total.mul_(w)
    w.data.mul_(scale)
    return total.sum()


@pytest.mark.parametrize("function", [_written_inside, _written_row_inside, _written_first, _argument_written_inside])
def test_writes_between_calls_that_are_recorded(function: Callable[..., Tensor]) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number, rows in enumerate((4, 3, 5, 3)):
            generator = torch.Generator().manual_seed(number)
            w, v = (torch.randn(rows, 3, generator=generator, dtype=torch.float64) for _ in range(2))
            w, v = w.requires_grad_(), v.requires_grad_()
            loss = f(w, v, 3.0 + number)
            yield loss, torch.autograd.grad(loss, (w, v)), w

    hold(Trap(program, traces=4, hits=2))


def test_result_that_backward_could_compute_again_is_written() -> None:
    def written(w: Tensor) -> Tensor:
        made = w * 1
        made.clamp_(max=1).exp_()
        made.data.add_(3)
        return made

    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(written)
        for number, rows in enumerate((4, 3, 5, 3)):
            w = torch.randn(rows, 3, generator=torch.Generator().manual_seed(number)).requires_grad_()
            made = f(w)
            yield made, torch.autograd.grad(made.sum(), w)

    hold(Trap(program, traces=4, hits=1))


@pytest.mark.parametrize("turned", [lambda t: t.view(-1), lambda t: t[None], lambda t: t.view_as(t)])
def test_view_of_a_sum_that_a_product_saved_is_written(turned: Callable[[Tensor], Tensor]) -> None:
    """The product's gradient adds the columns again and reads nothing of the view: eager's error all the same."""

    def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
        total = turned(x.sum(0))
        return x * total, total

    f = framefuse.compile(scaled)
    for rows in (4, 3, 5, 3):
        x = torch.randn(rows, 3, requires_grad=True)
        made, total = f(x)
        with torch.no_grad():
            total.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            made.sum().backward()
    assert framefuse.explain(f).hits >= 2


def _memory(w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    made = (w * 2).exp()
    return (made * v).sum(), made.data


def _row(w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    made = w * 2
    return (made * v).sum(), made.data[0]


@pytest.mark.parametrize("function", [_memory, _row])
def test_memory_that_leaves_alone_is_written(function: Callable[..., tuple[Tensor, Tensor]]) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number, rows in enumerate((4, 3, 5, 3)):
            generator = torch.Generator().manual_seed(number)
            w, v = (torch.randn(rows, 3, generator=generator, dtype=torch.float64) for _ in range(2))
            w, v = w.requires_grad_(), v.requires_grad_()
            loss, memory = f(w, v)
            memory.mul_(3)
            yield loss, torch.autograd.grad(loss, (w, v)), memory, memory._version

    hold(Trap(program, traces=2, hits=3))


def _scaled(x: Tensor, y: Tensor) -> Tensor:
    y.mul_(x)
    return x


def _scaled_twice(x: Tensor, y: Tensor) -> Tensor:
    y.mul_(x)
    y.mul_(2)
    return x


@pytest.mark.parametrize("function", [_scaled, _scaled_twice])
def test_what_a_write_to_a_view_without_history_does_not_save_may_be_written(
    function: Callable[[Tensor, Tensor], Tensor],
) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number, rows in enumerate((4, 3, 5, 3)):
            generator = torch.Generator().manual_seed(number)
            leaf, base = (torch.randn(rows, 3, generator=generator, dtype=torch.float64) for _ in range(2))
            x, y = leaf.requires_grad_() * 1, base.t()
            f(x, y.t())
            x.clamp_(-1, 1)  # a product saves its factor where the gradient of what it writes is asked
            yield y, torch.autograd.grad((y.t() * x).sum(), leaf)

    hold(Trap(program, traces=2, hits=3))


def test_memory_that_comes_twice_is_written_through_data() -> None:
    def product(x: Tensor, memory: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y.mul_(x)
        return y, memory > 0

    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(product)
        for number, rows in enumerate((4, 3, 5, 3)):
            generator = torch.Generator().manual_seed(number)
            w, v = (torch.randn(rows, 3, generator=generator, dtype=torch.float64) for _ in range(2))
            memory = w.data
            y, positive = f(w.requires_grad_(), memory, v.requires_grad_() * 1)
            memory.mul_(3)
            yield positive, y, w._version, torch.autograd.grad(y.sum(), (w, v))

    hold(Trap(program, traces=2, hits=3))


def test_what_was_detached_twice_stays_without_history_where_it_is_written() -> None:
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        first = x.clone().detach()
        second = first.detach()
        with torch.no_grad():
            first.add_(2)
            second[0] = 2
        return second, x * 2

    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(twice)
        for rows in (1, 2, 1, 4):
            second, product = f(torch.ones(rows, 3, requires_grad=True))
            yield second, product, second.requires_grad, second._version

    hold(Trap(program, traces=2, hits=2))
