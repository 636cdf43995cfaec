"""One captured graph with the memory it works on: takes the inputs of a call, gives its outs in memory of their own."""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from framefuse.runtime.cuda_graphs import CudaGraphs, Handle, Settings, Stream

Tensors = tuple[Tensor, ...]
Answer = Tensors | types.NotImplementedType | None
Lie = tuple[Sequence[int], Sequence[int], int]  # sizes, strides, offset


class Pool:
    """The graphs of one device and the memory that they share: they run one after the other, whoever asks.

    What a replay leaves in shared memory is good until the next one, so whoever replays takes copies of it before it
    lets go of ``lock``. A graph whose values are kept for a backward has memory of its own. ``graphs`` are the live
    ones; ``last`` is the stream of the last replay.
    """

    def __init__(self, machine: CudaGraphs) -> None:
        self.machine = machine
        self.lock = threading.Lock()
        self.graphs: weakref.WeakSet[Replay] = weakref.WeakSet()
        self.last: Stream | None = None
        self._handle: Handle | None = None

    def handle(self, own: bool) -> Handle:
        """Names the shared memory, or with ``own`` some that no other graph has. No graph left there, the shared memory
        gets another name, since torch gives it back.
        """
        if own:
            return self.machine.handle()
        if self._handle is None or all(graph.kept for graph in self.graphs):
            self._handle = self.machine.handle()
        return self._handle

    @property
    def bytes(self) -> int:
        """The bytes that the live graphs took."""
        return sum(graph.bytes for graph in self.graphs)

    def in_order(self, replay: Replay) -> bool:
        """Lets the current stream wait for the last replay if that ran on another one; False where it cannot."""
        now = self.machine.stream()
        if now != self.last:
            if self.last is not None and not self.machine.follow(self.last):
                return False
            self.last = now
        if replay.stream != now:
            if replay.kept and replay.stream is not None and not self.machine.follow(replay.stream):
                return False  # a backward may be reading there
            replay.moved(now)
        return True


TOGETHER = {  # what torch copies in one launch for many tensors
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool, torch.uint8,
}  # fmt: skip


ALONE = next(map(sys.getrefcount, (object(),)))  # of an object that only a tuple has


class Refused(Exception):
    """Why a run cannot be replayed."""


class Replay:
    """Called with the inputs that are copied, in order: replays, and gives the outs.

    Gives None where that cannot be done now (another thread replays, the user captures a graph, or a backward has not
    yet read what the last forward kept for it), NotImplemented where torch's settings are not what they were. Raises
    torch's error if the device has one. The outs at the places ``kept`` are no copies but the memory of the graph, the
    same objects in each call: autograd keeps them to itself, so that their counts of references tell who has them.
    ``back`` are those of the inputs that the graph writes, which get what it wrote; their versions are not raised here.
    ``rests_on`` are replays whose memory this one reads beyond its inputs.
    """

    __slots__ = (
        "__weakref__", "alone", "back", "bytes", "copied", "fresh", "graph", "kept", "outs", "pool", "rests_on",
        "settings", "statics", "stream",
    )  # fmt: skip

    def __init__(
        self,
        pool: Pool,
        statics: Sequence[Tensor],
        graph: Callable[[], None],
        outs: Sequence[Tensor],
        kept: Sequence[int],
        settings: Settings | None,
        back: Sequence[int] = (),
    ) -> None:
        self.pool = pool
        self.graph = graph
        self.settings = settings
        self.bytes = 0
        self.kept = tuple([outs[place] for place in kept])
        self.alone: tuple[int, ...] = ()
        self.rests_on: tuple[Replay, ...] = ()
        self.statics = [without_repeats(static) for static in statics]
        self.copied = _by_dtype(statics)
        self.back = [tuple(back[n] for n in group) for group in _by_dtype([statics[place] for place in back])]
        order = [place for place in range(len(outs)) if place not in kept]
        self.fresh = _Fresh([outs[place] for place in order])
        # of each out, where it stands among the copies with what is kept behind them; None where that is the order
        places = [*order, *kept]
        self.outs = None if not kept else tuple([places.index(place) for place in range(len(outs))])
        self.stream: Stream | None = None
        pool.graphs.add(self)

    def __call__(self, *given: Tensor) -> Answer:
        pool = self.pool
        if not pool.lock.acquire(False):
            return None
        try:
            machine = pool.machine
            if machine.here():
                return self.run(machine, given)
            with machine.entered():
                return self.run(machine, given)
        finally:
            pool.lock.release()

    def run(self, machine: CudaGraphs, given: tuple[Tensor, ...]) -> Answer:
        """The same, for who holds the lock, on the right device."""
        if machine.capturing():
            return None
        if self.settings is not None and machine.settings() != self.settings:
            return NotImplemented  # type: ignore[no-any-return]  # mypy takes it for Any
        if self.kept and self.counts() != self.alone:
            return None
        try:
            fresh = self.fresh.make()
            if not self.pool.in_order(self):
                return None
            if given:
                copy_all(self.statics, given, self.copied)
        except Exception:  # no memory, or an error of the device: launching each step meets it too, as eager does
            return None
        self.graph()
        if self.back:
            copy_all([tensor.data for tensor in given], self.statics, self.back)
        results = self.fresh.fill(fresh)
        if self.outs is None:
            return results
        every = (*results, *self.kept)
        return tuple([every[place] for place in self.outs])

    def counts(self) -> tuple[int, ...]:
        """The references to each object that is kept; ``alone`` are those while nobody else has it."""
        return tuple(map(sys.getrefcount, self.kept))

    def settle(self) -> None:
        """Takes the counts at hand for those of objects that nobody else has. Raises :class:`Refused` where they show
        another holder; torch itself may hold what is part of a tape.
        """
        self.alone = self.counts()
        for tensor, count in zip(self.kept, self.alone, strict=True):
            if count != ALONE and not (tensor.requires_grad and count == ALONE + 1):
                raise Refused("what a forward keeps is held by somebody else already")

    def keeps(self, tensor: Tensor) -> bool:
        """Whether this is one of the objects that are kept."""
        return any(part is tensor for part in self.kept)

    def moved(self, stream: Stream) -> None:
        """The memory of the inputs is used on one more stream."""
        if self.stream is not None:
            self.pool.machine.used(self.statics, stream)
        self.stream = stream


def static_like(tensor: Tensor) -> Tensor:
    """Memory for copies of ``tensor``, whose elements lie as its own do. Raises :class:`Refused` for what has none."""
    if tensor.is_sparse or tensor.layout is not torch.strided or tensor.is_quantized:
        raise Refused("an input is no plain tensor")
    memory = torch.empty(_span(tensor), dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tensor.shape, tensor.stride())


def without_repeats(tensor: Tensor) -> Tensor:
    """The elements of a tensor that lie at places of their own: an expanded dimension has one."""
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def copy_all(to: list[Tensor], given: Sequence[Tensor], groups: Sequence[tuple[int, ...]]) -> None:
    """Copies in as few launches as dtypes allow."""
    for group in groups:
        if len(group) == 1 or to[group[0]].dtype not in TOGETHER:
            for place in group:
                target, source = to[place], given[place]
                target.copy_(source if source.shape == target.shape else without_repeats(source))
        else:
            targets = [to[place] for place in group]
            sources = [given[place] for place in group]
            torch._foreach_copy_(
                targets,
                [s if s.shape == t.shape else without_repeats(s) for s, t in zip(sources, targets, strict=True)],
            )


def _by_dtype(tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
    groups: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(tensors):
        groups.setdefault(tensor.dtype, []).append(place)
    return tuple(map(tuple, groups.values()))


class _Fresh:
    """Makes tensors of their own from what a graph leaves in its memory; those that share memory share it again, and
    views are views again.
    """

    __slots__ = ("copied", "flat", "lies", "viewed")

    def __init__(self, outs: Sequence[Tensor]) -> None:
        self.flat: list[Tensor] = []
        self.lies: list[tuple[int, Lie | None]] = []  # of each out: which copy, and how it lies in it
        self.viewed: list[tuple[int, int]] = []  # the views among the outs, and which out each one views, or -1
        shared: dict[int, list[Tensor]] = {}
        for out in outs:
            shared.setdefault(out.untyped_storage().data_ptr(), []).append(out)
        place_of: dict[int, int] = {}
        for place, out in enumerate(outs):
            address = out.untyped_storage().data_ptr()
            family = shared[address]
            if len(family) == 1 and _is_dense(out) and not out._is_view():
                self.lies.append((len(self.flat), None))
                self.flat.append(out)
                continue
            start = min(int(member.storage_offset()) for member in family)
            if address not in place_of:
                if any(member.dtype is not out.dtype for member in family):
                    raise Refused("two results of different dtypes share memory")
                end = max(member.storage_offset() + _span(member) for member in family)
                place_of[address] = len(self.flat)
                self.flat.append(out.as_strided((end - start,), (1,), start))
            lies: Lie = (out.size(), out.stride(), int(out.storage_offset()) - start)
            self.lies.append((place_of[address], lies))
            if out._is_view():
                self.viewed.append((place, next((p for p, other in enumerate(outs) if other is out._base), -1)))
        self.copied = _by_dtype(self.flat)

    def make(self) -> list[Tensor]:
        """Memory for the copies."""
        return [torch.empty_like(out) for out in self.flat]

    def fill(self, fresh: list[Tensor]) -> tuple[Tensor, ...]:
        """The outs, with what the graph has left."""
        copy_all(fresh, self.flat, self.copied)
        # its ``data`` is the same tensor, in which nothing was written yet
        outs = [fresh[p].data if lies is None else _over(fresh[p], *lies) for p, lies in self.lies]
        for place, base in self.viewed:
            copied, lies = self.lies[place]
            assert lies is not None, "a view lies in memory that others share"
            outs[place] = (fresh[copied].data if base < 0 else outs[base]).as_strided(*lies)
        return tuple(outs)


def _over(memory: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """A tensor in this memory that is no view of another one: autograd may keep a version of it."""
    return torch.empty(0, dtype=memory.dtype, device=memory.device).set_(memory.untyped_storage(), offset, size, stride)


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory, each at a place of its own."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _span(tensor: Tensor) -> int:
    """How many elements lie from the first to the last one."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
