"""Builtins that look at the frame that calls them, given the interpreted frame."""

from __future__ import annotations

import builtins
import inspect
import sys

import torch

from framefuse.capture.facts.settle import settle
from framefuse.capture.interp.machine import Machine, Special
from framefuse.capture.interp.registry import special
from framefuse.capture.interp.stacks import frames
from framefuse.capture.program.frame import Frame, FrameView
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.program.tracebacks import variables
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords


@special(builtins.globals)
def _globals(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    machine.recorder.kill("frame", "globals()")
    frame.stack.append(frame.globals)
    return None


def _runs_text(function: Function) -> Special:
    def run(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        if kwargs or not 0 < len(args) <= 3:
            return MISSING
        machine.recorder.kill("frame", f"{function.__name__}()")
        text, names, local = (*args, None, None)[:3]
        if local is None:
            local = settle(variables(frame), {}) if names is None else names
        frame.stack.append(function(text, frame.globals if names is None else names, local))
        return None

    return run


special(eval)(_runs_text(eval))
special(exec)(_runs_text(exec))


@special(builtins.dir)
def _dir(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if args or kwargs:
        if args and is_a(args[0], torch.autograd.graph.Node):  # which has more attributes under eager
            machine.recorder.end("saved", "The list of attributes")
        return MISSING
    frame.stack.append(sorted(variables(frame)))
    return None


@special(sys._getframe, inspect.currentframe)
def _get_frame(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    depth = args[0] if args else 0
    stack = frames(machine)
    if kwargs or len(args) > 1 or type(depth) is not int or depth >= len(stack) or not machine.recorder.alive:
        return MISSING
    machine.recorder.relations.note_tracked()
    frame.stack.append(FrameView(machine, stack[max(depth, 0)]))
    return None
