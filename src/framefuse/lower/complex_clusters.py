"""Finds the calls on complex numbers that pay when kernels compute with parts: what is read from memory is split, and
what leaves is joined, by a call each, so a lone product is faster as torch's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.ir import costs
from framefuse.ir.trace import Call, Trace, outside, refs
from framefuse.lower.complex_numbers import RULES
from framefuse.lower.rules import find

# Calls that take eager as long as several products.
COSTLY = frozenset((
    "exp", "abs", "absolute", "__abs__", "angle", "polar", "div", "divide", "true_divide", "__truediv__",
))  # fmt: skip
PRODUCTS = frozenset(("mul", "multiply", "__mul__", "square"))  # whose gradients are two more
# Calls that kernels make by reading or writing every second element.
INTERLEAVED = frozenset(("view_as_real", "view_as_complex"))
HALVES = frozenset(("real", "imag"))  # views: to take them apart moves nothing, and what reads them follows writes


def by_parts(trace: Trace, library: bool = True) -> frozenset[int]:
    """The numbers of the calls of the trace that are lowered to arithmetic on parts. None where complex inputs are
    written: their parts are views of them, which other kernels and backward may read later. None on a GPU, where it was
    not measured. Without torch's ``library`` all that can be are.
    """
    metas = trace.metas
    given = {metas[entry.value].storage for entry in trace.assumptions.inputs if metas[entry.value].dtype.is_complex}
    written = (metas[value].storage for call in trace.calls for value in call.written)
    elsewhere = any(meta.dtype.is_complex and meta.device != "cpu" for meta in metas)
    if elsewhere or not given.isdisjoint(written):
        return frozenset()
    clusters = _Clusters(trace)
    parted = (place for place in clusters.calls if not library or clusters.pays(place))
    return frozenset((*parted, *(place for place in clusters.calls if trace.calls[place].name in HALVES)))


class _Clusters:
    """Calls that have rules for parts, joined where one reads what another gave."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.calls: dict[int, int] = {}  # by call the one that it was joined to
        self.owner: dict[int, int] = {}  # by complex value the call that gave it
        self.border: set[tuple[int, int]] = set()  # (call, value): the value has to be in memory
        leaving = set(outside(trace.result, trace.effects))
        self.seen = {trace.metas[value].storage for value in leaving}
        for place, call in enumerate(trace.calls):
            self._call(place, call)
        self.border.update((place, value) for value, place in self.owner.items() if value in leaving)
        trains = any(entry.spec.requires_grad for entry in trace.assumptions.inputs)
        self.saved = costs.COMPLEX_SAVED[trains]
        self.gains: dict[int, int] = {}
        for place in self.calls:
            top, name = self._top(place), trace.calls[place].name
            gain = 4 if name in COSTLY else 3 if trains and name in PRODUCTS else 1
            self.gains[top] = self.gains.get(top, 0) + gain
        self.costs: dict[int, int] = {}
        for top, _ in {(self._top(place), value) for place, value in self.border}:
            self.costs[top] = self.costs.get(top, 0) + 1

    def pays(self, place: int) -> bool:
        """Whether the cluster of a call saves more than it costs."""
        top = self._top(place)
        return self.gains[top] > self.saved * self.costs.get(top, 0)

    def _call(self, place: int, call: Call) -> None:
        read, given = self._complex(refs((call.args, call.kwargs))), self._complex(refs(call.result))
        if not read and not given:
            return
        rule = find(call.target) if call.target != "setitem" else None
        known = call.target == "setitem" if rule is None else rule in RULES and not self._keeps_own(call)
        if not known:
            self.border.update((self.owner[value], value) for value in read if value in self.owner)
            return
        self.calls[place] = place
        if call.name in INTERLEAVED:
            self.border.add((place, -1 - place))
        for value in read:
            if value in self.owner:
                self.calls[self._top(place)] = self._top(self.owner[value])
            else:
                self.border.add((place, value))
        self.owner.update(dict.fromkeys((*given, *self._complex(call.written)), place))

    def _keeps_own(self, call: Call) -> bool:
        """Whether eager computes the gradient from a result that leaves: what is written to it by then changes that."""
        held, metas = self.trace.autograd, self.trace.metas
        for value in self._complex(refs(call.result)):
            number = None if held is None else held.along.get(value)
            storage = metas[value].storage
            if held is not None and number is not None and storage in self.seen & {*held.holders[number].storages}:
                return True
        return False

    def _complex(self, values: Sequence[int]) -> list[int]:
        return [value for value in values if self.trace.metas[value].dtype.is_complex]

    def _top(self, place: int) -> int:
        while self.calls[place] != place:
            self.calls[place] = self.calls[self.calls[place]]
            place = self.calls[place]
        return place
