"""What speaks to the world outside is replayed as eager says it; contexts, environment and thread state are facts."""

import contextlib
import contextvars
import functools
import io
import logging
import os
import random
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.capture.effects import arguments, same_as_eager

import framefuse
from framefuse.api import compiled_function

logger = logging.getLogger("framefuse.tests.steps")
mode: contextvars.ContextVar[int] = contextvars.ContextVar("mode")
level: contextvars.ContextVar[int] = contextvars.ContextVar("level", default=2)
local = threading.local()


def told(function: Callable[..., Any], calls: int, hear: Callable[[], Any]) -> list[Any]:
    """What ``hear`` gives after each call."""
    found = []
    for call in range(calls):
        result = function(*arguments(call))
        found.append((hear(), result.tolist() if isinstance(result, torch.Tensor) else result))
    return found


def said_alike(
    function: Any, hear: Callable[[], Any], traces: int = 1, calls: int = 5, recorded: int | None = None
) -> None:
    """Holds what a compiled function says to what it says eagerly. All calls but ``recorded`` (else: as many as there
    are traces) run compiled code.
    """
    expected = told(function, calls, hear)
    fast = framefuse.compile(function)
    assert told(fast, calls, hear) == expected
    state = compiled_function(fast)
    assert state is not None and state.eager_calls == 0, [str(reason) for reason in state.reasons]
    assert len(state.products) <= traces
    assert state.dispatch.hits == calls - (len(state.products) if recorded is None else recorded)


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x):
        print("first", x.shape[0], 1.5, None, sep="-")
        y = x * 2
        print("second", end="!\n")
        print("to", "the error stream", file=sys.stderr)
        return y

    said_alike(f, lambda: tuple(capsys.readouterr()))


def test_print_goes_where_the_stream_stands_at_the_call() -> None:
    def f(x):
        print("hello")
        return x + 1

    fast, heard = framefuse.compile(f), []
    for _ in range(3):
        stream, sys.stdout = sys.stdout, io.StringIO()
        try:
            fast(torch.ones(2))
            heard.append(sys.stdout.getvalue())
        finally:
            sys.stdout = stream
    assert heard == ["hello\n"] * 3


def inner(x):
    logger.warning("size %d of %s", x.shape[0], "x")
    return x + 1


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        place = (record.funcName, record.lineno, record.filename, record.levelname)
        self.lines.append((record.getMessage(), *place))

    def take(self):
        taken, self.lines = self.lines, []
        return taken


def written() -> tuple[logging.Handler, Callable[[], str]]:
    """A handler of Python's own, and what takes the text that it wrote."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(message)s %(funcName)s %(lineno)d %(filename)s %(levelname)s"))

    def take() -> str:
        taken = text.getvalue()
        text.seek(0)
        text.truncate()
        return taken

    return handler, take


@pytest.mark.parametrize("own", [False, True])
def test_logging_names_the_users_line(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of the program hears each call where it stands; what Python's own does can wait."""

    def f(x):
        logger.info("started")
        y = inner(x)
        logger.debug("not heard")
        logging.getLogger("framefuse.tests.steps").error("done")
        return y * 2

    handler, take = written()
    if own:
        handler = Heard()
        take = handler.take
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    monkeypatch.setattr(logger, "propagate", False)
    try:
        said_alike(f, take, traces=4 if own else 1, recorded=1)
    finally:
        logger.removeHandler(handler)


def test_warnings_name_the_users_line() -> None:
    def warn(x):
        warnings.warn("mine", stacklevel=1)
        warnings.warn("my caller's", FutureWarning, stacklevel=2)
        return x + 1

    def f(x):
        y = warn(x)
        return y * 2

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")

        def hear() -> list[Any]:
            found = [(str(w.message), w.category, w.filename, w.lineno) for w in heard]
            heard.clear()
            return found

        said_alike(f, hear)


def test_a_warning_that_became_an_error_is_raised() -> None:
    def f(x):
        warnings.warn("careful", stacklevel=1)
        return x + 1

    fast = framefuse.compile(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            fast(torch.ones(2))
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="careful"):
            fast(torch.ones(2))


def test_writes_and_words_stand_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """What is said between two writes of a place finds the first of them."""
    box = types.SimpleNamespace(n=0)

    class Tells(logging.Handler):
        def emit(self, record):
            print(record.getMessage(), box.n)

    def f(x):
        box.n = 1
        logger.error("one")
        box.n = 2
        logger.error("two")
        return x * box.n

    teller = Tells()
    logger.addHandler(teller)
    try:
        said_alike(f, lambda: (tuple(capsys.readouterr()), box.n), traces=3, recorded=1)
    finally:
        logger.removeHandler(teller)


def test_a_warning_given_once() -> None:
    calls = []
    space: dict[str, Any] = {"calls": calls, "__name__": "transformers.utils.logging"}
    exec("def warn_once(text):\n    calls.append(text)", space)
    warn_once = functools.lru_cache(None)(space["warn_once"])

    def f(x):
        warn_once("old")
        return x + 1

    fast = framefuse.compile(f)
    for _ in range(3):
        fast(torch.ones(2))
    warn_once.cache_clear()
    for _ in range(2):
        fast(torch.ones(2))
    state = compiled_function(fast)
    assert calls == ["old", "old"] and state is not None and state.dispatch.hits == 3


def test_context_variables() -> None:
    def make():
        level.set(2)

        def f(x, value):
            token = mode.set(value)
            try:
                y = x * mode.get() + level.get()
                level.set(level.get() + value)
            finally:
                mode.reset(token)
            return y + level.get(), mode.get("unset")

        return f, lambda: None

    def run(function: Any) -> list[Any]:
        level.set(2)
        return [(*function(torch.ones(2), 1)[0].tolist(), level.get(), mode.get(None)) for _ in range(5)]

    function, _ = make()
    expected = run(function)
    fast = framefuse.compile(function)
    assert run(fast) == expected
    state = compiled_function(fast)
    assert state is not None and state.eager_calls == 0 and len(state.products) <= 2
    contextvars.copy_context().run(lambda: (mode.set(7), check_set(fast, function)))


def check_set(fast: Any, function: Any) -> None:
    level.set(5)
    expected = function(torch.ones(2), 3)
    level.set(5)
    given = fast(torch.ones(2), 3)
    assert torch.equal(expected[0], given[0]) and expected[1] == given[1] == 7


def test_thread_local_attributes() -> None:
    def make():
        space = threading.local()
        space.n = 1

        def f(x):
            space.n += 1
            seen = getattr(space, "missing", 5)
            return x * space.n + seen

        return f, lambda: space.n

    fast = same_as_eager(make, traces=1)
    errors = []
    thread = threading.Thread(target=lambda: _raises(fast, errors))
    thread.start()
    thread.join()
    assert errors == ["'_thread._local' object has no attribute 'n'"]


def _raises(fast: Any, errors: list[str]) -> None:
    try:
        fast(torch.ones(2))
    except AttributeError as error:
        errors.append(str(error))


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x):
        scale = int(os.environ.get("FRAMEFUSE_TEST_SCALE", "1"))
        if "FRAMEFUSE_TEST_NEGATE" in os.environ:
            x = -x
        return x * scale

    fast = framefuse.compile(f)
    for name, value in [(None, ""), ("SCALE", "3"), ("NEGATE", ""), (None, ""), ("SCALE", "4"), (None, "")]:
        if name is not None:
            monkeypatch.setenv(f"FRAMEFUSE_TEST_{name}", value)
        assert torch.equal(fast(torch.ones(2)), f(torch.ones(2)))
    state = compiled_function(fast)
    assert state is not None and state.eager_calls == 0 and state.dispatch.hits == 2


def test_environment_written() -> None:
    def f(x):
        os.environ["FRAMEFUSE_TEST_SEEN"] = str(x.ndim)
        return x * int(os.environ["FRAMEFUSE_TEST_SEEN"])

    def heard() -> Any:
        return os.environ.pop("FRAMEFUSE_TEST_SEEN"), os.getenv("FRAMEFUSE_TEST_SEEN")

    said_alike(f, heard, traces=2)


ran: list[int] = []


@functools.lru_cache(maxsize=2)
def remembered(n: int) -> int:
    ran.append(n)
    return n * 2


@functools.lru_cache(maxsize=0)
def forgotten(n: int) -> int:
    ran.append(n)
    return n * 3


def draws(x):
    for _ in range(3):
        x = x * random.random()
    return x + random.randint(0, 5)


def chooses(x):
    items = [1, 2, 3, 4]
    random.shuffle(items)
    return x * items[0] + random.choice(items)


def branches_on_a_draw(x):
    return x * 2 if random.random() < 0.5 else x + 1


def draws_by_numpy(x):
    return x * float(np.random.rand())


def remembers(x):
    return x * remembered(x.shape[0])


def forgets(x):
    return x * forgotten(x.shape[0]) + forgotten(2)


def measures(x):
    started = time.perf_counter()
    y = x * 2
    return y + (time.perf_counter() >= started)


def hears_itself(x):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        print("size", x.shape[0])
    return x + len(text.getvalue())


@pytest.mark.parametrize(
    ("function", "traces"),
    [
        (draws, 5), (chooses, 5), (branches_on_a_draw, 4), (draws_by_numpy, 3), (remembers, 2), (forgets, 4),
        (measures, 4), (hears_itself, 20),
    ],
)  # fmt: skip
def test_values_that_differ_at_each_call(function: Any, traces: int) -> None:
    """They are read anew at each call, in program order, as often as eager reads them, and compile nothing anew."""

    def run(call: Callable[..., Any]) -> list[Any]:
        random.seed(3)
        np.random.seed(3)
        ran.clear()
        remembered.cache_clear()
        results = [call(torch.full((3 if turn < 4 else 5,), 1.0 + turn)) for turn in range(12)]
        state = (random.getstate(), np.random.rand(), [*ran], remembered.cache_info())
        return [*[result.tolist() for result in results], *state]

    expected = run(function)
    fast = framefuse.compile(function)
    got = run(fast)
    for want, have in zip(expected, got, strict=True):
        assert have == pytest.approx(want) if isinstance(want, list) else have == want
    state = compiled_function(fast)
    assert state is not None and state.eager_calls == 0 and len(state.products) <= traces
    assert state.dispatch.hits >= 10
