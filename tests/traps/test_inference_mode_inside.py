"""Functions that enter inference mode themselves are whole graphs; what leaves them is to autograd what eager's is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.traps.small_programs import draw
from torch import nn

import framefuse
from framefuse.api import compiled_function

linear = nn.Linear(3, 3)


@torch.inference_mode()
def _decorated(x):
    return {"result": linear(x).relu(), "more": [x + 1]}


def _middle(x):
    a = x.sin()
    with torch.inference_mode():
        b = a.cos()
    return a * 2, b, b + 1, b[1:], b.relu().sum()


def _views(x):
    with torch.inference_mode():
        y = x * 2
        part = y[1:]
    return y, part, y.t(), y.view(-1), y


def _alone(x):
    with torch.inference_mode():
        return (x * 2)[1:], (x * 3).t(), (x + 1)[:, ::2]


def _writes(x):
    counts = torch.zeros(3)
    with torch.inference_mode():
        counts.add_(1)
        x.mul_(2)
        y = linear(x).clone()
        y[0] = 1
    return counts, y


def _trained_behind(x):
    with torch.inference_mode():
        scale = linear(x).mean()
    return linear(x) + scale, scale


def _nested(x):
    with torch.inference_mode(), torch.inference_mode():
        y = x * 2 if torch.is_inference_mode_enabled() else x
    with torch.inference_mode(False):
        z = linear(x)
    return y, y.is_inference(), z


def _generator(x):
    @torch.inference_mode()
    def parts():
        for number in range(3):
            yield x * number

    return list(parts())


def _raised(x):
    try:
        with torch.inference_mode():
            y = x * 2
            raise ValueError
    except ValueError:
        return y, torch.is_inference_mode_enabled()


def _kept(x):
    with torch.inference_mode():
        linear.kept = linear(x)
    return linear.kept * 1


def _view_of_outside(x):
    with torch.inference_mode():
        part = x[1:]
    return part


def _detached_out(x):
    with torch.inference_mode():
        return x.detach(), x


WHOLE: dict[str, Callable[..., Any]] = {
    "decorated": _decorated, "middle": _middle, "views": _views, "alone": _alone, "writes": _writes,
    "trained_behind": _trained_behind, "nested": _nested, "generator": _generator, "raised": _raised, "kept": _kept,
    "view_of_outside": _view_of_outside, "detached_out": _detached_out,
}  # fmt: skip


def _view_used_behind(x):
    with torch.inference_mode():
        weight = linear.weight.t()
        y = x @ weight
    return y, x @ weight


def _detached(x):
    with torch.inference_mode():
        y = x.detach()
    return y * 2


def _branch(x):
    with torch.inference_mode():
        y = linear(x)
        y = y * 2 if y.sum() > 0 else y - 1
    return y + 1, y


def _off_inside(x):
    with torch.inference_mode():
        y = x * 2
        with torch.inference_mode(False):
            z = x + 1
    return y, z


def _views_of_outside(x):
    with torch.inference_mode():
        part, whole = x[1:], x.view(-1)
        turned = linear.weight.t()
    return part, whole, turned


def test_autograd_knows_where_a_view_was_made() -> None:
    fast = framefuse.compile(_views_of_outside, fullgraph=True)
    for number in range(4):
        for part in fast(draw(number, 4, 3).requires_grad_()):
            with pytest.raises(RuntimeError, match="created in inference mode"):
                part.add_(1)
    state = compiled_function(fast)
    assert state is not None and state.dispatch.hits == 3


DIVIDED: dict[str, Callable[..., Any]] = {
    "view_used_behind": _view_used_behind, "detached": _detached,
    "branch": _branch, "off_inside": _off_inside,
}  # fmt: skip


def told(value: Any) -> Any:
    """What a program can ask of a result's tensors but their elements."""
    if isinstance(value, (list, tuple)):
        return [told(part) for part in value]
    if isinstance(value, dict):
        return {key: told(part) for key, part in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    count = None if value.is_inference() else value._version
    node = value.grad_fn if value.grad_fn is None else value.grad_fn.name()
    where = (value.shape, value.stride(), value.storage_offset())
    return value.is_inference(), value.requires_grad, value._is_view(), count, node, where


def compared(function: Callable[..., Any], fast: Callable[..., Any], mode: str, calls: int) -> None:
    enter = {"no_grad": torch.no_grad, "inference": torch.inference_mode}.get(mode, torch.enable_grad)
    for number in range(calls):
        x, y = (draw(number, 4, 3).requires_grad_(mode == "required") for _ in range(2))
        with enter():
            expected, found = function(x), fast(y)
            assert told((expected, x)) == told((found, y))
            assert not torch.is_inference_mode_enabled() or mode == "inference"
        torch.testing.assert_close((found, y), (expected, x))


@pytest.mark.parametrize("mode", ["grad", "required", "no_grad", "inference"])
@pytest.mark.parametrize("name", WHOLE)
def test_whole(name: str, mode: str) -> None:
    if mode == "inference" and name == "nested":
        return  # it leaves the mode of its caller
    fast = framefuse.compile(WHOLE[name], fullgraph=True)
    compared(WHOLE[name], fast, mode, 4)
    state = compiled_function(fast)
    assert state is not None and state.dispatch.hits >= 3 and len(state.products) == 1 and not state.breaks


@pytest.mark.parametrize("mode", ["grad", "required", "no_grad", "inference"])
@pytest.mark.parametrize("name", DIVIDED)
def test_divided(name: str, mode: str) -> None:
    fast = framefuse.compile(DIVIDED[name])
    compared(DIVIDED[name], fast, mode, 7)
    state = compiled_function(fast)
    assert state is not None and state.dispatch.hits >= 4 and state.eager_calls <= 2


@pytest.mark.parametrize("function", [_decorated, _middle])
def test_results_of_the_mode_share_no_memory(function: Callable[..., Any]) -> None:
    fast = framefuse.compile(function)
    given = [fast(draw(number, 4, 3)) for number in range(5)]
    for number, mine in enumerate(given):
        torch.testing.assert_close(mine, function(draw(number, 4, 3)))


def test_a_backend_runs_what_is_around() -> None:
    fast = framefuse.compile(_middle, backend="eager")
    compared(_middle, fast, "grad", 9)
    state = compiled_function(fast)
    assert state is not None and state.dispatch.hits >= 3


def test_autograd_refuses_what_the_mode_made() -> None:
    fast = framefuse.compile(_decorated)
    for number in range(3):
        result = fast(draw(number, 4, 3))["result"]
        with pytest.raises(RuntimeError, match="saved for backward"):
            linear(result)
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            result.add_(1)
