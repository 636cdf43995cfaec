"""What frames wait for is data: every kind is frozen, taken apart at a break and put together the same behind it."""

import dataclasses

import pytest

from framefuse.capture.exits.resume import MAKERS
from framefuse.capture.exits.snapshot import _Taker
from framefuse.capture.interp import continuations
from framefuse.capture.interp.machine import Continuation, Recovery, Resumption
from framefuse.capture.program.frame import Pending
from framefuse.capture.program.markers import Ended

KINDS = [kind for kind in vars(continuations).values() if isinstance(kind, type) and issubclass(kind, Pending)]
KINDS = [kind for kind in KINDS if kind not in (Continuation, Recovery, Resumption)]


class _Frame:
    def __init__(self, *stack):
        self.stack, self.step = list(stack), 0


class _Sources:
    def source_of(self, value):
        return None


class _Recorder:
    sources, contents = _Sources(), None


class _Builder:
    """Puts pieces together whose leaves and numbers were taken down in order."""

    def __init__(self, taker):
        self.leaves, self.numbers, self.made = taker.leaves, taker.numbers, {}

    def part(self, part):
        return MAKERS[part.kind](self, part)

    def parts(self, part):
        return [self.part(inner) for inner in part.parts]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_kind_is_frozen_and_does_one_thing(kind):
    assert dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen
    assert "__slots__" in vars(kind)
    done = {Continuation: "finish", Resumption: "returned", Recovery: "recover"}
    (base,) = [base for base in done if issubclass(kind, base)]
    assert done[base] in vars(kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_break_carries_each_kind_over(kind):
    fields = dataclasses.fields(kind)
    pending = kind(*[7 if field.name == "target" else "text" for field in fields])
    taker = _Taker(_Recorder(), None)
    shape = taker.owed(pending)
    assert _Builder(taker).part(shape) == pending
    jumps = [field for field in fields if field.name == "target"]
    assert pending.targets() == ((7,) if jumps else ())
    kinds = [part.kind for part, field in zip(shape.parts, fields, strict=True) if field.name == "target"]
    assert kinds == ["const"] * len(jumps)  # a number of a point may be another one


@pytest.mark.parametrize(
    ("pending", "value", "stack", "step"),
    [
        (continuations.DROP, 5, [0, 1], 0),
        (continuations.PUSH_NONE, 5, [0, 1, None], 0),
        (continuations.PUSH_TRUE, 5, [0, 1, True], 0),
        (continuations.PUSH_TRUTH, [], [0, 1, False], 0),
        (continuations.PUSH_NEGATED, [], [0, 1, True], 0),
        (continuations.PushInstance("made"), None, [0, 1, "made"], 0),
        (continuations.PushChecked("__len__", list), 4, [0, 1, 4], 0),
        (continuations.Jump(True, 9), True, [0, 1], 9),
        (continuations.Jump(True, 9), False, [0, 1], 0),
        (continuations.JumpOrPop(False, 9), False, [0, 1], 9),
        (continuations.JumpOrPop(False, 9), True, [0], 0),
        (continuations.PushNext(9), 5, [0, 1, 5], 0),
        (continuations.PushNext(9), Ended, [0], 9),
    ],
)
def test_what_a_value_does_to_the_frame(pending, value, stack, step):
    frame = _Frame(0, 1)
    pending.finish(None, frame, value)
    assert (frame.stack, frame.step) == (stack, step)


def test_an_initializer_that_gives_a_value_is_an_error():
    with pytest.raises(TypeError, match="should return None"):
        continuations.PushInstance("made").finish(None, _Frame(), 3)
