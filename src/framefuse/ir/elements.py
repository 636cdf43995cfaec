"""Reads the one element of a tensor as a 64-bit word, the form in which a plan holds ints and floats."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import torch

from framefuse.ir.trace import Call

# In place of a dimension: the symbol stands for the element of the (int64) tensor.
ELEMENT = -1
# Branches that a program often leaves by the way that raises, which is no error then: a step takes either.
EITHER: set[str] = set()


def integer_word(tensor: torch.Tensor) -> torch.Tensor:
    """The element, rounded towards zero as Python's ``int()`` does; raises what that raises, and OverflowError for what
    64 bits do not hold.
    """
    if not tensor.is_floating_point():
        return _word(tensor, torch.int64)
    value = int(tensor.item())
    if not -(2**63) <= value < 2**63:
        raise OverflowError("an element that 64 bits do not hold")
    return torch.tensor(value, dtype=torch.int64, device="cpu")


def float_word(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of the element as a double."""
    return _word(tensor.detach() if tensor.requires_grad else tensor, torch.float64).view(torch.int64)


def _word(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype, copy=True) if tensor.is_cpu else tensor.to("cpu", dtype)


def decided(tensor: torch.Tensor, outcome: bool, branch: str = "") -> None:
    """Raises where the truth of a tensor is not what the trace was recorded for: the call then runs eagerly. ``branch``
    names the place of one of which the other way raises.
    """
    if bool(tensor) is not outcome:
        raise ValueError("a tensor decides otherwise than in the recorded call")


TESTS: dict[str, Callable[..., bool]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
    "isnan": math.isnan, "isinf": math.isinf, "isfinite": math.isfinite,
}  # fmt: skip


def compared(test: str, outcome: bool, branch: str, *numbers: float) -> None:
    """Raises where a test of numbers is not what the trace was recorded for, as :func:`decided` does."""
    if TESTS[test](*numbers) is not outcome:
        raise ValueError("a number decides otherwise than in the recorded call")


def within(least: float, largest: float, number: float) -> None:
    """Raises where a type of elements does not hold a number, which eager raises for. Types of floats have infinity and
    NaN, those of ints, whose ``largest`` is one, have not.
    """
    if not least <= number <= largest and (isinstance(largest, int) or math.isfinite(number)):
        raise ValueError("a number that a type of elements does not hold")


def branch_of(call: Call) -> str:
    """The branch that a call checks, of which the other way raises; empty for any other call."""
    checks = call.target is compared or (call.target is decided and len(call.args) > 2)
    return str(call.args[2]) if checks else ""


def seed_word() -> torch.Tensor:
    """What ``torch.seed()`` gives, drawn again where it is one of those that an int64 does not hold."""
    seed = torch.random.seed()
    while seed >= 2**63:
        seed = torch.random.seed()
    return torch.tensor(seed, dtype=torch.int64, device="cpu")


def initial_seed_word() -> torch.Tensor:
    """What ``torch.initial_seed()`` gives; raises an error for a seed that 64 bits with a sign do not hold."""
    return torch.tensor(torch.random.initial_seed(), dtype=torch.int64, device="cpu")
