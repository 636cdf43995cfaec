"""Measures how much memory a call takes at its peak above what is there before it (Linux)."""

from __future__ import annotations

import ctypes
import gc
import statistics
from collections.abc import Callable
from pathlib import Path

from benchmarks.starting.memory import resident_bytes
from framefuse import _native

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MMAP_THRESHOLD = -3  # of mallopt, <malloc.h>
LARGE = 1 << 12  # bytes, a page


def highest_resident_bytes() -> int:
    """The most memory that this process had in RAM since its mark was reset."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def kept_bytes() -> int:
    """What framefuse keeps between calls for the intermediates of its plans."""
    return _native.spare_bytes()


def nothing() -> int:
    """What other columns keep."""
    return 0


def peak_bytes(
    call: Callable[[], object],
    prepare: Callable[[], object],
    repeats: int = 3,
    kept: Callable[[], int] = nothing,
) -> float:
    """Bytes at the peak of `call` above those before it, median of `repeats`; `prepare` runs before each, unmeasured.

    What the call keeps for the next one, `kept`, is a part of what it takes.

    From now on the process gives blocks of a page and more back to the system as soon as they are freed, and takes them
    anew: the peak is then what is alive at once, not how the heap happens to be cut up. Time nothing after this.
    """
    library = ctypes.CDLL(None)
    library.mallopt(MMAP_THRESHOLD, LARGE)
    samples = []
    for _ in range(repeats):
        prepare()
        gc.collect()
        library.malloc_trim(0)
        before, there = resident_bytes(), kept()
        RESET.write_text("5")  # sets the mark to what is resident now
        call()
        samples.append(max(0, highest_resident_bytes() - before) + there)
    return statistics.median(samples)
