"""A compiled function inside of torch.vmap runs compiled code: of the function under that map, below its level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, jacrev, stack_module_state, vmap

import framefuse
from framefuse.runtime.function import CompiledFunction, compiled_function

LAYER = torch.nn.Linear(3, 3)


def runs(fast: Any) -> int:
    """The calls that ran compiled code under torch.vmap, at any depth."""
    return _runs(compiled_function(fast))


def _runs(state: CompiledFunction) -> int:
    below = [each.below for each in state.mapped if each.below is not None]
    return sum(each.dispatch.hits + _runs(each) for each in below)


def row(x: torch.Tensor, scale: float = 1.0, bias: torch.Tensor | None = None) -> torch.Tensor:
    y = torch.tanh(LAYER(x)).sin() * scale
    return y if bias is None else y + bias


def parts(x: torch.Tensor) -> dict[str, Any]:
    return {"sum": x.sum(), "both": [x.sin(), (x * 2, x.max())]}


def written(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0] = 3
    y.mul_(x)
    return y.cumsum(0)


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.t().exp()


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], tuple[int, ...]]] = {
    "plain": (row, lambda f: vmap(f), (4, 3)),
    "outer dimensions": (row, lambda f: vmap(f, in_dims=1, out_dims=-1), (3, 4)),
    "a lambda around": (row, lambda f: vmap(lambda x: f(x * 2) + x), (4, 3)),
    "numbers": (row, lambda f: vmap(lambda x: f(x, 2.0)), (4, 3)),
    "keywords": (row, lambda f: lambda x: vmap(lambda x, b: f(x, bias=b, scale=0.5), (0, None))(x, x[0]), (4, 3)),
    "mapped keyword": (row, lambda f: vmap(lambda x: f(x.cos(), bias=x)), (4, 3)),
    "nested": (row, lambda f: vmap(vmap(f, in_dims=0), in_dims=1), (2, 4, 3)),
    "nested beside": (
        lambda x, y: torch.tanh(x * y).sin(),
        lambda f: lambda x: vmap(lambda a: vmap(lambda b: f(a, b))(x))(x),
        (4, 3),
    ),
    "chunks": (row, lambda f: vmap(f, chunk_size=2), (4, 3)),
    "many results": (parts, lambda f: vmap(f), (4, 3)),
    "writes": (written, lambda f: vmap(f), (4, 3)),
    "a turned result": (transposed, lambda f: vmap(f, in_dims=2, out_dims=1), (2, 3, 4)),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_mapped_call_runs_compiled_code(name: str, gradients: bool) -> None:
    function, around, sizes = PROGRAMS[name]
    fast = framefuse.compile(function)
    before = 0
    for call in range(5):
        x = torch.randn(sizes)
        told = []
        for each in (fast, function):
            given = x.clone().requires_grad_(gradients)
            LAYER.zero_grad()
            found = around(each)(given)
            if gradients:
                sum(part.sum() for part in torch.utils._pytree.tree_leaves(found)).backward()
            found = torch.utils._pytree.tree_map(torch.Tensor.detach, found)
            strides = [part.stride() for part in torch.utils._pytree.tree_leaves(found)]
            told.append((found, given.grad, LAYER.weight.grad if function is row else None, strides))
        torch.testing.assert_close(told[0], told[1])
        if call > 2:
            assert runs(fast) > before, framefuse.explain(fast)
        before = runs(fast)


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_random_numbers_are_those_of_eager(randomness: str) -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand(3) + torch.nn.functional.dropout(x, 0.5)

    fast = framefuse.compile(noisy)
    for seed in range(5):
        x = torch.randn(4, 3)
        found = []
        for function in (fast, noisy):
            torch.manual_seed(seed)
            found.append((vmap(function, randomness=randomness)(x), torch.rand(2)))
        torch.testing.assert_close(found[0], found[1])
    assert runs(fast)
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(fast)(torch.randn(4, 3))


def test_an_ensemble_of_states_of_one_module() -> None:
    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.BatchNorm1d(5)).eval()

    base = model()
    fast = framefuse.compile(base)
    for _ in range(5):
        state = stack_module_state([model() for _ in range(3)])
        x = torch.randn(4, 3)
        found = [
            vmap(lambda p, b, x, m=m: functional_call(m, (p, b), (x,)), (0, 0, None))(*state, x) for m in (fast, base)
        ]
        torch.testing.assert_close(found[0], found[1])
        torch.testing.assert_close(vmap(fast)(torch.stack([x, x])), vmap(base)(torch.stack([x, x])))
    assert runs(fast) > 4


def test_what_is_closed_over_is_mapped_as_under_eager() -> None:
    holder: dict[str, torch.Tensor] = {}
    scale = torch.ones(())

    def hidden(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * scale + holder["bias"]).cos()

    fast = framefuse.compile(hidden)

    def around(function: Any) -> Any:
        def each(x: torch.Tensor, bias: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
            nonlocal scale
            holder["bias"], scale = bias, factor
            return function(x)

        return vmap(each, (0, 1, None))

    for _ in range(5):
        x, bias, factor = torch.randn(4, 3), torch.randn(3, 4), torch.randn(())
        torch.testing.assert_close(around(fast)(x, bias, factor), around(hidden)(x, bias, factor))


@pytest.mark.parametrize("result", ["a number", "not mapped", "nothing"])
def test_results_that_are_not_mapped_stay_what_they_are(result: str) -> None:
    def mixed(x: torch.Tensor) -> Any:
        other = {"a number": x.ndim, "not mapped": torch.ones(2), "nothing": None}[result]
        return x.sin() * 2, other

    fast, seen = framefuse.compile(mixed), []

    def each(x: torch.Tensor) -> torch.Tensor:
        y, other = fast(x)
        seen.append(other)
        return y

    for _ in range(4):
        x = torch.randn(4, 3)
        torch.testing.assert_close(vmap(each)(x), x.sin() * 2)
        if result == "not mapped":
            assert seen[-1].tolist() == [1, 1]
        else:
            assert seen[-1] == (1 if result == "a number" else None)


def test_other_transforms_around_run_as_they_are() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(LAYER(x)).square().sum()

    fast = framefuse.compile(loss)
    for _ in range(4):
        x = torch.randn(4, 3)
        torch.testing.assert_close(vmap(grad(fast))(x), vmap(grad(loss))(x))
        torch.testing.assert_close(jacrev(fast)(x), jacrev(loss)(x))
        torch.testing.assert_close(grad(lambda x: vmap(fast)(x).sum())(x), grad(lambda x: vmap(loss)(x).sum())(x))
        torch.testing.assert_close(vmap(fast)(x), vmap(loss)(x))
    assert "A function transform" in str(framefuse.explain(fast)), "it is told"


def test_what_breaks_under_the_map_runs_as_it_is_from_then_on() -> None:
    calls: list[int] = []

    def chosen(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.ndim)
        table = torch.arange(3)
        return x * 2 if table.sum().item() > 2 else x

    fast = framefuse.compile(chosen)
    for count in range(1, 7):
        x = torch.randn(4, 3)
        torch.testing.assert_close(vmap(fast)(x), x * 2)
        assert calls == [1] * count
    (way,) = compiled_function(fast).mapped
    assert way.below is not None
    assert not way.below.breaks or way.below.dispatch.calls <= 2


def test_effects_happen_once_and_errors_are_the_programs() -> None:
    calls: list[int] = []

    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.ndim)
        if x.shape[0] == 2:
            raise ValueError("two")
        return x.sin() * len(calls)

    fast = framefuse.compile(noted)
    for count in range(1, 6):
        vmap(fast)(torch.randn(4, 3))
        assert calls == [1] * count
    with pytest.raises(ValueError, match="two"):
        vmap(fast)(torch.randn(4, 2))
    assert calls == [1] * 6
    x = torch.randn(4, 3)
    torch.testing.assert_close(vmap(fast)(x), x.sin() * 7)


def test_explain_shows_what_is_compiled_under_the_map() -> None:
    fast = framefuse.compile(row)
    for _ in range(3):
        vmap(fast)(torch.randn(4, 3))
    told = framefuse.explain(fast)
    assert "row under torch.vmap" in str(told) and not told.graphs
    assert [len(each.graphs) for each in told.mapped] == [1]
