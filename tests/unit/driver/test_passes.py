"""The passes name what they take and give by the fields of a compilation, with the fields' own types."""

import inspect
import types
from typing import get_args, get_type_hints

import pytest

from framefuse.driver import passes
from framefuse.driver.passes import NATIVE, Pass, check_order, run, through_backend
from framefuse.ir.derivative import Halves
from framefuse.ir.passes import Step
from framefuse.options import Options, resolve
from framefuse.runtime.compilation import Compilation
from framefuse.runtime.fx_graph import Captured

OTHER = through_backend(lambda module, examples: module)
LATE = {"Captured": Captured, "Halves": Halves, "Step": Step}  # that a call of kept code does not import
FIELDS = get_type_hints(Compilation, localns=LATE | {"Chosen": passes.Chosen})


def fits(given, field):
    """Whether a pass may say `given` of a field: its type, or that without None where an earlier pass made it."""
    return given == field or (isinstance(field, types.UnionType) and given in get_args(field))


def hints(step):
    found = get_type_hints(step.run, vars(passes) | LATE)
    return [found.get(name) for name in (*inspect.signature(step.run).parameters, "return")]


@pytest.mark.parametrize("step", [*NATIVE, *OTHER], ids=lambda step: f"{step.name}-{step.gives}")
def test_a_pass_has_the_types_of_the_fields(step):
    *needs, options, gives = hints(step)
    assert options is Options
    wrong = [(name, given) for name, given in zip(step.needs, needs, strict=True) if not fits(given, FIELDS[name])]
    assert not wrong
    assert fits(gives, FIELDS[step.gives])


@pytest.mark.parametrize("wrong", [lambda graph, options: 0, lambda trace, code, options: 0])
def test_a_pass_that_comes_too_early_is_seen(wrong):
    with pytest.raises(AssertionError, match="which no earlier pass gives"):
        check_order((Pass("early", wrong, "plan"),), frozenset({"trace"}))


def test_what_a_pass_gives_reaches_the_next_one():
    first = Pass("one", lambda trace, options: (trace, 1), "lowered")
    second = Pass("two", lambda lowered, trace, options: (*lowered, trace), "graph")
    made = Compilation("t")
    seconds, place = run((first, second), made, resolve(None))
    assert made.graph == ("t", 1, "t") and list(seconds) == ["one", "two"] and place is None


def test_what_is_made_is_named_and_the_call_is_forgotten():
    made = Compilation("t", ("an argument",))
    made.lowered = "g"
    assert made.made == ("trace", "bound", "lowered")
    made.forget_call()
    assert made.made == ("trace", "lowered")
