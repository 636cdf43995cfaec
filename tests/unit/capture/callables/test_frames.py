"""What looks at the frames of its callers finds the user's, while a call is recorded and when compiled code runs."""

import inspect
import io
import logging
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import framefuse
from framefuse.api import compiled_function

logger = logging.getLogger("framefuse.tests.frames")


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value


def called(function: Callable[..., Any], call: int) -> Any:
    return plain(function(torch.ones(3) * (1 - 2 * (call % 2)) + call))


def alike(function: Callable[..., Any], traces: int, calls: int = 5, take: Callable[[], Any] = lambda: None) -> None:
    """Holds a compiled function to eager over some calls, of which all but the first run compiled code."""
    fast = framefuse.compile(function)
    for call in range(calls):
        # One line, so that the callers' frames are the same.
        expected, given = [(called(each, call), take()) for each in (function, fast)]
        assert given == expected, f"call {call}"
    state = compiled_function(fast)
    assert state is not None and not state.reasons and state.eager_calls == 0, list(map(str, state.reasons))
    assert state.dispatch.hits == calls - 1 and len(state.products) == traces


def name_of_caller(depth: int = 1) -> Any:
    frame = sys._getframe(depth)
    return frame.f_code.co_name, frame.f_lineno, frame.f_code.co_firstlineno, frame.f_globals["__name__"]


def test_frames_of_the_function_are_constants_of_its_trace() -> None:
    def f(x):
        frame = inspect.currentframe()
        y = x + 1
        named = name_of_caller()
        return y * 2, named, frame.f_lineno, sys._getframe().f_code.co_qualname, frame is None, type(frame).__name__

    alike(f, traces=1)


def test_a_frame_object_shows_where_the_function_stands_on_both_branches() -> None:
    def f(x):
        frame = sys._getframe()
        if x.sum() > 0:
            return x + 1, frame.f_lineno
        return x - 1, frame.f_lineno

    alike(f, traces=3)


def test_local_variables() -> None:
    def f(x):
        def inner():
            found = sys._getframe(1).f_locals
            return sorted(found), found["y"] * 2

        y, z = x + 1, 3
        return inner(), z, len(locals())

    alike(f, traces=1)


def test_the_caller_of_the_function() -> None:
    def f(x):
        y = x + 1
        frame = sys._getframe(1)
        back = sys._getframe().f_back
        return y * 2, frame.f_code.co_name, frame.f_lineno, back.f_code.co_name

    alike(f, traces=3)


def test_the_whole_stack() -> None:
    def inner(x):
        y = x * 2
        found = [(i.function, i.lineno, i.filename, i.code_context, i.index) for i in inspect.stack()]
        places = [getattr(i, "positions", None) for i in inspect.stack()]
        return y, found, places, inspect.stack()[1].frame.f_locals["kept"]

    def f(x):
        kept = x - 1
        a, *b = inner(
            x + 1,
        )
        return a + 1, b, kept

    fast = framefuse.compile(f)
    for call in range(5):
        expected, given = [called(each, call) for each in (f, fast)]
        assert given == expected, f"call {call}"
    state = compiled_function(fast)
    assert state is not None and state.eager_calls == 0 and state.dispatch.hits == 4


def test_names_of_the_stack() -> None:
    def f(x):
        return x + 1, inspect.stack()[0].function, inspect.stack()[1].function

    alike(f, traces=3)


def test_tracebacks_of_the_stack(capsys: pytest.CaptureFixture[str]) -> None:
    def inner(x):
        traceback.print_stack()
        return x + 1, [(e.name, e.lineno, e.line) for e in traceback.extract_stack()]

    def f(x):
        y, places = inner(x * 2)
        return y, places, traceback.format_stack(limit=3)

    alike(f, traces=3, take=lambda: tuple(capsys.readouterr()))


def test_frame_objects_handed_to_the_library() -> None:
    def f(x):
        y = x + 1
        found = inspect.getframeinfo(inspect.currentframe())
        return y, found.function, found.lineno, sorted(inspect.getargvalues(sys._getframe()).locals)

    fast = framefuse.compile(f)
    for call in range(5):
        expected, given = [called(each, call) for each in (f, fast)]
        assert given == expected, f"call {call}"
    state = compiled_function(fast)
    assert state is not None and state.eager_calls == 0 and state.dispatch.hits == 4


def chain(frame: Any) -> list[Any]:
    return [] if frame is None else [frame.f_code.co_name, *chain(frame.f_back)]


def test_a_frame_object_that_leaves_the_call_is_a_real_one() -> None:
    def f(x):
        frame = sys._getframe()
        return x + 1, {"frame": frame}

    fast = framefuse.compile(f)
    for _ in range(4):
        expected, given = [each(torch.ones(2))[1]["frame"] for each in (f, fast)]
        assert type(given) is type(expected) and chain(given) == chain(expected)
        assert sorted(given.f_locals) == sorted(expected.f_locals)


def test_a_function_that_stays_eager_is_called_by_its_caller() -> None:
    def f(x):
        for n in range(2):
            yield x + n, sys._getframe().f_back.f_code.co_name, [i.function for i in inspect.stack()]

    fast = framefuse.compile(f)
    for _ in range(3):
        expected, given = [plain(list(each(torch.ones(2)))) for each in (f, fast)]
        assert given == expected

    def g(x, stop=[]):  # noqa: B006
        stop.append(x)
        return x + 1, globals()["__name__"], [i.function for i in inspect.stack()]

    fast = framefuse.compile(g)
    for _ in range(8):
        expected, given = [plain(each(torch.ones(2))) for each in (g, fast)]
        assert given == expected


@pytest.mark.parametrize("action", ["always", "default", "module", "once", "ignore"])
@pytest.mark.parametrize("level", [1, 2, 3, 4, 60])
def test_warnings_meet_the_filters_and_name_the_line_of_their_level(action: str, level: int) -> None:
    def inner(x):
        warnings.warn("careful", FutureWarning, stacklevel=level)
        return x + 1

    def f(x):
        y = inner(x)
        z = inner(y)
        return z * 2

    def heard(function: Any) -> Any:
        found = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore", UserWarning)
            warnings.filterwarnings(action, category=FutureWarning)
            for call in range(4):
                result = called(function, call)
                found.append(([(str(w.message), w.filename, w.lineno) for w in caught], result))
        return found

    fast = framefuse.compile(f)
    expected, given = [heard(each) for each in (f, fast)]
    assert given == expected
    state = compiled_function(fast)
    assert state is not None and not state.reasons and state.dispatch.hits == 3 and len(state.products) == 1


def test_warnings_are_counted_in_the_registry_of_the_users_module() -> None:
    def f(x):
        warnings.warn("counted", stacklevel=1)
        return x + 1

    found = []
    for function in (f, framefuse.compile(f)):
        globals().pop("__warningregistry__", None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(4):
                function(torch.ones(2))
        registry = globals().get("__warningregistry__", {})
        found.append((len(caught), sorted(key for key in registry if key != "version")))
    assert found[0] == found[1] and found[0][0] == 1


def test_log_records_name_the_users_function_and_line() -> None:
    def f(x):
        logger.warning("of %s", "me")
        logger.warning("of my caller", stacklevel=2)
        y = x + 1
        logger.warning("with the stack", stack_info=True)
        logging.getLogger("framefuse.tests.frames").error("done")
        return y * 2

    state = said_alike(f)
    assert state.dispatch.hits >= 3 and state.eager_calls == 0, list(map(str, state.reasons))


def test_log_records_of_an_exception() -> None:
    def f(x):
        try:
            raise ValueError("mine")
        except ValueError:
            logger.exception("told")
            logger.warning("told again", exc_info=True)
        return x + 1

    said_alike(f)


def said_alike(f: Callable[..., Any]) -> Any:
    """Holds what a function and its compiled form log to each other; gives the record of the latter."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(pathname)s %(funcName)s %(lineno)d %(module)s %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    try:
        fast = framefuse.compile(f)
        for call in range(5):
            found = []
            for each in (f, fast):
                result = called(each, call)
                found.append((result, stream.getvalue()))
                stream.seek(0)
                stream.truncate()
            assert found[0] == found[1], f"call {call}"
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    return compiled_function(fast)
