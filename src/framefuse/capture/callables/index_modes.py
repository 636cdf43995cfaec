"""Enters and leaves torch's mode by which ``mask[row]`` takes a row that is a tensor, as vmap needs it (attention masks
of transformers). What it makes of a call follows from the arguments alone, and is recorded below it."""

from __future__ import annotations

from torch.overrides import TorchFunctionMode

from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.leaves import is_index_mode
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.ir.values import Arguments, Keywords


@special(TorchFunctionMode.__enter__)
def _enter(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 1 or kwargs or not is_index_mode(type(args[0])) or not machine.recorder.alive:
        return MISSING
    machine.exits.sealed += 1  # behind a break the mode would be on without the recorder's
    frame.stack.append(TorchFunctionMode.__enter__(args[0]))
    return None


@special(TorchFunctionMode.__exit__)
def _exit(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 4 or kwargs or not is_index_mode(type(args[0])) or not machine.exits.sealed:
        return MISSING
    machine.exits.sealed -= 1
    TorchFunctionMode.__exit__(*args)
    frame.stack.append(None)
    return None
