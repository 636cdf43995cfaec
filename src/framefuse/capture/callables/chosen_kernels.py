"""Chooses among torch's kernels of attention in a recording: calls carry the choice, a trace leaves the last one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from framefuse.capture.facts.questions import Question, answered
from framefuse.capture.interp.machine import Machine, Special
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.recording.attention_kernels import KERNELS, ORDER, changed, order_now
from framefuse.capture.recording.recorder import Recorder
from framefuse.ir.trace import Build, Effect
from framefuse.ir.values import Arguments, Function, Keywords
from framefuse.ir.wrapped_calls import choose_kernels


@dataclass(frozen=True, slots=True)
class Choose:
    """Brings about the choice that a segment leaves."""

    allowed: tuple[tuple[str, bool], ...]
    order: tuple[int, ...] | None

    def __call__(self) -> None:
        choose_kernels(self.allowed, self.order)


def left(recorder: Recorder) -> tuple[Effect, ...]:
    """The effect that leaves the choice as this segment does; none where that is how it was found."""
    allowed, order = changed(recorder.ambient.kernels)
    if not allowed and order is None:
        return ()
    return (Effect("run", Build("const", Choose(allowed, order)), None, Build("tuple", None, ()), recorder.line()),)


def _asking(name: str, question: Question) -> Special:
    def answer(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        kernels, sources = machine.recorder.ambient.kernels, machine.recorder.sources
        if args or kwargs:
            return MISSING
        frame.stack.append(question.answer if name in kernels.allowed else answered(sources, question))
        return None

    return answer


def _choosing(name: str, question: Question, choose: Function) -> Special:
    def choice(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        recorder = machine.recorder
        if not recorder.alive or kwargs or len(args) != 1 or type(args[0]) is not bool:
            return MISSING
        if name not in recorder.ambient.kernels.allowed:
            recorder.ambient.kernels.allowed[name] = bool(answered(recorder.sources, question))
        frame.stack.append(choose(args[0]))
        return None

    return choice


@special(torch._C._get_sdp_priority_order)
def _order(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    recorder = machine.recorder
    if not recorder.alive or args or kwargs:
        return MISSING
    if recorder.ambient.kernels.order is None:
        answered(recorder.sources, ORDER)
    frame.stack.append(torch._C._get_sdp_priority_order())
    return None


@special(torch._C._set_sdp_priority_order)
def _set_order(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    recorder = machine.recorder
    if not recorder.alive or kwargs or len(args) != 1 or type(args[0]) is not list:
        return MISSING
    if recorder.sources.knows(args[0]) or any(type(part) is not int for part in args[0]):
        return MISSING
    if recorder.ambient.kernels.order is None:
        answered(recorder.sources, ORDER)
        recorder.ambient.kernels.order = order_now()
    torch._C._set_sdp_priority_order(args[0])
    frame.stack.append(None)
    return None


for _name, _question in KERNELS.items():
    special(_question.ask)(_asking(_name, _question))
    _choose = getattr(torch._C, f"_set_sdp_use_{_name}")
    special(_choose)(_choosing(_name, _question, _choose))
