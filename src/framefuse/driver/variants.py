"""Compiles the code for any sizes of a graph's kernels once sizes stop being like the recorded ones."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from framefuse.ir.code import KernelCode, LaunchedCode
from framefuse.ir.numbers import Symbol
from framefuse.ir.schedule import RunKernel
from framefuse.runtime.device_steps import launch_fits

Variant = tuple[int, int]  # the driver's handle of a function, and its bytes of shared memory


class Siblings:
    """The kernels of one graph that are compiled for sizes like the recorded ones. A new size asks for the code of one
    after the other while they are launched; so all that it concerns are compiled when the first of them asks, in
    ``workers`` threads.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.symbols: dict[int, set[Symbol]] = {}  # by kernel: the sizes that its fits depend on
        self.compile: dict[int, Callable[[bool], Variant]] = {}
        self.made: dict[int, Future[Variant]] = {}
        self.lock = threading.Lock()

    def add(self, item: RunKernel, launched: LaunchedCode) -> LaunchedCode:
        """The code of a kernel, compiled with its siblings when it is asked for other sizes."""
        key = id(launched.code)
        deciding = {symbol for value, _ in launch_fits(item, launched.code) for symbol in value.symbols}
        self.symbols.setdefault(key, set()).update(deciding)
        self.compile[key] = launched.variant
        return dataclasses.replace(launched, variant=lambda aligned: self.variant(key, aligned))

    def variant(self, key: int, aligned: bool) -> Variant:
        """The code of a kernel for any sizes; raises what its compiler raised."""
        if not aligned:
            return self.compile[key](False)
        with self.lock:
            if key not in self.made:
                left = self.symbols.keys() - self.made.keys() - {key}
                self._compile([key, *(other for other in left if self.symbols[other] & self.symbols[key])])
            return self.made[key].result()

    def _compile(self, keys: list[int]) -> None:
        with ThreadPoolExecutor(min(len(keys), self.workers)) as pool:
            self.made |= {key: pool.submit(self.compile[key], True) for key in keys}


def compiled_together(
    items: Mapping[int, RunKernel], codes: Mapping[int, KernelCode], workers: int
) -> dict[int, KernelCode]:
    """The codes of a graph's kernels by the number of their item, those that were compiled for sizes like the recorded
    ones as :class:`Siblings`.
    """
    siblings = Siblings(workers)
    return {
        index: siblings.add(items[index], code) if isinstance(code, LaunchedCode) and code.code.fits else code
        for index, code in codes.items()
    }
