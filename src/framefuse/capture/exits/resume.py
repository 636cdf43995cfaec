"""Puts the frames of a point together again, filled with the values that a run brought there."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence

from framefuse.capture.exits.resume_points import ResumePoint
from framefuse.capture.exits.snapshot import Part
from framefuse.capture.facts.numbers import plain_number
from framefuse.capture.facts.settle import cell_contents, tuple_like
from framefuse.capture.interp.machine import Machine
from framefuse.capture.program.bound import bind
from framefuse.capture.program.decoded import decode
from framefuse.capture.program.frame import Frame, FrameView, InterpretedGenerator, Pending
from framefuse.capture.program.iterators import VIEW_OBJECTS, KeyIterator, RangeIterator, continue_view
from framefuse.ir.classes import builtin_base
from framefuse.ir.facts import Source
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Value


class Rebuilt:
    """The interpreter at a resume point: ``continuation`` is owed the outcome of the opaque step, if there was one."""

    __slots__ = ("handled", "outcome", "continuation")

    def __init__(self, continuation: Pending | None, handled: BaseException | None, outcome: Value) -> None:
        self.continuation = continuation
        self.handled = handled
        self.outcome = outcome


def rebuild(point: ResumePoint, values: Sequence[Value], machine: Machine) -> Rebuilt:
    """Fills ``machine.frames``; ``values`` are those of the point, and become the arguments of its recorder."""
    return _Builder(point, values, machine).build()


class _Builder:
    def __init__(self, point: ResumePoint, values: Sequence[Value], machine: Machine) -> None:
        self.point = point
        self.machine = machine
        self.sources, self.contents = machine.recorder.sources, machine.recorder.contents
        self.made: dict[int, Value] = {}
        self.views: list[tuple[FrameView, int]] = []
        self.sources.begin_at_break()
        shift = int(point.has_outcome)
        if shift:
            self.sources.mark_volatile(0)  # data: its numbers differ from call to call
        self.outcome = self._argument(0, values[0]) if shift else None
        count = point.leaves
        self.leaves: list[Value] = [self._argument(n + shift, values[n + shift]) for n in range(count)]
        self.numbers: dict[int, Value] = dict(point.fixed)
        for n, place in enumerate(point.free):
            at = n + shift + count
            self.sources.mark_volatile(at)
            self.numbers[place] = self._argument(at, values[at])

    def _argument(self, number: int, value: Value) -> Value:
        source = Source("arg", None, number)
        if type(value) is types.CellType:
            # A cell is no value of the program: what is read is its content.
            self.sources.place_cell(value, Source("getattr", source, "cell_contents"))
            if any(type(held) is float for held in cell_contents(value)):  # a rate that inner functions read too
                self.sources.mark_volatile(number)
            return value
        if type(value) is str:
            self.sources.mark_volatile(number)
        return self.sources.guard_value(source, value, free=True)

    def build(self) -> Rebuilt:
        continuation, handled, *frames = self.point.shape.parts
        self.machine.frames.extend([self.part(frame) for frame in frames])
        rebuilt = Rebuilt(self.part(continuation), self.part(handled), self.outcome)
        for view, place in self.views:
            view.frame = self.machine.frames[place]
        return rebuilt

    def part(self, part: Part) -> Value:
        """The value of a piece."""
        return self.keep(part, MAKERS[part.kind](self, part))

    def parts(self, part: Part) -> list[Value]:
        """The values of a piece's pieces."""
        return [self.part(inner) for inner in part.parts]

    def keep(self, part: Part, value: Value) -> Value:
        """Registers a piece that others may refer to."""
        if part.index >= 0:
            self.made[part.index] = value
        return value

    def const(self, part: Part) -> Value:
        """A constant; modules and functions are long-lived objects of their own."""
        value = part.value
        if is_a(value, (types.FunctionType, types.ModuleType)) or hasattr(type(value), "named_parameters"):
            self.sources.root(value)
        return value

    def frame(self, part: Part) -> Frame:
        code, variables, step, keywords, bottom = part.value
        function = self.part(part.parts[0])
        if function is None:
            cells = tuple([types.CellType() for _ in code.co_freevars])
            function = types.FunctionType(code, variables, code.co_name, None, cells)
        frame: Frame = self.keep(part, Frame(function, decode(code)))
        frame.step, frame.keywords, frame.bottom = step, keywords, bottom
        frame.generator, frame.continuation, frame.recovery, frame.resumption, frame.handled, frame.space = [
            self.part(inner) for inner in part.parts[1:7]
        ]
        frame.locals[:] = self.part(part.parts[7])
        frame.stack[:] = self.part(part.parts[8])
        return frame

    def generator(self, part: Part) -> InterpretedGenerator:
        generator: InterpretedGenerator = self.keep(part, InterpretedGenerator.__new__(InterpretedGenerator))
        generator.machine = self.machine
        self.machine.recorder.generators = True
        generator.state = part.value
        generator.frame = self.part(part.parts[0])
        generator.function = generator.frame.function
        generator.arguments = list(self.part(part.parts[1]))
        return generator

    def view(self, part: Part) -> FrameView:
        view = FrameView.__new__(FrameView)  # its frame is put together later
        view.machine = self.machine
        self.views.append((view, part.value))
        self.machine.recorder.relations.note_tracked()
        return view

    def tuple(self, part: Part) -> Value:
        *values, state = self.parts(part)
        return tuple(values) if part.value is tuple else tuple_like(part.value, values, state)

    def object(self, part: Part) -> Value:
        kind, state = part.parts
        instance = self.keep(part, builtin_base(kind.value).__new__(kind.value))
        for name, value in self.part(state).items():
            object.__setattr__(instance, name, value)
        return instance

    def named(self, part: Part) -> dict[str, Value]:
        return dict(zip(part.value, self.parts(part), strict=True))

    def iterator(self, part: Part) -> Value:
        make, position, *args = self.parts(part)
        # A loop reads its elements one by one; any other iterator hands them out unseen.
        guard = self.contents.guard_extent if part.kind == "walked" else self.contents.guard_shallow_contents
        for value in args:
            guard(value)
        iterator = make(*map(plain_number, args))
        if position is not None:
            iterator.__setstate__(position)
        return iterator

    def entries(self, part: Part) -> Value:
        kind, given, size = part.value
        (holder,) = self.parts(part)
        (self.contents.guard_extent if kind is KeyIterator else self.contents.guard_shallow_contents)(holder)
        return continue_view(kind, holder, given, size)

    def shown(self, part: Part) -> Value:
        (holder,) = self.parts(part)
        self.contents.guard_shallow_contents(holder)
        return VIEW_OBJECTS[part.value](holder)


MAKERS: dict[str, Callable[[_Builder, Part], Value]] = {
    "const": _Builder.const,
    "leaf": lambda builder, part: builder.leaves[part.value],
    "number": lambda builder, part: builder.numbers[part.value],
    "same": lambda builder, part: builder.made[part.value],
    "frame": _Builder.frame,
    "generator": _Builder.generator,
    "view": _Builder.view,
    "tuple": _Builder.tuple,
    "iterator": _Builder.iterator,
    "walked": _Builder.iterator,
    "entries": _Builder.entries,
    "object": _Builder.object,
    "shown": _Builder.shown,
    "named": _Builder.named,
    "waiting": lambda builder, part: part.value(*builder.parts(part)),
    "counting": lambda builder, part: RangeIterator(*builder.parts(part)),
    "slice": lambda builder, part: slice(*builder.parts(part)),
    "range": lambda builder, part: range(*map(plain_number, builder.parts(part))),
    "method": lambda builder, part: types.MethodType(*builder.parts(part)),
    "bound": lambda builder, part: bind(*builder.parts(part)),
    "super": lambda builder, part: super(*builder.parts(part)),
    "partial": lambda builder, part: _partial(*builder.parts(part)),
}


def _partial(function: Value, args: Arguments, keywords: dict[str, Value], state: dict[str, Value]) -> Value:
    partial = functools.partial(function)
    partial.__setstate__((function, args, keywords, state))  # type: ignore[attr-defined]
    return partial
