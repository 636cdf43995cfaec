"""What measuring the candidates of kernels gave: for a kernel, and for a graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuned:
    """What came of one kernel, or product, called ``title``: how many ``candidates`` were timed and how many of them
    ``failed``; what ``won``, in words, in ``best`` seconds against the ``first``, that which is taken without
    measuring. ``stored`` says that an earlier process measured it; ``skipped`` why nothing was measured. ``share`` is
    what it moves in that time as a part of what a copy does, 0 where that was not measured.
    """

    title: str
    candidates: int = 0
    failed: int = 0
    won: str = ""
    first: float = 0.0
    best: float = 0.0
    stored: bool = False
    skipped: str = ""
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Tuning:
    """What measuring gave for one graph and what it took: ``seconds`` in all, of which ``compiling`` compiled
    candidates, and ``scratch``, the most memory that was held for it on a device, in bytes.
    """

    kernels: tuple[Tuned, ...] = ()
    seconds: float = 0.0
    compiling: float = 0.0
    scratch: int = 0


def total(tunings: Iterable[Tuning]) -> Tuning:
    """Several graphs' together."""
    measured = list(tunings)
    kernels = tuple(kernel for tuning in measured for kernel in tuning.kernels)
    seconds, compiling = (sum(getattr(t, name) for t in measured) for name in ("seconds", "compiling"))
    return Tuning(kernels, seconds, compiling, max((tuning.scratch for tuning in measured), default=0))
