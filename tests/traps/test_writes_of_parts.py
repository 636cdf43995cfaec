"""Writes into a part of an argument: the rest stays as it is, and whoever reads old contents finds them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.differential import compared

import framefuse

Tensor = torch.Tensor
REGIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {}  # what is written, given a tensor and one like its rows
READS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {}  # afterwards, given also what was read before
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "turned": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    "inner turned": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "a view": lambda x: torch.cat((x, x))[2 : 2 + len(x)],
    "with gaps": lambda x: torch.cat((x, x), 2)[..., ::2],
}


def region(function: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Any]:
    REGIONS[function.__name__] = function
    return function


def read(function: Callable[[Tensor, Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor, Tensor], Any]:
    READS[function.__name__] = function
    return function


@region
def one_row(x, y):
    x[2] = 0


@region
def rows_of_another(x, y):
    x[1:3] = y


@region
def rows_in_place(x, y):
    x[1:5].add_(1)


@region
def last_rows(x, y):
    x[-2:] = x[-2:] * 2


@region
def one_column(x, y):
    x[:, 1] = y[:, 0]


@region
def columns_in_place(x, y):
    x[:, 1:3].mul_(3)


@region
def innermost(x, y):
    x[..., 2] = y[0, 0, 0]


@region
def innermost_in_place(x, y):
    x[..., 1:4].add_(x[..., 0:3])


@region
def a_box(x, y):
    x[1:4, 1:3, 2:5] = y[:3, :2, :3]


@region
def one_element(x, y):
    x[1, 2, 3] = 1


@region
def a_view_of_all(x, y):
    x.view(-1)[3:9] = 1


@region
def through_views(x, y):
    x.transpose(0, 1)[1].t()[2:4].fill_(1)


@region
def split(x, y):
    x.unflatten(0, (2, 3))[:, 1] = y[0]


@region
def several(x, y):
    x[0] = y[0]
    x[2:4].mul_(2)
    x[5] = x[0]


@region
def one_over_the_other(x, y):
    x[1:4] = 1
    x[2].copy_(y[1])
    x[:, 1:2] = y[0, 0]


@region
def in_a_loop(x, y):
    for i in range(4):
        x[i] = x[i] + y[i]


@region
def from_the_row_before(x, y):
    for i in range(1, 4):
        x[i] = x[i - 1] * y[i]


@region
def swapped(x, y):
    x[0], x[1] = x[1].clone(), x[0].clone()


@region
def shifted(x, y):
    x[:-1] = x[1:].clone()
    x[-1] = y[0]


@region
def every_second(x, y):
    x[::2] += y[::2]


@region
def every_second_and_fourth(x, y):
    x[:, 1::2] = y[:, :2]
    x[1:5, :, ::4].mul_(2)


@region
def evens_from_odds(x, y):
    x[..., :4:2], x[..., 1::2] = x[..., 1::2] * 2, x[..., :4:2] + y[..., :2]


@region
def a_diagonal(x, y):
    x[..., :4].diagonal(0, 1, 2).mul_(2)
    x[0].fill_diagonal_(3)


@region
def itself(x, y):
    x[2] = x[2]


@region
def nothing(x, y):
    x[3:3] = 1


@region
def two_arguments(x, y):
    x[1] = y[2]
    y[:, 0] = x[:, 1]


@read
def nothing_after(x, y, before):
    return None


@read
def the_argument(x, y, before):
    return x


@read
def new_contents(x, y, before):
    return x.sum(0), x[2] * 1


@read
def old_contents(x, y, before):
    return before * 2, before


@read
def a_product(x, y, before):
    return x[0].float() @ x[1].float().t(), before


@read
def views(x, y, before):
    return x[1:3], x.transpose(0, 1), y[0]


@read
def written_again(x, y, before):
    x.add_(1) if x.dtype is not torch.bool else x.logical_not_()
    y[1] = x[1, :1]
    return x[2]


def made(dtype: torch.dtype, layout: str, seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    x, y = torch.randint(-3, 4, (6, 4, 5)), torch.randint(-3, 4, (6, 4, 5))
    return LAYOUTS[layout](x.to(dtype)), y.to(dtype)


def program(write: str, after: str) -> Callable[[Tensor, Tensor], Any]:
    first, second = REGIONS[write], READS[after]

    def run(x: Tensor, y: Tensor) -> Any:
        before = x.flip(0) if after == "old_contents" else x.sum()
        first(x, y)
        return second(x, y, before)

    return run


def arguments(write: str, dtype: torch.dtype, layout: str, seed: int) -> tuple[Tensor, Tensor]:
    x, y = made(dtype, layout, seed)
    if write == "rows_of_another":
        y = y[:2].clone()
    return x, y


def outcome(function: Any, args: tuple[Tensor, Tensor]) -> tuple[Any, ...]:
    """What a call gives and leaves: results, contents of arguments' whole memory, counts of writes, who is a view."""
    try:
        result = function(*args)
    except Exception as error:
        result = type(error).__name__
    memory = [torch.empty(0, dtype=a.dtype).set_(a.untyped_storage()) for a in args]
    tensors = [*args, *([r for r in result if isinstance(r, Tensor)] if isinstance(result, tuple) else [])]
    return result, memory, [t._version for t in tensors], [t._is_view() for t in tensors], [t.stride() for t in tensors]


def check(write: str, after: str, dtype: torch.dtype, layout: str) -> int:
    function = program(write, after)
    fast = framefuse.compile(program(write, after))
    for seed in range(3):
        expected = outcome(function, arguments(write, dtype, layout, seed))
        found = outcome(fast, arguments(write, dtype, layout, seed))
        difference = compared(found, expected, values=True)
        assert not difference, (write, after, dtype, layout, seed, difference)
    hits: int = fast.__framefuse__.dispatch.hits
    return hits


CASES = list(itertools.product(REGIONS, READS))
KINDS = list(itertools.product(DTYPES, LAYOUTS))


@pytest.mark.parametrize("write", REGIONS)
def test_a_write_into_a_part_leaves_what_eager_leaves(write: str) -> None:
    first = list(REGIONS).index(write) * len(READS)
    for number, after in enumerate(READS):
        dtype, layout = KINDS[(first + 7 * number) % len(KINDS)]
        check(write, after, dtype, layout)
        assert check(write, after, torch.float32, "contiguous") >= 1 or write == "nothing"


OVERLAPS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {  # of arguments, once others were apart
    "one tensor": lambda x, y: (x, x),
    "another view": lambda x, y: (x, x.view(-1).view(6, 4, 5)),
    "a row further": lambda x, y: (torch.cat((x, y))[:6], torch.cat((x, y))[1:7]),
    "a part of the same": lambda x, y: ((both := torch.cat((x, y)))[:6], both[3:9]),
    "side by side": lambda x, y: ((both := torch.cat((x, y)))[:6], both[6:]),
    "turned": lambda x, y: (x.view(4, 6, 5).transpose(0, 1), x),
    "one row for all": lambda x, y: (x[:1].expand(6, 4, 5), y),
    "a window": lambda x, y: (torch.arange(40.0).as_strided((6, 4, 5), (3, 2, 1)), y),
    "rows that overlap": lambda x, y: (torch.arange(120.0).as_strided((6, 4, 5), (12, 4, 1)), y),
    "one column for all": lambda x, y: (x[..., :1].expand(6, 4, 5), y),
}


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_arguments_that_overlap_are_written_as_eager_writes_them(overlap: str) -> None:
    for number, write in enumerate(REGIONS):
        after = list(READS)[number % len(READS)]
        function, fast = program(write, after), framefuse.compile(program(write, after))
        if write == "rows_of_another":
            continue
        for seed in range(2):  # compiled for tensors that lie apart
            fast(*arguments(write, torch.float32, "contiguous", seed))
        for seed in range(2):
            expected = outcome(function, OVERLAPS[overlap](*arguments(write, torch.float32, "contiguous", seed)))
            found = outcome(fast, OVERLAPS[overlap](*arguments(write, torch.float32, "contiguous", seed)))
            assert not compared(found, expected, values=True), (write, after, seed)


@pytest.mark.parametrize("write", ["one_row", "one_column", "several", "in_a_loop", "a_view_of_all", "swapped"])
@pytest.mark.parametrize("leaf", [True, False])
def test_parts_of_what_needs_a_gradient_are_written_as_eager_writes_them(write: str, leaf: bool) -> None:
    def step(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        out = (x * w).sum(0)
        REGIONS[write](x, y)
        return out + (x * 2).sum(0)

    def without(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            REGIONS[write](x, y)
        return (x * w).sum()

    def run(function: Any, seed: int) -> Any:
        (x, y), w = made(torch.float32, "contiguous", seed), torch.full((6, 4, 5), 1.5, requires_grad=True)
        root = x.requires_grad_()
        x = root if leaf else root * 1
        try:
            out = function(x, y, w)
            out.sum().backward()
        except RuntimeError as error:
            out = str(error).partition("[")[0]
        return out, x.detach(), x._version, root.grad, w.grad

    for function in (step, without):
        fast = framefuse.compile(function)
        for seed in range(3):
            assert not compared(run(fast, seed), run(function, seed), values=True), (function.__name__, seed)
