"""Cuts recordings inside DistributedDataParallel where a bucket of gradients is complete, so that it is sent meanwhile.

A trace is one node of autograd: all its gradients arrive when its backward ends. A cut before a module gives what comes
from there on a node of its own, whose backward runs first.
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from framefuse.capture.interp.machine import Handler, Machine
from framefuse.capture.interp.registry import ENTERING
from framefuse.capture.program.breaks import Break
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import Outcome
from framefuse.capture.program.parallel import running

LIMITS = 1 << 20, 25 << 20  # bytes of the first bucket and of the others, by torch's default


def cut_before(machine: Machine, frame: Frame) -> None:
    """Has the recording cut at the first instruction of a frame that is about to run, where the forward of a module
    begins before which a bucket ends.
    """
    active = running()
    if active is None or frame.code.code.co_name != "forward" or not frame.locals:
        return
    known = machine.exits.boundaries.get(id(active))
    if known is None:
        with torch._C.DisableTorchFunction():
            known = machine.exits.boundaries[id(active)] = boundaries(active)
    if known.pop(id(frame.locals[0]), None) is None:
        return
    handler, argument = frame.code.steps[frame.step]
    code = copy.copy(frame.code)
    code.steps = list(code.steps)
    code.steps[frame.step] = (_cutting(handler), argument)
    frame.code = code


def _cutting(handler: Handler) -> Handler:
    def cut(machine: Machine, frame: Frame, argument: int) -> Outcome:
        if not machine.exits.breakable() or not torch.is_grad_enabled():
            return handler(machine, frame, argument)
        frame.step -= 1
        raise Break(None, (), {}, None, "bucket", type(frame.locals[0]).__name__)

    return cut


def boundaries(parallel: DistributedDataParallel) -> dict[int, torch.nn.Module]:
    """The modules before which to cut, by identity: gradients come from the last module to the first, and a bucket ends
    where as many bytes of parameters as it may hold have been met.
    """
    limits = _limits(parallel)
    modules = [module for module in parallel.module.modules() if _bytes(module)]
    cuts: dict[int, torch.nn.Module] = {}
    size = 0
    for module in reversed(modules[1:]):  # nothing comes before the first
        size += _bytes(module)
        if size >= limits[min(len(cuts), 1)]:
            cuts[id(module)] = module
            size = 0
    return cuts


def _limits(parallel: DistributedDataParallel) -> tuple[int, int]:
    given = getattr(parallel, "bucket_bytes_cap", LIMITS[1])
    if getattr(parallel, "bucket_bytes_cap_default", True):
        return getattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", LIMITS[0]), given
    return given, given


def _bytes(module: torch.nn.Module) -> int:
    """The bytes of the gradients of a module's own parameters."""
    own = module._parameters.values()
    return sum(part.numel() * part.element_size() for part in own if part is not None and part.requires_grad)


ENTERING.append(cut_before)
