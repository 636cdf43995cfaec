"""Arguments that a call writes in place and autograd saves: what is written to them later, unseen, backward reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from tests.traps.small_programs import draw
from tests.traps.trap import Trap, hold, outcome
from torch import nn

F = nn.functional

WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "relu": lambda x: F.relu(x, inplace=True),
    "exp": torch.Tensor.exp_,
    "sigmoid": torch.Tensor.sigmoid_,
    "tanh": torch.Tensor.tanh_,
    "sqrt": lambda x: x.abs_().add_(1).sqrt_(),
    "rsqrt": lambda x: x.mul_(x.detach().clone()).add_(1).rsqrt_(),
    "reciprocal": torch.Tensor.reciprocal_,
    "expm1": torch.Tensor.expm1_,
    "exp2": torch.Tensor.exp2_,
    "tan": torch.Tensor.tan_,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1, inplace=True),
    "elu": lambda x: F.elu(x, 0.5, inplace=True),
    "selu": lambda x: F.selu(x, inplace=True),
    "celu": lambda x: F.celu(x, 0.5, inplace=True),
    "rrelu": lambda x: F.rrelu(x, inplace=True),
    "cumprod": lambda x: x.cumprod_(0),
    "hypot": lambda x: x.hypot_(x.detach() + 1),
    "pow": lambda x: x.abs_().pow_(x.detach().abs() + 1),
    "mul": lambda x: x.mul_(2),
    "reduced": lambda x: x.scatter_reduce_(0, torch.tensor([[0, 1], [2, 0]]), x.detach()[:2] * 2, "amax"),
    "many": lambda x: torch._foreach_exp_([x]),
    "part": lambda x: x[0].exp_(),
    "row": lambda x: x.view(-1).relu_(),
    "turned": lambda x: x.t().sigmoid_(),
}
MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"whole": lambda w: w * 1, "view": lambda w: (w * 1)[1:]}


def through_numpy(x: torch.Tensor) -> None:
    """Behind torch's back."""
    x.detach().numpy()[...] -= 1


def replaced(x: torch.Tensor) -> None:
    """Other memory, and the same tensor."""
    x.data = x.data - 1


def counted(x: torch.Tensor) -> None:
    """What eager refuses to walk through."""
    with torch.no_grad():
        x.sub_(1)


LATER: dict[str, Callable[[torch.Tensor], Any]] = {
    "nothing": lambda x: None,
    "data": lambda x: x.data.sub_(1),
    "numpy": through_numpy,
    "replaced": replaced,
    "counted": counted,
}


def programs(write: Callable[[torch.Tensor], Any]) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    """Functions that write their argument and use it."""

    def plain(x: torch.Tensor) -> torch.Tensor:
        write(x)
        return x

    def before_data(x: torch.Tensor) -> torch.Tensor:
        write(x)
        x.data.sub_(1)
        return x

    def read(x: torch.Tensor) -> torch.Tensor:
        before = x * 1.5
        write(x)
        return x * before

    return [plain, before_data, read]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_backward_reads_what_the_argument_holds_by_then(write: Any) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        for function in programs(write):
            fast = compiled(function)
            for made, number, later in product(MADE.values(), range(4), LATER.values()):
                found = outcome(_walk, fast, made, later, number)
                yield found[:2] if found[0] == "raised" else found

    hold(Trap(program, 30, 1))


def _walk(fast: Any, made: Any, later: Any, number: int) -> Any:
    leaf = draw(number, 3, 2, grad=True)
    x = made(leaf)
    result = fast(x)
    later(x)
    (result * torch.arange(1.0, result.numel() + 1).view(result.shape)).sum().backward()
    return result, x, leaf.grad, result._version, result is x


def test_an_error_names_the_call_that_wrote() -> None:
    def program(compiled: Any) -> Iterator[Any]:
        fast = compiled(programs(WRITES["relu"])[0])
        for number in range(4):
            yield outcome(_walk, fast, MADE["whole"], counted, number)

    hold(Trap(program, 2, 1))
