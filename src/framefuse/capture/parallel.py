"""Says which DistributedDataParallel runs its module, for the recordings and the compiled code inside of it."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel


def activate(parallel: Any) -> Any:
    """Makes ``parallel`` the one that runs; gives the one before. It is a step between compiled stretches."""
    before = DistributedDataParallel._active_ddp_module
    DistributedDataParallel._active_ddp_module = parallel
    return before
