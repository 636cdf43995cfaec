"""Decides for each run of a plan's region whether it is captured, replayed or run step by step, and keeps account."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from framefuse._native import PlanProgram
from framefuse.ir.plan import Plan, Region
from framefuse.runtime.cuda_graphs import CudaGraphs
from framefuse.runtime.regions import Work, region_of
from framefuse.runtime.replay import Answer, Pool, Refused, Replay, Tensors, static_like, without_repeats

# Nanoseconds on the host, measured on an H200 machine: what a step costs that is launched by itself, and what a replay
# costs for each of its nodes, at all, and for each launch that copies; and bytes a nanosecond that a copy moves.
LAUNCH, CALL = 4000, 12000
NODE, REPLAY, COPY, FRESH, BANDWIDTH = 80, 14000, 5000, 1500, 1500
GAIN = 1.2  # so much less must it cost
SMALL = 4 << 20  # bytes: an input that is not larger is copied rather than captured once more where it lies
TRIES = 4  # runs for which a larger one may move before it is copied
MANY = 4  # so many inputs that move at once may lie still from then on: what a replayed forward keeps
HEAVY = 16 << 20  # bytes of results: whether to copy and keep them pays is measured before
BUSY = 1.3  # so many times as long as launching takes may the device be busy
SHARE = 0.25  # of the device's memory may be held by all graphs together
ROOM = 2  # so many times as much memory as the inputs have must be free: a run that is watched lets go of none of them
SIGHTS = 64  # cases that are remembered before they are captured
PATIENCE = 256  # runs that come to nothing before nothing is tried any more

MACHINES: dict[str, Callable[[int], CudaGraphs]] = {"cuda": CudaGraphs}  # by type of device; tests put a stand-in there
_pools: dict[tuple[str, int], Pool] = {}
_lock = threading.Lock()


@dataclass(slots=True)
class _Sight:
    """A case that was met: where its inputs lay, how often it came again, whether its results are large, and what tells
    the seconds that launching it took and those that the device needed.
    """

    addresses: bytes
    tries: int = 0
    heavy: bool = False
    clock: Callable[[], tuple[float, float]] | None = None


def with_region(plan: Plan, limit: int) -> Plan:
    """The plan with its region, or with the reason why it has none; ``limit`` graphs may be captured of it."""
    why: Region | str = "nothing here captures graphs"
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
    as before is read in place, such as parameters; small inputs that have moved are copied into memory of the graph's
    own from then on, in each call, and what is written there is copied back. Large ones that move are waited for:
    values that a replayed forward keeps lie still once it is replayed.

    ``why`` says why nothing more is captured, "" while something may be. ``count`` graphs took ``seconds`` to capture
    and hold ``bytes``; ``copied`` inputs and ``outs`` results are copied in each replay of the latest.
    """

    def __init__(self, work: Work, limit: int) -> None:
        self.work = work
        self.limit = limit
        self.why = ""
        self.count = self.bytes = self.copied = self.outs = 0
        self.seconds = 0.0
        self._sights: dict[bytes, _Sight] = {}
        self._moving: set[int] = set()
        self._vain = 0

    def __call__(
        self, program: PlanProgram, inputs: Tensors, key: bytes, addresses: bytes, state: bytes
    ) -> Answer | bool:
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
        self, pool: Pool, program: PlanProgram, inputs: Tensors, key: bytes, addresses: bytes, state: bytes
    ) -> Answer | bool:
        machine = pool.machine
        if machine.capturing():
            return None
        sight = self._sights.get(key)
        if sight is None:
            return self._first(pool, program, inputs, key, addresses, state)
        if not self._settled(sight, addresses, inputs) or any(tensor.numel() == 0 for tensor in inputs):
            return self._in_vain()
        owners = self._owners(pool, inputs)
        if owners is None:
            return self._in_vain()
        heavy = sight.heavy or sum(_bytes(inputs[place]) for place in self._moving) > HEAVY
        if heavy and sight.clock is None:
            if not self._room(pool, inputs):
                return self._in_vain()
            outs, sight.clock = machine.clocked(partial(program.steps, inputs, state))
            return outs
        copied = tuple(sorted(self._moving))
        if any(inputs[place].is_inference() for place in copied if place in self.work.written):
            return self._in_vain()
        try:
            if sight.clock is not None:
                self._bound_by_launches(*sight.clock())
            replay = self._capture(pool, program, inputs, copied, addresses, state)
            replay.rests_on = owners
            replay.settle()
        except Exception as error:
            return self._give_up(_words(error))
        program.add(inputs, copied, state, replay)
        self.count += 1
        if self.count == self.limit:
            self.why = f"{self.limit} graphs are captured, the limit: other cases are launched step by step"
        return replay.run(machine, tuple(inputs[place] for place in copied))

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
        self, pool: Pool, program: PlanProgram, inputs: Tensors, key: bytes, addresses: bytes, state: bytes
    ) -> Answer | bool:
        """Runs a case that was not met, which shows as well whether a library waits for the device."""
        if not self._worth(0, 0):
            return self._give_up(self._too_little())
        if self._in_vain() is False:
            return False
        while len(self._sights) >= SIGHTS:
            self._sights.pop(next(iter(self._sights)))
        self._sights[key] = sight = _Sight(addresses)
        if not self._room(pool, inputs):
            return None
        outs, waits = pool.machine.watched(partial(program.steps, inputs, state))
        if waits:
            self._give_up(f"a library call waits for the device: {waits}")
        sight.heavy = sum(map(_bytes, outs)) > HEAVY
        return outs

    def _room(self, pool: Pool, inputs: Tensors) -> bool:
        """Whether the steps may run with all inputs alive, where they usually let go of them."""
        return not self.work.frees or ROOM * sum(map(_bytes, inputs)) <= pool.machine.room()

    def _settled(self, sight: _Sight, addresses: bytes, inputs: Tensors) -> bool:
        """Whether the inputs lie where they lay, but for such as may be copied; takes note of these."""
        then, now = (memoryview(words).cast("Q").tolist() for words in (sight.addresses, addresses))
        moved = {place for place, (a, b) in enumerate(zip(then, now, strict=True)) if a != b}
        sight.addresses = addresses
        sight.tries += 1
        if moved & {*self.work.tapes}:
            return False
        if any(_bytes(inputs[place]) > SMALL for place in moved & {*self.work.written}):
            return False
        large = {place for place in moved - self._moving if _bytes(inputs[place]) > SMALL}
        if large and (self.count or sight.tries <= TRIES):
            return False
        if len(moved - self._moving) > MANY and sight.tries == 1:
            return False
        self._moving |= moved
        return True

    def _owners(self, pool: Pool, inputs: Tensors) -> tuple[Replay, ...] | None:
        """The replays that keep the tapes among the inputs; None where one comes from a run step by step."""
        owners: dict[Replay, None] = {}
        for place in self.work.tapes:
            owner = next((graph for graph in pool.graphs if graph.keeps(inputs[place])), None)
            if owner is None or place in self._moving:
                return None
            owners[owner] = None
        return tuple(owners)

    def _bound_by_launches(self, host: float, device: float) -> None:
        """Raises :class:`Refused` where the device is busy for longer than launching takes: copies would cost more."""
        if device > BUSY * host:
            raise Refused(f"the device works for {device * 1e3:.2f} ms on what is launched in {host * 1e3:.2f} ms")

    def _capture(
        self,
        pool: Pool,
        program: PlanProgram,
        inputs: Tensors,
        copied: tuple[int, ...],
        addresses: bytes,
        state: bytes,
    ) -> Replay:
        """A graph of this run's steps, which has not run yet."""
        machine = pool.machine
        back = tuple(number for number, place in enumerate(copied) if place in self.work.written)
        moved = [*copied, *(copied[number] for number in back)]  # what is written goes both ways
        weigh = sum(_bytes(inputs[place]) for place in moved)
        if not self._worth(weigh, len(moved)):
            raise Refused(self._too_little())
        start, held = time.perf_counter(), machine.bytes()
        given = list(inputs)
        if self.work.taped:  # torch's records look after versions, which the program raises between the replays
            given = [tensor.data for tensor in inputs]
        statics = [static_like(inputs[place]) for place in copied]
        for place, static in zip(copied, statics, strict=True):
            given[place] = static
            without_repeats(static).copy_(without_repeats(inputs[place]))
        settings = machine.settings() if self.work.calls else None
        kept = self.work.kept
        graph, outs = machine.capture(pool.handle(bool(kept)), partial(program.steps, tuple(given), state))
        if [tensor.data_ptr() for tensor in inputs] != memoryview(addresses).cast("Q").tolist():
            raise Refused("another thread moved an input meanwhile")
        own = {tensor.untyped_storage().data_ptr() for tensor in given}
        results = [out for place, out in enumerate(outs) if place not in kept]
        if any(out.untyped_storage().data_ptr() in own for out in results):
            raise Refused("a result shares memory with an input")
        if any(out.numel() == 0 for out in results):
            raise Refused("a result has no elements")
        if not self._worth(weigh + sum(map(_bytes, results)), len(moved) + len(results)):
            raise Refused(self._too_little())
        replay = Replay(pool, statics, graph, outs, kept, settings, back)
        replay.bytes = max(0, machine.bytes() - held)
        if pool.bytes > machine.memory() * SHARE:
            raise Refused(f"captured graphs would hold {pool.bytes >> 20} MB of the device's memory")
        self.seconds += time.perf_counter() - start
        self.bytes += replay.bytes
        self.copied, self.outs = len(copied), len(results)
        if replay.bytes > HEAVY:
            machine.trim()  # what runs step by step had is not needed any more
        return replay

    def _worth(self, copied: int, tensors: int) -> bool:
        """Whether a replay costs less than the steps, with ``copied`` bytes of so many tensors beside it."""
        launches, calls = self.work.launches, self.work.calls
        replay = REPLAY + NODE * (launches + calls) + min(tensors, 2) * COPY + tensors * FRESH + copied // BANDWIDTH
        return launches * LAUNCH + calls * CALL > GAIN * replay

    def _too_little(self) -> str:
        launches, calls = self.work.launches, self.work.calls
        return f"{launches} launches and {calls} library calls cost no more than a replay and its copies"


def _bytes(tensor: Tensor) -> int:
    return int(tensor.numel()) * int(tensor.element_size())


def _words(error: Exception) -> str:
    if isinstance(error, Refused):
        return str(error)
    lines = str(error).strip().splitlines() or [""]
    return f"capturing failed: {type(error).__name__}: {lines[0][:200]}"
