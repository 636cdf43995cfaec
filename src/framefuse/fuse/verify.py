"""Turns a schedule into a list of what is wrong with it: reads before writes, overlapping memory, foreign operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from framefuse.fuse import costs
from framefuse.fuse.addressing.layout import estimate
from framefuse.ir.numbers import Expr, Real, Symbol
from framefuse.ir.schedule import Allocate, Commit, Item, Release, RunCall, RunKernel, RunMatmul, Schedule


def problems(schedule: Schedule) -> list[str]:
    """One sentence for each broken rule; empty for a schedule that may run."""
    return [*_order(schedule), *_overlaps(schedule), *_numbers(schedule)]


def reads_and_writes(item: Item) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The buffers that an item reads and those that it writes."""
    match item:
        case RunKernel():
            named = list(zip(item.kernel.buffers, item.buffers, strict=True))
            return tuple(n for b, n in named if not b.written), tuple(n for b, n in named if b.written)
        case RunMatmul():
            return (item.a, item.c), (item.out,)
        case RunCall():
            return item.operands, tuple(number for _, number in item.outs)
        case _:
            return (), ()


def _root(schedule: Schedule, number: int) -> int:
    while schedule.memories[number].place == "view":
        number = schedule.memories[number].base
    return number


def _order(schedule: Schedule) -> Iterator[str]:
    memories = schedule.memories
    ready = {number for number, memory in enumerate(memories) if memory.place == "input"}
    allocated: set[int] = set()
    gone: set[int] = set()
    owned: set[int] = set()  # inputs that may be written
    for position, item in enumerate(schedule.items):
        if isinstance(item, Allocate):
            allocated.add(item.memory)
        if isinstance(item, Commit):
            owned.update(memories[number].input for number, _ in item.inputs)
        if isinstance(item, Release):
            gone.update(item.memories)
        reads, writes = reads_and_writes(item)
        for number in reads:
            root = _root(schedule, number)
            if root not in ready or root in gone:
                yield f"item {position} reads buffer {number}, which holds nothing"
        for number in writes:
            root = _root(schedule, number)
            if memories[root].place == "fresh" and root not in allocated:
                yield f"item {position} writes buffer {number} before it is allocated"
            if (number != root and memories[root].place != "fresh") or (
                memories[root].place == "input" and memories[root].input not in owned
            ):
                yield f"item {position} writes buffer {number}, an {memories[number].place}"
            ready.add(root)
        if isinstance(item, RunCall) and not item.inside:
            for number in item.operands:
                if memories[number].place in ("arena", "view"):
                    yield f"item {position} shows buffer {number} of the {memories[number].place} to a call"
    for number in (*schedule.outputs, *(write[1] for write in schedule.writes)):
        if number not in ready or number in gone:
            yield f"result {number} holds nothing"
        if memories[number].place in ("arena", "view"):
            yield f"result {number} is in the {memories[number].place}"


def _overlaps(schedule: Schedule) -> Iterator[str]:
    """Arena buffers that are alive together must be apart, and inside the arena, at the recorded sizes."""
    hints = dict(schedule.graph.hints)
    for symbol, values in schedule.largest:
        hints[symbol] = max(estimate(value, hints) for value in values)
    lives: dict[int, tuple[int, int]] = {}
    for position, item in enumerate(schedule.items):
        for number in (n for numbers in reads_and_writes(item) for n in numbers):
            root = _root(schedule, number)
            if schedule.memories[root].place == "arena":
                lives[root] = (lives.get(root, (position, 0))[0], position)
    shared = _shared(schedule)
    spans = {number: _span(schedule, number, hints) for number in lives}
    arenas = {"cpu": schedule.arena, **dict(schedule.arenas)}
    sizes = {device: estimate(size, hints) for device, size in arenas.items()}
    device = {number: schedule.memories[number].device for number in lives}
    numbers = sorted(lives)
    for place, a in enumerate(numbers):
        size = sizes.get(device[a], 0)
        if spans[a][1] > size or spans[a][0] % costs.ALIGN:
            yield f"buffer {a} lies at {spans[a]} of an arena of {size} bytes"
        for b in numbers[place + 1 :]:
            together = lives[a][0] <= lives[b][1] and lives[b][0] <= lives[a][1] and device[a] == device[b]
            if together and (a, b) not in shared and spans[a][0] < spans[b][1] and spans[b][0] < spans[a][1]:
                yield f"buffers {a} and {b} share the arena at the same time"


def _shared(schedule: Schedule) -> set[tuple[int, int]]:
    """Pairs of buffers of which a kernel writes one over the other, where that ends the life of the other."""
    last = {}
    for position, item in enumerate(schedule.items):
        for number in reads_and_writes(item)[0]:
            last[_root(schedule, number)] = position
    found: set[tuple[int, int]] = set()
    for position, item in enumerate(schedule.items):
        if isinstance(item, RunKernel):
            numbers = {b.name: n for b, n in zip(item.kernel.buffers, item.buffers, strict=True)}
            for buffer in item.kernel.buffers:
                if buffer.aliases and last.get(numbers[buffer.aliases]) == position:
                    a, b = sorted((numbers[buffer.name], numbers[buffer.aliases]))
                    found.add((a, b))
    return found


def _span(schedule: Schedule, number: int, hints: Mapping[Symbol, int]) -> tuple[int, int]:
    memory = schedule.memories[number]
    count = memory.dtype.size
    for size in memory.sizes:
        count *= estimate(size, hints)
    start = estimate(memory.offset, hints) if memory.offset is not None else 0
    return start, start + count


def _numbers(schedule: Schedule) -> Iterator[str]:
    """A kernel is called with as many buffers and numbers as it has, of its kinds."""
    for position, item in enumerate(schedule.items):
        if not isinstance(item, RunKernel):
            continue
        kernel = item.kernel
        if len(item.buffers) != len(kernel.buffers) or len(item.numbers) != len(kernel.numbers):
            yield f"item {position} calls {kernel.title} with a wrong number of operands"
        for number, value in zip(kernel.numbers, item.numbers, strict=False):
            if number.real != isinstance(value, Real) or not isinstance(value, (Real, Expr)):
                yield f"item {position} gives {kernel.title} {value} for {number.symbol}"
        for buffer, where in zip(kernel.buffers, item.buffers, strict=False):
            if schedule.memories[where].device != item.device:
                yield f"item {position} gives {kernel.title} on {item.device} buffer {where} of another device"
            if buffer.dtype is not schedule.memories[where].dtype:
                yield f"item {position} gives {kernel.title} buffer {where} for {buffer.name} of another dtype"
