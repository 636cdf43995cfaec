"""Knows what collectives under way fill, and records how the program waits for it: for functional ones before the first
call that reads it, for others where it does.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist

from framefuse.capture.recording.state import casts_now
from framefuse.capture.recording.written_memory import WrittenMemory
from framefuse.ir.collectives import Committing, Waited
from framefuse.ir.facts import Source
from framefuse.ir.source import Line
from framefuse.ir.trace import Call, Ref


class Host(Protocol):
    """What is asked of the recorder."""

    alive: bool
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
        self.works: dict[int, tuple[dist.Work, tuple[Ref, ...]]] = {}  # not functional ones, with what they fill

    def start(self, work: dist.Work, filled: tuple[Ref, ...]) -> None:
        """A collective has started that the program asks itself to wait."""
        self.works[id(work)] = (work, filled)

    def finish(self, work: dist.Work, target: Committing) -> None:
        """The program has waited for one that started, as ``target`` does."""
        _, refs = self.works.pop(id(work))
        self.filling(target, "wait", refs, {}, tuple(ref.value for ref in refs))

    def filling(
        self,
        target: Committing,
        name: str,
        refs: tuple[Ref, ...],
        kwargs: dict[str, Source],
        filled: tuple[int, ...],
    ) -> None:
        """Records a call after which values are other ones."""
        if filled:
            self.host.memory.count(filled, target.counts > 0)
        if self.host.alive:
            casts, grad = casts_now(), torch.is_grad_enabled()
            call = Call(target, name, refs, kwargs, None, self.host.line(), filled, False, grad, casts)
            self.host.calls.append(call)

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
        self.filling(Waited(), "wait_tensor", (Ref(number),), {}, (number,))

    def forget(self) -> None:
        """The recording has ended: what the program was given has its methods still."""
        self.pending, self.filled, self.works = {}, set(), {}

    def end(self) -> None:
        """The trace ends: what the program has waited for is there."""
        for number in list(self.pending):
            self.read(number)
