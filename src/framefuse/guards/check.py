"""Executes a guard program in Python: the specification of native/guards.c, which also says what failed and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

import torch

from framefuse.guards.instructions import RULES, Failed, Run, Said
from framefuse.guards.source_nodes import MISSING
from framefuse.ir.default_device import default_device
from framefuse.ir.facts import GlobalState, Source
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.own_class import is_a
from framefuse.ir.plan import GuardProgram
from framefuse.ir.values import Arguments, Value


class Texts(Sequence[str]):
    """The explanations of a program's instructions, written when somebody reads them."""

    def __init__(self, reasons: Sequence[object]) -> None:
        self._reasons = reasons

    def reason(self, index: int) -> object:
        """What explains an instruction: a text, or a fact with its place and line."""
        return self._reasons[index]

    def __len__(self) -> int:
        return len(self._reasons)

    def __getitem__(self, index: Value) -> Value:
        return str(self._reasons[index])

    def __iter__(self) -> Iterator[str]:
        return map(str, self._reasons)


@dataclass(frozen=True, slots=True)
class Hit:
    """All held: what the registers hold (None where nothing was loaded) and the numbers as signed 64-bit words."""

    registers: Arguments
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Miss:
    """Instruction ``index`` failed (-1: the global state); ``str()`` gives ``name: was -> is``.

    ``source`` is the place that it looked at, where that is known, and ``reason`` what explains the instruction.
    """

    index: int
    name: str
    was: str
    now: str
    source: Source | None = None
    reason: object = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.name}: {self.was} -> {self.now}"


def check(program: GuardProgram, arguments: Sequence[Value]) -> Hit | Miss:
    """What :meth:`framefuse._native.GuardSet.check` finds, without its short cuts: every block is run."""
    different = state_difference(program.state)
    if different is not None:
        return different
    run = Run(program, arguments)
    for index, instruction in enumerate(program.instructions):
        if instruction[0] == "watch":
            continue
        try:
            RULES[instruction[0]](run, *instruction[1:])
        except Failed as failed:
            failed.__traceback__ = None  # a rule's frame holds the values, and the exception that it raised
            reason: object = program.texts.reason(index) if isinstance(program.texts, Texts) else program.texts[index]
            source = getattr(reason, "source", None)
            name = str(reason) if not failed.part else f"{source or reason}{failed.part}"
            return Miss(index, name, _short(failed.was), _short(failed.now), source, reason)
    return Hit(tuple(run.registers), tuple(run.numbers))


def explain(program: GuardProgram, arguments: Sequence[Value]) -> str | None:
    """Why the program misses on these bound arguments, as ``name: was -> is``; None when it hits."""
    answer = check(program, arguments)
    return str(answer) if isinstance(answer, Miss) else None


def state_difference(state: GlobalState | None) -> Miss | None:
    """The first part of torch's state that is not as recorded."""
    if state is None:
        return None
    now = current_state(state)
    for name in (
        "grad_enabled",
        "inference_mode",
        "autocast",
        "default_dtype",
        "deterministic",
        "function_modes",
        "default_device",
        "dispatch_keys",
    ):
        was, here = getattr(state, name), now[name]
        if was != here:
            return Miss(-1, f"torch's {name.replace('_', ' ')}", _short(was), _short(here))
    if torch.autograd.forward_ad._current_level != -1:
        return Miss(-1, "torch's forward-mode level", "-1", str(torch.autograd.forward_ad._current_level))
    return None


def current_state(like: GlobalState) -> dict[str, object]:
    """Torch's state now, for the device types that ``like`` names; the dtype of autocast counts only where it is on."""
    casts = []
    for kind, was_on, was_dtype in like.autocast:
        on = torch.is_autocast_enabled(kind)
        dtype = _plain(torch.get_autocast_dtype(kind), was_dtype) if on or was_on else was_dtype
        casts.append((kind, on, dtype))
    return {
        "grad_enabled": torch.is_grad_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
        "autocast": tuple(casts),
        "default_dtype": _plain(torch.get_default_dtype(), like.default_dtype),
        "deterministic": torch._C._get_deterministic_algorithms(),
        "function_modes": torch._C._len_torch_function_stack(),
        "default_device": default_device(),
        "dispatch_keys": (
            int(torch._C._dispatch_tls_local_include_set().raw_repr()),
            int(torch._C._dispatch_tls_local_exclude_set().raw_repr()),
        ),
    }


def _plain(dtype: torch.dtype, like: str) -> str:
    return str(dtype) if like.startswith("torch.") else str(dtype).removeprefix("torch.")


def _short(value: Value) -> str:
    if value is MISSING:
        return "nothing"
    if is_a(value, Said):
        return value
    if is_a(value, type):
        return value.__name__
    if is_a(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    text = repr(value)
    return text if len(text) < 80 else f"{type(value).__name__} object"
