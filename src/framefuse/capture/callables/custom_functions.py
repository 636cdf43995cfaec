"""Runs the forward of a custom autograd function in the interpreter. Where gradients are wanted torch makes the call of
this one run, around that: backward, now and in compiled code, is the user's own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from framefuse.capture.facts.nested_numbers import strip
from framefuse.capture.facts.numbers import TRACKED
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import special
from framefuse.capture.program.equivalents import CALLED
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.lookups import type_get
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.recording.tracked_calls import may_record, record
from framefuse.ir.values import Arguments, Keywords, Value


class Context:
    """What stands for ``ctx`` in forward: it takes what is saved and marked."""

    saved_tensors: tuple[torch.Tensor | None, ...] = ()
    dirty_tensors: tuple[torch.Tensor, ...] = ()
    constant_tensors: tuple[torch.Tensor, ...] = ()
    materialize = True

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: torch.Tensor) -> None:
        pass

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        self.dirty_tensors = tensors

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        self.constant_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize = value

    def attributes(self) -> dict[str, Value]:
        """What forward put there of its own."""
        own = ("needs_input_grad", "saved_tensors", "dirty_tensors", "constant_tensors", "materialize")
        return {name: value for name, value in vars(self).items() if name not in own}

    def hand_over(self, ctx: Value) -> None:
        """Leaves in torch's ``ctx`` what forward left here."""
        ctx.save_for_backward(*self.saved_tensors)
        ctx.mark_dirty(*self.dirty_tensors)
        ctx.mark_non_differentiable(*self.constant_tensors)
        ctx.set_materialize_grads(self.materialize)
        for name, value in self.attributes().items():
            setattr(ctx, name, strip(value) if _has_numbers(value) else value)


def _has_numbers(value: Value) -> bool:
    """Whether nested containers hold a run-time number, which torch is not to see."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return type(value) in TRACKED or any(map(_has_numbers, parts))


_OWN_APPLY: Value = vars(torch.autograd.Function)["apply"]  # a method of Python's, from torch 2.14 on one of C


@special(getattr(_OWN_APPLY, "__func__", _OWN_APPLY))
def _apply(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """``Function.apply``; MISSING where gradients may be wanted, which leaves the call to torch."""
    recorder, function = machine.recorder, args[0]
    if kwargs or not recorder.alive:
        return MISSING
    enabled, operands, breakable = torch.is_grad_enabled(), args[1:], machine.exits.breakable()
    tensors = [part for part in operands if isinstance(part, torch.Tensor)]
    if enabled and any(recorder.requires_grad(tensor) is not False for tensor in tensors):
        return _tracked(machine, frame, function, operands)
    recorder.gradients_matter = True
    recorder.sources.guard_version(function)
    context = Context((False,) * len(operands))
    torch._C._set_grad_enabled(False)  # as torch does while forward runs
    try:
        value = _forward(machine, function, context, operands)
    finally:
        torch._C._set_grad_enabled(enabled)
    for written in context.dirty_tensors:
        written.copy_(written)  # torch counts a write for the mark too
    if breakable and not recorder.alive:  # the next recording leaves the whole call to torch
        machine.exits.learn_step(frame, "custom-function", function.__qualname__)
    given = [_given(part, operands, context) for part in (value if isinstance(value, tuple) else (value,))]
    frame.stack.append(tuple(given) if isinstance(value, tuple) else given[0])
    return None


def _tracked(machine: Machine, frame: Frame, function: type[torch.autograd.Function], operands: Arguments) -> Outcome:
    """A call that wants gradients: torch makes it, and forward runs in the interpreter; MISSING where its results can
    be no part of a graph.
    """
    recorder, breakable = machine.recorder, machine.exits.breakable()
    if not recorder.alive or not may_record(recorder, function):
        return MISSING
    recorder.sources.guard_version(function)
    needs = tuple(isinstance(part, torch.Tensor) and part.requires_grad for part in operands)
    context, known = Context(needs), len(recorder.storages)
    raw: list[Value] = []

    def forward(ctx: Value, *_: Value) -> Value:
        value = _forward(machine, function, context, operands)
        context.hand_over(ctx)
        raw.extend(value if isinstance(value, tuple) else (value,))
        return strip(value)

    value = _stand_in(function, forward).apply(*strip(operands))
    results = value if isinstance(value, tuple) else (value,)
    recorded = recorder.alive and not context.dirty_tensors
    with torch._C.DisableTorchFunction():
        recorded = recorded and recorder.attempt(
            lambda: record(recorder, function, context, operands, raw, results, known), False
        )
    if not recorded or not recorder.alive:
        if breakable:  # the next recording leaves the whole call to torch
            machine.exits.learn_step(frame, "custom-function", function.__qualname__)
            recorder.end("custom-function", function.__qualname__)
        recorder.kill("custom-function", function.__qualname__)
    given = [part if isinstance(part, torch.Tensor) else own for part, own in zip(results, raw, strict=True)]
    frame.stack.append(tuple(given) if isinstance(value, tuple) else given[0])
    return None


def _stand_in(function: type[torch.autograd.Function], forward: Callable[..., Value]) -> type[torch.autograd.Function]:
    """A function with another forward, whose node is that of ``function``: torch makes it as if that were called."""
    base: Value = torch.autograd.Function
    stand_in: Value = type(base)(function.__name__, (base,), {"forward": staticmethod(forward)})
    stand_in._backward_cls = function._backward_cls
    return stand_in  # type: ignore[no-any-return]


def _forward(
    machine: Machine, function: type[torch.autograd.Function], context: Context, operands: tuple[Value, ...]
) -> Value:
    def run(name: str, *args: Value) -> Value:  # it may be a class method, or any object that can be called
        return machine.call_nested(CALLED, (getattr(function, name), *args))

    if type_get(function, "setup_context") is type_get(torch.autograd.Function, "setup_context"):
        return run("forward", context, *operands)
    value = run("forward", *operands)
    run("setup_context", context, operands, value)
    return value


def _given(part: Value, operands: tuple[Value, ...], context: Context) -> Value:
    """What torch returns for a result: a view of it where it is an operand that was not written."""
    is_operand = isinstance(part, torch.Tensor) and any(part is operand for operand in operands)
    return part.view_as(part) if is_operand and all(part is not dirty for dirty in context.dirty_tensors) else part
