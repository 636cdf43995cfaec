"""Operators of the program's own that raise are called as often as under eager, and so are those called before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold, outcome

HEARD: list[Any] = []


@torch.library.custom_op("traps_raise::positive", mutates_args=())
def positive(x: torch.Tensor, most: int) -> torch.Tensor:
    """Twice its argument, which may not be large."""
    HEARD.append(("positive", most))
    if float(x.detach().sum()) > most:
        raise ValueError(f"more than {most}")
    return x * 2


@positive.register_fake
def _(x: torch.Tensor, most: int) -> torch.Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.most = inputs[1]


def _back(ctx: Any, grad: torch.Tensor) -> Any:
    HEARD.append("back")
    if float(grad.sum()) > ctx.most:
        raise ArithmeticError("a steep slope")
    return grad * 2, None


positive.register_autograd(_back, setup_context=_keep)
LIBRARY = torch.library.Library("traps_raise_too", "DEF")
LIBRARY.define("tell(Tensor x, int n) -> ()")
LIBRARY.define("short(Tensor x) -> Tensor")


def _tell(x: torch.Tensor, n: int) -> None:
    HEARD.append(("tell", n))


def _short(x: torch.Tensor) -> torch.Tensor:
    HEARD.append("short")
    if len(x) > 4:
        raise RuntimeError("too long")
    return x + 1


LIBRARY.impl("tell", _tell, "CompositeExplicitAutograd")
LIBRARY.impl("short", _short, "CompositeExplicitAutograd")
Function = Callable[..., Any]


def raised(x: torch.Tensor) -> torch.Tensor:
    return positive(x.sin() + 1, 8).cos()


def caught(x: torch.Tensor) -> Any:
    y = x.exp()
    try:
        return positive(y, 20) + y
    except ValueError as error:
        return str(error), y


def second(x: torch.Tensor) -> torch.Tensor:
    torch.ops.traps_raise_too.tell(x, 1)
    y = torch.ops.traps_raise_too.short(x * 2).cos()
    torch.ops.traps_raise_too.tell(y, 2)
    return torch.ops.traps_raise_too.short(torch.cat([y, x])) + 1


def behind_break(x: torch.Tensor) -> Any:
    total = x.sum().tolist()
    return positive(x.exp(), 20) + total


def steep(x: torch.Tensor) -> Any:
    w = x.clone().requires_grad_()
    y = positive(w, 20) * x.sum()
    y.sum().backward()
    return w.grad


PROGRAMS = [raised, caught, second, behind_break, steep]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_operators_that_raise(program: Function) -> None:
    def calls(compiled: Any) -> Iterator[Any]:
        f = compiled(program)
        for size, fill in ((2, 0.1), (2, 0.2), (2, 0.3), (3, 2.0), (2, 0.4), (4, 1.9), (2, 2.5), (3, 0.2)):
            HEARD.clear()
            yield outcome(f, torch.full((size,), fill))
            yield list(HEARD)

    hold(Trap(calls, 4, 2))
