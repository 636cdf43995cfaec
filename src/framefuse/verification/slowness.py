"""Compares the time of compiled calls with eager's, backward passes included: of a stretch, and of a whole program."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from framefuse import api
from framefuse.explain.step_times import awake
from framefuse.ir.values import Arguments, Function, Keywords
from framefuse.verification.case import Case
from framefuse.verification.case_text import SLOWER
from framefuse.verification.program_state import as_it_was
from framefuse.verification.runs import Program, copied, mapped, tensors
from framefuse.verification.verify import UNVERIFIED

ROUNDS, WARM = 7, 3  # interleaved calls of which a time is the median, and those before them
LEAST = 3e-4  # seconds of one measurement: of so many calls as take it


class Slower:
    """Whether a case is slow; once one is, whether smaller ones are at least half as slow: not as slow by chance."""

    def __init__(self, options: Keywords) -> None:
        self.options = options
        self.bar = 0.0

    def __call__(self, case: Case) -> bool:
        found = slowness(case, self.options)
        if found <= max(SLOWER, self.bar):
            return False
        self.bar = self.bar or 1 + (found - 1) / 2
        return True


def slowness(case: Case, options: Keywords) -> float:
    """The time of a compiled call of a case over that of eager's."""
    function = case.program().function
    compiled = api.compile(function, options={**UNVERIFIED, **options})
    inputs = mapped(case.inputs, copied)

    def seconds(called: Function) -> float:
        return _seconds(called, inputs, {}, case.training)

    for _ in range(WARM):
        seconds(compiled)
    count = 1 + int(LEAST / max(min(seconds(function) for _ in range(WARM)), 1e-7))
    return _ratio(lambda called: sum(seconds(called) for _ in range(count)), function, compiled)


def slowness_of_all(program: Program, options: Keywords) -> float:
    """The time of a compiled call of a program as a whole over that of eager's."""
    compiled = api.compile(program.function, options={**UNVERIFIED, **options})

    def seconds(called: Function) -> float:
        with as_it_was(program.state):
            args, kwargs = mapped((program.args, program.kwargs), copied)
            return _seconds(called, args, kwargs, program.training)

    for _ in range(WARM):
        seconds(compiled)
    return _ratio(seconds, program.function, compiled)


def _ratio(seconds: Callable[[Function], float], function: Function, compiled: Function) -> float:
    """Of medians of interleaved calls; what is slow is not given a rest meanwhile."""
    with awake():
        times = [(seconds(function), seconds(compiled)) for _ in range(ROUNDS)]
    eager, mine = (median(column) for column in zip(*times, strict=True))
    return float(mine / eager)


def _seconds(function: Function, args: Arguments, kwargs: Keywords, training: bool) -> float:
    begun = time.perf_counter()
    with torch.set_grad_enabled(training):
        results = [part for part in tensors(function(*args, **kwargs)) if part.requires_grad]
        if results:
            torch.autograd.backward(results, [torch.ones_like(part) for part in results])
    return time.perf_counter() - begun
