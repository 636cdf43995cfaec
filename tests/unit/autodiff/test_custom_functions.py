"""Custom autograd functions whose gradients are wanted are part of the graph, with the user's own backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import framefuse
from framefuse.ir.custom_calls import CustomBackward, CustomCall, Nested
from framefuse.runtime.regions import is_torchs


class Gelu(torch.autograd.Function):
    """Keeps its argument; backward takes it apart as Bloom's does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 0.5 * (1 + torch.tanh(0.8 * x * (1 + 0.0447 * x * x)))

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        x = ctx.saved_tensors[0]
        t = torch.tanh(0.8 * x * (1 + 0.0447 * x * x))
        return (0.5 * x * (1 - t * t) * (0.8 + 0.107 * x * x) + 0.5 * (1 + t)) * g


class Both(torch.autograd.Function):
    """Several results, one of them a number, and a number that is kept."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, k: float) -> Any:
        ctx.save_for_backward(x, None, y)
        ctx.k, ctx.sizes, ctx.more = k, x.shape, {"rows": [x.shape[0], 2.0]}
        return x * y, (x + y) * k, k

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        x, nothing, y = ctx.saved_tensors
        assert nothing is None and isinstance(ctx.sizes, torch.Size) and ctx.more["rows"][0] == x.shape[0]
        a, b, none = given
        assert none is None
        return (a * y * 3 + b * ctx.k).reshape(ctx.sizes), a * x + b * ctx.k, None


class Exp(torch.autograd.Function):
    """Keeps its result: second derivatives go through it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * ctx.saved_tensors[0] * 1.5


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


class Reversed(torch.autograd.Function):
    """Gives a view of its argument."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g.neg() * ctx.scale, None


class Product(torch.autograd.Function):
    """The newer form; backward gives what is needed alone."""

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        gx = gy = None
        if ctx.needs_input_grad[0]:
            gx = g @ y.t()
        if ctx.needs_input_grad[1]:
            gy = x.t() @ g
        return gx, gy


class Highest(torch.autograd.Function):
    """One result has no gradient; that of the other may not come."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        values, places = x.max(1)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        ctx.count = x.shape[1]
        return values, places, x.mean(1)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, of_places: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        assert of_places.shape == mean.shape and not mean.any()
        return torch.nn.functional.one_hot(ctx.saved_tensors[0], ctx.count).to(g.dtype) * g[:, None]


class Told(torch.autograd.Function):
    """What forward and backward do besides computing happens at each call."""

    log: list[str] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Told.log.append("forward")
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        Told.log.append("backward")
        return g * 2


class Unsure(torch.autograd.Function):
    """Its second argument gets no gradient, by the letter."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g.sum(0, keepdim=True) + g, None


def several(x: torch.Tensor, w: torch.Tensor) -> Any:
    a, b, k = Both.apply(x @ w, x, 2.5)
    return (a.sin() + b * k).sum()


def one_of_several(x: torch.Tensor, w: torch.Tensor) -> Any:
    return Both.apply(x @ w, x, 2.0)[0].sum()


def layers(x: torch.Tensor, w: torch.Tensor) -> Any:
    for _ in range(3):
        x = Gelu.apply(Product.apply(x, w)) + x
    return x.sum()


def shown_within(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = Reversed.apply(x @ w, 2.0)
    return (y[1:] * 2).sum() + y.tanh().sum()


def leaves_with_views(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = Exp.apply(x @ w)
    return y, y[0], (y * 2).sum()


def with_and_without_gradients(x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.no_grad():
        a = Gelu.apply(x @ w)
    return (a * Exp.apply(w * 0.1).sum()).sum()


def of_the_same_twice(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x @ w
    return Both.apply(h, h, 0.5)[1].square().sum()


def highest(x: torch.Tensor, w: torch.Tensor) -> Any:
    values, places, _ = Highest.apply(x @ w)
    return (values * (places + 1)).sum()


def in_checkpoints(x: torch.Tensor, w: torch.Tensor) -> Any:
    for _ in range(2):
        x = checkpoint(lambda a: Gelu.apply((a @ w).sin()) + a, x, use_reentrant=False)
    return x.sum()


WHOLE = {
    "one": lambda x, w: Gelu.apply(x @ w).sum(),
    "kept_result": lambda x, w: (Exp.apply(x @ w * 0.1) * x).sum(),
    "straight": lambda x, w: (Straight.apply(x @ w) * x).sum(),
    "newer_form": lambda x, w: Product.apply(x, w).relu().sum(),
    "told": lambda x, w: Told.apply(x @ w).sum(),
    "no_gradient_by_the_letter": lambda x, w: Unsure.apply(x @ w, w.sum()).sum(),
    "several": several,
    "one_of_several": one_of_several,
    "layers": layers,
    "shown_within": shown_within,
    "leaves_with_views": leaves_with_views,
    "with_and_without_gradients": with_and_without_gradients,
    "of_the_same_twice": of_the_same_twice,
    "highest": highest,
    "in_checkpoints": in_checkpoints,
}


def drawn(call: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs for a call: sizes change, and whether the first requires grad."""
    torch.manual_seed(call)
    rows = (4, 4, 5, 7, 5)[call]
    return torch.randn(rows, 6, requires_grad=call % 2 == 0), torch.randn(6, 6, requires_grad=True)


def step(function: Any, call: int) -> list[Any]:
    """Results and gradients of one call on fresh inputs, and what was told."""
    x, w = drawn(call)
    Told.log.clear()
    value = function(x, w)
    results = value if isinstance(value, tuple) else (value,)
    sum(part.sum() for part in results).backward()
    return [*(part.detach() for part in results), x.grad, w.grad, list(Told.log)]


def same(expected: list[Any], got: list[Any]) -> None:
    assert len(expected) == len(got)
    for one, other in zip(expected, got, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
            assert other.stride() == one.stride()
        else:
            assert one == other


@pytest.mark.parametrize("name", WHOLE)
def test_is_one_graph_and_equal(name):
    compiled = framefuse.compile(WHOLE[name], fullgraph=True)
    for call in range(5):
        same(step(WHOLE[name], call), step(compiled, call))
    assert framefuse.explain(compiled).eager_calls == 0


@pytest.mark.parametrize("name", ["one", "kept_result", "newer_form", "layers", "several"])
def test_second_derivatives(name):
    compiled = framefuse.compile(WHOLE[name], fullgraph=True)

    def second(function: Any, call: int) -> list[Any]:
        x, w = drawn(call)
        (first,) = torch.autograd.grad(function(x, w), w, create_graph=True)
        return [first.detach(), *torch.autograd.grad(first.square().sum(), (w,))]

    for call in (0, 1, 2, 3, 4, 3):  # backward is compiled too, for each way in which gradients are needed
        same(second(WHOLE[name], call), second(compiled, call))


def test_a_view_that_leaves_is_made_by_torch():
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = Reversed.apply(x @ w, 0.5)
        return y, y.sum()

    compiled = framefuse.compile(f)
    for call in range(4):
        same(step(f, call), step(compiled, call))
    x, w = drawn(0)
    assert compiled(x, w)[0]._is_view() == f(x, w)[0]._is_view()


def test_a_written_argument_is_an_error_as_under_eager():
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        return Gelu.apply(w) * x.sum()

    compiled = framefuse.compile(f, fullgraph=True)
    for _ in range(3):
        for function in (f, compiled):
            w = torch.randn(6, 6, requires_grad=True)
            value = function(torch.randn(4, 6), w).sum()
            with torch.no_grad():
                w.mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                value.backward()


def test_too_few_gradients_are_an_error_as_under_eager():
    class Few(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * y

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return Few.apply(x, y).sum()

    compiled = framefuse.compile(f, fullgraph=True)
    for _ in range(3):
        for function in (f, compiled):
            with pytest.raises(RuntimeError, match=r"incorrect number of gradients \(expected 2, got 1\)"):
                function(torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)).backward()


def test_a_gradient_of_other_sizes_is_an_error_as_under_eager():
    class Long(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, k: float, x: torch.Tensor) -> torch.Tensor:
            return x.sum() * k

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            return None, torch.ones(7)

    def f(x: torch.Tensor) -> torch.Tensor:
        return Long.apply(2.0, x * 2)

    compiled, texts = framefuse.compile(f, fullgraph=True), set()
    for _ in range(3):
        for function in (f, compiled):
            with pytest.raises(RuntimeError, match="LongBackward returned an invalid gradient") as error:
                function(torch.randn(3, requires_grad=True)).backward()
            texts.add(str(error.value))
    assert len(texts) == 1, texts


def test_a_new_backward_is_seen():
    class Changed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 2

    compiled = framefuse.compile(lambda x: Changed.apply(x).sum())
    for call in range(6):
        if call == 3:
            Changed.backward = staticmethod(lambda ctx, g: g * 5)
        x = torch.randn(4, requires_grad=True)
        compiled(x).backward()
        assert x.grad.tolist() == [2.0 if call < 3 else 5.0] * 4


def test_a_backward_of_the_users_is_never_repeated():
    call = CustomCall(Gelu, (True,), (True,), (), Nested(dict, ()), True)
    assert not is_torchs(CustomBackward(call, (0,)))
