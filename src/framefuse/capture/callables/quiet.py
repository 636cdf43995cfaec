"""Answers questions about torch's function modes as if none recorded, since programs branch on the answer."""

from __future__ import annotations

import torch

from framefuse.capture.interp.machine import Machine, Special
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import Outcome
from framefuse.capture.recording.mode_stack import unrecorded
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords

# Questions about the arguments and the modes that are active, and about the modes alone.
OF_ARGUMENTS = (
    torch._C._has_torch_function, torch._C._has_torch_function_unary, torch._C._has_torch_function_variadic,
)  # fmt: skip
OF_MODES = (
    torch._C._len_torch_function_stack, torch.overrides._get_current_function_mode,
    torch.overrides._get_current_function_mode_stack,
)  # fmt: skip


def _asking(target: Function, of_arguments: bool) -> Special:
    def ask(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        recorder = machine.recorder
        for part in args if of_arguments else ():
            if is_a(part, (tuple, list)):
                recorder.contents.guard_shallow_contents(part)
            for each in part if is_a(part, (tuple, list)) else (part,):
                recorder.sources.guard_type(each)  # the answer for an object is that for its class
                recorder.sources.guard_version(type(each))
        with unrecorded(recorder.mode):
            frame.stack.append(target(*args, **kwargs))
        return None

    return ask


for _target in OF_ARGUMENTS:
    special(_target)(_asking(_target, True))
for _query in OF_MODES:
    special(_query)(_asking(_query, False))
