"""Lets a call that writes a copy of its operand write the operand itself, where nothing reads that any more."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from framefuse.fuse.memory.draft import Draft, Value
from framefuse.ir.graph import Arg, Node
from framefuse.ir.schedule import Item, RunCall

EMPTY = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted")


def with_own_operands(draft: Draft) -> Draft:
    """The draft whose calls copy no operand that was computed for them alone: it is a tensor of its own, and what the
    call gives is the same tensor. What another call was given may be kept by it.
    """
    items, values = list(draft.items), list(draft.values)
    calls = [item for item in items if isinstance(item, RunCall)]
    given = Counter(_root(values, number) for item in calls for number in item.operands)
    for place, item in enumerate(items):
        written = getattr(item.node.attr("target"), "places", None) if isinstance(item, RunCall) else None
        if not written or not isinstance(item, RunCall):
            continue
        alone = []
        for argument in written:
            number = _operand(item, argument)
            if number < 0 or given[number] > 1 or not _ends(draft, values[number], number, place):
                continue
            if is_given_again(item, number):
                continue
            alone.append(argument)
            if values[number].place == "arena":
                values[number] = replace(values[number], place="fresh")
        if alone:
            items[place] = replace(item, node=_sparing(item.node, tuple(alone)))
    return draft if items == list(draft.items) else replace(draft, items=tuple(items), values=tuple(values))


def _operand(item: RunCall, argument: int | str) -> int:
    """The buffer of an argument; -1 where that is no operand."""
    attribute = "kwargs" if isinstance(argument, str) else "args"
    value = item.node.attr(attribute)[argument]
    return item.operands[value.index] if isinstance(value, Arg) else -1


def is_given_again(item: RunCall, number: int) -> bool:
    """Whether a call has a buffer as more than one argument: what it writes there, it would read as written."""
    waiting: list[object] = [*item.node.attr("args"), *item.node.attr("kwargs").values()]
    count = 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, Arg):
            count += item.operands[value.index] == number
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (tuple, list)):
            waiting += value
    return count > 1


def _root(values: list[Value], number: int) -> int:
    while values[number].base >= 0:
        number = values[number].base
    return number


def _ends(draft: Draft, value: Value, number: int, place: int) -> bool:
    """Whether a buffer holds what a kernel, or such a call, computed for this item alone, or what nobody filled yet."""
    if value.last != place or value.pinned or value.base >= 0:
        return False
    maker: Item | None = draft.items[value.first] if value.place == "call" else None
    if isinstance(maker, RunCall) and maker.node.attr("name") in EMPTY:
        return True
    if value.device != "cpu":
        return False
    if value.place == "call":
        return isinstance(maker, RunCall) and _is_copy(maker, number)
    return value.place in ("arena", "fresh")


def _is_copy(maker: RunCall, number: int) -> bool:
    """Whether a buffer is what a call wrote on a copy."""
    paths = [path for path, out in maker.outs if out == number]
    target = maker.node.attr("target")
    return bool(getattr(target, "places", ())) and not target.commits and all(path[0] > 0 for path in paths)


def _sparing(node: Node, alone: tuple[int | str, ...]) -> Node:
    attrs = tuple((name, replace(value, spared=alone) if name == "target" else value) for name, value in node.attrs)
    return replace(node, attrs=attrs)
