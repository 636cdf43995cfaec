"""Runs a call that gives numbers beside tensors so that all of its results are tensors, in which a plan holds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from framefuse.ir.values import Value

MARK = "_framefuse_number"  # an attribute of a tensor that stands for a number: the number's type


@dataclass(frozen=True, slots=True)
class WithNumbers:
    """Gives what ``target`` gives, with a tensor of the CPU of one element, int64 or float64, for each number."""

    target: Callable[..., Value]

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        return _in_tensors(self.target(*args, **kwargs))

    @property
    def __name__(self) -> str:
        return getattr(self.target, "__name__", "call")


def _in_tensors(value: Value) -> Value:
    kind = type(value)
    if kind is int or kind is float:
        tensor = torch.tensor(value, dtype=torch.int64 if kind is int else torch.float64, device="cpu")
        setattr(tensor, MARK, kind)
        return tensor
    if kind is list or kind is tuple:
        return kind(map(_in_tensors, value))
    return value


def number_kind(tensor: torch.Tensor) -> type | None:
    """The type of the number that a tensor stands for; None of another tensor."""
    return tensor.__dict__.get(MARK)
