"""Names what a plan does for torch's profiler: the call, its kernels, products and library calls, by their lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from os.path import basename

import torch

from framefuse import _native
from framefuse.ir.schedule import Allocate, Item, Memory, RunCall, RunKernel, RunMatmul, Schedule
from framefuse.ir.source import Line
from framefuse.ir.trace import Trace
from framefuse.ir.values import Value


class Labels:
    """The names of a plan's steps, made when a profiler first asks: :attr:`framefuse.ir.plan.Plan.labels`."""

    def __init__(self, trace: Trace, schedule: Schedule, items: Mapping[int, Item], count: int) -> None:
        self.trace, self.schedule, self.items, self.count = trace, schedule, items, count

    def __call__(self) -> tuple[str, ...]:
        return self.names

    @cached_property
    def names(self) -> tuple[str, ...]:
        """By step; behind them that of the whole, with the program's own for it."""
        whole = "\n".join((f"framefuse: {self.trace.name}{_where((self.trace.line,))}", *self.trace.ranges))
        names = [whole]
        work = ""  # the next step that computes: memory is allocated right before what fills it
        for place in reversed(range(self.count)):
            item = self.items.get(place)
            if isinstance(item, Allocate):
                names.append(f"framefuse memory{self._shapes([item.memory])}{work.replace('framefuse', ' for', 1)}")
            else:
                names.append("" if item is None else self._name(item))
                work = names[-1] or work
        return tuple(reversed(names))

    @property
    def whole(self) -> str:
        """The name of the whole, as :attr:`names` have it."""
        return self.names[-1]

    @property
    def asked(self) -> bool:
        """Whether the names were made."""
        return "names" in vars(self)

    def _name(self, item: Item) -> str:
        if isinstance(item, RunKernel):
            pairs = zip(item.kernel.buffers, item.buffers, strict=True)
            stored = [memory for buffer, memory in pairs if buffer.written]
            return f"framefuse kernel {item.kernel.title}{self._shapes(stored)}{_where(item.kernel.lines)}"
        if isinstance(item, RunMatmul):
            return f"framefuse product{self._shapes([item.out])}{_where_of(item.line)}"
        if isinstance(item, RunCall):
            shapes = self._shapes([memory for _, memory in item.outs])
            return f"framefuse call {item.node.attr('name')}{shapes}{_where_of(item.node.line)}"
        return ""

    def _shapes(self, memories: Sequence[int]) -> str:
        return "".join(f" {_shape(self.schedule.memories[memory])}" for memory in memories)


def _shape(memory: Memory) -> str:
    return f"{memory.dtype}[{', '.join(map(str, memory.sizes))}]"


def _where(lines: Sequence[Line]) -> str:
    """The user's lines, those of one file together: `` model.py:12,13``."""
    by_file: dict[str, list[int]] = {}
    for line in lines:
        by_file.setdefault(basename(line.file), []).append(line.line)
    return "".join(f" {file}:{','.join(map(str, sorted(set(places))))}" for file, places in by_file.items())


def _where_of(line: Line | None) -> str:
    return "" if line is None else _where((line,))


def _enter(label: str) -> list[torch.autograd.profiler.record_function]:
    """A range for each of the names, one in the other."""
    records = [torch.autograd.profiler.record_function(name) for name in label.split("\n")]
    for record in records:
        record.__enter__()
    return records


def _leave(records: list[torch.autograd.profiler.record_function]) -> None:
    for record in reversed(records):
        record.__exit__(None, None, None)


_TORCH = vars(torch.autograd.profiler), "_is_profiler_enabled", _enter, _leave
_native.profile_with(*_TORCH)


@contextmanager
def listening(enter: Callable[[str], object], leave: Callable[[Value], object]) -> Iterator[None]:
    """Opens and closes the ranges of all compiled code by these, in place of torch's profiler; they get the very texts
    of :attr:`Labels.names`.
    """
    _native.profile_with({"on": True}, "on", enter, leave)
    try:
        yield
    finally:
        _native.profile_with(*_TORCH)
