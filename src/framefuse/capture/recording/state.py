"""Reads torch's global state, and refuses the states in which nothing is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from framefuse.ir.default_device import default_device, device_of_mode
from framefuse.ir.facts import Casts, GlobalState
from framefuse.ir.values import Value

GUARDED = ("cpu", "cuda")  # whether autocast is on for these is part of the state to which every trace is bound


@dataclass(slots=True)
class InferenceStretch:
    """What a recording made in inference mode (or, in a context of ``mode=False``, where gradients are on): calls and
    values from these numbers on, up to the ends. ``nested``: it was entered where inference mode was on.
    """

    context: Value
    mode: bool
    nested: bool
    calls: int
    values: int
    calls_end: int = 0
    values_end: int = 0
    open: bool = True


@dataclass(slots=True)
class FilterStretch:
    """What a recording does between the ends of a ``catch_warnings``: the filters that it put before all others."""

    context: Value
    added: list[tuple[Value, ...]]
    open: bool = True


@dataclass(slots=True)
class Kernels:
    """Which kernels of attention torch was to take, and in which order, before a recording said otherwise."""

    allowed: dict[str, bool] = field(default_factory=dict)
    order: tuple[int, ...] | None = None


class Ambient:
    """Autocast as a segment found it: by device type whether it is on and its dtype; ``nested`` counts the contexts
    that it entered and did not leave. ``inference`` are its stretches in inference mode, ``kernels`` the choice of
    kernels of attention that it changed, as it found that, ``filters`` its stretches under filters of its own.
    """

    def __init__(self) -> None:
        self.rows = {kind: autocast_of(kind) for kind in GUARDED}
        self.cache = torch.is_autocast_cache_enabled()
        self.nested = 0
        self.inference: list[InferenceStretch] = []
        self.kernels = Kernels()
        self.filters: list[FilterStretch] = []

    def row(self, kind: str) -> tuple[bool, torch.dtype]:
        """The state of a device type, as it was before anything here changed it."""
        row = self.rows.get(kind)
        if row is None:
            row = self.rows[kind] = autocast_of(kind)
        return row


def autocast_of(kind: str) -> tuple[bool, torch.dtype]:
    """Whether autocast is on for a device type now, and its dtype."""
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


def _mode_name(value: Value) -> str:
    return str(value).removeprefix("torch.")


def autocast_state() -> tuple[tuple[str, bool, str], ...]:
    """Device, whether autocast is on for it, and its dtype."""
    return tuple(
        (kind, torch.is_autocast_enabled(kind), _mode_name(torch.get_autocast_dtype(kind))) for kind in GUARDED
    )


def casts_now() -> Casts:
    """For which device types autocast is on, with its dtype."""
    active = [kind for kind in GUARDED if torch.is_autocast_enabled(kind)]
    return tuple([(kind, _mode_name(torch.get_autocast_dtype(kind))) for kind in active]) if active else ()


def global_state() -> GlobalState:
    """The state that a trace is bound to, read outside the recorder's own mode."""
    return GlobalState(
        grad_enabled=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(),
        autocast=autocast_state(),
        default_dtype=_mode_name(torch.get_default_dtype()),
        default_device=default_device(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        function_modes=torch._C._len_torch_function_stack(),
        dispatch_keys=(
            int(torch._C._dispatch_tls_local_include_set().raw_repr()),
            int(torch._C._dispatch_tls_local_exclude_set().raw_repr()),
        ),
    )


def refusal() -> str | None:
    """The name of an active mode of torch under which calls are not recorded."""
    device = device_of_mode()
    if torch._C._len_torch_function_stack() > (device is not None):
        return "A torch function mode"
    if device is not None and device.type == "meta":
        return "A default device without memory"
    if torch._C._len_torch_dispatch_stack():
        return "A torch dispatch mode"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "A function transform (vmap, grad)"
    if torch.autograd.forward_ad._current_level >= 0:
        return "Forward-mode differentiation"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace"
    if not torch._C._is_torch_function_enabled():
        return "DisableTorchFunction"
    return None
