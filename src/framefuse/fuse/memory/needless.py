"""Leaves out the kernels that would copy an input onto itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from framefuse.fuse.memory.draft import Draft, Value
from framefuse.ir.loops import Index, Let, Load, Loop, Store
from framefuse.ir.loops.walk import statements
from framefuse.ir.schedule import RunKernel


def without_needless(draft: Draft) -> Draft:
    """The draft that names these kernels."""
    idle = (n for n, item in enumerate(draft.items) if isinstance(item, RunKernel) and _stays(item, draft.values))
    needless = frozenset(idle)
    return replace(draft, needless=needless) if needless else draft


def _stays(item: RunKernel, values: Sequence[Value]) -> bool:
    names = {buffer.name: number for buffer, number in zip(item.kernel.buffers, item.buffers, strict=True)}
    moves = [each for each in statements(item.kernel.body) if not isinstance(each, Loop)]
    store = moves[-1] if moves else None
    if not isinstance(store, Store) or not isinstance(store.value, Load) or store.value.mask is not None:
        return False
    only = all(isinstance(each, Let) and isinstance(each.value, Index) for each in moves[:-1])
    written = values[names[store.buffer]]
    same = written.place == "input" and written.taken == names[store.value.buffer]
    return only and same and store.index == store.value.index
