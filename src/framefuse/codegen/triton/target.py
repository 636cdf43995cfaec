"""Names the GPU that kernels are compiled for, and the versions of what compiles them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU as Triton names it: ``backend`` ("cuda", "hip", "xpu"), ``arch`` and the threads of a ``warp``."""

    backend: str
    arch: int | str
    warp: int = 32


# What kernels are compiled for where there is no GPU, as in tests.
REFERENCE = Machine("cuda", 90)


@cache
def machine(device: str) -> Machine:
    """The GPU behind a device of torch, such as "cuda:1"; :data:`REFERENCE` for "cpu", where Triton interprets."""
    import torch  # the processes that compile have none

    if torch.device(device).type != "cuda":
        return REFERENCE
    if torch.version.hip:
        properties = torch.cuda.get_device_properties(device)
        return Machine("hip", properties.gcnArchName.split(":")[0], properties.warp_size)
    major, minor = torch.cuda.get_device_capability(device)
    return Machine("cuda", 10 * major + minor)


@cache
def first_of_equals() -> bool:
    """Whether neighbouring threads go along the first dimension of a tile in which no elements are seen to be
    neighbours, as Triton 3.6 has it; 3.9 takes the last one.
    """
    try:
        return tuple(int(part) for part in version("triton").split(".")[:2]) < (3, 7)
    except (PackageNotFoundError, ValueError):
        return False
