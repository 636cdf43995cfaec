"""The setting of a compilation that every pass of fuse takes beside its value: targets, exactness, threads, offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from framefuse.errors import CompilerBug
from framefuse.ir.target import Target, Targets, on_cpu
from framefuse.ir.whole_digits import Asks

ProductName = tuple[int, bool]  # the number of the library's call, and whether what makes its operands is part of it


@dataclass(frozen=True, slots=True)
class Setting:
    """``threads`` False leaves out what only several threads repay; ``exact`` kernels take eager's mathematical
    functions. ``targets`` knows every device on which something is to be computed. With ``offers`` the schedule says
    which products could be kernels of ours; those in ``products`` are. ``trains`` where a backward pass comes after.
    ``fixed`` are the numbers of the graph's inputs of which what is computed may be kept between calls, each with
    whether a counter beside it tells of its writes. ``asks`` asks devices which convolutions round float32.
    """

    threads: bool = True
    exact: bool = False
    targets: Targets = on_cpu
    offers: bool = False
    products: frozenset[ProductName] = frozenset()
    trains: bool = False
    fixed: Mapping[int, bool] = field(default_factory=dict)
    asks: Asks | None = None

    def target(self, device: str) -> Target:
        """What compiles the kernels of a device."""
        target = self.targets(device)
        if target is None:
            raise CompilerBug(f"nothing compiles kernels for {device}")
        return target
