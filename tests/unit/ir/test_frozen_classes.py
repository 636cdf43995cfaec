import dataclasses

import pytest

from framefuse.ir.facts import Fact, Source
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.trace import Ref


@dataclass(frozen=True, slots=True)
class Pair:
    left: int
    right: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Own:
    value: int


@dataclass(frozen=True)
class Hashed:
    value: int

    def __hash__(self):
        return 7


def test_values_are_told_by_their_fields():
    assert Pair(1, (2,)) == Pair(1, (2,)) != Pair(2, (2,))
    assert len({Pair(1), Pair(1), Pair(2)}) == 2
    assert repr(Pair(1)) == "Pair(left=1, right=())"
    assert dataclasses.replace(Pair(1), right=(3,)) == Pair(1, (3,))
    assert not hasattr(Pair(1), "__dict__") and Pair.__match_args__ == ("left", "right")
    assert Own(1) != Own(1) and len({Own(1), Own(1)}) == 2
    assert hash(Hashed(1)) == 7


@pytest.mark.parametrize("kind", [Pair, Ref])
def test_no_class_checks_at_run_time_that_a_field_is_written(kind):
    assert "__setattr__" not in vars(kind)


def test_facts_are_hashed_as_before():
    assert hash(Fact(Source("arg", key=0), "int", 1)) == hash(Fact(Source("arg", key=0), "int", 1))
