"""Describes one program with its inputs, and collects those that the files of the levels declare."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Size = Callable[[int, int], int]  # of a number for a GPU and one for a CPU, the one that is asked for
Inputs = Callable[[Size], Sequence[Any]]
Written = TypeVar("Written", bound=Callable[..., Any])


@dataclass(frozen=True)
class Program:
    """A function or a module's class as it is written, and what makes its inputs; in ``dtype`` where it has one."""

    name: str
    level: int
    written: Callable[..., Any]
    inputs: Inputs
    dtype: torch.dtype | None = None

    def function(self, device: str, seed: int = 0) -> Callable[..., Any]:
        """The function, or a new module with weights of this seed."""
        if not isinstance(self.written, type):
            return self.written
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module: nn.Module = self.written().eval()
        return module.to(device, self.dtype)

    def arguments(self, device: str, seed: int) -> tuple[Any, ...]:
        """Inputs of this seed: large on a GPU."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            with torch.device(device):
                made = self.inputs(lambda large, small: small if device == "cpu" else large)
        return tuple(converted(one, self.dtype) for one in made)


def converted(value: Any, dtype: torch.dtype | None) -> Any:
    """A floating tensor in this dtype, anything else as it is."""
    return value.to(dtype) if dtype is not None and isinstance(value, Tensor) and value.is_floating_point() else value


PROGRAMS: list[Program] = []


def program(level: int, inputs: Inputs, also: torch.dtype | None = None) -> Callable[[Written], Written]:
    """Declares what it decorates as a program, in float32, and in another dtype too where one is named."""

    def declare(written: Written) -> Written:
        name = re.sub(r"_|(?<=[a-z0-9])(?=[A-Z])", " ", written.__name__).lower()
        PROGRAMS.append(Program(name, level, written, inputs))
        if also is not None:
            short = str(also).removeprefix("torch.")
            PROGRAMS.append(Program(f"{name} {short}", level, written, inputs, also))
        return written

    return declare


class Behind(nn.Module):
    """A layer and a parameter of what is behind it, which is the method of the programs below."""

    def __init__(self, layer: nn.Module, *shape: int) -> None:
        super().__init__()
        self.layer = layer
        self.bias = nn.Parameter(torch.randn(shape) * 0.1)
