"""Turns writes to inputs that the last kernels compute into kernels that work in the inputs' own memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from framefuse.fuse.in_place import overwritable
from framefuse.fuse.memory_plan import Buffers
from framefuse.ir.graph import Graph
from framefuse.ir.loops import Check, Loop, Statement
from framefuse.ir.schedule import Commit, Item, RunCall, RunKernel

Writes = tuple[tuple[int, int, int], ...]


def overwrite(
    graph: Graph, items: Sequence[Item], buffers: Buffers, outputs: Sequence[int], writes: Writes
) -> tuple[dict[int, Item], Writes]:
    """What stands before which item from now on (one Commit at most), and the writes that are left as copies.

    A kernel may write an input where nothing reads the old contents later and nothing after it can fail: the program
    could not run again on what is half written. Guards hold that written inputs share no memory with others. What a
    call was given it may have kept, so that such an input is left alone, as are all where autograd saves inputs.
    """
    if not writes or graph.trains or graph.late or graph.bound:
        return {}, writes
    start = len(items)
    while start > 0 and _cannot_fail(items[start - 1]):
        start -= 1
    given = {_root(buffers, number) for item in items if isinstance(item, RunCall) for number in item.operands}
    shared = Counter(value for _, value, _ in writes)
    taken = {*outputs, *(value for value, count in shared.items() if count > 1)}
    left: list[tuple[int, int, int]] = []
    done: list[tuple[int, int]] = []
    first = len(items)
    for target, value, bumps in writes:
        place = buffers.values[value].first
        if target in given or value in taken or place < start or not _may(items[place], buffers, target, value):
            left.append((target, value, bumps))
            continue
        own, made = buffers.values[target], buffers.values[value]
        made.place, made.input, made.taken = "input", own.input, target
        done.append((target, bumps))
        first = min(first, place)
    return ({first: Commit(tuple(done))} if done else {}), tuple(left)


def _may(item: Item, buffers: Buffers, target: int, value: int) -> bool:
    """Whether the kernel that computes ``value`` may put it where the input ``target`` lies."""
    own, made = buffers.values[target], buffers.values[value]
    if not isinstance(item, RunKernel) or made.place not in ("fresh", "arena") or made.dtype is not own.dtype:
        return False
    if made.sizes != own.sizes or made.strides != own.strides or own.last > made.first or own.device != item.device:
        return False
    names = {number: buffer.name for buffer, number in zip(item.kernel.buffers, item.buffers, strict=True)}
    return target not in names or names[target] in overwritable(item.kernel).get(names[value], ())


def _root(buffers: Buffers, number: int) -> int:
    while buffers.values[number].base >= 0:
        number = buffers.values[number].base
    return number


def _cannot_fail(item: Item) -> bool:
    return isinstance(item, RunKernel) and not any(isinstance(each, Check) for each in _statements(item.kernel.body))


def _statements(body: Iterable[Statement]) -> Iterator[Statement]:
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from _statements(statement.body)
