"""Follows the memory of a call, and of the backward pass behind it, step by step: what is there, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from framefuse.explain.amounts import Sizes, bytes_of, is_view, kind_of_work, known_sizes, value_of
from framefuse.ir.derivative import Halves, Saved
from framefuse.ir.schedule import Allocate, Release, RunCall, RunKernel, RunMatmul, Schedule
from framefuse.runtime.recorded_call import Product


@dataclass(frozen=True, slots=True)
class Point:
    """A step with the bytes that are there while it runs; ``kept`` are those among them that backward reads."""

    title: str
    mark: str
    bytes: int
    kept: int
    backward: bool


@dataclass(frozen=True, slots=True)
class Curve:
    """The memory over a call at the recorded sizes: what graphs work in, what they have made, and what lies between
    forward and backward, which is ``kept``. What came in from outside is not among it, nor what a library call takes
    for itself. ``complete`` says that all sizes were known.
    """

    points: tuple[Point, ...]
    kept: int
    complete: bool

    @property
    def peak(self) -> Point:
        """The first step at which most is there."""
        return max(self.points, key=lambda point: point.bytes)


@dataclass(frozen=True, slots=True)
class Part:
    """A graph of a call with the mark of its page; ``piece`` is the number of what it differentiates."""

    product: Product
    mark: str
    piece: int | None = None


def curve(forward: Part, behind: Sequence[Part]) -> Curve | None:
    """The curve of a forward and the backward passes that run behind it; None where nothing was scheduled."""
    if forward.product.stages.code is None:
        return None
    walk = _Walk(forward.product)
    points = list(walk.steps(forward))
    kept = walk.begin_backward()
    for part in behind:
        points += walk.steps(part)
    return Curve(tuple(points), kept, walk.complete) if points else None


class _Walk:
    """What is there, from one graph to the next: ``held`` has the buffers of the forward that pieces read, with their
    bytes and their readers, which are pieces with the place among what they saved.
    """

    def __init__(self, forward: Product) -> None:
        self.complete = True
        self.readers: dict[int, set[tuple[int, int]]] = {}
        self.live: dict[int, int] = {}
        self.held: dict[int, int] = {}
        self.gradients = 0
        code = forward.stages.code
        assert code is not None  # the caller asked
        for piece, place, saved in _saved(forward.stages.halves):
            buffer = _memory_of(saved, code.schedule)
            if buffer is not None:
                self.readers.setdefault(buffer, set()).add((piece, place))

    def begin_backward(self) -> int:
        """The forward has ended: what it gave to the program is the program's; returns the bytes that are kept."""
        self.held = {number: size for number, size in self.live.items() if number in self.readers}
        self.live.clear()
        return sum(self.held.values())

    def steps(self, part: Part) -> Iterator[Point]:
        """The points of one graph."""
        code = part.product.stages.code
        if code is None:
            return
        schedule = code.schedule
        sizes = known_sizes(schedule, part.product.stages.graph.hints)
        arenas = (schedule.arena, *(size for _, size in schedule.arenas))
        working = sum(value_of(size, sizes) or 0 for size in arenas)
        for place, item in enumerate(schedule.items):
            if isinstance(item, Allocate):
                self.live[item.memory] = self._bytes(schedule, item.memory, sizes)
            elif isinstance(item, Release):
                for number in item.memories:
                    self._release(part, schedule, number)
            elif isinstance(item, RunKernel | RunMatmul | RunCall):
                if isinstance(item, RunCall) and not is_view(item):
                    made = [number for _, number in item.outs if schedule.memories[number].place == "call"]
                    self.live.update((number, self._bytes(schedule, number, sizes)) for number in made)
                before = part.piece is None
                kept = sum(self.live.get(number, 0) for number in self.readers) if before else sum(self.held.values())
                total = working + sum(self.live.values()) + sum(self.held.values()) + self.gradients
                yield Point(kind_of_work(item)[1], f"{part.mark}w{place}", total, kept, not before)
        if part.piece is not None:
            self._end_of(part.piece)

    def _bytes(self, schedule: Schedule, number: int, sizes: Sizes) -> int:
        size = bytes_of(schedule, [number], sizes)
        self.complete &= size is not None
        return size or 0

    def _release(self, part: Part, schedule: Schedule, number: int) -> None:
        """A buffer of the graph ends, or a saved value that came into it."""
        self.live.pop(number, None)
        memory = schedule.memories[number]
        if memory.place == "input" and part.piece is not None:
            source = part.product.stages.trace.assumptions.inputs[memory.input].source
            if source.kind == "item":
                self._let_go({(part.piece, source.key)})

    def _end_of(self, piece: int) -> None:
        """A backward pass has run: its gradients stay, what it read is let go."""
        self.gradients += sum(self.live.values())
        self.live.clear()
        self._let_go({reader for readers in self.readers.values() for reader in readers if reader[0] == piece})

    def _let_go(self, gone: set[tuple[int, int]]) -> None:
        for buffer, readers in self.readers.items():
            readers -= gone
            if not readers:
                self.held.pop(buffer, None)


def _saved(halves: Halves | None) -> Iterator[tuple[int, int, Saved]]:
    """What pieces keep for backward: the number of the piece, the place among what it saved, and the value."""
    for number, piece in enumerate(() if halves is None else halves.pieces):
        for place, saved in enumerate(piece.saved):
            yield number, place, saved


def _memory_of(saved: Saved, schedule: Schedule) -> int | None:
    """The buffer whose memory is kept; None where somebody outside has it."""
    if saved.kind == "input":
        return None
    number = schedule.outputs[saved.place]
    while schedule.memories[number].place == "view":
        number = schedule.memories[number].base
    return number if schedule.memories[number].place in ("fresh", "call") else None
