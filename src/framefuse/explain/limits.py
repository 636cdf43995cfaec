"""Measures what a device can do at most: the bandwidth of a copy and the arithmetic of a large product."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch

COPIED = {"cpu": 1 << 26}, 1 << 29  # bytes of the tensor that is copied: more than caches hold; on other devices
SIDE = {"cpu": 1024}, 4096  # of the square matrices that are multiplied
ROUNDS = 5
MOST = 2  # times that a limit is measured: half a second each


@dataclass(frozen=True, slots=True)
class Limit:
    """A speed in units a second, and how it was measured."""

    speed: float
    how: str


def bandwidth(device: str) -> Limit:
    """Bytes a second, read and written, of a copy between two tensors of a device; measured once a process."""
    return _bandwidth(device, torch.get_num_threads())


def arithmetic(device: str, dtype: torch.dtype, seen: float = 0.0) -> Limit:
    """Operations a second of a product of square matrices of a device; measured once a process.

    ``seen`` is the speed of a product that ran. Where that is more, the machine was busy when the limit was measured:
    it is measured once again, and is that speed where it stays below.
    """
    key = device, dtype, torch.get_num_threads()
    known = _products.get(key)
    if known is None or known.speed < seen:
        if _times[key] < MOST:
            _times[key] += 1
            again = _arithmetic(*key)
            known = again if known is None or again.speed > known.speed else known
        assert known is not None
        if known.speed < seen:
            busy = f"the fastest step: a product of side {_of(SIDE, device)} was slower, as on a busy machine"
            known = Limit(seen, f"{seen / 1e9:.1f} GFLOP/s, {busy}")
        _products[key] = known
    return known


_products: dict[tuple[str, torch.dtype, int], Limit] = {}
_times: Counter[tuple[str, torch.dtype, int]] = Counter()  # that each was measured


@functools.cache
def _bandwidth(device: str, threads: int) -> Limit:
    size = _of(COPIED, device)
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    seconds = _fastest(lambda: target.copy_(source), device)
    speed = 2 * size / seconds
    return Limit(speed, f"{speed / 1e9:.1f} GB/s, a copy of {size >> 20} MiB{_with(device, threads)}")


def _arithmetic(device: str, dtype: torch.dtype, threads: int) -> Limit:
    side = _of(SIDE, device)
    matrix = torch.ones(side, side, dtype=dtype, device=device)
    out = torch.empty_like(matrix)
    speed = 2 * side**3 / _fastest(lambda: torch.mm(matrix, matrix, out=out), device)
    name = str(dtype).removeprefix("torch.")
    return Limit(speed, f"{speed / 1e9:.1f} GFLOP/s, a {name} product of side {side}{_with(device, threads)}")


def _of(sizes: tuple[dict[str, int], int], device: str) -> int:
    return sizes[0].get(device.partition(":")[0], sizes[1])


def _with(device: str, threads: int) -> str:
    return f" on {threads} thread{'' if threads == 1 else 's'}" if device == "cpu" else f" on {device}"


def _fastest(run: Callable[[], object], device: str) -> float:
    """Seconds of the fastest of some runs; the first one is not counted."""
    wait = (lambda: None) if device == "cpu" else torch.accelerator.synchronize
    times = []
    with torch.no_grad():
        for _ in range(ROUNDS + 1):
            wait()
            start = time.perf_counter()
            run()
            wait()
            times.append(time.perf_counter() - start)
    return min(times[1:])
