"""Decides for each run of a plan's region whether it is captured, replayed or run step by step, and keeps account."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from framefuse.ir.plan import Plan
from framefuse.runtime.cuda_graphs import CudaGraphs
from framefuse.runtime.regions import Work, region_of
from framefuse.runtime.replay import Pool, Refused, Replay, static_like, without_repeats

# Nanoseconds on the host, measured on an H200 machine: what a step costs that is launched by itself, and what a replay
# costs for each of its nodes, at all, and for each launch that copies; and bytes a nanosecond that a copy moves.
LAUNCH, CALL = 4000, 7000
NODE, REPLAY, COPY, FRESH, BANDWIDTH = 80, 14000, 5000, 1500, 1500
GAIN = 1.2  # so much less must it cost
SMALL = 4 << 20  # bytes: an input that is not larger is copied rather than captured once more where it lies
SIGHTS = 64  # cases that are remembered before they are captured
PATIENCE = 256  # runs that come to nothing before nothing is tried any more

MACHINES: dict[str, Callable[[int], Any]] = {"cuda": CudaGraphs}  # by type of device; tests put a stand-in there
_pools: dict[tuple[str, int], Pool] = {}
_lock = threading.Lock()


def with_region(plan: Plan, limit: int) -> Plan:
    """The plan with its region, or with the reason why it has none; ``limit`` graphs may be captured of it."""
    why: Any = "nothing here captures graphs"
    for kind in MACHINES:
        why = region_of(plan, kind, lambda work: Captures(work, limit))
        if not isinstance(why, str):
            break
    return replace(plan, region=why)


def pool_of(device: str) -> Pool:
    """The pool of a device such as "cuda:1", of which there is one for the whole process."""
    kind, _, number = device.partition(":")
    with _lock:
        key = (kind, int(number or 0))
        if key not in _pools:
            _pools[key] = Pool(MACHINES[kind](key[1]))
        return _pools[key]


class Captures:
    """What is captured of one plan's region: up to ``limit`` graphs, one for each case of numbers and addresses.

    A case runs step by step when it is first met, and is captured when it comes again. What lies at the same address
    both times is read in place, such as parameters; the rest is copied into memory of the graph's own on each call. An
    input that is read in place and comes from elsewhere later is copied from then on if it is small; else that is
    another case.

    ``why`` says why nothing more is captured, "" while something may be. ``count`` graphs took ``seconds`` to capture
    and hold ``bytes``; ``copied`` inputs and ``outs`` results are copied in each replay of the latest.
    """

    def __init__(self, work: Work, limit: int) -> None:
        self.work = work
        self.limit = limit
        self.why = ""
        self.count = self.bytes = self.copied = self.outs = 0
        self.seconds = 0.0
        self._sights: dict[bytes, bytes] = {}
        self._moving: set[int] = set()
        self._vain = 0

    def __call__(self, program: Any, inputs: tuple[Any, ...], key: bytes, addresses: bytes, state: bytes) -> Any:
        """The outs of a run for which nothing fits, None to have its steps run, False to be asked no more."""
        if self.why:
            return False
        pool = pool_of(self.work.device)
        if not pool.lock.acquire(False):
            return None
        try:
            machine = pool.machine
            if machine.here():
                return self._decide(pool, program, inputs, key, addresses, state)
            with machine.entered():
                return self._decide(pool, program, inputs, key, addresses, state)
        finally:
            pool.lock.release()

    def _decide(
        self, pool: Pool, program: Any, inputs: tuple[Any, ...], key: bytes, addresses: bytes, state: bytes
    ) -> Any:
        if pool.machine.capturing():
            return None
        before = self._sights.get(key)
        if before is None:
            return self._first(pool, program, inputs, key, addresses, state)
        if not self._note(key, before, addresses, inputs) or any(tensor.numel() == 0 for tensor in inputs):
            return self._in_vain()
        copied = tuple(sorted(self._moving))
        try:
            replay = self._capture(pool, program, inputs, copied, addresses, state)
        except Exception as error:
            return self._give_up(_words(error))
        program.add(inputs, copied, state, replay)
        self.count += 1
        if self.count == self.limit:
            self.why = f"{self.limit} graphs are captured, the limit: other cases are launched step by step"
        return replay.run(pool.machine, tuple(inputs[place] for place in copied))

    def _give_up(self, why: str) -> bool:
        self.why = why
        self._sights.clear()
        return False

    def _in_vain(self) -> bool | None:
        """One more run of which nothing came."""
        self._vain += 1
        if self._vain > PATIENCE * (1 + self.count):
            return self._give_up(f"{self._vain} runs differed from those before them in sizes, numbers or memory")
        return None

    def _first(
        self, pool: Pool, program: Any, inputs: tuple[Any, ...], key: bytes, addresses: bytes, state: bytes
    ) -> Any:
        """Runs a case that was not met, which shows as well whether a library waits for the device."""
        if not self._worth(0, 0):
            return self._give_up(self._too_little())
        if self._in_vain() is False:
            return False
        while len(self._sights) >= SIGHTS:
            self._sights.pop(next(iter(self._sights)))
        self._sights[key] = addresses
        if self.work.written or not self.work.calls:
            return None
        outs, waits = pool.machine.watched(partial(program.steps, inputs, state))
        if waits:
            self._give_up(f"a library call waits for the device: {waits}")
        return outs

    def _note(self, key: bytes, before: bytes, addresses: bytes, inputs: tuple[Any, ...]) -> bool:
        """Takes inputs that have moved for such as do; False where one must lie still, since it is written."""
        then, now = (memoryview(words).cast("Q").tolist() for words in (before, addresses))
        moved = {place for place, (a, b) in enumerate(zip(then, now, strict=True)) if a != b}
        self._sights[key] = addresses
        if moved & set(self.work.written):
            return False
        self._moving.update(place for place in moved if not self.count or _bytes(inputs[place]) <= SMALL)
        return True

    def _capture(
        self,
        pool: Pool,
        program: Any,
        inputs: tuple[Any, ...],
        copied: tuple[int, ...],
        addresses: bytes,
        state: bytes,
    ) -> Replay:
        """A graph of this run's steps, which has not run yet."""
        machine = pool.machine
        weigh = sum(_bytes(inputs[place]) for place in copied)
        if not self._worth(weigh, len(copied)):
            raise Refused(self._too_little())
        start, held = time.perf_counter(), machine.bytes()
        given = list(inputs)
        statics = [static_like(inputs[place]) for place in copied]
        for place, static in zip(copied, statics, strict=True):
            given[place] = static
            without_repeats(static).copy_(without_repeats(inputs[place]))
        settings = machine.settings() if self.work.calls else None
        graph, outs = machine.capture(pool.handle(), partial(program.steps, tuple(given), state))
        if [tensor.data_ptr() for tensor in inputs] != memoryview(addresses).cast("Q").tolist():
            raise Refused("another thread moved an input meanwhile")
        own = {tensor.untyped_storage().data_ptr() for tensor in given}
        if any(out.untyped_storage().data_ptr() in own for out in outs):
            raise Refused("a result shares memory with an input")
        if any(out.numel() == 0 for out in outs):
            raise Refused("a result has no elements")
        if not self._worth(weigh + sum(map(_bytes, outs)), len(copied) + len(outs)):
            raise Refused(self._too_little())
        replay = Replay(pool, statics, graph, outs, settings)
        self.seconds += time.perf_counter() - start
        self.bytes += max(0, machine.bytes() - held)
        self.copied, self.outs = len(copied), len(outs)
        return replay

    def _worth(self, copied: int, tensors: int) -> bool:
        """Whether a replay costs less than the steps, with ``copied`` bytes of so many tensors beside it."""
        launches, calls = self.work.launches, self.work.calls
        replay = REPLAY + NODE * (launches + calls) + min(tensors, 2) * COPY + tensors * FRESH + copied // BANDWIDTH
        return launches * LAUNCH + calls * CALL > GAIN * replay

    def _too_little(self) -> str:
        launches, calls = self.work.launches, self.work.calls
        return f"{launches} launches and {calls} library calls cost no more than a replay and its copies"


def _bytes(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())


def _words(error: Exception) -> str:
    if isinstance(error, Refused):
        return str(error)
    told = str(error).strip().splitlines() or [""]
    return f"capturing failed: {type(error).__name__}: {told[0][:200]}"
