"""Finds sums of exponentials of a row's distances from its largest element, which one sweep of turns computes with it.

Each lane holds its largest element and the sum of exponentials of the distances from that; a larger element scales the
sum. So a softmax of a row too long for a tile reads it twice and not three times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from framefuse.codegen.optimise import Optimised
from framefuse.ir.loops import Accumulate, Accumulator, Apply, Const, Let, Local, Loop, LoopKind, Statement, Value
from framefuse.ir.loops.walk import statements


@dataclass(frozen=True, slots=True)
class Pair:
    """The loop that finds the largest element, with plain sums beside it or none, and the ``second``, which sums up;
    the accumulators of both. Where the largest is infinite, the distances are ``safe``: taken from 0.
    """

    first: Loop
    second: Loop
    largest: Accumulator
    total: Accumulator
    safe: bool


def pairs(nest: Optimised) -> list[Pair]:
    """The pairs of a kernel."""
    return _Search(nest).found


class _Search:
    def __init__(self, nest: Optimised) -> None:
        self.numbers: Mapping[int, int] = nest.numbers
        every = list(statements(nest.kernel.body))
        self.accumulators = {s.name: s for s in every if isinstance(s, Accumulator)}
        self.found: list[Pair] = []
        for body in (nest.kernel.body, *(s.body for s in every if isinstance(s, Loop))):
            self._look(body)

    def _look(self, body: Sequence[Statement]) -> None:
        loops = [s for s in body if isinstance(s, Loop) and s.kind is LoopKind.VECTOR]
        outside = {s.name: s.value for s in body if isinstance(s, Let)}
        for first, second in pairwise(loops):
            one, two = self._term(first, "max", "sum"), self._term(second, "sum")
            if one is None or two is None or first.extent is not second.extent:
                continue
            names = {s.name: s.value for s in second.body if isinstance(s, Let)}
            exponential = _followed(two.value, names)
            if not isinstance(exponential, Apply) or exponential.op != "exp":
                continue
            distance = _followed(exponential.args[0], names)
            if not isinstance(distance, Apply) or distance.op != "sub" or distance.dtype is not one.value.dtype:
                continue
            inside = {s.name: s.value for s in first.body if isinstance(s, Let)}
            value, shift = distance.args
            if self._number(value, names) != self._number(one.value, inside):
                continue
            safe = _is_safe(shift, outside, one.name)
            if safe or (isinstance(shift, Local) and shift.name == one.name):
                accumulators = self.accumulators[one.name], self.accumulators[two.name]
                self.found.append(Pair(first, second, *accumulators, safe))

    def _term(self, loop: Loop, op: str, *beside: str) -> Accumulate | None:
        """The one term that a loop has for a float accumulator of this operation, if it does nothing else but feed some
        of the operations ``beside`` it.
        """
        found: list[Accumulate] = []
        for term in loop.body:
            if isinstance(term, Let):
                continue
            if not isinstance(term, Accumulate):
                return None
            accumulator = self.accumulators[term.name]
            if not accumulator.dtype.is_float or accumulator.running or accumulator.op not in (op, *beside):
                return None
            if accumulator.op == op:
                found.append(term)
        return found[0] if len(found) == 1 else None

    def _number(self, value: Value, names: Mapping[str, Value]) -> int | None:
        return self.numbers.get(id(_followed(value, names)))


def _followed(value: Value, names: Mapping[str, Value]) -> Value:
    """What a name of a loop stands for."""
    while isinstance(value, Local) and value.name in names:
        value = names[value.name]
    return value


def _is_safe(shift: Value, names: Mapping[str, Value], largest: str) -> bool:
    """Whether a value is ``where(abs(largest) == inf, 0, largest)``."""

    def applied(value: Value, op: str) -> tuple[Value, ...]:
        value = _followed(value, names)
        return value.args if isinstance(value, Apply) and value.op == op else ()

    def constant(value: Value, wanted: float) -> bool:
        value = _followed(value, names)
        return isinstance(value, Const) and value.value == wanted

    def is_largest(value: Value) -> bool:
        return isinstance(value, Local) and value.name == largest

    match applied(shift, "where"):
        case (test, zero, rest) if constant(zero, 0.0) and is_largest(rest):
            match applied(test, "eq"):
                case (size, limit) if constant(limit, math.inf):
                    return any(map(is_largest, applied(size, "abs")))
    return False
