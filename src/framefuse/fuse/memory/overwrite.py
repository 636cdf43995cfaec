"""Turns writes to inputs that the last kernels compute into kernels that work in the inputs' own memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from framefuse.fuse.memory.draft import Draft, Value
from framefuse.fuse.memory.in_place import Overwritable, overwritable
from framefuse.fuse.memory.own_calls import own_call, seen
from framefuse.fuse.memory.part_loads import region, spares, through
from framefuse.fuse.setting import Setting
from framefuse.ir.graph import Graph, Node
from framefuse.ir.loops import Check
from framefuse.ir.loops.key import Key, key_of
from framefuse.ir.loops.walk import statements
from framefuse.ir.numbers import Symbol
from framefuse.ir.schedule import Commit, Item, RunCall, RunKernel
from framefuse.ir.target import Targets


@dataclass(frozen=True, slots=True)
class Overwriting:
    """The ``writes`` of a draft that kernels do, by number, those that ``calls`` do, and those that calls do
    which have ``counted`` them, with the items and buffers; ``first`` is the first of the kernels.
    """

    writes: frozenset[int]
    calls: frozenset[int]
    counted: frozenset[int]
    items: tuple[Item, ...]
    values: tuple[Value, ...]
    first: int


def with_overwrites(draft: Draft, setting: Setting) -> Draft:
    """The draft in which the last kernels write inputs in place, behind a Commit; the other writes stay copies. Of what
    calls write, the count of writes is left.
    """
    done = overwriting(draft, setting)
    if not (done.writes or done.calls or done.counted):
        return draft
    left, owned = [], []
    for number, (target, value, bumps) in enumerate(draft.writes):
        if number in done.writes:
            owned.append((_root(draft.values, target), bumps))
        elif number not in done.counted:
            left.append((target, target if number in done.calls else value, bumps))
    before = {done.first: Commit(tuple(owned))} if owned else {}
    return replace(draft, items=done.items, values=done.values, writes=tuple(left), before=before)


def overwriting(draft: Draft, setting: Setting) -> Overwriting:
    """The writes to inputs, or to parts of them, that the last kernels may do in place.

    A kernel may write an input where nothing reads the old contents later and no call learns that something after it
    failed: the program could not run again on what is half written. Guards hold that written inputs share no memory
    with others. What a call was given it may have kept, so that such an input is left alone, as is one from which an
    output is computed that autograd learns of: it may be saved as it was. Late calls that make views cannot fail.
    """
    graph, items, writes = draft.graph, list(draft.items), draft.writes
    if not writes or any(late.name == "copy_" for late in graph.late):
        return Overwriting(frozenset(), frozenset(), frozenset(), draft.items, draft.values, 0)
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
    done: dict[int, int] = {}  # by number of a write: the item that does it
    called, counted = set[int](), set[int]()
    asked: dict[Key, Overwritable] = {}
    for number, (target, value, _) in enumerate(writes):
        place, own = values[value].first, _root(values, target)
        if values[own].input in watched or value in taken:
            continue
        call = own_call(items, values, writes[number], place + 1 >= start)
        if call is not None:
            items[place] = call
            values[value] = _placed(values[value], values[target], target)
            if place + 1 >= start:
                counted.add(number)
            else:
                called.add(number)
                values.append(seen(values[target], target).living(place, place, False))
            continue
        if own in given or place < start:
            continue
        item = items[place] if own == target else _through(items, values, place, target, value)
        if item is None or not _may(item, values, target, value, asked):
            continue
        items[place] = item
        values[value] = _placed(values[value], values[target], target)
        values[own] = values[own].living(values[own].first, max(values[own].last, place), values[own].pinned)
        done[number] = place
    first = min(done.values(), default=0)
    return Overwriting(frozenset(done), frozenset(called), frozenset(counted), tuple(items), tuple(values), first)


def _placed(value: Value, target: Value, number: int) -> Value:
    """The buffer in the memory of a target, which is an input or a view of one."""
    return replace(value, place=target.place, input=target.input, base=target.base, offset=target.offset, taken=number)


def _through(items: Sequence[Item], values: Sequence[Value], place: int, target: int, value: int) -> Item | None:
    """The kernel at a place, if it may write the part ``target`` of an input, reading what it writes over from there;
    None where old contents of the part are read later.
    """
    item, where = items[place], region(values, target)
    if not isinstance(item, RunKernel) or not all(spares(later, where) for later in items[place + 1 :]):
        return None
    return through(item, where, value)


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
    if (own.base < 0 and own.last > output.first) or own.device != item.device:
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
