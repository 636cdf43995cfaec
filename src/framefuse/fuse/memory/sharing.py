"""Turns kernels that differ in nothing but the length of their one loop into one kernel with the length as a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from framefuse.fuse import costs
from framefuse.fuse.memory.draft import Draft
from framefuse.ir.loops import Kernel, Loop, LoopKind, Number
from framefuse.ir.loops.key import Key, key_of, with_lines
from framefuse.ir.numbers import Symbol
from framefuse.ir.schedule import Item, RunKernel


def with_shared_kernels(draft: Draft) -> Draft:
    """The draft whose kernels take a length as a further number where that leaves fewer of them to compile."""
    items = tuple(share(draft.items))
    return replace(draft, items=items) if any(a is not b for a, b in zip(items, draft.items, strict=True)) else draft


def share(items: Sequence[Item]) -> list[Item]:
    """The items, some of them general."""
    general: dict[int, RunKernel] = {}
    lengths: dict[Key, set[object]] = {}
    general_form: dict[Key, Kernel | None] = {}
    same: dict[Key, Kernel] = {}  # equal keys that are one object are compared at once
    for place, item in enumerate(items):
        if not isinstance(item, RunKernel):
            continue
        key = key_of(item.kernel)
        if key not in general_form:
            generic = _general(item.kernel)
            general_form[key] = None if generic is None else same.setdefault(key_of(generic), generic)
        kernel = general_form[key]
        if kernel is not None:
            length = item.kernel.extent
            kernel = with_lines(kernel, item.kernel.lines)
            general[place] = replace(item, kernel=kernel, numbers=(*item.numbers, length))
            lengths.setdefault(key_of(kernel), set()).add(length)
    return [
        general[place] if place in general and len(lengths[key_of(general[place].kernel)]) > 1 else item
        for place, item in enumerate(items)
    ]


def _general(kernel: Kernel) -> Kernel | None:
    """The kernel with its loop's length as its last number, if it is one loop of a known length."""
    if len(kernel.body) != 1 or not isinstance(kernel.body[0], Loop):
        return None
    loop = kernel.body[0]
    if loop.kind is not LoopKind.PARALLEL_VECTOR or loop.extent.constant is None:
        return None
    if len(loop.body) > costs.SHARED_STATEMENTS:
        return None
    if any(isinstance(statement, Loop) for statement in loop.body) or kernel.extent is not loop.extent:
        return None
    length = Symbol(f"n{len(kernel.numbers)}")
    body = (replace(loop, extent=length.expr),)
    numbers = (*kernel.numbers, Number(length))
    return replace(kernel, numbers=numbers, body=body, extent=length.expr)
