"""Shows on a terminal what takes longer than two seconds, compiling above all; elsewhere nothing is shown."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from framefuse.ir.trace import Trace

PATIENCE = 2.0  # seconds
PACE = 0.5  # seconds between two states of the line
CLEAR = "\r\x1b[K"
_stages: dict[int, str] = {}  # by thread: what it is at
_line = threading.Lock()  # whoever shows one


def at(stage: str) -> None:
    """This thread has come to a stage."""
    _stages[threading.get_ident()] = stage


def shown(trace: Trace) -> AbstractContextManager[None]:
    """Shows one line while this thread compiles a trace, and clears it at the end."""
    thread = threading.get_ident()
    return telling(lambda: f"compiling {trace.line.function} ({trace.line.place})", lambda: _stages.get(thread, ""))


@contextmanager
def telling(what: Callable[[], str], stage: Callable[[], str]) -> Iterator[None]:
    """Shows one line inside the block: what is done, for how long, and at which stage it is."""
    if not _is_terminal():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(what, stage, done), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads
        yield
        return
    try:
        yield
    finally:
        done.set()
        thread.join()


def _is_terminal() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except (ValueError, AttributeError):  # closed, or something else of the program's
        return False


def _show(what: Callable[[], str], stage: Callable[[], str], done: threading.Event) -> None:
    begun = time.monotonic()
    while done.wait(PATIENCE) is False:  # another line may be shown for longer: that of a part of this
        if _line.acquire(blocking=False):
            try:
                with suppress(OSError, ValueError):
                    _write(what, stage, done, begun)
            finally:
                _line.release()
            return


def _write(what: Callable[[], str], stage: Callable[[], str], done: threading.Event, begun: float) -> None:
    while True:
        sys.stderr.write(f"{CLEAR}framefuse: {what()}, {time.monotonic() - begun:.0f} s: {stage()}")
        sys.stderr.flush()
        if done.wait(PACE):
            break
    sys.stderr.write(CLEAR)
    sys.stderr.flush()
