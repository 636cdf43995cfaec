"""Takes the interpreter's frames apart: a shape that says how they are put together, and the values that fill it."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import itertools
import sys
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.facts.code_like import CODE_LIKE
from framefuse.capture.facts.numbers import TRACKED, is_nan
from framefuse.capture.facts.texts import Text
from framefuse.capture.interp.machine import Machine
from framefuse.capture.program.bound import BOUND_KINDS, is_bound, taken_apart
from framefuse.capture.program.frame import Frame, FrameView, InterpretedGenerator, Pending
from framefuse.capture.program.iterators import (
    NATIVE_ITERATORS,
    VIEW_OBJECTS,
    VIEWS,
    RangeIterator,
    RangeObjectIterator,
    dict_behind,
    place_in_view,
    reduced,
)
from framefuse.capture.program.liveness import live
from framefuse.capture.program.markers import UNBOUND, Marker
from framefuse.capture.recording.recipe import Recipes
from framefuse.capture.recording.recorder import Recorder
from framefuse.ir.classes import builtin_base
from framefuse.ir.containers import elements, size
from framefuse.ir.facts import extent
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

FREE_OF_EFFECTS = frozenset((int, float, str, FrameView, contextvars.Token, *TRACKED))  # nobody sees when they go
LEAST, MOST = -(2**63), 2**63 - 1
MOST_TURNS = 40  # chosen: of a loop with a break in it, each a point of its own


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a shape. ``kind`` is one of the makers of ``resume.py``; ``index`` numbers pieces that are
    met again as ``same``.
    """

    kind: str
    value: Value = None
    parts: tuple[Part, ...] = ()
    index: int = -1

    def key(self) -> Hashable:
        """A hashable that is equal for shapes which are put together alike; objects count by identity."""
        return (self.kind, _key(self.kind, self.value), tuple([part.key() for part in self.parts]), self.index)


def _key(kind: str, value: Value) -> Hashable:
    if kind == "frame":
        code, variables, *rest = value
        return (id(code), id(variables), *rest)
    if type(value) in (int, str, bool, type(None), bytes) or kind in ("entries", "named"):
        return (type(value), value)
    if type(value) in (float, complex):
        return (type(value), repr(value))
    return id(value)


class Unrepresentable(Exception):
    """An object that lives across the break and cannot be taken apart."""


@dataclass(slots=True)
class Taken:
    """What :func:`take` found: ``shape``, the ``leaves`` (tensors and objects) and the ``numbers``, in the order of
    their places; a number whose value a run decides stands in ``open``. ``generators`` go on as others, made from
    the shape: those that were taken apart must not be closed once they are let go. What is ``moving`` changes as it is
    used, and others stand for it behind the break: nothing else may have it.
    """

    shape: Part
    leaves: list[Value]
    numbers: list[Value]
    open: frozenset[int]
    generators: list[InterpretedGenerator]
    moving: list[Value]


def take(machine: Machine, recipes: Recipes, continuation: Pending | None, has_outcome: bool) -> Taken:
    """Takes all frames of ``machine`` apart; raises Unrepresentable with what stands against it."""
    taker = _Taker(machine.recorder, recipes)
    for caller, frame in itertools.pairwise(machine.frames):
        taker.targets[id(caller)] = (
                *_targets(frame.continuation), *_targets(frame.resumption), *_targets(frame.recovery)
            )
    taker.targets[id(machine.frames[-1])] = _targets(continuation)
    frames = tuple([taker.part(frame) for frame in machine.frames])
    extra = (taker.owed(continuation), taker.part(machine.handled))
    shape = Part("machine", has_outcome, (*extra, *frames))
    return Taken(shape, taker.leaves, taker.numbers, frozenset(taker.open), taker.generators, taker.moving)


ListIterator: type = type(iter([]))
ONE_HOLDER = 2  # the stack, and the count itself: a Python call on the way holds it once more under some frame hooks
# Pieces that change as they are used.
MOVING = frozenset(("generator", "iterator", "walked", "entries", "counting", "object", "partial"))


def _targets(waiting: Pending | None) -> tuple[int, ...]:
    """Where the frame that receives a result may jump with it."""
    return waiting.targets() if waiting is not None else ()


def _goes_unseen(value: Value) -> bool:
    """Whether nobody sees that a value goes."""
    if type(value) is InterpretedGenerator:
        return value.state != "suspended"
    return type(value) in FREE_OF_EFFECTS or is_a(value, torch.Tensor)


def _row(parts: Iterable[Part]) -> Part:
    return Part("tuple", tuple, (*parts, Part("named", ())))


class _Taker:
    def __init__(self, recorder: Recorder, recipes: Recipes) -> None:
        self.recorder = recorder
        self.sources = recorder.sources
        self.recipes = recipes
        self.leaves: list[Value] = []
        self.numbers: list[Value] = []
        self.open: set[int] = set()
        self.generators: list[InterpretedGenerator] = []
        self.moving: list[Value] = []
        self.targets: dict[int, tuple[int, ...]] = {}  # by frame: steps that are reached by a result
        self.memo: dict[int, Part] = {}
        self.keep: list[object] = []
        self.count = 0

    def part(self, value: Value) -> Part:
        """The piece for one value."""
        kind = type(value)
        if kind is Text:
            return self.leaf(value)
        if is_nan(value):
            return self._once(value)
        if kind in TRACKED:
            return self.number(value)
        if (kind is int and LEAST <= value <= MOST) or kind is float:
            return self.number(value)
        if kind in ATOMS or kind is Marker or kind is torch.device:
            return Part("const", value)
        part = self.memo.get(id(value))
        if part is None:
            part = self._first(value, kind)
            if part.kind in MOVING:
                self.moving.append(value)
            if part.kind in ("leaf", "const"):
                self.memo[id(value)] = part
                self.keep.append(value)
            elif part.index < 0:  # its parts do not refer to it
                part = dataclasses.replace(part, index=self.index(value))
        return part

    def _once(self, value: float) -> Part:
        """A NaN, which containers find as an object: the same one at each place that holds it."""
        part = self.memo.get(id(value))
        if part is None:
            part = self.memo[id(value)] = self.leaf(value)
            self.keep.append(value)
        return part

    def number(self, value: Value) -> Part:
        """A run-time number, or an int or float that may differ when the point is reached again."""
        if type(value) in TRACKED:
            self.open.add(len(self.numbers))
        self.numbers.append(value)
        return Part("number", len(self.numbers) - 1)

    def owed(self, waiting: Pending | None) -> Part:
        """What becomes of a result: jumps go to fixed places."""
        if waiting is None:
            return Part("const", None)
        fields = [(field.name, getattr(waiting, field.name)) for field in dataclasses.fields(waiting)]
        parts = [Part("const", value) if name == "target" else self.part(value) for name, value in fields]
        return Part("waiting", type(waiting), tuple(parts))

    def leaf(self, value: Value) -> Part:
        """A value that is handed on as it is."""
        self.leaves.append(value)
        return Part("leaf", len(self.leaves) - 1)

    def index(self, value: Value) -> int:
        """Announces a piece whose parts may refer to it."""
        self.count += 1
        self.memo[id(value)] = Part("same", self.count - 1)
        self.keep.append(value)
        return self.count - 1

    def _first(self, value: Value, kind: type) -> Part:
        if is_a(value, torch.Tensor):
            return self.leaf(value)
        source = self.sources.source_of(value)
        if source is not None and kind is tuple and not value:  # one object, whether it was given or is a constant
            self.sources.guard_type(value)
            self.sources.fact(source, "length", 0)
            return Part("const", value)
        if source is not None:
            if self.sources.changes(value) or kind is types.CellType:
                return self.leaf(value)
            if is_a(value, CODE_LIKE) or is_a(value, torch.nn.Module):
                self.sources.fact(source, "is", value, id(value)) if source.kind != "object" else None
                return Part("const", value)
        taken = TAKERS.get(kind)
        if taken is not None:
            return taken(self, value)
        is_made = self.sources.is_made
        if is_bound(value) or (is_a(value, BOUND_KINDS) and is_made(value.__self__)):
            return self._bound(value)
        if is_a(value, CODE_LIKE) and not is_made(value):
            return Part("const", value)
        if is_a(value, tuple) and not is_made(kind):
            state = self.named(getattr(value, "__dict__", None) or {})
            return Part("tuple", kind, (*[self.part(part) for part in elements(value)], state))
        if kind in VIEW_OBJECTS:
            return Part("shown", kind, (self.part(dict_behind(value)),))
        if kind in VIEWS:
            return self._view(value, kind)
        if kind in NATIVE_ITERATORS:
            return self._iterator(value)
        if not is_made(kind) and self._holds_generator(value):
            return self._object(value, kind)
        return self.leaf(value)

    def frame(self, frame: Frame) -> Part:
        """A frame with its locals and stack."""
        index = self.index(frame)
        code = frame.code.code
        value, stack = (code, frame.globals, frame.step, frame.keywords, frame.bottom), frame.stack
        parts = (
            self._function(frame),
            self.part(frame.generator),
            self.owed(frame.continuation),
            self.owed(frame.recovery),
            self.owed(frame.resumption),
            self.part(frame.handled),
            self.part(frame.space),
            _row(self.locals(frame)),
            _row([self._walked(stack, place) or self.part(stack[place]) for place in range(len(stack))]),
        )
        return Part("frame", value, parts, index)

    def _walked(self, stack: Sequence[Value], place: int) -> Part | None:
        """An iterator over a list that a loop walks and nobody else can advance, as nobody else holds it."""
        if type(stack[place]) is not ListIterator or sys.getrefcount(stack[place]) > ONE_HOLDER:
            return None
        held = stack[place]
        if id(held) in self.memo:
            return None
        *_, walked = reduced(held)[1]
        if type(walked) is list and self._is_long(walked):
            return self.leaf(held)
        part = self._iterator(held)
        self.moving.append(held)
        return dataclasses.replace(part, kind="walked") if type(walked) is list else part

    def _is_long(self, walked: list[Value]) -> bool:
        """Whether a list has more turns than there may be points, or another number of them in many calls: then one
        point is there for all turns, and each takes its element in a step.
        """
        source = self.sources.source_of(walked)
        return len(walked) > MOST_TURNS or (source is not None and extent(source) in self.recorder.moving)

    def locals(self, frame: Frame) -> Iterator[Part]:
        """The local variables; a tensor or number that nothing reads any more is not carried on."""
        bits = live(frame.code, frame.step, self.targets.get(id(frame), ()))
        for slot, value in enumerate(frame.locals):
            dead = not bits >> slot & 1 and _goes_unseen(value)
            yield Part("const", UNBOUND) if dead else self.part(value)

    def _function(self, frame: Frame) -> Part:
        """The function of a frame; one made during the call is only looked at for its globals."""
        function = frame.function
        if self.sources.is_made(function) and self.sources.source_of(function) is None:
            return Part("const", None)
        return self.part(function)

    def generator(self, generator: InterpretedGenerator) -> Part:
        """A generator with its frame."""
        self.generators.append(generator)
        index = self.index(generator)
        frame = self.part(generator.frame)
        arguments = _row([self.part(held) for held in generator.arguments])
        return Part("generator", generator.state, (frame, arguments), index)

    def view(self, value: FrameView) -> Part:
        """A frame object of one of the frames."""
        machine = self.recorder.machine
        for place, frame in enumerate(machine.frames if machine is not None else ()):
            if frame is value.frame:
                return Part("view", place)
        raise Unrepresentable("a frame that has ended")

    def method(self, value: Value) -> Part:
        """A bound method."""
        return Part("method", None, (self.part(value.__func__), self.part(value.__self__)))

    def _bound(self, value: Value) -> Part:
        """A bound method of C: its function and what that is bound to."""
        parts = taken_apart(value)
        if parts is None:
            raise Unrepresentable(f"the method {value.__name__} of a {type(value.__self__).__name__}")
        return Part("bound", None, (Part("const", parts[0]), self.part(parts[1])))

    def superclass(self, value: Value) -> Part:
        """A super object with both its arguments."""
        if value.__self__ is None:
            raise Unrepresentable("an unbound super object")
        return Part("super", None, (self.part(value.__thisclass__), self.part(value.__self__)))

    def slice(self, value: Value) -> Part:
        """A slice object."""
        return Part("slice", None, (self.part(value.start), self.part(value.stop), self.part(value.step)))

    def range(self, value: Value) -> Part:
        """A range object."""
        return Part("range", None, (self.part(value.start), self.part(value.stop), self.part(value.step)))

    def counting(self, value: RangeIterator) -> Part:
        """An iterator over a range that this interpreter made."""
        index = self.index(value)
        return Part("counting", None, (self.part(value.at), self.part(value.stop), self.part(value.step)), index)

    def range_iterator(self, value: Value) -> Part:
        """CPython's iterator over a range."""
        index = self.index(value)
        _, (left,), *rest = value.__reduce__()
        at = left.start + ((rest[0] if rest else 0) or 0) * left.step  # None from CPython 3.12 on
        return Part("counting", None, (self.part(at), self.part(left.stop), self.part(left.step)), index)

    def partial(self, value: Value) -> Part:
        """A partial made during the call."""
        parts = self.part(value.func), self.part(value.args)
        return Part("partial", None, (*parts, self.named(value.keywords), self.named(vars(value))))

    def named(self, values: Mapping[str, Value]) -> Part:
        """A dict of attributes or keywords, entry by entry."""
        return Part("named", tuple(values), tuple([self.part(part) for part in values.values()]))

    def _holds_generator(self, value: Value) -> bool:
        """Whether a plain object has an interpreted generator among its attributes, as context managers do: then it
        cannot be made for real, and no other object that is can hold it.
        """
        state = getattr(value, "__dict__", None)
        if builtin_base(type(value)) not in (object, types.SimpleNamespace):
            return False
        return type(state) is dict and any(type(part) is InterpretedGenerator for part in state.values())

    def _object(self, value: Value, kind: type) -> Part:
        index = self.index(value)
        return Part("object", None, (Part("const", kind), self.named(vars(value))), index)

    def _view(self, value: Value, kind: type) -> Part:
        """An iterator over a dict or set: what happens to that one later, it meets."""
        try:
            place = place_in_view(value)
        except RuntimeError as error:
            raise Unrepresentable(f"an iterator of which {error}") from None
        if place is None:
            return self._iterator(value)
        holder, given = place
        index = self.index(value)
        return Part("entries", (kind, given, size(holder)), (self.part(holder),), index)

    def _iterator(self, value: Value) -> Part:
        """An iterator of C that tells how it is made; its position stays a constant of the shape."""
        index = self.index(value)
        make, args, position = reduced(value)
        if type(position) not in (int, bool, type(None)):
            raise Unrepresentable(f"a {type(value).__name__} in use")
        parts = tuple([self.part(part) for part in args])
        return Part("iterator", (make, position), (Part("const", make), Part("const", position), *parts), index)


TAKERS: dict[type, Callable[[_Taker, Value], Part]] = {
    Frame: _Taker.frame,
    InterpretedGenerator: _Taker.generator,
    FrameView: _Taker.view,
    types.MethodType: _Taker.method,
    super: _Taker.superclass,
    slice: _Taker.slice,
    range: _Taker.range,
    RangeIterator: _Taker.counting,
    RangeObjectIterator: _Taker.range_iterator,
    functools.partial: _Taker.partial,
}
