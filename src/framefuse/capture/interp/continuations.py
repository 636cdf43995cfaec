"""What becomes of a value that is not there yet, once a call, an opaque step or a generator has given it.

These are data: a break takes frames apart with what they owe, and the frames behind it are put together with the same.
A field ``target`` is a step at which the frame goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from framefuse.capture.facts.numbers import bare
from framefuse.capture.interp.machine import Continuation, Machine, Recovery, Resumption, exception_of
from framefuse.capture.interp.protocols import checked
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Ended
from framefuse.capture.program.services import Attempt
from framefuse.ir.values import Arguments, Function, Value

# Of calls and opaque steps -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drop(Continuation):
    """Nobody asked for the value."""

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        pass


@dataclass(frozen=True, slots=True)
class PushNone(Continuation):
    """None stands for the value."""

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        frame.stack.append(None)


@dataclass(frozen=True, slots=True)
class PushTrue(Continuation):
    """That there is a value was the question."""

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        frame.stack.append(True)


@dataclass(frozen=True, slots=True)
class PushTruth(Continuation):
    """The truth of the value, or its opposite."""

    negated: bool

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        frame.stack.append(bool(value) != self.negated)


@dataclass(frozen=True, slots=True)
class PushInstance(Continuation):
    """The instance whose ``__init__`` returned."""

    instance: Value

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        if value is not None:
            raise TypeError(f"__init__() should return None, not '{type(value).__name__}'")
        frame.stack.append(self.instance)


@dataclass(frozen=True, slots=True)
class PushCached(Continuation):
    """What the function of a cached_property gave: the attribute ``name`` of ``holder`` from now on."""

    holder: Value
    name: str

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        holder, name = self.holder, self.name
        if machine.recorder.sources.knows(holder):
            machine.recorder.journal.place("attr", holder, name, value, MISSING)
            holder.__dict__[name] = bare(value)
        else:
            holder.__dict__[name] = value
        frame.stack.append(value)


@dataclass(frozen=True, slots=True)
class PushOperation(Continuation):
    """What the first method behind an operator gave; where it declined, the next ``attempts`` are made."""

    attempts: tuple[Attempt, ...]
    function: Function
    left: Value
    right: Value

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        if value is NotImplemented:
            machine.operations.operate(frame, self.attempts, self.function, self.left, self.right, nested=True)
        else:
            frame.stack.append(value)


@dataclass(frozen=True, slots=True)
class PushIterator(Continuation):
    """An iterator over a list that an opaque step made."""

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        frame.stack.append(iter(machine.natives.elements(value)))


@dataclass(frozen=True, slots=True)
class PushChecked(Continuation):
    """What a special method of a ``kind`` gave, as the builtin that asked for it passes it on."""

    method: str
    kind: type

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        frame.stack.append(checked(self.method, self.kind, value))


@dataclass(frozen=True, slots=True)
class Raise(Continuation):
    """The statement ``raise kind from cause``: the value is the exception that the class made."""

    cause: Value
    kind: type

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        machine.throw(exception_of(self.kind, value), self.cause)


@dataclass(frozen=True, slots=True)
class Jump(Continuation):
    """A branch: it jumps ``when`` the value is this one."""

    when: bool
    target: int

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        if value is self.when:
            frame.step = self.target


@dataclass(frozen=True, slots=True)
class JumpOrPop(Continuation):
    """A branch that keeps the tested object where it jumps."""

    when: bool
    target: int

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        if value is self.when:
            frame.step = self.target
        else:
            frame.stack.pop()


@dataclass(frozen=True, slots=True)
class PushAsked(Continuation):
    """The truth of an object, or its opposite, as its ``method`` gave it."""

    negated: bool
    method: str
    kind: type

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        frame.stack.append(machine.operations.truth(checked(self.method, self.kind, value)) != self.negated)


@dataclass(frozen=True, slots=True)
class JumpAsked(Continuation):
    """A branch on an object whose ``method`` gives its truth: ``keeps`` the object where it jumps."""

    when: bool
    target: int
    keeps: bool
    method: str
    kind: type

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        jumps = machine.operations.truth(checked(self.method, self.kind, value)) is self.when
        if jumps:
            frame.step = self.target
        if not (jumps and self.keeps):
            frame.stack.pop()


@dataclass(frozen=True, slots=True)
class PushNext(Continuation):
    """The next element of an iterator; at its end the loop ends."""

    target: int

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        if value is Ended:
            frame.stack.pop()
            frame.step = self.target
        else:
            frame.stack.append(value)


@dataclass(frozen=True, slots=True)
class PushText(Continuation):
    """A part of an f-string: what the ``method`` that writes a ``kind`` gave, escaped and formatted."""

    method: str
    kind: type
    escaped: bool
    spec: str

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        text = checked(self.method, self.kind, value)
        if self.escaped:
            text = text.encode("ascii", "backslashreplace").decode("ascii")
        frame.stack.append(format(bare(text), bare(self.spec)) if self.spec else text)


@dataclass(frozen=True, slots=True)
class Again(Continuation):
    """The elements of what lies on top of the stack, or ``below`` that: they take its place, and the instruction that
    takes them runs again.
    """

    below: bool

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        frame.stack[-1 - self.below] = value
        frame.step -= 1


DROP, PUSH_NONE, PUSH_TRUE, PUSH_ITERATOR = Drop(), PushNone(), PushTrue(), PushIterator()
PUSH_TRUTH, PUSH_NEGATED = PushTruth(False), PushTruth(True)


# Of a generator, in the frame that goes on with it -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForLoop(Resumption):
    """A loop takes the elements, the generator below them on the stack."""

    target: int

    def returned(self, machine: Machine, frame: Frame, value: Value) -> None:
        frame.stack.pop()
        frame.step = self.target


@dataclass(frozen=True, slots=True)
class Delegation(Resumption):
    """``yield from``: the generator and the value that it was sent lie on the stack."""

    target: int

    def yielded(self, machine: Machine, frame: Frame, value: Value) -> None:
        frame.stack[-1] = value

    def returned(self, machine: Machine, frame: Frame, value: Value) -> None:
        frame.stack[-2:] = [value]
        frame.step = self.target


@dataclass(frozen=True, slots=True)
class NextCall(Resumption):
    """A call of ``next`` or ``send``, with the value that it gives at the end, if it has one."""

    default: Arguments = ()

    def returned(self, machine: Machine, frame: Frame, value: Value) -> None:
        if self.default:
            frame.stack.append(self.default[0])
        else:
            machine.raised = StopIteration(value) if value is not None else StopIteration()


# Of an iterator that raised StopIteration ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EndLoop(Recovery):
    """A loop ends, the iterator on the stack."""

    target: int
    caught: ClassVar[type[Exception]] = StopIteration

    def recover(self, machine: Machine, frame: Frame) -> None:
        frame.stack.pop()
        frame.step = self.target


@dataclass(frozen=True, slots=True)
class PushAtEnd(Recovery):
    """The value that ``next`` gives at the end."""

    default: Value
    caught: ClassVar[type[Exception]] = StopIteration

    def recover(self, machine: Machine, frame: Frame) -> None:
        frame.stack.append(self.default)


# Of a lookup that raised AttributeError ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PushDefault(Recovery):
    """The value to go on with."""

    default: Value

    def recover(self, machine: Machine, frame: Frame) -> None:
        frame.stack.append(self.default)


@dataclass(frozen=True, slots=True)
class AskGetattr(Recovery):
    """``__getattr__`` of ``holder`` is asked for the attribute ``name``."""

    holder: Value
    name: str

    def recover(self, machine: Machine, frame: Frame) -> None:
        machine.attributes.fall_back(frame, self.holder, self.name)
