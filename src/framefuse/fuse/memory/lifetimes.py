"""Turns a draft into a schedule: allocations before the first use of fresh buffers, releases after the last."""

from __future__ import annotations

from framefuse.fuse.memory.draft import Draft
from framefuse.ir.schedule import Allocate, Item, Memory, Release, Schedule


def with_lifetimes(draft: Draft) -> Schedule:
    """The schedule of a draft that has places."""
    assert draft.arena is not None
    memories = tuple(
        Memory(v.place, v.dtype, v.sizes, v.strides, v.device, v.input, v.base, v.offset) for v in draft.values
    )
    return Schedule(
        draft.graph, memories, _items(draft), draft.outputs, draft.arena, draft.writes, draft.notes,
        (*draft.graph.sizes, *draft.largest), draft.arenas, draft.offers,
    )  # fmt: skip


def _items(draft: Draft) -> tuple[Item, ...]:
    """The items with an allocation before the first use of each fresh buffer and releases after the last use of fresh
    buffers, call results and the inputs that the graph consumes. No allocation follows what stands before an item.
    """
    consumed = draft.graph.consumed
    latest = min(draft.before, default=len(draft.items))
    items: list[Item] = []
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for number, value in enumerate(draft.values):
        if value.place == "fresh":
            starts.setdefault(min(max(value.first, 0), latest), []).append(number)
        ends_here = value.place in ("fresh", "call") or (value.place == "input" and value.input in consumed)
        if ends_here and not value.pinned and value.last >= 0:
            ends.setdefault(value.last, []).append(number)
    for position, item in enumerate(draft.items):
        items.extend(Allocate(number) for number in starts.get(position, ()))
        if position in draft.before:
            items.append(draft.before[position])
        if position not in draft.needless:
            items.append(item)
        if position in ends:
            items.append(Release(tuple(ends[position])))
    return tuple(items)
