"""Says what the arguments of a torch call are in the trace: values of it, run-time numbers, and what never changes."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

import torch

from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.facts.contents import Contents
from framefuse.capture.facts.numbers import Float, Integer, form_of
from framefuse.capture.facts.sources import Sources
from framefuse.capture.facts.texts import Text
from framefuse.capture.recording.waits import Waits
from framefuse.ir.containers import elements
from framefuse.ir.numpy_numbers import is_numpy_number
from framefuse.ir.own_class import is_a
from framefuse.ir.trace import Ref
from framefuse.ir.values import Arguments, Keywords, Value

PLAIN_ARGUMENTS = ATOMS | {torch.device}
ODD = ("bool", "bool_")  # NumPy's truth, beside which torch makes ints to floats


class Host(Protocol):
    """What is asked of the recorder."""

    sources: Sources
    contents: Contents
    waits: Waits

    def number(self, tensor: torch.Tensor) -> int | None: ...

    def kill(self, code: str, detail: str) -> None: ...

    def fault(self, error: Exception) -> None: ...


class CallArguments:
    """The arguments of one call after the other. ``has_numbers``: among the last call's are run-time numbers."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.has_numbers = False
        self._operands: list[torch.Tensor] = []

    def of_call(
        self, args: Arguments, kwargs: Keywords
    ) -> tuple[tuple[object, ...], dict[str, object], list[torch.Tensor]]:
        """Both kinds of arguments, and the tensors among them in order."""
        self._operands, self.has_numbers = [], False
        recorded = tuple([self.of(value) for value in args])
        named = {key: self.of(value) for key, value in kwargs.items()} if kwargs else {}
        operands, self._operands = self._operands, []
        return recorded, named, operands

    def of(self, value: Value) -> object:
        """An argument of a torch call as the trace holds it."""
        try:
            kind = type(value)
            if kind in PLAIN_ARGUMENTS:
                return value
            if is_a(value, torch.Tensor):
                number = self.host.number(value)
                self._operands.append(value)
                if number in self.host.waits.pending:
                    self.host.waits.read(number)
                return Ref(number) if number is not None else None
            if kind is Integer or kind is Float:
                self.has_numbers = True
                return form_of(value)
            if kind is Text:
                self.has_numbers = True
                return value.plain()
            if kind is tuple or kind is torch.Size:
                return tuple([self.of(part) for part in self.parts(value)])
            if kind is list:
                return [self.of(part) for part in self.parts(value)]
            if kind is dict:
                self.host.contents.guard_extent(value)
                return {key: self.of(self.host.contents.item(value, key, part)) for key, part in value.items()}
            if kind is slice:
                return slice(self.of(value.start), self.of(value.stop), self.of(value.step))
            if is_a(value, tuple):
                return tuple([self.of(part) for part in self.parts(value)])
            if is_a(value, (type, range)):
                return value
            if is_a(value, torch.Generator) and self.host.sources.source_of(value) is not None:
                return self.host.sources.source_of(value)  # read again at each call
            if is_a(value, enum.Enum) and is_a(value, (int, float)):  # a member's number never changes
                return int.__int__(value) if is_a(value, int) else float.__float__(value)
            if is_numpy_number(value) and kind.__name__ not in ODD and self.host.sources.is_fixed_number(value):
                return value.item()  # torch takes it for that number
            code = "numpy" if kind.__module__ == "numpy" else "native-call"
            self.host.kill(code, f"A torch call on a {kind.__name__}")
            return None
        except Exception as fault:
            self.host.fault(fault)
            return None

    def parts(self, values: Value) -> Sequence[Value]:
        """The elements of a sequence as they are known."""
        if not self.host.sources.knows(values):
            return values if type(values) in (tuple, list) else elements(values)
        self.host.contents.guard_length(values)
        return [self.host.contents.item(values, number, part) for number, part in enumerate(elements(values))]
