"""Prices each break of a compiled function: the time of a call between the compiled stretches that it parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from framefuse import _native
from framefuse.errors import Reason
from framefuse.explain.step_times import Measured
from framefuse.runtime.function import CompiledFunction, live_functions
from framefuse.runtime.recorded_call import Product

# Breaks whose steps read tensors and numbers, and change nothing.
READS = frozenset((
    "item", "value", "length", "branch", "data-size", "numpy", "argument", "tensor-attribute", "unknown-tensor",
    "graph-break", "cut",
))  # fmt: skip

# Breaks whose steps are calls of torch: they change tensors, gradients, generators and modes that the step leaves.
CALLS = frozenset((
    "autograd", "alias", "in-place", "memory-order", "shared-memory", "no-tensor", "tensor-kind", "gradient",
    "run-time-size", "read-after-write", "random-state",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class BreakTime:
    """What a break takes in a call: the ``seconds`` between the stretches, which are those of the step that runs as it
    is and of handing over, and how often it was met.
    """

    seconds: float
    runs: int


def break_times(found: Measured, states: Iterable[CompiledFunction] | None = None) -> dict[Reason, BreakTime]:
    """The price of each break that the call met, the dearest first; of all compiled functions unless some are given."""
    follows = {
        id(product.stages.plan): why
        for state in (live_functions() if states is None else states)
        for product, why in _follows(state)
    }
    owners = {id(product): id(state) for state in live_functions() for product in state.products}
    gaps: dict[Reason, list[float]] = {}
    for place, piece in enumerate(found.pieces):
        why = follows.get(id(piece.product.stages.plan))
        if why is None:
            continue
        own = owners.get(id(piece.product))
        later = (each.begun for each in found.pieces[place + 1 :] if owners.get(id(each.product)) == own)
        gaps.setdefault(why, []).append(max(0.0, next(later, found.ended) - piece.ended))
    prices = {why: BreakTime(sum(each), len(each)) for why, each in gaps.items()}
    return dict(sorted(prices.items(), key=lambda entry: -entry[1].seconds))


def _follows(state: CompiledFunction) -> Iterator[tuple[Product, Reason]]:
    """The products that end at a break, with its reason."""
    reasons = {id(point.dispatch): point.point.why for point in state.resume_dispatches}
    for product in state.products:
        follow = entry_of(state, product)
        if follow is not None and follow.follow is not None and id(follow.follow) in reasons:
            yield product, reasons[id(follow.follow)]


def entry_of(state: CompiledFunction, product: Product) -> _native.Compiled | None:
    """What dispatch holds of a product, None where it was dropped."""
    for dispatch in (state.dispatch, *(point.dispatch for point in state.resume_dispatches)):
        for entry in dispatch.entries:
            if entry.plan.plan is product.stages.plan:
                return entry
    return None


def reached(state: CompiledFunction, product: Product) -> tuple[list[Product], list[Reason]]:
    """The stretches that a call may go through which begins with ``product``, and the breaks between them."""
    by_plan = {id(each.stages.plan): each for each in state.products}
    points = {id(point.dispatch): point.point.why for point in state.resume_dispatches}
    found, seen, breaks = [product], {id(product)}, dict[Reason, None]()
    for each in found:  # grows
        entry = entry_of(state, each)
        if entry is None or entry.follow is None:
            continue
        if id(entry.follow) in points:
            breaks[points[id(entry.follow)]] = None
        for further in (by_plan.get(id(behind.plan.plan)) for behind in entry.follow.entries):
            if further is not None and id(further) not in seen:
                seen.add(id(further))
                found.append(further)
    return found, list(breaks)


def changes(why: Reason) -> bool:
    """Whether the step of a break may change what cannot be put back; what it prints is held back."""
    return why.code not in READS and not prints(why)


def undone(why: Reason) -> bool:
    """Whether what the step of a break changes is put back with what the program reaches."""
    return why.code in CALLS


def prints(why: Reason) -> bool:
    """Whether the step of a break writes on the screen, and nothing else."""
    return why.code == "native-call" and why.fact.startswith("print ")


def dearest(prices: Mapping[Reason, BreakTime], reasons: Iterable[Reason]) -> list[Reason]:
    """The reasons, those with the highest price first."""
    return sorted(reasons, key=lambda why: -prices[why].seconds if why in prices else 0.0)
