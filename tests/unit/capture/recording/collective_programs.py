"""Programs with collectives for two processes: each compares compiled code with eager; test_collectives runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from tests.unit import ranks
from tests.unit.ranks import WORLD
from torch import nn

import framefuse
from framefuse.runtime.function import compiled_function

PROGRAMS: dict[str, Callable[[int], None]] = {}


def program(function: Callable[[int], None]) -> Callable[[int], None]:
    PROGRAMS[function.__name__] = function
    return function


def same(function: Any, calls: list[tuple[Any, ...]], traces: int | None = 1) -> Any:
    """Compares results, and what was written, over several calls."""
    compiled = framefuse.compile(function)
    for args in calls:
        mine, theirs = ([a.clone() if isinstance(a, torch.Tensor) else a for a in args] for _ in range(2))
        expected, found = function(*theirs), compiled(*mine)
        torch.testing.assert_close(found, expected)
        for a, b in zip(mine, theirs, strict=True):
            assert not isinstance(a, torch.Tensor) or (torch.equal(a, b) and a._version == b._version)
    if traces is not None:
        state = compiled_function(compiled)
        assert len(state.products) == traces, framefuse.explain(compiled)
    return compiled


def inputs(rank: int, *shape: int, count: int = 4) -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    return [(torch.randn(shape, generator=generator),) for _ in range(count)]


class Noisy(nn.Module):
    """A small conv net whose middle activations are summed over the ranks and added as noise."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        with torch.no_grad():
            noise = h.detach().clone()
            dist.all_reduce(noise)
        return self.second(h + 0.1 * noise)


@program
def middle_activations_summed_over_ranks(rank: int) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        compiled = same(Noisy(), inputs(rank, 2, 3, 8, 8))
    names = [item.node.attr("name") for item in _calls(compiled)]
    assert names == ["conv2d", "all_reduce", "conv2d"]


def _calls(compiled: Any) -> list[Any]:
    items = compiled_function(compiled).products[0].stages.code.schedule.items
    return [item for item in items if type(item).__name__ == "RunCall"]


@program
def started_and_waited_for(rank: int) -> None:
    def function(x):
        h = x + 1
        first = dist.all_reduce(h, async_op=True)
        g = x * 2
        second = dist.all_reduce(g, op=dist.ReduceOp.MAX, async_op=True)
        y = x.sin()
        second.wait()
        y = y * g
        first.wait()
        return h * y, g

    with torch.no_grad():
        same(function, inputs(rank, 5, 3))


@program
def every_collective(rank: int) -> None:
    def function(x):
        parts = [torch.empty_like(x) for _ in range(WORLD)]
        dist.all_gather(parts, x * 1.5)
        whole = torch.empty(x.shape[0] * WORLD, *x.shape[1:])
        dist.all_gather_into_tensor(whole, x)
        piece = torch.empty_like(x)
        dist.reduce_scatter_tensor(piece, whole)
        dist.barrier()
        swapped = torch.empty_like(whole)
        dist.all_to_all_single(swapped, whole)
        sent = x * 2
        dist.broadcast(sent, 1)
        summed = x * 3
        dist.reduce(summed, 0)
        rest = torch.zeros_like(x)
        dist.reduce_scatter(rest, [x, x + 1])
        first = parts[0] + parts[1] + piece * sent + swapped.sum() + rest
        return first + summed if dist.get_rank() == 0 else first

    with torch.no_grad():
        same(function, inputs(rank, 4, 3))
        same(function, inputs(rank, 4, 3) + inputs(rank, 6, 3), traces=None)


@program
def results_that_nobody_reads(rank: int) -> None:
    """One rank compiles, the other does not: a collective too many, too few or out of order would hang or mix up."""

    def function(x):
        a, b = x + 1, x * 2
        dist.all_reduce(a)
        dist.all_reduce(b, op=dist.ReduceOp.MAX)
        dist.barrier()
        dist.all_reduce(a)
        return x * 1.0, b

    run = framefuse.compile(function) if rank == 0 else function
    with torch.no_grad():
        for (x,) in inputs(0, 5):
            x = x + rank
            y, b = run(x)
            assert torch.equal(y, x) and torch.equal(b, torch.maximum(x - rank, x - rank + 1) * 2)
        total = torch.ones(3)
        dist.all_reduce(total)
    assert torch.equal(total, torch.full((3,), 2.0))


@program
def one_rank_compiles_while_the_other_waits(rank: int) -> None:
    def function(x, turns):
        if rank == 0:
            x = x.sin().cos() if turns > 2 else x * 2
        dist.all_reduce(x)
        return x.relu() + dist.get_rank()

    compiled = framefuse.compile(function)
    with torch.no_grad():
        for turn, (x,) in enumerate(inputs(rank, 3, 4, count=6)):
            run = compiled if rank == 0 or turn > 3 else function
            torch.testing.assert_close(run(x * 1.0, turn), function(x * 1.0, turn))


@program
def inputs_and_views_are_written(rank: int) -> None:
    def whole(x):
        dist.all_reduce(x)
        return x * 2

    def row(x):
        h = x + 1
        dist.all_reduce(h[1])
        dist.all_reduce(x[0])
        return h, x.sum()

    def gathered(x, y):
        dist.all_gather_into_tensor(y, x)
        return y + 1

    with torch.no_grad():
        same(whole, inputs(rank, 3, 4))
        same(row, inputs(rank, 3, 4))
        same(gathered, [(x, torch.zeros(6, 4)) for (x,) in inputs(rank, 3, 4)])


@program
def groups_are_read_again(rank: int) -> None:
    pair, alone = dist.new_group([0, 1]), dist.new_group([0])

    class Holder:
        group = None

    holder = Holder()
    holder.group = pair

    def function(x):
        h = x + 1
        dist.all_reduce(h, group=holder.group)
        return h * dist.get_world_size()

    def given(x, group):
        h = x + 1
        dist.all_reduce(h, group=group)
        return h * 2

    with torch.no_grad():
        same(function, inputs(rank, 3))
        same(given, [(x, group) for (x,) in inputs(rank, 3) for group in (pair, None, dist.group.WORLD)], traces=None)
        compiled = framefuse.compile(function)
        x = torch.ones(3)
        for group in (pair, pair, alone, alone, None, pair):
            holder.group = group
            torch.testing.assert_close(compiled(x), function(x))


@program
def gradients_and_complex_numbers_stay_eager(rank: int) -> None:
    def function(x):
        h = x * 2
        dist.all_reduce(h)
        return h + 1

    for x in (torch.ones(3, requires_grad=True), torch.ones(3) * 1j):
        compiled = framefuse.compile(function)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), function(x))


@program
def functional_collectives(rank: int) -> None:
    """They are nodes of one graph, and the wait stands before the first that reads what they give."""
    group, splits = dist.group.WORLD, [2] * WORLD

    def function(x):
        summed = functional.all_reduce(x * 2, "sum", group)
        sent = functional.broadcast(x + 1, 1, group)
        y = x.sin() @ x.T
        whole = torch.ops._c10d_functional.all_gather_into_tensor(y, WORLD, group.group_name)
        swapped = functional.all_to_all_single(x, splits, splits, group)
        piece = torch.ops._c10d_functional.reduce_scatter_tensor(x * 3, "max", WORLD, group.group_name)
        torch.ops._c10d_functional.wait_tensor(whole), functional.wait_tensor(piece)
        return summed.exp(), whole * 2, swapped - sent, piece

    with torch.no_grad():
        compiled = same(function, inputs(rank, 4, 3))
        same(function, inputs(rank, 4, 3) + inputs(rank, 4, 5), traces=None)
    names = [item.node.attr("name") for item in _calls(compiled)]
    starts = ["all_reduce", "broadcast", "all_gather_into_tensor", "all_to_all_single", "reduce_scatter_tensor"]
    assert [name for name in names if name in starts] == starts and names.count("wait_tensor") == 5
    assert names.index("wait_tensor") > names.index("reduce_scatter_tensor")


@program
def functional_collectives_have_gradients(rank: int) -> None:
    group, splits = dist.group.WORLD, [2] * WORLD
    programs = (
        lambda x: functional.all_reduce(x.sin(), "sum", group).exp(),
        lambda x: functional.all_reduce(x, "sum", group) * functional.all_reduce(x * x, "sum", group),
        lambda x: torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional.all_gather_into_tensor(x * 2, WORLD, group.group_name)
        ).cos(),
        lambda x: functional.wait_tensor(
            torch.ops._c10d_functional.reduce_scatter_tensor(x.exp(), "sum", WORLD, group.group_name)
        ).tanh(),
        lambda x: functional.all_to_all_single(x.exp(), splits, splits, group).sin(),
        lambda x: functional.all_reduce(x.cos(), "sum", group).wait() * 2,
        lambda x: functional.all_reduce(x * 2, "sum", group).mul_(2),
    )
    for place, function in enumerate(programs):
        compiled = framefuse.compile(function)
        for (x,) in inputs(rank, 4, 3):
            mine, theirs = (x.clone().requires_grad_() for _ in range(2))
            found, expected = compiled(mine), function(theirs)
            torch.testing.assert_close(found, expected, msg=str(place))
            found.square().sum().backward()
            expected.square().sum().backward()
            torch.testing.assert_close(mine.grad, theirs.grad, msg=str(place))
        assert len(compiled_function(compiled).products) == 1, framefuse.explain(compiled)


@program
def functional_collectives_that_nobody_reads(rank: int) -> None:
    """One rank compiles, the other does not: each is sent once and in its place."""

    def function(x):
        functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))
        last = functional.all_reduce(x + 1, "max", dist.group.WORLD)
        return x * 2, last + 0

    run = framefuse.compile(function) if rank == 0 else function
    with torch.no_grad():
        for (x,) in inputs(0, 3):
            y, last = run(x + rank)
            assert torch.equal(y, (x + rank) * 2) and torch.equal(last, x + 1 + 1)


@program
def a_call_that_declines_sends_once(rank: int) -> None:
    table = torch.arange(12.0).view(4, 3)

    def before(x, index):
        h = table[index] + x
        dist.all_reduce(h)
        return h

    def after(x, index):
        h = x + 1
        dist.all_reduce(h)
        return table[index] + h

    good, bad = torch.tensor([1, 2]), torch.tensor([1, 9])
    with torch.no_grad():
        for function, sent in ((before, 0), (after, 1)):
            run = framefuse.compile(function) if rank == 0 else function
            for _ in range(3):
                run(torch.ones(2, 3), good)
            try:
                run(torch.ones(2, 3), bad if rank == 0 else good) if rank == 0 or sent else None
                assert rank == 1
            except (IndexError, RuntimeError) as error:
                assert rank == 0, error
            total = torch.ones(3)
            dist.all_reduce(total)
            assert torch.equal(total, torch.full((3,), 2.0)), function
            torch.testing.assert_close(run(torch.ones(2, 3), good), run(torch.ones(2, 3), good))


@program
def a_recording_that_is_given_up_sends_once(rank: int) -> None:
    def function(x):
        h = x + 1
        dist.all_reduce(h)
        return h.data_ptr() * 0 + h, [h.untyped_storage().nbytes()]

    run = framefuse.compile(function) if rank == 0 else function
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(run(torch.ones(2) * rank)[0], torch.full((2,), 3.0))


@program
def coalesced_and_point_to_point(rank: int) -> None:
    def coalesced(x):
        a, b = x + 1, x * 2
        with dist._coalescing_manager():
            dist.all_reduce(a)
            dist.all_reduce(b)
        return a * b

    def sent(x):
        h = x * 2
        if dist.get_rank() == 0:
            dist.send(h, 1)
        else:
            dist.recv(h, 0)
        return h + 1

    with torch.no_grad():
        same(coalesced, inputs(rank, 3), traces=None)
        same(sent, inputs(rank, 3), traces=None)


@program
def a_group_that_ends(rank: int) -> None:
    """Runs last: the process group is gone afterwards."""

    def function(x):
        return x * dist.get_rank() if dist.is_initialized() else x * 10

    def reduced(x):
        h = x + 1
        dist.all_reduce(h)
        return h

    compiled = [framefuse.compile(function), framefuse.compile(reduced)]
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(compiled[0](torch.ones(2)), torch.ones(2) * rank)
            assert torch.equal(compiled[1](torch.ones(2)), torch.full((2,), 4.0))
        dist.destroy_process_group()
        for _ in range(3):
            assert torch.equal(compiled[0](torch.ones(2)), torch.full((2,), 10.0))
        try:
            compiled[1](torch.ones(2))
            raise AssertionError("no group, no error")
        except ValueError as error:
            assert "process group" in str(error)


if __name__ == "__main__":
    ranks.main(PROGRAMS)
