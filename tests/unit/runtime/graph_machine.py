"""A stand-in for a device that captures graphs: the CPU, on which a replay is another run of the same steps.

As on a GPU, a capture computes nothing, a replay reads the memory that was captured, and what a graph leaves behind is
lost when any other graph runs.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from framefuse.runtime import captures
from framefuse.runtime.replay import without_repeats


class Graph:
    """One captured graph; its replay runs the steps again and leaves the results where the capture left them."""

    def __init__(self, machine: Machine, run: partial[Any], outs: tuple[torch.Tensor, ...], pool: Any) -> None:
        self.machine = machine
        self.run = partial(run.func, tuple([tensor.data for tensor in run.args[0]]), *run.args[1:])
        self.pool = pool
        self.outs = [out.data for out in outs]  # whoever holds the tensors themselves is counted

    def __call__(self) -> None:
        self.machine.replays += 1
        for other in self.machine.graphs:
            if other.pool is self.pool:
                other.spoil()
        for out, new in zip(self.outs, self.run(), strict=True):
            without_repeats(out).copy_(without_repeats(new))

    def spoil(self) -> None:
        for out in self.outs:
            without_repeats(out).fill_(77)


class Machine:
    """The methods of :class:`framefuse.runtime.cuda_graphs.CudaGraphs`, and what tests set and count."""

    kind = "cpu"

    def __init__(self) -> None:
        self.replays = self.captures = 0
        self.users = False  # whether the user captures a graph
        self.now = (0, 0, 0)
        self.followed: list[Any] = []
        self.fails: Exception | None = None
        self.waits = ""
        self.free, self.trims = 1 << 40, 0  # bytes
        self.clock = (1.0, 1.0)  # the seconds of host and device
        self.clocks = 0
        self.told: tuple[Any, ...] = ()
        self.graphs: weakref.WeakSet[Graph] = weakref.WeakSet()

    def here(self) -> bool:
        return True

    def entered(self) -> Any:
        return contextlib.nullcontext()

    def capturing(self) -> bool:
        return self.users

    def stream(self) -> Any:
        return self.now

    def follow(self, before: Any) -> bool:
        self.followed.append(before)
        return True

    def used(self, tensors: list[torch.Tensor], stream: Any) -> None: ...

    def settings(self) -> tuple[Any, ...]:
        return self.told

    def bytes(self) -> int:
        return self.captures << 20

    def room(self) -> int:
        return self.free

    def trim(self) -> None:
        self.trims += 1

    def memory(self) -> int:
        return 1 << 40

    def clocked(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], tuple[float, float]]]:
        self.clocks += 1
        return run(), lambda: self.clock

    def handle(self) -> Any:
        return object()

    def watched(self, run: Callable[[], Any]) -> tuple[Any, str]:
        return run(), self.waits

    def capture(self, pool: Any, run: partial[Any]) -> tuple[Callable[[], None], Any]:
        inputs = run.args[0]
        kept, state = [tensor.clone() for tensor in inputs], torch.get_rng_state()
        outs = run()
        graph = Graph(self, run, outs, pool)
        graph.spoil()
        for tensor, before in zip(inputs, kept, strict=True):
            if not torch.equal(tensor, before):  # a static input may hold anything
                tensor.data.copy_(before)  # counts no version
        torch.set_rng_state(state)
        if self.fails is not None:
            raise self.fails
        self.captures += 1
        self.graphs.add(graph)
        return graph, outs


@contextlib.contextmanager
def on_cpu() -> Iterator[Machine]:
    """Inside, traces of the CPU are captured, however few steps they have."""
    machine = Machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captures, "MACHINES", {"cpu": lambda index: machine})
        patch.setattr(captures, "_pools", {})
        patch.setattr(captures, "REPLAY", 0)
        patch.setattr(captures, "COPY", 0)
        patch.setattr(captures, "FRESH", 0)
        patch.setattr(captures, "BANDWIDTH", 1 << 40)
        yield machine
