"""What an operation does at some sizes alone: give its operand back, raise, lie in memory as larger sizes would not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold, outcome
from torch import nn
from torch.nn import functional as F

TABLE = Table()
LAST = torch.channels_last
PICTURES = ((2, 3, 1, 1), (2, 3, 4, 4), (2, 1, 4, 4), (2, 3, 5, 4), (1, 3, 4, 4), (2, 1, 3, 3), (2, 3, 1, 1))


def at_sizes(*shapes: tuple[int, ...], traces: int, hits: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds ``function(x)`` as a program that calls it at these sizes, forwards and backwards, with gradient each time
    after without.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        def program(compiled: Any) -> Iterator[Any]:
            f = compiled(function)
            for number, shape in enumerate((*shapes, *reversed(shapes), *shapes)):
                x = torch.randn(shape, requires_grad=number % 2 == 1)
                found = outcome(f, x)
                yield found
                if isinstance(found, torch.Tensor):
                    yield found is x, found.is_contiguous(), x.dim() == 4 and found.is_contiguous(memory_format=LAST)
                    if found.requires_grad and found is not x:
                        yield outcome(found.sin().sum().backward)
                        yield x.grad

        program.__name__ = function.__name__
        TABLE.trap(traces=traces, hits=hits)(program)
        return function

    return add


@at_sizes((0,), (3,), (2,), (1,), traces=6, hits=6)
def difference_of_nothing(x: torch.Tensor) -> torch.Tensor:
    return x.diff()


@at_sizes((3, 0), (3, 2), (2, 3), traces=6, hits=3)
def difference_along_nothing(x: torch.Tensor) -> torch.Tensor:
    return x.diff(dim=0)


@at_sizes((1, 3), (1, 4), (1, 3), traces=6, hits=3)
def summed_to_what_it_is(x: torch.Tensor) -> torch.Tensor:
    return x.sum_to_size(1, x.shape[1])


@at_sizes((1, 4, 0, 2), (1, 4, 2, 2), (1, 4, 4, 2), traces=6, hits=3)
def pictures_without_points(x: torch.Tensor) -> torch.Tensor:
    return F.pixel_unshuffle(x, 2)


@at_sizes((1,), (2,), (3,), (0,), traces=8, hits=4)
def powers_of_one_number(x: torch.Tensor) -> torch.Tensor:
    return torch.vander(x)


@at_sizes((0,), (2,), (3,), (0,), (5,), traces=8, hits=4)
def integral_of_nothing(x: torch.Tensor) -> torch.Tensor:
    return torch.trapezoid(x)


@at_sizes(*PICTURES, traces=14, hits=7)
def channels_last_of_any(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=LAST)


@at_sizes(*PICTURES, traces=14, hits=7)
def to_channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.to(memory_format=LAST)


@at_sizes(*PICTURES, traces=12, hits=7)
def cloned_channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=LAST)


@at_sizes((5, 3), (4, 3), (1, 3), (3, 3), traces=4, hits=6)
def one_row_is_no_batch(x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, training=True)


@at_sizes((1, 3, 2, 2), (1, 3, 1, 1), (2, 3, 1, 1), traces=4, hits=4)
def one_picture_of_one_point(x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, training=True)


@TABLE.trap(traces=6, hits=3)
def step_with_one_row(compiled: Any) -> Iterator[Any]:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    @compiled
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for rows in (4, 5, 1, 4, 1, 6, 3):
        yield outcome(step, torch.randn(rows, 3))
        yield [parameter.detach().clone() for parameter in net.parameters()]
        yield net[1].running_mean, net[1].num_batches_tracked


ROWS = ((1, 2), (3, 2), (4, 3), (1, 1), (2, 1), (5, 2))


def _strides(compiled: Any, function: Callable[[Any], Any], grad: bool) -> Iterator[Any]:
    """How results lie that a library lays out as its operand lies, at sizes behind a first one of 1."""
    for first in ((1, 2), (1, 1), (2, 1)):
        f = compiled(function)
        for shape in (first, first, *ROWS, *ROWS):
            yield f(torch.randn(shape, requires_grad=grad))


@TABLE.trap(traces=12, hits=12)
def a_copy_of_a_transpose(compiled: Any) -> Iterator[Any]:
    yield from _strides(compiled, lambda x: x.t().clone(), True)


@TABLE.trap(traces=12, hits=12)
def a_copy_of_a_computed_transpose(compiled: Any) -> Iterator[Any]:
    yield from _strides(compiled, lambda x: (x * 2).t().unsqueeze(1).clone(), True)


@TABLE.trap(traces=12, hits=12)
def a_sorted_transpose(compiled: Any) -> Iterator[Any]:
    yield from _strides(compiled, lambda x: (x * 2).t().sort(0)[0], False)


@TABLE.trap(traces=12, hits=12)
def library_calls_on_one_another(compiled: Any) -> Iterator[Any]:
    i1 = torch.special.i1
    yield from _strides(compiled, lambda x: i1(i1((x * 2).t())), False)


@TABLE.trap(traces=3, hits=30)
def running_sums_lie_row_major(compiled: Any) -> Iterator[Any]:
    yield from _strides(compiled, lambda x: (x * 2).t().cumsum(0), False)


@TABLE.trap(traces=6, hits=2)
def written_after_it_was_given_back(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda x: x.diff())
    for size in (0, 3, 4, 3, 0, 5):
        x = torch.randn(size)
        f(x).zero_()
        yield x


@TABLE.parametrize()
def test_sizes_that_decide(trap: Trap) -> None:
    hold(trap)
