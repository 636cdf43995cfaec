"""The signal by which the interpreter ends a recording in the middle of the program, with the step to run for real."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType

import torch

from framefuse.capture.program.frame import Frame, Pending
from framefuse.capture.program.markers import Outcome
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords

ASKING = (torch.autograd.grad, torch.Tensor.register_hook, torch.Tensor.retain_grad)
# Functions that branch as one of torch's asks them to: there also what is to be whole may be divided.
CONTROL: set[CodeType] = set()


class Break(BaseException):
    """Raised by an instruction that cannot be recorded, where all frames can be taken apart.

    ``target(*args, **kwargs)`` is the opaque step, None for a cut at which nothing runs; ``continuation`` says what the
    top frame does with its outcome (``Machine.finish``). ``code`` and ``detail`` name the row of the stops catalogue.
    """

    def __init__(
        self,
        target: Function | None,
        args: Arguments,
        kwargs: Keywords,
        continuation: Pending | None,
        code: str,
        detail: str,
    ) -> None:
        super().__init__(code)
        self.target = target
        self.args_of_target = args
        self.kwargs = kwargs
        self.continuation = continuation
        self.code = code
        self.detail = detail

    @property
    def asks(self) -> bool:
        """Whether the step asks for gradients of tensors that it names, or will be told them."""
        target = self.target
        while is_a(target, functools.partial):
            target = target.func
        plain = getattr(target, "__func__", target)
        if any(plain is each for each in ASKING):
            return True
        bound = is_a(getattr(target, "__self__", None), torch.Tensor)
        return bound and getattr(plain, "__name__", "") == "retain_grad"


def divides(target: Function) -> bool:
    """Whether a step divides also what is to be whole: a hook, and what torch has for control flow."""
    return target is torch.Tensor.register_hook or (
        type(target) is FunctionType and str(target.__globals__.get("__name__")).startswith("torch._higher_order_ops.")
    )


class Before:
    """What an instruction found: its handler, the frame with its stack, and how much was done and recorded."""

    __slots__ = ("argument", "done", "frame", "handler", "keywords", "stack", "step")

    def __init__(
        self, frame: Frame, handler: Callable[..., Outcome], argument: int, done: tuple[int, ...]
    ) -> None:
        self.frame, self.handler, self.argument = frame, handler, argument
        self.stack, self.keywords, self.step = frame.stack[:], frame.keywords, frame.step - 1
        self.done = done

    def restore(self) -> Frame:
        """Gives the frame its stack as it was before the instruction."""
        self.frame.stack[:], self.frame.keywords, self.frame.step = self.stack, self.keywords, self.step
        return self.frame
