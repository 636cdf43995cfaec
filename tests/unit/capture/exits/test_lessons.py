"""A recording that has ended early teaches the next one, which breaks at all stops behind it; what each does happens
once, and recordings that only teach have a limit.
"""

import pathlib
import warnings
from collections import OrderedDict
from typing import Any

import numpy
import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.capture.exits.machine_exits import Exits
from framefuse.runtime import trace_limits
from framefuse.runtime.recorded_call import Outcome

MADE: list[Any] = []
KEPT = {"last": 0.0}


class Noted(OrderedDict[Any, Any]):
    """A dict that says what it was given."""

    def __setitem__(self, key, value):
        MADE.append(key)
        super().__setitem__(key, value)


class Key:
    """One of its own kind."""


SEEN = Noted({Key(): 0})


def items_of_arrays(x):
    array = x.detach().numpy()
    y = x * 2
    for place in range(3):
        y = y + (array[place].item() if place != 1 else float(array[place]))
    array[0] = 3
    return y.sin() + numpy.float32(2) * array[1].item()


def entries_under_objects(x):
    key = Key()
    SEEN[key] = 1
    y = x * 2
    if key in SEEN:
        y = y + len(SEEN)
    del SEEN[key]
    return y.cos() if key in SEEN else y.sin()


def gradients_that_are_sparse(x):
    weight = x.detach().clone().requires_grad_()
    taken = torch.nn.functional.embedding(torch.tensor([1, 0]), weight, sparse=True)
    (gradient,) = torch.autograd.grad((taken * taken).sum(), weight)
    dense = gradient.to_dense() * 2
    other = torch.eye(3).to_sparse().to_dense() + dense.sum()
    return dense.sum(0) + other


def written_classes(x):
    Key.one = x
    y = x + 1
    Key.two = y
    MADE.append("two")
    del Key.one
    return y * 2


def numbers_drawn_between(x):
    y = x + torch.randn(3, 3)
    z = y.to_sparse()
    MADE.append("drawn")
    return (z + torch.rand(3, 3).to_sparse()).to_dense() + torch.rand(3)


def warned(x):
    warnings.warn("one", stacklevel=1)
    y = x.to_sparse()
    warnings.warn("two", stacklevel=1)
    return y.to_dense() * 2


FUNCTIONS = (
    items_of_arrays, entries_under_objects, gradients_that_are_sparse, written_classes, numbers_drawn_between, warned,
)  # fmt: skip
PROGRAMS = {each.__name__: each for each in FUNCTIONS}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_fourth_call_runs_compiled_code(name):
    function = PROGRAMS[name]
    compiled = framefuse.compile(function)
    given: list[Any] = []
    for number in range(6):
        told = []
        for call in (function, compiled):
            torch.manual_seed(number)
            MADE.clear()
            hits = compiled_function(compiled).dispatch.hits
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                x = torch.rand(3, 3) if function is not items_of_arrays else torch.rand(5)
                out = call(x)
            told.append(([str(each.message) for each in caught], [type(each) for each in MADE], x, out, torch.rand(1)))
        torch.testing.assert_close(told[1][2:], told[0][2:])
        assert told[1][:2] == told[0][:2]
        given.append(compiled_function(compiled).dispatch.hits > hits)
    assert all(given[4:]) or function is warned, framefuse.explain(compiled)  # which asks how warnings are caught


@pytest.mark.first_call
def test_recordings_that_only_teach_have_a_limit(monkeypatch):
    monkeypatch.setattr(Exits, "_again", lambda exits, why: None)  # as where an instruction cannot be taken back
    names: dict[str, Any] = {"first": numpy.ones(1)}
    exec("def f(x):\n" + "".join("    x = x + first[0]\n" for _ in range(30)) + "    return x", names)
    compiled = framefuse.compile(names["f"])
    for _ in range(40):
        x = torch.rand(3)
        torch.testing.assert_close(compiled(x), names["f"](x))
    state = compiled_function(compiled)
    assert trace_limits.LESSONS < state.lessons.made <= trace_limits.MOST_LESSONS + 3
    assert "recordings ended early and took" in str(framefuse.explain(compiled))


@pytest.mark.parametrize("works", [False, True])
def test_code_that_only_leads_from_break_to_break_is_dropped_at_the_limit(works):
    def f(x):
        numbers = (x * 2 if works else x).tolist()
        return numbers, x

    compiled = framefuse.compile(f)
    state, x = compiled_function(compiled), torch.rand(3)
    for _ in range(3):
        assert compiled(x) == f(x)
    assert state.dispatch.entries and state.computes() is works
    state.lessons.made = trace_limits.MOST_LESSONS
    why = next(iter(state.breaks))
    state.file(Outcome(reason=why, learnt=True))
    assert bool(state.dispatch.entries) is works
    assert compiled(x) == f(x)


LIBRARY = """
import threading
LOCK = threading.RLock()

def gather(rows):
    for row in rows:
        LOCK.acquire()
        LOCK.release()
    try:
        hash(rows.shape, 1)
    except TypeError as error:
        for row in rows:
            LOCK.acquire()  # no break is possible while the error is handled
            LOCK.release()
    return rows.sin()
"""


def test_a_library_in_which_recordings_break_in_vain_is_a_step_and_what_is_around_it_compiled(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As recordings that give nothing cost many times what calls cost."""
    monkeypatch.setattr(trace_limits, "LESSONS", 0)
    monkeypatch.setattr(trace_limits, "LESSONS_SECONDS", 0.0)
    file = tmp_path / "site-packages" / "gathering" / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text(LIBRARY)
    library: dict[str, Any] = {"__name__": "gathering"}
    exec(compile(LIBRARY, str(file), "exec"), library)

    def f(x):
        return library["gather"](x).exp() * 2

    compiled, given = framefuse.compile(f), []
    state = compiled_function(compiled)
    for _ in range(5):
        x, hits = torch.rand(4, 3), state.dispatch.hits
        torch.testing.assert_close(compiled(x), f(x))
        given.append(state.dispatch.hits > hits)
    assert given == [False, False, True, True, True]
    told = framefuse.explain(compiled)
    assert [each.line.function for each in told.breaks] == [f.__qualname__], str(told)
    assert "the limit" not in str(told)
