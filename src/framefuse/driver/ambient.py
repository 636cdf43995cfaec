"""Gives another thread the state of torch under which a trace was recorded: much of it is a thread's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch

from framefuse import _native
from framefuse.capture.recording.state import autocast_of, global_state
from framefuse.ir.facts import GlobalState


@contextmanager
def as_recorded(state: GlobalState, device: int | None) -> Iterator[bool]:
    """Sets the state in this thread, and CUDA's current ``device``, if there is one. Gives False where the state is
    another one all the same, as when the program has changed the default dtype since. Function modes are not entered:
    what is compiled is so outside of them.
    """
    with ExitStack() as stack:
        stack.callback(_native.bypass, _native.bypass(True))
        stack.enter_context(torch.inference_mode(state.inference_mode))
        stack.enter_context(torch.set_grad_enabled(state.grad_enabled))
        if device is not None:
            stack.enter_context(torch.cuda.device(device))
        for kind, on, dtype in state.autocast:
            stack.callback(_set_autocast, kind, *autocast_of(kind))
            _set_autocast(kind, on, getattr(torch, dtype))
        here = global_state()
        yield replace(here, function_modes=state.function_modes, default_device=state.default_device) == state


def _set_autocast(kind: str, on: bool, dtype: torch.dtype) -> None:
    torch.set_autocast_enabled(kind, on)
    torch.set_autocast_dtype(kind, dtype)
