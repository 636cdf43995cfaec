"""Finds the kernels that can follow the parts of a convolution's result, element by element, while these are near."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from framefuse.aot.own_code import Convolution, read
from framefuse.aot.own_views import root_of
from framefuse.ir.loops import Kernel
from framefuse.ir.loops.nodes import Index, Let, Load, Loop, Store
from framefuse.ir.loops.walk import operands, statements, values
from framefuse.ir.plan import AllocStep, CallStep, KernelStep, MatmulStep, Plan, ReleaseStep, Slot, Step, Template


@dataclass(frozen=True, slots=True)
class Tail:
    """The kernel step number ``step`` behind a convolution, whose result is ``input``. What it makes, ``out``, lies in
    the memory of that, which is given back behind the step number ``last``. It may lie in no other operand's: the
    convolution may read that one until its last row, and where it is computed once more, the kernel begins anew.
    """

    step: int
    input: int
    out: int
    last: int


def tails(plan: Plan, kernels: dict[int, Kernel], leaving: frozenset[int]) -> dict[int, Tail]:
    """The tails by the numbers of the steps that convolve; ``leaving`` are the slots that results show."""
    found: dict[int, Tail] = {}
    roots = {root_of(plan, slot) for slot in leaving if slot >= 0}
    used = {place: {root_of(plan, slot) for slot in _slots(step)} for place, step in enumerate(plan.steps)}
    for place, step in enumerate(plan.steps):
        follower = place + 1
        while follower < len(plan.steps) and isinstance(plan.steps[follower], ReleaseStep):
            follower += 1
        behind = plan.steps[follower] if follower < len(plan.steps) else None
        if not isinstance(step, CallStep) or not isinstance(behind, KernelStep) or len(step.outs) != 1:
            continue
        called = read(plan, step)
        kernel = kernels[follower]
        if not isinstance(called, Convolution) or not is_flat(kernel) or behind.buffers.count(called.out) != 1:
            continue
        written = [number for number, buffer in enumerate(kernel.buffers) if buffer.written]
        if len(written) != 1 or called.out in roots or plan.slots[called.out].place != "call":
            continue
        out = behind.buffers[written[0]]
        readers = [number for number, slots in used.items() if called.out in slots]
        if plan.slots[out].place != "arena" or out in roots or readers != [place, follower]:
            continue
        users = [number for number, slots in used.items() if out in slots]
        if users[0] == follower and _lies_alike(plan.slots[out], plan.slots[called.out]):
            found[place] = Tail(follower, called.out, out, users[-1])
    return found


def _lies_alike(one: Slot, other: Slot) -> bool:
    return (one.dtype, one.sizes, one.strides) == (other.dtype, other.sizes, other.strides)


def within(kernel: Kernel, step: KernelStep, tail: Tail) -> Kernel:
    """The kernel whose result lies where a convolution's did."""
    read = kernel.buffers[step.buffers.index(tail.input)].name
    buffers = [replace(each, aliases=read if each.written else each.aliases) for each in kernel.buffers]
    return replace(kernel, buffers=tuple(buffers))


def is_flat(kernel: Kernel) -> bool:
    """Whether each turn of the kernel's one loop reads and writes the elements of its own number alone."""
    if len(kernel.body) != 1 or not isinstance(kernel.body[0], Loop) or not kernel.body[0].kind.parallel:
        return False
    loop, axis = kernel.body[0], kernel.body[0].axis.expr
    for statement in statements(loop.body):
        if not isinstance(statement, (Let, Store)) or (isinstance(statement, Store) and statement.index != axis):
            return False
        waiting = list(values(statement))
        while waiting:
            value = waiting.pop()
            if isinstance(value, Index) or (isinstance(value, Load) and value.index != axis):
                return False
            waiting += operands(value)
    return True


def _slots(step: Step) -> Iterator[int]:
    """The slots that a step reads or writes; what it gives back is none."""
    if isinstance(step, KernelStep):
        yield from step.buffers
    elif isinstance(step, MatmulStep):
        yield from (step.a, step.c, step.out)
    elif isinstance(step, AllocStep):
        yield step.slot
    elif isinstance(step, CallStep):
        yield from (slot for _, slot in step.outs)
        yield from _named((step.args, tuple(value for _, value in step.kwargs)))


def _named(template: Template | Any) -> Iterator[int]:
    if isinstance(template, tuple) and len(template) == 2 and template[0] == "tensor":
        yield template[1]
    elif isinstance(template, tuple):
        for part in template:
            yield from _named(part)
