"""Judges a function whose compiled calls may be slower than eager ones: they are weighed against these now and then.

Calls may be slower that go through breaks, and small ones of which the library does a part, or that give views alone:
what a call of torch costs besides its work is what eager pays for it, and guards come to it. So may training by one
small call, and on a GPU a few calls of torch's that are the program's own, which the device is kept as busy by: there
the clock tells what the host takes. Training that has nothing but torch's own calls, forward and backward, loses
without being timed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:  # imported with the compiler
    from framefuse.errors import Reason
    from framefuse.runtime.compilation import Compilation

FIRST, LATER = 16, 8  # compiled calls before the first weighing, and how many times more before each one after it
REST, LONGER = 256, 4  # eager calls after the first weighing that is lost, and how many times more after each one
MOST = 1 << 30
SLOWER = 1.1  # times eager: what is more is not by chance
SLOWER_FORWARD = 1.5  # the same where a backward may follow, which is not seen and may be the faster for it
# What is less than SLOWER and more than this may be by chance once; of so many weighings in a row, one soon after the
# other, each may be with a chance that is the product of theirs. So may any loss of a function whose calls are not all
# alike (training and evaluation in turn): one side may have met the longer ones.
NEARLY, IN_A_ROW = 1.02, 3
AGAIN = 3  # calls of compiled code before the next one of these: with the eight of one no multiple of a short period
ALIKE = 1.0  # the same where compiled code is torch's own calls and nothing else: there is nothing to gain by it
NOTHING = 0.0
# Calls of torch in training for each one of them on a tape, which costs 40 us: with 2, 4 and 6 operations behind it
# cholesky of 8 x 8 has 0.83 to 0.90, 0.90 to 0.96 and 1.0 of eager's speed, logcumsumexp of 32 x 32 0.82, 0.91, 0.98.
# On a GPU, whose kernels cost eager more, so many in all.
FEW, FEW_ON_GPU = 6, 3
ONE = 1  # call of torch in training that a kernel computes: its node costs 2 us more than eager's, and saves it no work
# Nodes of torch's autograd, up to which a call on a GPU that is trained costs its host less than our one node, which
# runs in the thread of the device; and the bytes of all tensors of a call below which a GPU waits for its host (H100,
# 4000 x 4000 float32: relu and exp, forward and backward, 0.8 of eager's speed, layer norm of 8192 x 1000 0.5 to 0.7,
# though its kernels take 0.6 to 0.9 of the time).
NODES, GPU_SMALL = 2, 192 << 20
# What computes nothing, of which the gradient is views of what comes in, to torch.
MOVES = frozenset(("input", "reshape", "permute", "expand", "slice", "cat", "result"))
COPIES = frozenset(("contiguous", "clone"))
SMALL = 1 << 16  # elements of all tensors of a call in which what is not work may decide
# The same of one call that a kernel computes and whose gradient is a call of torch's. Measured on a loaded EPYC,
# forward and backward, eager's time over ours, in 2,500, 13,000 and 65,000 elements: x[i] 0.96, 0.86 and 1.14, gather
# 0.88, 0.86 and 1.15, embedding 0.69, 0.94 and 1.28.
TINY = 1 << 14
SETTLE = 2  # calls of compiled code before a weighing that follows a rest


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of the calls of one weighing, as many of each kind: their sums without the longest of each kind, and the
    least of each.
    """

    eager: float
    compiled: float
    least_eager: float
    least_compiled: float

    def lost(self, times: float) -> bool:
        """Whether compiled calls take more ``times`` eager ones, by their sum and by the least: load on the machine
        moves one of them at most.
        """
        return self.compiled > times * self.eager and self.least_compiled > times * self.least_eager

    def told(self, breaks: bool, bound: float) -> str:
        """What was lost, with ``breaks`` or without."""
        if bound == NOTHING:
            return "Forward and backward are calls of torch with little beside them: eager makes the same ones."
        ours, theirs = 1e3 * self.least_compiled, 1e3 * self.least_eager
        return f"A call takes {ours:.3g} ms{' with its breaks' if breaks else ''}, an eager one {theirs:.3g} ms."


@dataclass(slots=True)
class Weighing:
    """When the next weighing is: after ``until`` calls of compiled code, or behind a rest if this one is lost."""

    until: int = FIRST
    rest: int = REST
    nearly: int = 0  # weighings in a row that were lost by what may be chance

    def lost(self, times: Times, bound: float, alike: bool = True) -> bool:
        """Whether compiled calls, all ``alike`` or not, are slower than ``bound``: once by more than chance, or each
        time by what may be chance.
        """
        lost = times.lost(bound)
        if lost and (alike or bound == NOTHING):
            self.nearly = 0
            return True
        self.nearly = self.nearly + 1 if lost or (bound == SLOWER and times.lost(NEARLY)) else 0
        if self.nearly < IN_A_ROW:
            return False
        self.nearly = 0
        return True

    def next(self, lost: bool) -> tuple[int, int]:
        """The calls of compiled code before the next weighing, and the eager calls before them."""
        if lost:
            rest, self.rest = self.rest, min(MOST, LONGER * self.rest)
            return SETTLE, rest
        if self.nearly:
            return AGAIN, 0
        self.rest = REST
        self.until = min(MOST, LATER * self.until)
        return self.until, 0


def may_lose(stages: Compilation) -> bool:
    """Whether a call without breaks may be slower than eager for what it costs besides its work. A backward behind it
    is not seen, so that only the forward of a single call says something of it; another backend's code is what the user
    asked for, and where the program asks for deterministic algorithms, all calls are to round alike.
    """
    if gains_nothing(stages) or asks_the_same(stages):
        return True
    if stages.code is None or torch.are_deterministic_algorithms_enabled():
        return False
    if stages.halves is not None:
        return len(stages.trace.calls) <= ONE and is_small(stages)
    if stages.computes and not stages.library_targets:
        return False
    return is_small(stages)


def asks_the_same(stages: Compilation) -> bool:
    """Whether a GPU is asked by a call without a gradient for what eager asks it for: the program's own calls of torch,
    a few, and nothing beside them.
    """
    if stages.halves is not None or stages.code is None or stages.computes or not _on_gpu(stages):
        return False
    theirs = [call.target for call in stages.trace.calls]
    return 0 < len(theirs) <= FEW_ON_GPU and stages.library_targets == theirs and not _replays(stages)


def gains_nothing(stages: Compilation) -> bool:
    """Whether eager makes for less, forward and backward, what the program is trained by: nothing but calls of torch
    that torch differentiates too, of any size, or one small call whose gradient another call gives (a tiny one, where
    a kernel computes it), or small calls of which as few are beside the former as kernels cannot make up for, or on a
    GPU one call of any size, which is the device's work and the same, or one small call that is a kernel or two to
    torch as well.
    """
    if stages.halves is None or stages.code is None:
        return False
    targets = stages.library_targets
    taped = sum(getattr(target, "tape", "") == "made" for target in targets)
    if _on_gpu(stages) and len(stages.trace.calls) <= FEW_ON_GPU:
        gains = _replays(stages) or (bool(targets) and not _moves(stages) and _gains_behind(stages))
        if _waits_for_host(stages) or (len(targets) == 1 and (taped or not stages.computes)):
            return not gains
    if not stages.computes and targets and (taped == len(targets) or _is_library_of_complex(stages)):
        return True
    if not targets and len(stages.trace.calls) <= ONE and is_small(stages, TINY) and _is_library_behind(stages):
        return True
    few = _on_tensors(stages) <= FEW * taped if stages.computes else len(targets) == 1
    return few and is_small(stages)


def _on_tensors(stages: Compilation) -> int:
    """How many of the program's calls have an operand: one that only makes memory (the state in which a recurrent layer
    begins) gives a kernel nothing to save.
    """
    return sum(call.reads_tensors for call in stages.trace.calls)


def _on_gpu(stages: Compilation) -> bool:
    return any(meta is not None and meta.device.startswith("cuda") for meta in stages.trace.metas)


def _waits_for_host(stages: Compilation) -> bool:
    """Whether a GPU has done the work of what is few nodes to torch before its host has asked for more."""
    autograd, single = stages.trace.autograd, len(stages.trace.calls) <= ONE
    if autograd is None or len(autograd.holders) > (FEW_ON_GPU if _moves(stages) else NODES if single else 1):
        return False
    metas = [meta for meta in stages.trace.metas if meta is not None]
    small = sum(math.prod(meta.sizes) * meta.dtype.itemsize for meta in metas) <= GPU_SMALL
    return small or (len(stages.trace.calls) <= ONE and bool(stages.library_targets))


def _moves(stages: Compilation) -> bool:
    """Whether a graph computes nothing: its gradient is views of what comes in, to torch."""
    schedule = getattr(stages.code, "schedule", None)
    if schedule is None:
        return False
    nodes = schedule.graph.nodes
    return all(node.op in MOVES or (node.op == "library" and node.attr("name") in COPIES) for node in nodes)


def _replays(stages: Compilation) -> bool:
    """Whether captured graphs may stand for its calls, which cost less than the calls do."""
    return stages.plan.region is not None and not isinstance(stages.plan.region, str)


def _gains_behind(stages: Compilation) -> bool:
    """Whether a backward that ran has kernels of its own in place of torch's call."""
    cases = [case.stages for derivative in stages.derivatives for case in derivative.cases]
    return any(case.computes and not case.library_targets for case in cases)


def _is_library_behind(stages: Compilation) -> bool:
    """Whether backwards ran, and each by torch's calls."""
    cases = [case.stages for derivative in stages.derivatives for case in derivative.cases]
    return bool(cases) and all(case.library_targets for case in cases)


def _is_library_of_complex(stages: Compilation) -> bool:
    """Whether complex numbers alone are computed with, and every call is torch's, in the backwards that ran too: of
    those none lies in another way than eager's.
    """
    cases = [case.stages for derivative in stages.derivatives for case in derivative.cases]
    metas = [meta for meta in stages.trace.metas if meta is not None]
    return not any(case.computes for case in cases) and all(meta.dtype.is_complex for meta in metas)


def is_small(stages: Compilation, most: int = SMALL) -> bool:
    """Whether a call is of so few elements, on a CPU."""
    metas = [meta for meta in stages.trace.metas if meta is not None]
    return all(meta.device == "cpu" for meta in metas) and sum(math.prod(meta.sizes) for meta in metas) <= most


def allowed(products: Sequence[Compilation], breaks: Collection[Reason]) -> float:
    """How many times as long as eager calls compiled ones may take; infinitely many where that says nothing, and
    ``NOTHING`` where they are the slower whatever the clock says. No backward follows where no graph has one, and a
    call that breaks to compute gradients has it within.
    """
    if breaks:
        follows = torch.is_grad_enabled() and any(stages.halves is not None for stages in products)
        follows = follows and all(why.code != "autograd" for why in breaks)
        return SLOWER_FORWARD if follows else SLOWER
    if not all(map(may_lose, products)):
        return math.inf
    if products and all(map(gains_nothing, products)):
        return NOTHING
    return SLOWER if any(stages.computes for stages in products) else ALIKE
