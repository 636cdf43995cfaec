"""Lets kernels write what they compute into memory that they are the last to read."""

from __future__ import annotations

from dataclasses import replace

from framefuse.fuse.memory.draft import Draft
from framefuse.fuse.memory.in_place import in_place, overwritable
from framefuse.ir.loops import Kernel
from framefuse.ir.loops.key import Key, key_of, with_lines
from framefuse.ir.schedule import Item, RunKernel

Told = tuple[Key, tuple[tuple[str, str], ...]]  # a kernel, and its written buffers with the read ones that they are


def with_offers(draft: Draft) -> Draft:
    """The draft in which written buffers are offered the memory of read ones that end there, where that is possible for
    every call of an equal kernel: a kernel that writes in place is another kernel, to be compiled once more.
    """
    values = list(draft.values)
    calls: dict[Key, list[RunKernel]] = {}
    offers: dict[Key, set[tuple[str, str, str]]] = {}
    for place, item in enumerate(draft.items):
        if not isinstance(item, RunKernel):
            continue
        named = list(zip(item.kernel.buffers, item.buffers, strict=True))
        starting = [(b.name, values[n]) for b, n in named if b.written and draft.may_take(n, place)]
        read = [(b.name, values[n]) for b, n in named if not b.written and values[n].place == "arena"]
        pairs = {
            (name, other, value.place)
            for name, value in starting
            for other, source in read
            if source.last == place and value.bytes is source.bytes
        }
        key = key_of(item.kernel)
        offers[key] = offers.get(key, pairs) & pairs
        calls.setdefault(key, []).append(item)
    for key, pairs in offers.items():
        allowed = overwritable(calls[key][0].kernel) if pairs else {}
        for name, other, _ in sorted(pairs):
            if other in allowed.get(name, ()):
                for item in calls[key]:
                    names = {b.name: n for b, n in zip(item.kernel.buffers, item.buffers, strict=True)}
                    number = names[name]
                    values[number] = replace(values[number], over=(*values[number].over, names[other]))
    offering = tuple(values)
    return draft if offering == draft.values else replace(draft, values=offering)


def with_aliases(draft: Draft) -> Draft:
    """The draft whose kernels know which of their buffers are one memory."""
    aliased: dict[Told, Kernel] = {}
    items = tuple(_aliased(item, draft, aliased) for item in draft.items)
    return replace(draft, items=items) if any(a is not b for a, b in zip(items, draft.items, strict=True)) else draft


def _aliased(item: Item, draft: Draft, aliased: dict[Told, Kernel]) -> Item:
    """The item whose kernel knows them; ``aliased`` holds the kernels made so far."""
    if not isinstance(item, RunKernel):
        return item
    names = {number: buffer.name for buffer, number in zip(item.kernel.buffers, item.buffers, strict=True)}
    pairs = {
        buffer.name: names[draft.values[number].taken]
        for buffer, number in zip(item.kernel.buffers, item.buffers, strict=True)
        if buffer.written and draft.values[number].taken in names
    }
    if not pairs:
        return item
    key = key_of(item.kernel), tuple(pairs.items())
    if key not in aliased:
        aliased[key] = in_place(item.kernel, pairs)
    return replace(item, kernel=with_lines(aliased[key], item.kernel.lines))
