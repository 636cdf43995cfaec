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


READS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "product": lambda x, w: x * w,
    "part": lambda x, w: x[1:] * w[:2],
    "turned": lambda x, w: w @ x.t(),
    "length": lambda x, w: (x * w).norm() + x.norm(),
    "sum of exponentials": lambda x, w: x.logsumexp(1) * w[:, 0],
    "windows": lambda x, w: F.conv1d(x[:, None], w[:2, None]),
    "linear": lambda x, w: F.linear(x, w),
}
FILLS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "copy": lambda b, w: b.copy_(w.detach()),
    "sum": lambda b, w: b.add_(w.detach()),
    "rows": lambda b, w: b.__setitem__(slice(1, None), 2.0),
    "columns": lambda b, w: b.t()[0].fill_(3.0),
    "out": lambda b, w: torch.exp(w.detach(), out=b),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
def test_backward_reads_a_buffer_as_it_is_by_then(fill: Any, read: Any) -> None:
    def filled(buffer: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        fill(buffer, w)
        return read(buffer, w)

    def program(compiled: Any) -> Iterator[Any]:
        fast = compiled(filled)
        for number, later in product(range(4), (LATER["nothing"], LATER["data"], LATER["numpy"])):
            leaf, buffer = draw(number, 3, 2, grad=True), draw(number + 9, 3, 2)
            result = fast(buffer, leaf)
            later(buffer)
            result.sum().backward()
            yield result, leaf.grad, buffer._version

    hold(Trap(program, 30, 1))


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_backward_reads_a_result_as_it_is_by_then(read: Any) -> None:
    def computed(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = w.tanh()
        return made, read(made, w)

    def program(compiled: Any) -> Iterator[Any]:
        fast = compiled(computed)
        for number in range(4):
            leaf = draw(number, 3, 2, grad=True)
            made, result = fast(leaf)
            made.data.mul_(2)
            result.sum().backward()
            yield result, leaf.grad

    hold(Trap(program, 30, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["tanh", "exp", "leaky_relu", "elu", "part"])
def test_every_width_is_read_as_it_was_rounded(name: str, dtype: torch.dtype) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        fast = compiled(programs(WRITES[name])[0])
        for number in range(4):
            leaf = draw(number, 3, 2, dtype=dtype, grad=True)
            x = leaf * 1
            result = fast(x)
            x.data.sub_(0.5)
            result.sum().backward()
            yield result, leaf.grad.to(torch.float32).mul(16).round()

    hold(Trap(program, 30, 1))
