"""Dropout on a GPU drops what eager drops under the same seed, whatever lies where, and leaves the generator alike."""

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.kernels import NEEDS_GPU
from torch.utils.checkpoint import checkpoint

import framefuse
from framefuse.api import compiled_function
from framefuse.codegen.triton import drawn_masks
from framefuse.ir.dropout_masks import LEAST
from framefuse.ir.schedule import RunCall

pytestmark = NEEDS_GPU

MAKE = {
    "odd": lambda: torch.randn(5, 7, device="cuda"),
    "rows": lambda: torch.randn(64, 128, device="cuda"),
    "large": lambda: torch.randn(1 << 21, device="cuda"),
    "transposed": lambda: torch.randn(16, 24, device="cuda").t(),
    "channels last": lambda: torch.randn(2, 8, 6, 6, device="cuda").to(memory_format=torch.channels_last),
    "gaps": lambda: torch.randn(16, 48, device="cuda")[:, ::2],
}


def computed(x):
    return F.dropout(x.sin(), 0.3) * 2 + 1, F.dropout(torch.relu(x), 0.7)


def given(x):
    return F.dropout(x, 0.1) + 1


CASES = [(lies, torch.float32) for lies in MAKE]
CASES += [(lies, dtype) for lies in ("odd", "rows") for dtype in (torch.bfloat16, torch.float16, torch.float64)]


@pytest.mark.parametrize(("lies", "dtype"), CASES, ids=str)
@pytest.mark.parametrize("function", [computed, given])
def test_the_same_is_dropped(function, lies, dtype):
    fast = framefuse.compile(function)
    for number in range(3):
        x = MAKE[lies]().to(dtype).requires_grad_()
        results = []
        for call in (fast, function):
            torch.manual_seed(number)
            found = call(x)
            found = found if isinstance(found, tuple) else (found,)
            weights = [torch.arange(part.numel(), device="cuda").view(part.shape) % 7 for part in found]
            loss = sum((part.float() * weight).sum() for part, weight in zip(found, weights, strict=True))
            (gradient,) = torch.autograd.grad(loss, x)
            results.append((found, gradient, torch.rand(3, device="cuda")))
        (ours, our_gradient, our_next), (theirs, their_gradient, their_next) = results
        digits = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(dtype, 1e-5)
        for mine, eager in zip(ours, theirs, strict=True):
            assert mine.dtype is eager.dtype and mine.stride() == eager.stride()
            torch.testing.assert_close(mine, eager, rtol=digits, atol=digits)
        assert our_gradient.dtype is their_gradient.dtype
        # A sum of two terms of up to 20, which may cancel after eager has rounded each.
        torch.testing.assert_close(our_gradient, their_gradient, rtol=digits, atol=20 * digits)
        assert torch.equal(our_next, their_next)
    state = compiled_function(fast)
    assert state.dispatch.hits >= 2 and not state.reasons
    calls = [
        item.node.attr("name")
        for product in state.products
        for item in product.stages.code.schedule.items
        if isinstance(item, RunCall)
    ]
    assert calls and (lies == "gaps" or set(calls) <= {"draw_dropout", "dropped"}), calls


@pytest.mark.parametrize("sizes", [(LEAST,), (4099, 4104), (9, 1 << 21)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("trains", [False, True])
def test_large_masks_are_drawn_alone_where_nothing_is_trained(sizes, dtype, trains, monkeypatch):
    whole, drawn = drawn_masks.drawn, []

    def counted(*args):
        drawn.append(whole(*args))
        return drawn[-1]

    monkeypatch.setattr(drawn_masks, "drawn", counted)

    def function(x, y):
        return F.dropout(x, 0.1) + y, F.dropout(y.sin(), 0.6), torch.rand(3, device="cuda"), F.dropout(x, 0.2)

    fast = framefuse.compile(function)
    for number in range(3):
        x = torch.randn(sizes, device="cuda", dtype=dtype, requires_grad=trains)
        y = torch.randn(sizes, device="cuda", dtype=dtype)
        found = []
        for call in (fast, function):
            torch.manual_seed((number << 40) + 5)
            results = call(x, y)
            if trains:
                results += torch.autograd.grad(results[0].sum() + results[3].sum(), x)
            found.append((*results, torch.rand(3, device="cuda")))
        digits = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(dtype, 1e-6)
        for mine, eager in zip(*found, strict=True):
            torch.testing.assert_close(mine, eager, rtol=digits, atol=digits)
    assert compiled_function(fast).dispatch.hits >= 1 and not compiled_function(fast).reasons
    assert all(drawn) and bool(drawn) is not trains, "this torch's kernel takes its numbers in another way"


def test_second_gradients_are_eagers():
    def function(x, y):
        return F.dropout(x, 0.3).sin() * y

    fast = framefuse.compile(function)
    x, y = torch.randn(64, 64, device="cuda", requires_grad=True), torch.randn(64, 64, device="cuda")
    for number in range(3):
        found = []
        for call in (fast, function):
            torch.manual_seed(number)
            (first,) = torch.autograd.grad(call(x, y).square().sum(), x, create_graph=True)
            found.append((first, *torch.autograd.grad(first.sum(), x)))
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
    assert compiled_function(fast).dispatch.hits == 2


SHARED = {
    "channels": (lambda x: F.dropout2d(x, 0.3).relu(), (4, 6, 5, 5)),
    "channels of volumes": (lambda x: F.dropout3d(x * 2, 0.3), (3, 6, 2, 3, 5)),
    "channels of a series": (lambda x: F.dropout1d(x, 0.5) + 1, (6, 9)),
    "around a mean": (lambda x: F.alpha_dropout(x.sin(), 0.4, True) + 1, (6, 9)),
    "channels around a mean": (lambda x: F.feature_alpha_dropout(x, 0.4, True) * x, (6, 7, 9)),
}


@pytest.mark.parametrize("name", SHARED)
def test_noise_that_is_shared_or_shifted_is_drawn_and_the_rest_fuses(name):
    function, shape = SHARED[name]
    fast = framefuse.compile(function)
    for number in range(4):
        x = torch.randn(shape[0] + number // 2, *shape[1:], device="cuda", requires_grad=True)
        results = []
        for call in (fast, function):
            torch.manual_seed(number)
            found = call(x)
            results.append((found, *torch.autograd.grad(found.square().sum(), x), torch.rand(3, device="cuda")))
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
    state = compiled_function(fast)
    assert state.dispatch.hits >= 2 and state.dispatch.declines == 0, framefuse.explain(fast)
    for product in state.products:
        calls = [item.node.attr("name") for item in product.stages.code.schedule.items if isinstance(item, RunCall)]
        assert calls == ["draw_bernoulli"]


@pytest.mark.parametrize("asks", [torch.is_grad_enabled, lambda: False], ids=["asks", "alone"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_draws_the_same_again(reentrant, asks):
    """Also where its second run goes another way, so that torch's own makes it: of the device's generator."""

    def inside(x):
        y = F.dropout(x + 1, 0.5)
        return y * (3.0 if asks() else 2.0)

    def function(x):
        return checkpoint(inside, x.sin(), use_reentrant=reentrant).cos()

    fast = framefuse.compile(function)
    for number in range(3):
        x = torch.randn(16, 24, device="cuda", requires_grad=True)
        results = []
        for call in (fast, function):
            torch.manual_seed(number)
            y = call(x)
            (gradient,) = torch.autograd.grad(y.sum(), x) if not reentrant else (_walked(y, x),)
            results.append((y.detach(), gradient, torch.rand(3, device="cuda")))
        for mine, eager in zip(*results, strict=True):
            torch.testing.assert_close(mine, eager)


def _walked(y, x):
    """The gradient by ``backward``, the only way that a reentrant checkpoint takes."""
    x.grad = None
    y.sum().backward()
    return x.grad
