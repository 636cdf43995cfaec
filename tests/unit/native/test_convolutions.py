"""Gradients of convolutions come from torch's C interface, and are those of its operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import framefuse
from framefuse.native import abi

CONVOLUTIONS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "series": (torch.conv1d, (2, 3, 20), (4, 3, 5)),
    "pictures": (lambda x, w: torch.conv2d(x, w, None, (2, 1), 1, 1, 2), (1, 4, 9, 7), (6, 2, 3, 3)),
    "transposed": (lambda x, w: torch.conv_transpose2d(x, w, stride=2, output_padding=1), (2, 4, 5, 6), (4, 3, 3, 3)),
    "volumes": (torch.conv3d, (1, 2, 5, 6, 7), (3, 2, 2, 3, 2)),
}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    abi.initialise()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of torch's operator."""
    calls: list[str] = []
    call = torch._ops.OpOverload.__call__

    def counted(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self._name == "aten::convolution_backward":
            calls.append(self._name)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(torch._ops.OpOverload, "__call__", counted)
    return calls


def gradients(f: Callable[..., Tensor], x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = f(x, w)
    return torch.autograd.grad(y, (x, w), torch.ones_like(y))


@pytest.mark.parametrize("without", [(), ("convolutions",), ("tls_keys",), ("wrap",)], ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_are_the_operators(name: str, without: tuple[str, ...], asked: list[str]) -> None:
    abi.initialise(without)
    convolution, sizes, window = CONVOLUTIONS[name]
    x, w = torch.randn(sizes), torch.randn(window)

    def f(x: Tensor, w: Tensor) -> Tensor:
        return convolution(x, w).sin()

    compiled = framefuse.compile(f)
    for _ in range(4):
        asked.clear()
        x, w = torch.randn_like(x), torch.randn_like(w)
        found = gradients(compiled, x, w)
    assert len(asked) == bool(without)
    for mine, known in zip(found, gradients(f, x, w), strict=True):
        torch.testing.assert_close(mine, known)
        assert mine.stride() == known.stride() and not mine._is_view() and mine.is_leaf
        mine.add_(1)


def test_the_operator_is_asked_while_somebody_listens(asked: list[str]) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.conv2d(x, w).sin()

    compiled = framefuse.compile(f)
    x, w = torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3)
    for _ in range(3):
        gradients(compiled, x, w)
    asked.clear()
    with torch.profiler.profile() as profile:
        gradients(compiled, x, w)
    assert asked and any(event.key == "aten::convolution_backward" for event in profile.key_averages())
    asked.clear()
    gradients(compiled, x, w)
    assert not asked


def test_other_results_than_the_operators_are_not_taken(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(abi.FALLBACKS, "same_gradients", lambda known, found: False)
    abi.initialise()
    compiled = framefuse.compile(lambda x, w: torch.conv2d(x, w).sin())
    for _ in range(4):
        gradients(compiled, torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3))
    assert len(asked) >= 3
