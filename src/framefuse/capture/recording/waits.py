"""Knows what functional collectives fill, and records the wait for it before the first call that reads it."""

from __future__ import annotations

from typing import Protocol

import torch

from framefuse.capture.recording.state import casts_now
from framefuse.capture.recording.written_memory import WrittenMemory
from framefuse.ir.collectives import Waited
from framefuse.ir.source import Line
from framefuse.ir.trace import Call, Ref


class Host(Protocol):
    """What is asked of the recorder."""

    calls: list[Call]
    memory: WrittenMemory

    def line(self) -> Line | None: ...


class Waits:
    """The values that collectives under way fill, and whether the program has waited for each."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.pending: dict[int, bool] = {}
        self.filled: set[int] = set()
        self.given: dict[int, torch.Tensor] = {}

    def begin(self, number: int) -> None:
        """A collective that fills this value has started."""
        self.pending[number] = False

    def give(self, tensor: torch.Tensor) -> None:
        """The program gets a plain tensor where eager may give one that can be asked to wait."""
        self.given[id(tensor)] = tensor

    def knows(self, number: int | None) -> bool:
        """Whether a collective of this trace fills the value."""
        return number in self.pending or number in self.filled

    def ask(self, number: int) -> None:
        """The program waits for a value: so will the trace, before something reads it."""
        if number in self.pending:
            self.pending[number] = True

    def read(self, number: int) -> None:
        """A call is about to be recorded that reads the value."""
        if not self.pending[number]:
            return  # so does the program, before it is filled
        del self.pending[number]
        self.filled.add(number)
        self.host.memory.count((number,), False)
        grad, where = torch.is_grad_enabled(), self.host.line()
        self.host.calls.append(
            Call(Waited(), "wait_tensor", (Ref(number),), {}, None, where, (number,), False, grad, casts_now())
        )

    def forget(self) -> None:
        """The recording has ended: what the program was given has its methods still."""
        self.pending, self.filled = {}, set()

    def end(self) -> None:
        """The trace ends: what the program has waited for is there."""
        for number in list(self.pending):
            self.read(number)
