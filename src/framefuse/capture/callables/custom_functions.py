"""Runs the forward of a custom autograd function in the interpreter where no gradient can be wanted."""

from __future__ import annotations

import torch

from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import special
from framefuse.capture.program.equivalents import CALLED
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.lookups import type_get
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.ir.values import Arguments, Keywords, Value


class Context:
    """What stands for ``ctx``: it takes what forward saves and marks, which nobody reads without gradients."""

    saved_tensors: tuple[torch.Tensor, ...] = ()
    dirty_tensors: tuple[torch.Tensor, ...] = ()

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (False,) * count

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: torch.Tensor) -> None:
        pass

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        self.dirty_tensors = tensors

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        pass

    def set_materialize_grads(self, value: bool) -> None:
        pass


@special(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]
def _apply(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """``Function.apply``; MISSING where gradients may be wanted, which leaves the call to torch."""
    recorder, function = machine.recorder, args[0]
    if kwargs or not recorder.alive:
        return MISSING
    enabled, operands, breakable = torch.is_grad_enabled(), args[1:], machine.exits.breakable()
    tensors = [part for part in operands if isinstance(part, torch.Tensor)]
    if enabled and any(recorder.requires_grad(tensor) is not False for tensor in tensors):
        return MISSING
    recorder.gradients_matter = True
    recorder.sources.guard_version(function)
    context = Context(len(operands))
    torch._C._set_grad_enabled(False)  # as torch does while forward runs
    try:
        value = _forward(machine, function, context, operands)
    finally:
        torch._C._set_grad_enabled(enabled)
    if breakable and not recorder.alive:  # the next recording leaves the whole call to torch
        machine.exits.learn_step(frame, "custom-function", function.__qualname__)
    given = [_given(part, operands, context) for part in (value if isinstance(value, tuple) else (value,))]
    frame.stack.append(tuple(given) if isinstance(value, tuple) else given[0])
    return None


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
