"""A break in the middle of a function costs that step only: what is before and after it is compiled and as in eager."""

import contextlib
import enum
import io
import math
from typing import Any

import pytest
import torch
from tests.unit.capture.replay import equal

import framefuse
from framefuse.api import compiled_function

PROGRAMS: dict[str, Any] = {}


class Case:
    """A program: ``graphs`` is how many stretches are compiled, at most, for the arguments ``calls``."""

    def __init__(self, function: Any, graphs: int, calls: Any) -> None:
        self.function, self.graphs, self.calls = function, graphs, calls


def case(graphs: int, calls: Any = None) -> Any:
    def register(function: Any) -> Any:
        PROGRAMS[function.__name__] = Case(function, graphs, calls or [(1.0,), (2.0,), (0.5,), (3.0,)])
        return function

    return register


def vector(scale: float) -> torch.Tensor:
    return torch.tensor([1.0, -2.0, 3.0, 0.25]) * scale


@case(2)
def item_in_the_middle(x):
    y = x * 2 + 1
    return y.sin() * y.sum().tolist() + 1


@case(3, [(1.0,), (-1.0,), (2.0,), (-2.0,), (1.0,)])
def both_branches(x):
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y - 1


@case(5, [(1e4,), (10.0,), (1e9,), (1e-3,), (1e2,)])
def loop_with_a_counter(x):
    n = 0
    while True:
        x = x / 2
        n += 1
        if x.norm() <= 1:
            break
    return x, n


@case(2)
def ten_calls_deep(x):
    def level(n, x):
        if n == 0:
            return x + x.max().tolist()
        y = level(n - 1, x * 1.5)
        return y * 0.5 + n

    return level(9, x)


@case(2)
def inside_no_grad(x):
    with torch.no_grad():
        y = x + 1
        s = y.sum().tolist()
        y = y * s
    return y, torch.is_grad_enabled()


@case(2)
def inside_a_generator(x):
    def pieces():
        yield x * 2
        yield x * x.sum().tolist()
        yield x + 1

    total = 0
    for piece in pieces():
        total = total + piece
    return total


@case(2)
def inside_a_generator_expression(x):
    return sum(part * 2 if n != 1 else part * part.tolist() for n, part in enumerate([x.sum(), x.max(), x.min()]))


@case(3)
def inside_a_context_manager(x):
    @contextlib.contextmanager
    def scaled(value):
        log = []
        try:
            yield log
        finally:
            log.append(value * 2)

    with scaled(x) as log:
        y = x * x.sum().tolist()
    return y, log[0]


@case(3)
def with_a_list_under_way(x):
    found = [x]
    found.append(x + 1)
    s = x.sum().tolist()
    found.append(x * s)
    return found, len(found)


@case(2)
def with_a_closure_under_way(x):
    n = 0

    def count(value):
        nonlocal n
        n += 1
        return value * n

    y = count(x)
    s = y.sum().tolist()
    return count(y) + s, n


@case(2)
def prints_a_tensor(x):
    y = x + 1
    print("seen", y.sum())
    return y * 2


@case(2)
def text_of_a_tensor(x):
    y = x + 1
    text = f"{y.sum():.3f} and {n_of(y)}"
    return y * 2, text


def n_of(y):
    return len(y)


@case(3)
def to_numpy_and_back(x):
    return torch.from_numpy((x * 2).numpy()) + 1


@case(2)
def tolist(x):
    first, *rest = (x + 1).tolist()
    return x * first, sum(rest)


@case(2)
def bound_method_of_c(x):
    text = "a,b".split
    y = x * x.sum().tolist()
    return y, text(",")


@case(2)
def enumerate_zip_and_dict_in_flight(x):
    total = x
    for (n, a), (key, b) in zip(enumerate([x, x + 1]), {"p": x, "q": x * 2}.items(), strict=True):
        total = total + a * b * (n + 1) * len(key)
        if n == 1:
            total = total * total.sum().tolist()
    return total


@case(2)
def caught_at_a_break(x):
    try:
        n = int((x.sum() * 0).tolist())
        return x / 1 if 1 // n else x
    except ZeroDivisionError:
        return x * 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    case = PROGRAMS[name]
    compiled = framefuse.compile(case.function)
    with torch.no_grad():
        for args in case.calls * 2:
            theirs, ours = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(theirs):
                expected = case.function(vector(*args))
            with contextlib.redirect_stdout(ours):
                found = compiled(vector(*args))
            assert equal(expected, found, exact=False)
            assert ours.getvalue() == theirs.getvalue()
        state = compiled_function(compiled)
        before = [point.dispatch.misses for point in state.resume_dispatches], state.dispatch.misses
        for args in case.calls:
            compiled(vector(*args))
    assert not state.reasons, [str(reason) for reason in state.reasons]
    assert ([point.dispatch.misses for point in state.resume_dispatches], state.dispatch.misses) == before
    assert 2 <= len(state.products) <= case.graphs, [str(reason) for reason in state.breaks]


def test_fullgraph_names_the_break():
    compiled = framefuse.compile(item_in_the_middle, fullgraph=True)
    with torch.no_grad(), pytest.raises(framefuse.UserError, match=r"test_breaks.py:\d+[\s\S]*item[\s\S]*torch.where"):
        compiled(vector(1.0))


def test_the_opaque_step_raises_where_it_did_not_before():
    def f(x, callback):
        y = x + 1
        try:
            z = callback(y)
        except KeyError as error:
            return y * 2, str(error)
        return y * z, "fine"

    def fine(y):
        return 3

    def raising(y):
        raise KeyError("gone")

    calls = [fine, fine, raising, fine, raising]
    opaque = [operator_of(function) for function in calls]
    compiled = framefuse.compile(f)
    with torch.no_grad():
        for function in opaque:
            assert equal(f(vector(1.0), function), compiled(vector(1.0), function), exact=False)


class operator_of:
    """Calls a function from where the interpreter does not look: a C method over a Python object."""

    def __init__(self, function):
        import functools

        self.call = functools.singledispatch(function)

    def __call__(self, y):
        return self.call(y)


def test_nothing_is_kept_alive_across_a_break():
    import gc
    import weakref

    compiled = framefuse.compile(item_in_the_middle)
    with torch.no_grad():
        x = vector(1.0)
        results = [weakref.ref(compiled(x)) for _ in range(3)]
        seen = weakref.ref(x)
        del x
    gc.collect()
    assert seen() is None
    assert [ref() for ref in results] == [None] * 3


def test_floats_that_decide_add_a_branch_and_no_copy():
    def f(x, limit):
        s = (x * 2).sum().tolist()
        if s * 0.5 > limit:
            return x * s
        return x - limit

    compiled = framefuse.compile(f)
    with torch.no_grad():
        for n in range(40):
            limit = float("nan") if n % 10 == 9 else (n * 7 % 5) - 2.0
            assert equal(f(vector(n - 20.0), limit), compiled(vector(n - 20.0), limit), exact=False)
    state = compiled_function(compiled)
    assert len(state.products) == 3  # up to the break, and one for each way from there
    assert not state.reasons


def test_what_is_read_no_more_is_not_carried_over_a_break():
    def f(x):
        a = x + 1
        b = a * 2
        n = len(b)
        s = b.sum().tolist()
        return s * n

    compiled = framefuse.compile(f)
    with torch.no_grad():
        assert f(vector(1.0)) == compiled(vector(1.0)) == compiled(vector(1.0))
    (point,) = compiled_function(compiled).resume_dispatches
    assert point.count == 1 + 1  # the outcome, and n


def test_values_without_end_that_decide_are_looked_at_by_a_step():
    def f(x):
        n = int(x.sum().tolist())
        return x * {k: k for k in range(1000)}[n]  # each value is another entry

    compiled = framefuse.compile(f, options={"trace_limit": 4})
    with torch.no_grad():
        for n in range(60):
            x = torch.full((2,), n / 2.0)
            assert equal(f(x), compiled(x))
    state = compiled_function(compiled)
    assert len(state.products) <= 12
    assert state.dispatch.hits > 50


def test_a_step_that_always_raises_makes_the_function_eager():
    def f(x):
        try:
            return x * x.item()
        except RuntimeError:
            return x + 1

    compiled = framefuse.compile(f)
    with torch.no_grad():
        for _ in range(60):
            assert equal(f(vector(1.0)), compiled(vector(1.0)))
    assert compiled_function(compiled).eager_calls > 20


def test_points_are_bounded():
    def f(x, n):
        for k in [0] * n:
            x = x + x.sum().tolist() + k
        return x

    compiled = framefuse.compile(f, options={"point_limit": 4})
    with torch.no_grad():
        for n in (1, 1, *range(2, 12)):
            assert equal(f(vector(0.1), n), compiled(vector(0.1), n), exact=False)
    state = compiled_function(compiled)
    assert len(state.points) <= 4
    assert any("point_limit" in str(reason) for reason in state.reasons)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


TABLE = {(Color.RED, 1): 2.0, (Color.BLUE, 1): 3.0}


def test_an_instruction_that_ended_a_recording_is_a_step_of_its_own():
    def f(x, key):
        y = x + 1
        scale = TABLE[key]  # a dict with keys that no fact describes
        return y * scale

    compiled = framefuse.compile(f)
    with torch.no_grad():
        for key in [(Color.RED, 1), (Color.BLUE, 1)] * 4:
            assert equal(f(vector(1.0), key), compiled(vector(1.0), key))
        TABLE[(Color.RED, 1)] = 5.0
        assert equal(f(vector(1.0), (Color.RED, 1)), compiled(vector(1.0), (Color.RED, 1)))
        TABLE[(Color.RED, 1)] = 2.0
        try:
            compiled(vector(1.0), (Color.BLUE, 7))
        except KeyError as error:
            assert error.args == ((Color.BLUE, 7),)
    state = compiled_function(compiled)
    assert state.dispatch.hits >= 5, [str(reason) for reason in state.reasons]


def test_a_function_of_the_call_in_the_arguments_of_a_step_is_made_anew():
    def f(x):
        class Local:
            def get(self):
                return x * 3

        return Local().get(), {Local.get: x}[Local.get]

    compiled = framefuse.compile(f)
    with torch.no_grad():
        for n in range(4):
            assert equal(f(vector(n)), compiled(vector(n)))


def test_what_looks_at_a_number_of_a_tensor_becomes_a_step():
    table = {k: k * 2.0 for k in range(64)}

    def f(x):
        s = x.sum().tolist()
        text = f"{round(s, 2)}"
        factor = table[int(s) % 64]
        return x * factor, text, math.floor(s)

    compiled = framefuse.compile(f)
    with torch.no_grad():
        for n in range(40):
            x = torch.full((3,), n * 0.37)
            assert equal(f(x), compiled(x), exact=False)
    state = compiled_function(compiled)
    assert state.dispatch.hits > 30
    assert len(state.products) < 16, [str(reason) for reason in state.breaks]
    assert not state.reasons


@contextlib.contextmanager
def entered_by_a_step(log):
    log.append(math.floor(vector(1.0).sum().tolist()))
    try:
        yield len(log)
    finally:
        log.append(math.ceil(vector(2.0).sum().tolist()))


def test_breaks_inside_of_a_context_manager():
    def function(x):
        log = []
        with entered_by_a_step(log) as count:
            y = (x * count).sin()
        return y + len(log), log

    compiled = framefuse.compile(function)
    with torch.no_grad():
        for scale in (1.0, 2.0, 3.0, 0.5):
            assert equal(compiled(vector(scale)), function(vector(scale)))
    assert len(compiled_function(compiled).products) == 3
