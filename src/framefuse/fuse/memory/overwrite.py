"""Turns writes to inputs that the last kernels compute into kernels that work in the inputs' own memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from framefuse.fuse.memory.draft import Draft, Value
from framefuse.fuse.memory.in_place import Overwritable, overwritable
from framefuse.fuse.setting import Setting
from framefuse.ir.graph import Graph, Node
from framefuse.ir.loops import Check
from framefuse.ir.loops.key import Key, key_of
from framefuse.ir.loops.walk import statements
from framefuse.ir.numbers import Symbol
from framefuse.ir.schedule import Commit, Item, RunCall, RunKernel
from framefuse.ir.target import Targets


def with_overwrites(draft: Draft, setting: Setting) -> Draft:
    """The draft in which the last kernels write inputs in place, behind a Commit; the other writes are left as copies.

    A kernel may write an input where nothing reads the old contents later and no call learns that something after it
    failed: the program could not run again on what is half written. Guards hold that written inputs share no memory
    with others. What a call was given it may have kept, so that such an input is left alone, as is one from which an
    output is computed that autograd learns of: it may be saved as it was. Late calls that make views cannot fail.
    """
    graph, items, writes = draft.graph, draft.items, draft.writes
    if not writes or any(late.name == "copy_" for late in graph.late):
        return draft
    bound = frozenset(symbol for symbol, _, _ in graph.bound)
    watched = _behind_outputs(graph) if graph.trains else frozenset()
    start = len(items)
    while start > 0 and _cannot_fail(items[start - 1], setting.targets, bound):
        start -= 1
    values = list(draft.values)
    calls = [item for item in items if isinstance(item, RunCall) and not item.inside]
    given = {_root(values, number) for item in calls for number in item.operands}
    shared = Counter(value for _, value, _ in writes)
    taken = {*draft.outputs, *(value for value, count in shared.items() if count > 1)}
    left: list[tuple[int, int, int]] = []
    done: list[tuple[int, int]] = []
    first = len(items)
    asked: dict[Key, Overwritable] = {}
    for target, value, bumps in writes:
        place = values[value].first
        kept = target in given or values[target].input in watched
        if kept or value in taken or place < start or not _may(items[place], values, target, value, asked):
            left.append((target, value, bumps))
            continue
        values[value] = replace(values[value], place="input", input=values[target].input, taken=target)
        done.append((target, bumps))
        first = min(first, place)
    if not done:
        return draft
    return replace(draft, values=tuple(values), writes=tuple(left), before={first: Commit(tuple(done))})


def _behind_outputs(graph: Graph) -> frozenset[int]:
    """The numbers of the inputs from which outputs are computed."""
    waiting: list[Node] = [output.node for output in graph.outputs]
    seen = set(waiting)
    while waiting:
        fresh = [operand for operand in waiting.pop().inputs if operand not in seen]
        seen.update(fresh)
        waiting += fresh
    return frozenset(number for number, node in enumerate(graph.inputs) if node in seen)


def _may(item: Item, values: Sequence[Value], target: int, value: int, known: dict[Key, Overwritable]) -> bool:
    """Whether the kernel that computes ``value`` may put it where the input ``target`` lies; ``known`` is what was
    asked of kernels before.
    """
    own, output = values[target], values[value]
    if not isinstance(item, RunKernel) or output.place not in ("fresh", "arena") or output.dtype is not own.dtype:
        return False
    if (output.sizes, output.strides) != (own.sizes, own.strides):
        return False
    if own.last > output.first or own.device != item.device:
        return False
    names = {number: buffer.name for buffer, number in zip(item.kernel.buffers, item.buffers, strict=True)}
    if target not in names:
        return True
    key = key_of(item.kernel)
    if key not in known:
        known[key] = overwritable(item.kernel)
    return names[target] in known[key].get(names[value], ())


def _root(values: Sequence[Value], number: int) -> int:
    while values[number].base >= 0:
        number = values[number].base
    return number


def _cannot_fail(item: Item, targets: Targets, bound: frozenset[Symbol]) -> bool:
    if not isinstance(item, RunKernel) or any(bound & number.symbols for number in (*item.numbers, item.extent)):
        return False
    target = targets(item.device)
    silent = target is not None and not target.reports
    return silent or not any(isinstance(each, Check) for each in statements(item.kernel.body))
