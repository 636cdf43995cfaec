"""Gives the sizes of tensors to the program as run-time numbers, each with the symbol that stands for it."""

from __future__ import annotations

from typing import Protocol

import torch

from framefuse.capture.facts.numbers import integer
from framefuse.capture.facts.relations import Relations
from framefuse.capture.recording.tensors import Entrance, stands_for_another
from framefuse.ir.numbers import Symbol


class Host(Protocol):
    """What this needs of the recorder: the numbers of its values, and whether a transform is under way."""

    inputs: dict[int, Entrance]
    relations: Relations

    @property
    def transformed(self) -> object: ...
    def number(self, tensor: torch.Tensor) -> int | None: ...
    def fault(self, error: Exception) -> None: ...


class Sizes:
    """The symbols of the sizes that may be others at the next call.

    ``symbols`` maps a value of the trace and a dimension to its symbol, ``from_data`` holds the values whose sizes may
    come from elements, ``counting`` those among them whose first size alone does: results of calls that count.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.symbols: dict[tuple[int, int], Symbol] = {}
        self.from_data: set[int] = set()
        self.counting: set[int] = set()

    def of(self, tensor: torch.Tensor) -> torch.Size:
        """All sizes of a tensor."""
        try:
            with torch._C.DisableTorchFunction():
                shape = tensor.shape
                number = self._number(tensor)
            if number is None:
                return shape
            return torch.Size([self._size(number, dim, size) for dim, size in enumerate(shape)])
        except Exception as fault:
            self.host.fault(fault)
            return tensor.shape

    def at(self, tensor: torch.Tensor, dim: int) -> int:
        """One size of a tensor."""
        try:
            with torch._C.DisableTorchFunction():
                value = tensor.size(dim)
                number = self._number(tensor)
                return value if number is None else self._size(number, dim % tensor.ndim, value)
        except Exception as fault:
            self.host.fault(fault)
            return tensor.size(dim)

    def _number(self, tensor: torch.Tensor) -> int | None:
        """The value of the trace that a tensor is; None for a level of a function transform, where sizes are fixed."""
        if self.host.transformed is not None and stands_for_another(tensor):
            return None
        return self.host.number(tensor)

    def _size(self, number: int, dim: int, value: int) -> int:
        relations = self.host.relations
        symbol = self.symbols.get((number, dim))
        if symbol is None:
            data = number in self.from_data
            if number in self.host.inputs or not (data or relations.hints):
                return value
            symbol = self.symbols[number, dim] = relations.new_symbol("v", value)
            if data:
                relations.data_symbols.add(symbol)
                if dim or number not in self.counting:
                    relations.unclear_symbols.add(symbol)
        return integer(value, symbol.expr, relations)
