"""Runs the forward of DistributedDataParallel as a step before its module and one behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch.autograd.profiler import record_function
from torch.nn.parallel import DistributedDataParallel

from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.lookups import type_get
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.program.parallel import activate, begin, end
from framefuse.ir.values import Arguments, Keywords, Value

_FORWARD, _RUN = DistributedDataParallel.forward, DistributedDataParallel._run_ddp_forward


def forward(parallel: Value, *inputs: Value, **kwargs: Value) -> Value:
    """``DistributedDataParallel.forward``: torch's reducer is told of the pass before it and behind it."""
    with record_function("DistributedDataParallel.forward"):
        inputs, kwargs, before = begin(parallel, inputs, kwargs)
        try:
            if parallel._delay_all_reduce_all_params:
                output = parallel.module.forward(*inputs, **kwargs)
            else:
                output = parallel.module(*inputs, **kwargs)
        except BaseException:
            activate(before)
            raise
        return end(parallel, before, output)


@contextlib.contextmanager
def inside_ddp_forward(parallel: Value) -> Iterator[None]:
    """``DistributedDataParallel._inside_ddp_forward`` without the decorator that hides it from torch's own compiler."""
    before = activate(parallel)
    try:
        yield
    finally:
        activate(before)


@special(_FORWARD)
def _forward(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    kind = type(args[0]) if args else None
    if kind is None or not issubclass(kind, DistributedDataParallel) or type_get(kind, "_run_ddp_forward") is not _RUN:
        return MISSING
    machine.recorder.sources.guard_version(kind)
    return machine.calls.call(frame, forward, args, kwargs)


@special(DistributedDataParallel._inside_ddp_forward)
def _inside_ddp_forward(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    return machine.calls.call(frame, inside_ddp_forward, args, kwargs)
