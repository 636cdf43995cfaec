"""Keeps the points at which recordings of a function broke, so that the same state meets the same point again."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from types import CodeType

from framefuse.capture.exits.learnt import can_step, step
from framefuse.capture.exits.snapshot import Part, Taken, Unrepresentable
from framefuse.capture.interp.machine import Handler, Machine
from framefuse.capture.program.decoded import HANDLERS, Code, decode
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.leaves import library_of
from framefuse.capture.program.markers import Outcome
from framefuse.errors import Reason
from framefuse.ir.source import Line
from framefuse.ir.values import Value

# Beyond this many points of one shape every number is a run-time value.
CROWD = 4  # steps learnt in one library, from which on the call into it is one
ALIKE = 3
# So many recordings may end at one place because the program made something there that it keeps.
FIRST_USES = 4
# What these give of a number is a method bound to its value: a step would not help.
READS = frozenset(HANDLERS[name] for name in ("LOAD_ATTR", "LOAD_METHOD"))


@dataclass(eq=False, repr=False, slots=True)
class ResumePoint:
    """A place where compiled code hands over: frames of this ``shape``, filled with values.

    The values of a point are the outcome of the opaque step (where the shape has one), then the leaves, then the
    numbers of the places ``free``; the other numbers are ``fixed``. ``handle`` is what the runtime keeps of it.
    """

    name: str
    line: Line
    shape: Part
    leaves: int
    free: tuple[int, ...]
    fixed: dict[int, Value]
    why: Reason
    handle: object = None

    @property
    def has_outcome(self) -> bool:
        """Whether an opaque step runs before it."""
        return bool(self.shape.value)

    @property
    def count(self) -> int:
        """How many values it takes."""
        return self.has_outcome + self.leaves + len(self.free)

    def fits(self, taken: Taken) -> bool:
        """Whether the numbers that this point holds fixed are those of ``taken``."""
        return all(place not in taken.open and _equal(taken.numbers[place], held) for place, held in self.fixed.items())


def _equal(left: Value, right: Value) -> bool:
    return type(left) is type(right) and repr(left) == repr(right)


def _cutting(handler: Handler) -> Handler:
    def cut(machine: Machine, frame: Frame, argument: int) -> Outcome:
        return machine.exits.cut(frame, handler, argument)

    return cut


def _stepping(handler: Handler, why: tuple[str, str]) -> Handler:
    def run(machine: Machine, frame: Frame, argument: int) -> Outcome:
        return step(machine, frame, handler, argument, why)

    return run


@dataclass(slots=True)
class ResumePoints:
    """All points of one compiled function, and the instructions at which its next recordings break.

    ``learnt`` are steps of code objects: with None the recording is cut before them, with a reason they are opaque
    steps. Both come from recordings that ended there. Where what a device does is ``replayed`` as graphs, of which none
    holds a number of a tensor, reading one is a step.
    """

    by_shape: dict[Hashable, list[ResumePoint]] = field(default_factory=dict)
    learnt: dict[CodeType, dict[int, tuple[str, str] | None]] = field(default_factory=dict)
    limit: int = 64
    replayed: bool = False
    waited: dict[CodeType, int] = field(default_factory=dict)
    cut_codes: dict[CodeType, tuple[int, Code]] = field(default_factory=dict)
    entries: Counter[tuple[CodeType, int]] = field(default_factory=Counter)

    def find(self, taken: Taken, name: str, line: Line, why: Reason) -> ResumePoint:
        """The point for a state of the frames: a known one, else one with fewer fixed numbers than those alike.

        Raises Unrepresentable when there are too many.
        """
        alike = self.by_shape.setdefault(taken.shape.key(), [])
        for point in alike:
            if point.fits(taken):
                return point
        if len(self) >= self.limit:
            raise Unrepresentable(f"one state more than {self.limit} (the option point_limit)")
        fixed = {}
        if len(alike) < ALIKE:
            for place, value in enumerate(taken.numbers):
                same = all(place in other.fixed and _equal(other.fixed[place], value) for other in alike)
                if place not in taken.open and same:
                    fixed[place] = value
        free = tuple([place for place in range(len(taken.numbers)) if place not in fixed])
        point = ResumePoint(name, line, taken.shape, len(taken.leaves), free, fixed, why)
        alike.append(point)
        return point

    def learn(self, code: CodeType, at: int, why: tuple[str, str] | None) -> bool:
        """Remembers to break before this instruction, or (with ``why``, a code and detail) to make it a step of its
        own, which is more; False when that is known already, or impossible.
        """
        handler = decode(code).steps[at][0]
        if why is not None and (not can_step(handler) or (why[0] == "value" and handler in READS)):
            return False
        steps = self.learnt.setdefault(code, {})
        more = at in steps and steps[at] is None and why is not None
        if (at in steps and not more) or sum(map(len, self.learnt.values())) >= self.limit:
            return False
        if more:
            self.cut_codes.pop(code, None)
        steps[at] = why
        return True

    def crowded(self, library: str) -> bool:
        """Whether so many steps were learnt in a library that the call into it had better be one."""
        return sum(len(steps) for code, steps in self.learnt.items() if library_of(code) == library) > CROWD

    def leave_library(self, why: tuple[str, str]) -> bool:
        """The call into a library within which most breaks were is a step from now on; False where they were few."""
        for (code, at), count in self.entries.most_common(1):
            self.entries.clear()
            if count > CROWD and (self.learn(code, at, why) or self.learnt.get(code, {}).get(at) is not None):
                self.forget()
                return True
        return False

    def forget(self) -> None:
        """Drops the points that no compiled code leads to."""
        kept = {shape: [point for point in alike if point.handle is not None] for shape, alike in self.by_shape.items()}
        self.by_shape = {shape: alike for shape, alike in kept.items() if alike}

    def waits(self, code: CodeType) -> bool:
        """Whether a recording that ended here, as the program made state of its own, shall simply be tried again."""
        self.waited[code] = count = self.waited.get(code, 0) + 1
        return count <= FIRST_USES

    def cut(self, code: Code) -> Code:
        """``code`` with the learnt breaks in it."""
        steps = self.learnt.get(code.code)
        if not steps:
            return code
        cut = self.cut_codes.get(code.code)
        if cut is None or cut[0] != len(steps):
            changed = copy.copy(code)
            changed.watched = None
            changed.steps = list(decode(code.code).steps)
            for at, why in steps.items():
                handler, argument = changed.steps[at]
                changed.steps[at] = (_cutting(handler) if why is None else _stepping(handler, why), argument)
            cut = self.cut_codes[code.code] = (len(steps), changed)
        return cut[1]

    def __len__(self) -> int:
        return sum(map(len, self.by_shape.values()))
