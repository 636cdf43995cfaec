"""Turns writes to inputs that the last kernels compute into kernels that work in the inputs' own memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from framefuse.fuse.memory.in_place import Overwritable, overwritable
from framefuse.fuse.memory.memory_plan import Buffers
from framefuse.ir.graph import Graph, Node
from framefuse.ir.loops import Check, Index, Let, Load, Loop, Statement, Store
from framefuse.ir.loops.key import Key, key_of
from framefuse.ir.numbers import Symbol
from framefuse.ir.schedule import Commit, Item, RunCall, RunKernel
from framefuse.ir.target import Targets, on_cpu

Writes = tuple[tuple[int, int, int], ...]


def overwrite(
    graph: Graph,
    items: Sequence[Item],
    buffers: Buffers,
    outputs: Sequence[int],
    writes: Writes,
    targets: Targets = on_cpu,
) -> tuple[dict[int, Item], Writes]:
    """What stands before which item from now on (one Commit at most), and the writes that are left as copies.

    A kernel may write an input where nothing reads the old contents later and no call learns that something after it
    failed: the program could not run again on what is half written. Guards hold that written inputs share no memory
    with others. What a call was given it may have kept, so that such an input is left alone, as is one from which an
    output is computed that autograd learns of: it may be saved as it was. Late calls that make views cannot fail.
    """
    if not writes or any(late.name == "copy_" for late in graph.late):
        return {}, writes
    bound = frozenset(symbol for symbol, _, _ in graph.bound)
    watched = _behind_outputs(graph) if graph.trains else frozenset()
    start = len(items)
    while start > 0 and _cannot_fail(items[start - 1], targets, bound):
        start -= 1
    calls = [item for item in items if isinstance(item, RunCall) and not item.inside]
    given = {_root(buffers, number) for item in calls for number in item.operands}
    shared = Counter(value for _, value, _ in writes)
    taken = {*outputs, *(value for value, count in shared.items() if count > 1)}
    left: list[tuple[int, int, int]] = []
    done: list[tuple[int, int]] = []
    first = len(items)
    found: dict[Key, Overwritable] = {}
    for target, value, bumps in writes:
        place = buffers.values[value].first
        kept = target in given or buffers.values[target].input in watched
        if kept or value in taken or place < start or not _may(items[place], buffers, target, value, found):
            left.append((target, value, bumps))
            continue
        own, made = buffers.values[target], buffers.values[value]
        made.place, made.input, made.taken = "input", own.input, target
        done.append((target, bumps))
        first = min(first, place)
    return ({first: Commit(tuple(done))} if done else {}), tuple(left)


def _behind_outputs(graph: Graph) -> frozenset[int]:
    """The numbers of the inputs from which outputs are computed."""
    waiting: list[Node] = [output.node for output in graph.outputs]
    seen = set(waiting)
    while waiting:
        fresh = [operand for operand in waiting.pop().inputs if operand not in seen]
        seen.update(fresh)
        waiting += fresh
    return frozenset(number for number, node in enumerate(graph.inputs) if node in seen)


def _may(item: Item, buffers: Buffers, target: int, value: int, found: dict[Key, Overwritable]) -> bool:
    """Whether the kernel that computes ``value`` may put it where the input ``target`` lies; ``found`` is what was
    asked of kernels before.
    """
    own, made = buffers.values[target], buffers.values[value]
    if not isinstance(item, RunKernel) or made.place not in ("fresh", "arena") or made.dtype is not own.dtype:
        return False
    if made.sizes != own.sizes or made.strides != own.strides or own.last > made.first or own.device != item.device:
        return False
    names = {number: buffer.name for buffer, number in zip(item.kernel.buffers, item.buffers, strict=True)}
    if target not in names:
        return True
    key = key_of(item.kernel)
    if key not in found:
        found[key] = overwritable(item.kernel)
    return names[target] in found[key].get(names[value], ())


def _root(buffers: Buffers, number: int) -> int:
    while buffers.values[number].base >= 0:
        number = buffers.values[number].base
    return number


def _cannot_fail(item: Item, targets: Targets, bound: frozenset[Symbol]) -> bool:
    if not isinstance(item, RunKernel) or any(bound & number.symbols for number in (*item.numbers, item.extent)):
        return False
    target = targets(item.device)
    silent = target is not None and not target.reports
    return silent or not any(isinstance(each, Check) for each in _statements(item.kernel.body))


def needless(items: Sequence[Item], buffers: Buffers) -> frozenset[int]:
    """The numbers of the kernels that would copy an input onto itself."""
    return frozenset(place for place, item in enumerate(items) if isinstance(item, RunKernel) and _stays(item, buffers))


def _stays(item: RunKernel, buffers: Buffers) -> bool:
    names = {buffer.name: number for buffer, number in zip(item.kernel.buffers, item.buffers, strict=True)}
    moves = [each for each in _statements(item.kernel.body) if not isinstance(each, Loop)]
    store = moves[-1] if moves else None
    if not isinstance(store, Store) or not isinstance(store.value, Load) or store.value.mask is not None:
        return False
    only = all(isinstance(each, Let) and isinstance(each.value, Index) for each in moves[:-1])
    written = buffers.values[names[store.buffer]]
    same = written.place == "input" and written.taken == names[store.value.buffer]
    return only and same and store.index == store.value.index


def _statements(body: Iterable[Statement]) -> Iterator[Statement]:
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from _statements(statement.body)
