"""Takes function modes off torch's stack and puts them back, also from below others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def outside_modes() -> Iterator[None]:
    """Takes all of torch's function modes off the stack: what is the compiler's own runs under none."""
    stack = tuple(torch.overrides._get_current_function_mode_stack())
    replace(stack, ())
    try:
        yield
    finally:
        replace((), stack)


@contextmanager
def unrecorded(mode: TorchFunctionMode) -> Iterator[None]:
    """Takes ``mode`` off the stack of torch's function modes; those above it stay."""
    above = modes_above(mode)
    if above is None:
        yield
        return
    replace((mode, *above), above)
    try:
        yield
    finally:
        replace(above, (mode, *above))


def modes_above(mode: TorchFunctionMode) -> tuple[TorchFunctionMode, ...] | None:
    """The active modes that were entered after ``mode``; None while it is not active."""
    stack = torch.overrides._get_current_function_mode_stack()
    return tuple(stack[stack.index(mode) + 1 :]) if mode in stack else None


def replace(top: tuple[TorchFunctionMode, ...], other: tuple[TorchFunctionMode, ...]) -> None:
    """Puts ``other`` in the place of the modes at the top of the stack."""
    for _ in top:
        torch.overrides._pop_mode()
    for mode in other:
        torch.overrides._push_mode(mode)
