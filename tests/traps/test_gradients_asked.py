"""``autograd.grad`` for a copy or a view from which the rest was computed, in the program and behind it: differential
equations in the loss, forces, penalties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold, outcome
from torch import Tensor, nn

TABLE = Table()
Outputs = tuple[Tensor, ...]


def asked(traces: int, hits: int) -> Callable[[Callable[..., Outputs]], Callable[..., Outputs]]:
    """Adds ``function(x)``, whose last result is differentiated by the first and by x, and then once more."""

    def add(function: Callable[..., Outputs]) -> Callable[..., Outputs]:
        def program(compiled: Any) -> Iterator[Any]:
            f = compiled(function)
            for number in range(6):
                generator = torch.Generator().manual_seed(number)
                x = torch.rand(4, 2, generator=generator, dtype=torch.float64, requires_grad=True)
                found = outcome(f, x)
                yield found
                yield outcome(again, found, x)
                yield x.grad

        program.__name__ = function.__name__
        TABLE.trap(traces=traces, hits=hits)(program)
        return function

    return add


def again(found: Outputs, x: Tensor) -> list[Tensor | None]:
    slopes = torch.autograd.grad(found[-1].sum(), [found[0], x], create_graph=True, allow_unused=True)
    loss = found[-1].sum() + sum(slope.pow(2).sum() for slope in slopes if slope is not None)
    loss.backward()
    return list(slopes)


@asked(traces=1, hits=5)
def copy(x: Tensor) -> Outputs:
    x = x.clone()
    return x, (x * 2).sin()


@asked(traces=1, hits=5)
def copies_of_what_is_computed(x: Tensor) -> Outputs:
    first = (x * 2).clone()
    second = first.clone()
    return first, second, (first * second).sin()


@asked(traces=1, hits=5)
def written_copy(x: Tensor) -> Outputs:
    x = x.clone()
    x.mul_(2)
    return x, (x * 3).tanh()


@asked(traces=2, hits=5)
def copy_inside(x: Tensor) -> Outputs:
    x = x.clone().requires_grad_()
    y = (x * 2).sin()
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return x, slope, y * slope


@asked(traces=6, hits=2)
def columns_inside(x: Tensor) -> Outputs:
    t, s = x[:, 0:1], x[:, 1:2]
    u = (t * s + t**3).sin()
    u_t, u_s = torch.autograd.grad(u.sum(), [t, s], create_graph=True)
    return t, u_t, (u_t + u_s * s).cos()


@asked(traces=8, hits=2)
def columns_of_what_is_computed(x: Tensor) -> Outputs:
    x = x * 2
    t, s = x[:, 0:1], x[:, 1:2]
    u = (t * s + t**3).sin()
    (u_t,) = torch.autograd.grad(u.sum(), t, create_graph=True)
    (u_s,) = torch.autograd.grad(u.sum(), s, create_graph=True)
    (u_tt,) = torch.autograd.grad(u_t.sum(), t, create_graph=True)
    return u, u_s, u_tt


@asked(traces=1, hits=5)
def column(x: Tensor) -> Outputs:
    t, s = x[:, 0:1], x[:, 1:2]
    return t, s, (t * s + t**3).sin()


@asked(traces=1, hits=5)
def view_of_a_view(x: Tensor) -> Outputs:
    t = x.t()
    row = t[0]
    return row, t, (row * t.sum(0)).sin() * row


@asked(traces=1, hits=5)
def columns_of_a_product(x: Tensor) -> Outputs:
    t, s = (x @ x.t() * 2).chunk(2, -1)
    return t, s, (t * s.exp() + t).sin()


@asked(traces=1, hits=5)
def view_as_it_is_and_its_operand(x: Tensor) -> Outputs:
    y = x * 3
    flat = y.view(-1)
    return flat, y, (flat.sin() * 2 + y.reshape(-1)).cos()


@asked(traces=1, hits=5)
def equal_views(x: Tensor) -> Outputs:
    first, second = x[1:], x[1:]
    return first, second, first.sin() + second.exp() * 2


@asked(traces=1, hits=5)
def detached_view(x: Tensor) -> Outputs:
    row = x[0]
    return row, row.detach(), row.detach() * row.sin() + x[1]


@TABLE.trap(traces=1, hits=4)
def hooks_of_a_view(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda x: (row := x[1:], (row * 2).sin() * x[:1]))
    for number in range(5):
        x = (torch.rand(3, 2 + number % 2, generator=torch.Generator().manual_seed(number)).requires_grad_()) * 1
        seen: list[Tensor] = []
        x.retain_grad()
        row, found = f(x)
        row.retain_grad()
        row.register_hook(seen.append)
        row.register_hook(lambda slope: slope * 2)
        found.sum().backward()
        yield seen, row.grad, x.grad, row._base is x


grad_of = torch.autograd.grad


@TABLE.trap(traces=8, hits=3)
def asked_by_another_name(compiled: Any) -> Iterator[Any]:
    @compiled
    def f(x: Tensor) -> Outputs:
        x = x * 2
        t = x[:, :1]
        u = (t * x).sin()
        (slope,) = grad_of(u.sum(), t, create_graph=True)
        return u, slope

    for number in range(6):
        x = torch.rand(3, 2, generator=torch.Generator().manual_seed(number)).requires_grad_()
        yield f(x)


def _of_written(compiled: Any, function: Callable[[Tensor, Tensor], Outputs], row: bool = False) -> Iterator[Any]:
    """Gradients by a tensor that ``function(x, y)`` writes, of three orders; ``row``: it is a view."""
    f = compiled(function)
    for number in range(5):
        generator = torch.Generator().manual_seed(number)
        shape = (2, 3 + number % 2)
        x, y = (torch.rand(shape, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
        written = (y * 1)[0] if row else y * 1
        found = f(x[0] if row else x, written)
        yield found, written, written._version
        gradients: Any = found
        for _ in range(3):
            total = sum(each.pow(2).sum() for each in gradients if each is not None)
            gradients = torch.autograd.grad(total, [written, x, y], create_graph=True, allow_unused=True)
            yield list(gradients)


@TABLE.trap(traces=2, hits=4)
def a_tensor_that_is_written(compiled: Any) -> Iterator[Any]:
    def f(x: Tensor, y: Tensor) -> Outputs:
        y.mul_(x)
        return ((y * y).sin(),)

    yield from _of_written(compiled, f)


@TABLE.trap(traces=2, hits=4)
def a_row_that_is_written_twice(compiled: Any) -> Iterator[Any]:
    def f(x: Tensor, y: Tensor) -> Outputs:
        x = x * 1
        y.mul_(x)
        y.add_(1)
        z = (y * x).sin()
        return z, y, z * 2

    yield from _of_written(compiled, f, row=True)


@TABLE.trap(traces=2, hits=4)
def a_tensor_that_was_read_and_is_written(compiled: Any) -> Iterator[Any]:
    def f(x: Tensor, y: Tensor) -> Outputs:
        before = y * 3
        y.mul_(x)
        return y.exp() * before, before

    yield from _of_written(compiled, f)


@TABLE.trap(traces=2, hits=4)
def tensors_written_with_one_another(compiled: Any) -> Iterator[Any]:
    def f(x: Tensor, y: Tensor) -> Outputs:
        x = x * 1
        y.mul_(2)
        x.add_(y)
        y.add_(x)
        return x.exp(), y.sin() * x

    yield from _of_written(compiled, f)


@TABLE.trap(traces=1, hits=4)
def a_graph_of_gradients_after_what_eager_did_not_save_was_written(compiled: Any) -> Iterator[Any]:
    @compiled
    def f(x: Tensor) -> Tensor:
        return (-torch.sigmoid(x).sum(0)).sigmoid()

    for rows in (2, 3, 4, 0, 1):
        leaf = torch.rand(rows, 6, generator=torch.Generator().manual_seed(rows), requires_grad=True)
        x = (leaf * 1)[:, ::2]
        found = f(x)
        with torch.no_grad():
            x.add_(2)
        (slope,) = torch.autograd.grad(found.sum(), leaf, create_graph=True)
        yield slope, slope.requires_grad


def _heard(compiled: Any, function: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> Iterator[Any]:
    """What hooks hear of walks whose gradients are differentiated again, where torch makes calls again for them."""
    f = compiled(function)
    weight = torch.rand(3, 3, generator=torch.Generator().manual_seed(9)).to(dtype).requires_grad_()
    heard: list[Any] = []
    weight.register_hook(lambda g: heard.append(("weight", tuple(g.shape))) or g * 2)
    for number in range(5):
        generator = torch.Generator().manual_seed(number)
        leaf = torch.rand(2 + number, 3, generator=generator).to(dtype).requires_grad_()
        x = leaf * 1
        x.register_hook(lambda g: heard.append(("x", tuple(g.shape))))
        loss = f(x, weight).abs().sum()
        slopes = torch.autograd.grad(loss, [leaf, weight], create_graph=True)
        yield list(slopes), list(heard)
        heard.clear()
        yield list(torch.autograd.grad(sum(slope.abs().pow(2).sum() for slope in slopes), [leaf, weight]))
        yield list(heard)
        heard.clear()


@TABLE.trap(traces=1, hits=4)
def hooks_of_complex_operands(compiled: Any) -> Iterator[Any]:
    yield from _heard(compiled, lambda x, weight: (x @ weight.t()) * x.sum(), torch.complex64)


@TABLE.trap(traces=1, hits=4)
def hooks_of_what_a_product_is_over(compiled: Any) -> Iterator[Any]:
    yield from _heard(compiled, lambda x, weight: x.prod(-1, keepdim=True) * weight.prod(0), torch.float64)


@TABLE.trap(traces=1, hits=4)
def hooks_of_operands_without_a_rule(compiled: Any) -> Iterator[Any]:
    yield from _heard(compiled, lambda x, weight: torch.linalg.solve(weight + 3 * torch.eye(3), x.t()), torch.float32)


def _pulled(compiled: Any, tangent: Callable[[Tensor], Tensor], dtype: torch.dtype, again: bool) -> Iterator[Any]:
    """Gradients for tangents that do not hold their values in memory."""

    @compiled
    def f(x: Tensor) -> Tensor:
        return (x * x).exp() * 2

    for number in range(5):
        generator = torch.Generator().manual_seed(number)
        x = torch.rand(3 + number, generator=generator).to(dtype).requires_grad_()
        (slope,) = torch.autograd.grad(f(x), x, tangent(x.detach()), create_graph=again)
        yield slope.resolve_conj().resolve_neg()
        if again:
            yield torch.autograd.grad(slope.abs().sum(), x)[0].resolve_conj().resolve_neg()


@TABLE.trap(traces=2, hits=8)
def tangents_that_are_negative_views(compiled: Any) -> Iterator[Any]:
    def negative(x: Tensor) -> Tensor:
        return torch.complex(x, x + 1).conj().imag

    yield from _pulled(compiled, negative, torch.float32, False)
    yield from _pulled(compiled, negative, torch.float64, True)


@TABLE.trap(traces=2, hits=8)
def tangents_that_are_conjugate_views(compiled: Any) -> Iterator[Any]:
    yield from _pulled(compiled, lambda x: (x + 1j).conj(), torch.complex64, False)
    yield from _pulled(compiled, lambda x: (x + 1j).conj(), torch.complex128, True)


@TABLE.trap(traces=1, hits=4)
def tangents_without_memory(compiled: Any) -> Iterator[Any]:
    @compiled
    def f(x: Tensor) -> Tensor:
        return x.prod()

    for number in range(5):
        x = torch.rand(3 + number, 2, generator=torch.Generator().manual_seed(number)).requires_grad_()
        yield torch.autograd.grad(f(x).sgn(), x)[0]  # its derivative is zeros without memory
        (slope,) = torch.autograd.grad(f(x).abs(), x, create_graph=True)
        yield torch.autograd.grad(slope.pow(2).sum(), x)[0]


@TABLE.trap(traces=2, hits=9)
def many_gradients_at_once(compiled: Any) -> Iterator[Any]:
    """Torch maps the pass over tangents that stand for many: jacobians, and hessians by their products."""
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    f, g = compiled(net), compiled(lambda x: x.cumsum(0).flatten())
    for number in range(4):
        x = torch.rand(3, 2, generator=torch.Generator().manual_seed(number), dtype=torch.float64).requires_grad_()
        every = torch.eye(6, dtype=torch.float64)
        yield torch.autograd.grad(f(x), x, every.view(6, 3, 2), is_grads_batched=True, retain_graph=True)[0]
        yield torch.autograd.grad(g(x), x, every, is_grads_batched=True)[0]
        yield torch.autograd.functional.jacobian(f, x, create_graph=True, vectorize=True)


@TABLE.trap(traces=8, hits=3)
def equation_in_the_loss(compiled: Any) -> Iterator[Any]:
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)

    @compiled
    def step(points: Tensor) -> Tensor:
        points = points.clone().requires_grad_()
        x, t = points[:, [0]], points[:, 1:2]
        u = net(torch.cat([x, t], 1))
        u_t = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)[0]
        u_x = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
        u_xx = torch.autograd.grad(u_x, x, torch.ones_like(u), create_graph=True)[0]
        loss = (u_t + u * u_x - 0.1 * u_xx).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for number in range(7):
        yield step(torch.randn(6, 2, generator=torch.Generator().manual_seed(number)))
        yield [parameter.detach().clone() for parameter in net.parameters()]


@TABLE.trap(traces=5, hits=10)
def parts_of_a_norm_in_training(compiled: Any) -> Iterator[Any]:
    """All but these is frozen: the gradient rests on an input to which none flows."""

    def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return nn.functional.batch_norm(x, torch.zeros(4), torch.ones(4), weight, bias, True)

    for parts in ("b", "w", "wb", "x", "xb"):
        run = compiled(norm)
        for number in range(3):
            generator = torch.Generator().manual_seed(number)
            given = {"x": torch.randn(5 + number, 4, generator=generator), "b": torch.randn(4, generator=generator)}
            if parts != "b":
                given["w"] = torch.rand(4, generator=generator) + 0.5
            leaves = [given[part].requires_grad_() for part in parts]
            y = run(given["x"], given.get("w"), given["b"])
            weights = torch.randn(y.shape, generator=generator)
            slopes = torch.autograd.grad(y, leaves, weights, create_graph=True)
            yield slopes
            led = [slope.square().sum() for slope in slopes if slope.requires_grad]
            yield outcome(torch.autograd.grad, led, leaves, allow_unused=True) if led else None


@TABLE.trap(traces=3, hits=2)
def shifts_of_norms_alone_are_trained(compiled: Any) -> Iterator[Any]:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    net.append(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)))
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in ("1.bias", "4.bias"))
    run = compiled(net)
    for number in range(4):
        generator = torch.Generator().manual_seed(number)
        run(torch.randn(2, 3, 9, 9, generator=generator)).square().sum().backward()
        yield [parameter.grad for parameter in net.parameters()]


@TABLE.trap(traces=3, hits=6)
def slope_of_what_is_frozen(compiled: Any) -> Iterator[Any]:
    for parts in ((True, True), (False, True), (True, False)):
        run = compiled(lambda x, slope: nn.functional.prelu(x, slope))
        for number in range(3):
            generator = torch.Generator().manual_seed(number)
            given = [torch.randn(4 + number, 3, generator=generator), torch.rand(3, generator=generator)]
            leaves = [tensor.requires_grad_() for tensor, part in zip(given, parts, strict=True) if part]
            y = run(*given)
            slopes = torch.autograd.grad(y, leaves, torch.randn(y.shape, generator=generator), create_graph=True)
            yield slopes
            led = [slope.square().sum() for slope in slopes if slope.requires_grad]
            yield outcome(torch.autograd.grad, led, leaves, allow_unused=True) if led else None


@TABLE.trap(traces=4, hits=4)
def for_what_a_view_wrote_before(compiled: Any) -> Iterator[Any]:
    @compiled
    def f(y):
        view = y[0]
        view.add_(1)
        y.requires_grad_()
        return y * 2, view

    for number in range(6):
        y = torch.ones(2 + number % 2, 3)
        doubled, view = f(y)
        (doubled.sum() + view.sin().sum()).backward()
        yield view, view.is_leaf, y.grad


@TABLE.trap(traces=3, hits=4)
def by_the_caller_for_what_a_view_wrote(compiled: Any) -> Iterator[Any]:
    @compiled
    def f(y):
        view, whole = y[0], y.view(-1)
        view.add_(1)
        return view, whole * 2, whole

    for number in range(6):
        y = torch.ones(2 + number % 2, 3)
        view, _, whole = f(y)
        y.requires_grad_()
        (view.sin().sum() + whole.sum()).backward()
        yield view.is_leaf, y.grad


@TABLE.parametrize()
def test_gradients_asked(trap: Trap) -> None:
    hold(trap)
