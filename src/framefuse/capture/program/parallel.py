"""Says which DistributedDataParallel runs its module in this thread, for recordings and compiled code inside of it."""

from __future__ import annotations

import threading

from torch.nn.parallel import DistributedDataParallel

from framefuse.ir.values import Arguments, Keywords, Value


class _Running(threading.local):
    inside: DistributedDataParallel | None = None


_running = _Running()


def activate(parallel: DistributedDataParallel | None) -> DistributedDataParallel | None:
    """Makes ``parallel`` the one that runs; gives the one before. It is a step between compiled stretches.

    Torch keeps that in an attribute of the class; to assign it at each call would be a change of the class, after which
    nothing that rests on it is trusted.
    """
    before = _running.inside
    _running.inside = parallel
    return before


def begin(
    parallel: DistributedDataParallel, inputs: Arguments, kwargs: Keywords
) -> tuple[Arguments, Keywords, DistributedDataParallel | None]:
    """What ``parallel`` does before its module: the arguments for that, and who ran before. One step for all of it."""
    inputs, kwargs = parallel._pre_forward(*inputs, **kwargs)
    return inputs, kwargs, activate(parallel)


def end(parallel: DistributedDataParallel, before: DistributedDataParallel | None, output: Value) -> Value:
    """What ``parallel`` does behind its module, as one step."""
    activate(before)
    return parallel._post_forward(output)


def running() -> DistributedDataParallel | None:
    """The DistributedDataParallel whose module runs, or None."""
    return _running.inside or DistributedDataParallel._active_ddp_module
