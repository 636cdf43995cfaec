"""Shows on a terminal what is being compiled, where that takes longer than two seconds; elsewhere nothing is shown."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from framefuse.ir.trace import Trace

PATIENCE = 2.0  # seconds
PACE = 0.5  # seconds between two states of the line
CLEAR = "\r\x1b[K"
_stages: dict[int, str] = {}  # by thread: what it is at
_line = threading.Lock()  # whoever shows one


def at(stage: str) -> None:
    """This thread has come to a stage."""
    _stages[threading.get_ident()] = stage


@contextmanager
def shown(trace: Trace) -> Iterator[None]:
    """Shows one line while this thread compiles a trace, and clears it at the end."""
    if not _is_terminal():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(trace, threading.get_ident(), done), daemon=True)
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


def _show(trace: Trace, thread: int, done: threading.Event) -> None:
    begun, line = time.monotonic(), trace.line
    if done.wait(PATIENCE):
        return
    with _line, suppress(OSError, ValueError):
        while True:
            seconds, stage = time.monotonic() - begun, _stages.get(thread, "")
            sys.stderr.write(f"{CLEAR}framefuse: compiling {line.function} ({line.place}), {seconds:.0f} s: {stage}")
            sys.stderr.flush()
            if done.wait(PACE):
                break
        sys.stderr.write(CLEAR)
        sys.stderr.flush()
