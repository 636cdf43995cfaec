"""What a log call, a print or a warning does to the program: the user's handlers and streams run where it stands."""

from __future__ import annotations

import io
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from logging.handlers import MemoryHandler
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold, outcome
from torch.nn import functional

TABLE = Table()
trap = TABLE.trap


def ones() -> torch.Tensor:
    return torch.ones(2)


class Counting(logging.Handler):
    heard = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.heard += 1


class Stream(io.StringIO):
    """Counts what is written to it."""

    written = 0

    def write(self, text: str) -> int:
        self.written += 1
        return super().write(text)


class Foreign:
    """A stream that is none of Python's."""

    written = 0

    def write(self, text: str) -> None:
        self.written += 1

    def flush(self) -> None:
        pass


def logger_with(name: str, *handlers: logging.Handler, level: int = logging.INFO) -> logging.Logger:
    logger = logging.getLogger(f"tests.traps.who_hears.{name}")
    logger.handlers.clear()
    logger.filters.clear()
    logger.setLevel(level)
    logger.propagate = False
    for handler in handlers:
        logger.addHandler(handler)
    return logger


@trap(traces=8, hits=3)
def a_handler_counts(compiled):
    handler = Counting()
    logger = logger_with("counts", handler)

    @compiled
    def f(x):
        logger.info("size %d", x.shape[0])
        return x * handler.heard

    for _ in range(5):
        yield f(ones()), handler.heard


@trap(traces=4, hits=4)
def a_handler_raises(compiled):
    class Raising(logging.Handler):
        on = False

        def emit(self, record: logging.LogRecord) -> None:
            if self.on:
                raise KeyError("no")

    handler = Raising()
    logger = logger_with("raises", handler)

    @compiled
    def f(x):
        try:
            logger.warning("a")
        except KeyError:
            return x * 10
        return x + 1

    for handler.on in (False, False, True, False, True, True):
        yield f(ones())


@trap(traces=8, hits=3)
def a_filter_and_a_formatter_count(compiled):
    seen = [0]

    class Formats(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            seen[0] += 10
            return super().format(record)

    def hears(record: logging.LogRecord) -> bool:
        seen[0] += 1
        return True

    handler = logging.StreamHandler(io.StringIO())
    logger = logger_with("filters", handler)

    @compiled
    def f(x):
        logger.info("a")
        return x * seen[0]

    for call in range(8):
        if call == 2:
            logger.addFilter(hears)
        if call == 5:
            handler.setFormatter(Formats())
        yield f(ones())


@trap(traces=8, hits=4)
def levels_change_between_calls(compiled):
    handler = Counting()
    logger = logger_with("levels", handler)

    @compiled
    def f(x):
        logger.debug("a")
        return x * handler.heard

    for level, own in ((20, 0), (20, 0), (10, 0), (10, 0), (20, 0), (10, 30), (10, 30), (10, 0)):
        logger.setLevel(level)
        handler.setLevel(own)
        yield f(ones())


@trap(traces=4, hits=6)
def what_nobody_hears_takes_any_arguments(compiled):
    handler = Counting()
    logger = logger_with("silent", handler)

    @compiled
    def f(x):
        logger.debug("sizes %s", x.shape, extra={"x": x})
        logger.log(logging.DEBUG, "again %s", [x])
        return x.sin() * handler.heard

    for disabled, level in ((0, 20), (0, 20), (0, 0), (0, 0), (50, 10), (50, 10), (0, 20), (0, 20), (50, 10), (0, 20)):
        logging.disable(disabled)
        logger.setLevel(level or 30)
        yield f(ones())
    logging.disable(0)


@trap(traces=6, hits=4)
def a_program_asks_whether_it_is_heard(compiled):
    parent = logger_with("asked", logging.NullHandler(), level=30)
    logger = logger_with("asked.child", level=0)

    @compiled
    def f(x):
        return x * 2 if logger.isEnabledFor(logging.DEBUG) else x * 3

    for own, above, off in ((0, 30, 0), (0, 30, 0), (0, 10, 0), (0, 10, 0), (10, 30, 0), (10, 30, 0), (10, 30, 50)):
        logger.setLevel(own)
        parent.setLevel(above)
        logging.disable(off)
        yield f(ones())
    logging.disable(0)
    for disabled in (True, False, True):
        logger.disabled = disabled
        yield f(ones())
    logger.disabled = False


@trap(traces=8, hits=4)
def handlers_come_and_go(compiled):
    handler, parent = Counting(), logger_with("parent", logging.NullHandler())
    logger = logger_with("parent.child")
    logger.propagate = True

    @compiled
    def f(x):
        logger.info("a")
        return x * handler.heard

    for call in range(8):
        if call == 2:
            parent.addHandler(handler)
        if call == 5:
            parent.removeHandler(handler)
        if call == 7:
            logger.addHandler(handler)
        yield f(ones())


@trap(traces=8, hits=4)
def methods_of_logging_are_replaced(compiled):
    seen, home = [0], logging.NullHandler.handle
    logger = logger_with("replaced", logging.NullHandler())

    def counted(*args: Any) -> None:
        seen[0] += 1

    @compiled
    def f(x):
        logger.info("a")
        return x * seen[0]

    try:
        for call in range(9):
            if call == 2:
                logging.NullHandler.handle = counted
            if call == 5:
                logging.NullHandler.handle = home
            if call == 7:
                logger.handle = counted
            yield f(ones())
    finally:
        logging.NullHandler.handle = home
        vars(logger).pop("handle", None)


@trap(traces=8, hits=2)
def a_class_of_loggers(compiled):
    class Own(logging.Logger):
        said = 0

        def _log(self, *args: Any, **kwargs: Any) -> None:
            Own.said += 1

    logger = Own("own", logging.INFO)

    @compiled
    def f(x):
        logger.info("a")
        return x * Own.said

    for _ in range(5):
        yield f(ones())


@trap(traces=8, hits=2)
def records_are_kept_in_memory(compiled):
    handler = MemoryHandler(100)
    logger = logger_with("memory", handler)

    @compiled
    def f(x):
        logger.info("a")
        return x * len(handler.buffer)

    for _ in range(5):
        yield f(ones())


@trap(traces=8, hits=4)
def records_of_another_class(compiled):
    made, home = [0], logging.getLogRecordFactory()
    logger = logger_with("records", logging.NullHandler())

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        made[0] += 1
        return home(*args, **kwargs)

    @compiled
    def f(x):
        logger.info("a")
        return x * made[0]

    try:
        for call in range(6):
            if call == 2:
                logging.setLogRecordFactory(make)
            yield f(ones())
    finally:
        logging.setLogRecordFactory(home)


@trap(traces=12, hits=8)
def a_stream_of_the_program(compiled):
    for stream in (Foreign(), Stream()):

        def said(x: Any, stream: Any = stream) -> Any:
            print("a", file=stream)
            return x * stream.written

        def shown(x: Any, stream: Any = stream) -> Any:
            traceback.print_stack(limit=1, file=stream)
            return x * stream.written

        for function in (said, shown):
            f = compiled(function)
            for _ in range(4):
                yield f(ones())


@trap(traces=10, hits=5)
def the_standard_stream_is_the_programs(compiled):
    own, plain, home, seen = Foreign(), io.StringIO(), sys.stdout, [0]

    def write(text: str) -> int:
        seen[0] += 1
        return len(text)

    @compiled
    def f(x):
        print("a")
        return x * (own.written + seen[0])

    for stream in (plain, plain, own, own, plain, "written", "written"):
        if stream == "written":
            plain.write = write  # type: ignore[method-assign]
        sys.stdout = plain if stream == "written" else stream
        try:
            yield f(ones())
        finally:
            sys.stdout = home


@trap(traces=8, hits=3)
def a_stream_over_a_buffer_of_the_program(compiled):
    class Raw(io.RawIOBase):
        written = 0

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            Raw.written += 1
            return len(data)

    stream = io.TextIOWrapper(io.BufferedWriter(Raw(), 1), write_through=True)

    @compiled
    def f(x):
        print("a" * 20, file=stream, flush=True)
        return x * Raw.written

    for _ in range(5):
        yield f(ones())


def _torchs(x: torch.Tensor, which: int) -> torch.Tensor:
    if which == 0:
        return functional.mse_loss(x, torch.ones(3))
    if which == 1:
        return functional.softmax(x)
    return functional.upsample(x[None, None], scale_factor=2)


@trap(traces=9, hits=9)
def warnings_of_torchs_own_functions(compiled):
    for which in range(3):

        def f(x: torch.Tensor, which: int = which) -> torch.Tensor:
            return _torchs(x, which) * 2

        g = compiled(f)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            for call in range(4):
                yield g(torch.ones(2, 3) * call), [
                    (str(each.message), each.category.__name__, each.filename, each.lineno) for each in heard
                ]


@trap(traces=8, hits=2)
def warnings_of_torchs_own_functions_are_shown_by_the_program(compiled):
    shown = [0]

    def show(*args: Any, **kwargs: Any) -> None:
        shown[0] += 1

    @compiled
    def f(x):
        y = functional.softmax(x)
        return y * shown[0]

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        for call in range(5):
            yield f(torch.ones(2, 3) * call)


@trap(traces=3, hits=4)
def warnings_of_torchs_own_functions_become_errors(compiled):
    @compiled
    def f(x):
        return functional.mse_loss(x, torch.ones(3))

    for call in range(8):
        with warnings.catch_warnings():
            warnings.simplefilter("error" if call in (3, 4) else "ignore")
            yield outcome(f, torch.ones(2, 3) * call)


@trap(traces=3, hits=4)
def filters_are_made_anew_around_each_call(compiled):
    """Held to what is in them: an equal list of filters is no other case, and one that raises the warning is."""

    @compiled
    def f(x):
        warnings.warn("careful", stacklevel=1)
        return x * 2

    for message in ("careful", "care", "careful", "care", "careful", "rude", "care"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", message=message)
            yield outcome(f, ones())


@trap(traces=8, hits=3)
def warnings_are_shown_by_the_program(compiled):
    shown = [0]

    def show(*args: Any, **kwargs: Any) -> None:
        shown[0] += 1

    @compiled
    def f(x):
        warnings.warn("careful", stacklevel=1)
        return x * shown[0]

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        for _ in range(5):
            yield f(ones())


@trap(traces=8, hits=2)
def warnings_are_recorded(compiled):
    @compiled
    def f(x, caught):
        warnings.warn("careful", stacklevel=1)
        return x * len(caught)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(6):
            yield f(ones(), caught)


class Fussy(UserWarning):
    made = 0

    def __init__(self, *args: Any) -> None:
        Fussy.made += 1
        super().__init__(*args)


@trap(traces=8, hits=2)
def a_warning_that_counts_itself(compiled):
    Fussy.made = 0

    @compiled
    def f(x):
        warnings.warn("careful", Fussy, stacklevel=1)
        return x * Fussy.made

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(5):
            yield f(ones())


@trap(traces=8, hits=0)
def a_warning_is_caught(compiled):
    @compiled
    def f(x):
        try:
            warnings.warn("careful", stacklevel=1)
        except UserWarning:
            return x * 5
        return x + 1

    for action in ("ignore", "ignore", "error", "error", "ignore"):
        with warnings.catch_warnings():
            warnings.simplefilter(action)  # type: ignore[arg-type]
            yield f(ones())


def logged(compiled: Any, handler: Counting) -> Iterator[Any]:
    @compiled
    def f(x):
        warnings.warn("careful", stacklevel=1)
        return x * handler.heard

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        try:
            for _ in range(5):
                yield f(ones())
        finally:
            logging.captureWarnings(False)


@trap(traces=8, hits=3)
def warnings_are_logged(compiled):
    handler, logger = Counting(), logging.getLogger("py.warnings")
    logger.addHandler(handler)
    try:
        yield from logged(compiled, handler)
    finally:
        logger.removeHandler(handler)


@trap(traces=4, hits=5)
def warnings_are_put_into_a_list_of_the_call(compiled):
    @compiled
    def f(x):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            warnings.warn("told", UserWarning, stacklevel=1)
        return x * len(heard), str(heard[0].message)

    for _ in range(8):
        yield f(torch.randn(3))


@TABLE.parametrize()
def test_what_is_said_is_heard_in_its_place(trap: Trap) -> None:
    hold(trap)
