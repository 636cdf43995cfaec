"""Calls a function eagerly and compiled, with what follows each call, and compares all that can be seen."""

from collections.abc import Callable
from typing import Any

import torch

import framefuse
from framefuse.runtime.function import CompiledFunction, compiled_function


def leaf(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, requires_grad=True)


def state(compiled: Any) -> CompiledFunction:
    found = compiled_function(compiled)
    assert found is not None
    return found


def backward(out: Any, args: tuple[Any, ...]) -> None:
    out.sum().backward()


def outcome(function: Any, seed: int, make: Callable[[], tuple[Any, ...]], after: Callable[..., Any]) -> Any:
    """What a call and what follows it give: results, gradients of leaves, or the exception."""
    torch.manual_seed(seed)
    args = make()
    try:
        out = function(*args)
        further = after(out, args)
    except Exception as error:
        return type(error), str(error)[:60]
    return out, further, [arg.grad if arg.is_leaf else None for arg in args]


def same(ours: Any, eagers: Any, where: str) -> None:
    if isinstance(eagers, torch.Tensor):
        assert isinstance(ours, torch.Tensor), where
        assert ours.requires_grad == eagers.requires_grad and ours.stride() == eagers.stride(), where
        assert (ours.grad_fn is None) == (eagers.grad_fn is None), where
        torch.testing.assert_close(ours.detach(), eagers.detach(), msg=lambda text: f"{where}: {text}")
    elif isinstance(eagers, (tuple, list)):
        assert type(ours) is type(eagers) and len(ours) == len(eagers), (where, ours, eagers)
        for place, (mine, other) in enumerate(zip(ours, eagers, strict=True)):
            same(mine, other, f"{where}[{place}]")
    else:
        assert ours == eagers, (where, ours, eagers)


def compare(
    function: Any, make: Callable[[], tuple[Any, ...]], after: Any = backward, calls: int = 4
) -> CompiledFunction:
    """Calls the compiled function and the function side by side; compiled code must have run."""
    compiled = framefuse.compile(function, options={"check": True})
    for seed in range(calls):
        same(outcome(compiled, seed, make, after), outcome(function, seed, make, after), f"call {seed}")
    found = state(compiled)
    assert found.dispatch.hits or not found.dispatch.calls, found.reasons
    return found


def backwards(found: CompiledFunction) -> int:
    """How often compiled backward code ran."""
    places = [place for product in found.products for place in product.stages.derivatives]
    return sum(place.backward.dispatch.hits + place.differentiable.dispatch.hits for place in places)
