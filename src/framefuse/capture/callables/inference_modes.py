"""Enters and leaves torch's inference mode in a recording: what is made within is no concern of autograd's.

A segment begins and ends outside, as no effect could enter the mode for code behind a break. A recording that ends
within learns that: the next one breaks where the mode is entered and left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.recording.recorder import Recorder
from framefuse.capture.recording.state import InferenceStretch
from framefuse.ir.own_class import is_a
from framefuse.ir.trace import refs
from framefuse.ir.values import Arguments, Keywords

_ENTER, _EXIT = torch.inference_mode.__enter__, torch.inference_mode.__exit__


@special(_ENTER)
def _enter(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    recorder, points = machine.recorder, machine.exits.points
    if len(args) != 1 or kwargs or not recorder.alive or recorder.region or recorder.transformed is not None:
        return MISSING
    (context,) = args
    mode = vars(context).get("mode") if is_a(context, torch.inference_mode) else None
    inside = torch.is_inference_mode_enabled()
    if type(mode) is not bool or recorder.sources.knows(context) or (inside and not mode):
        return MISSING
    if points is not None and _ENTER.__code__ in points.learnt:
        return MISSING
    recorder.guard_gradients()
    with torch._C.DisableTorchFunction():
        _ENTER(context)
    machine.exits.sealed += 1
    stretch = InferenceStretch(context, mode, inside, len(recorder.calls), len(recorder.metas))
    recorder.ambient.inference.append(stretch)
    frame.stack.append(None)
    return None


@special(_EXIT)
def _exit(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    recorder = machine.recorder
    stretch = next((each for each in recorder.ambient.inference if args and each.context is args[0]), None)
    if stretch is None or not stretch.open or kwargs:
        return MISSING
    machine.exits.sealed -= 1
    with torch._C.DisableTorchFunction():
        _EXIT(*args)
    del stretch.context._inference_mode_context  # of use to nobody, and nothing that goes over a break
    stretch.open, stretch.calls_end, stretch.values_end = False, len(recorder.calls), len(recorder.metas)
    frame.stack.append(None)
    return None


def settle(recorder: Recorder, inputs: Iterable[int], leaving: Iterable[int]) -> None:
    """Ends the recording where a stretch in inference mode is open, or where a tensor that autograd knows and that was
    made within, a view of one from outside, is read behind it: autograd keeps of it in which mode it was made. Calls
    that give such views to the caller are marked.
    """
    stretches = recorder.ambient.inference
    if not stretches:
        return
    outer = [stretch for stretch in stretches if stretch.mode and not stretch.nested]
    known = {value for stretch in outer for value in range(stretch.values, stretch.values_end)} - {*inputs}
    known -= {value for value in known if recorder.metas[value].bare}
    behind = (
        value
        for number, call in enumerate(recorder.calls)
        if not any(stretch.calls <= number < stretch.calls_end for stretch in outer)
        for value in refs((call.args, call.kwargs))
    )
    if any(stretch.open for stretch in stretches):
        recorder.kill("snapshot", "inference mode, which is to be left behind it")
    elif not known.isdisjoint(behind):
        recorder.kill("snapshot", "a view that was made in inference mode of a tensor outside of it")
    elif not known.isdisjoint(leaving):
        for number, call in enumerate(recorder.calls):
            if not known.isdisjoint(refs(call.result)):
                recorder.calls[number] = replace(call, inference=True)


def learn(machine: Machine) -> None:
    """The recording ended: where it had entered inference mode, the next one breaks there."""
    points = machine.exits.points
    if points is None or not machine.recorder.ambient.inference:
        return
    machine.exits.learnt |= points.learn(_ENTER.__code__, 0, None)  # a mark: no recording runs this code itself
