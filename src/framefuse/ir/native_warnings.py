"""Hears the warnings of torch's C code that framefuse calls, and has them told at the program's own line."""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

from framefuse.ir.values import Value

# C puts a warning down to the innermost Python frame; whatever the program's filters say of that, it is heard.
HEARD = ("always", None, Warning, re.compile(r"framefuse(\.|$)"), 0)
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
LOCK = threading.RLock()


class Hearing:
    """While it is entered, ``tell`` gets the warnings that are put down to framefuse's frames of this thread."""

    def __init__(self, tell: Callable[[Warning], None]) -> None:
        self.tell = tell
        self.thread = threading.get_ident()

    def __enter__(self) -> None:
        with LOCK:
            if not _entered:
                _listen()
            _entered.append(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with LOCK:
            _entered.remove(self)
            if not _entered:
                _rest()


_entered: list[Hearing] = []  # of all threads: the first to come and the last to go change the module
_before: list[Value] = []  # the filters and what showed a warning, as they were


def _listen() -> None:
    _before[:] = warnings.filters, warnings._showwarnmsg  # type: ignore[attr-defined]
    _before[0].insert(0, HEARD)  # without the counter of changes: what was told once stays so
    warnings._showwarnmsg = _show  # type: ignore[attr-defined]


def _rest() -> None:
    filters, shown = _before
    if warnings._showwarnmsg is _show:  # type: ignore[attr-defined]
        warnings._showwarnmsg = shown  # type: ignore[attr-defined]
    if HEARD in filters:
        filters.remove(HEARD)


def _of_this_thread() -> list[Hearing]:
    thread = threading.get_ident()
    return [each for each in _entered if each.thread == thread]


def _show(message: warnings.WarningMessage) -> None:
    with LOCK:
        hearing, shown = _of_this_thread(), _before[1]
    if not hearing or not message.filename.startswith(PACKAGE):
        shown(message)
        return
    told = message.message
    with unheard():
        hearing[-1].tell(told if isinstance(told, Warning) else message.category(told))


@contextmanager
def unheard() -> Iterator[None]:
    """Warns as nobody heard: what Python code of torch warns is told by whoever hears that."""
    with LOCK:
        hearing = _of_this_thread()
    for each in reversed(hearing):
        each.__exit__(None, None, None)
    try:
        yield
    finally:
        for each in hearing:
            each.__enter__()


@dataclass(frozen=True, slots=True)
class WarningPlace:
    """A line of the program: the name of its module, its file and number."""

    module: str
    file: str
    line: int

    def tell(self, warning: Warning) -> None:
        """Warns as C would if the program had called it there."""
        if not self.file:
            return
        module = sys.modules.get(self.module)
        known = vars(module).setdefault("__warningregistry__", {}) if module is not None else {}
        warnings.warn_explicit(warning, type(warning), self.file, self.line, self.module, known)


NOWHERE = WarningPlace("", "", 0)  # under filters of the program's own that drop what is told


@dataclass(frozen=True, slots=True)
class Telling:
    """Calls what warned in C while it was recorded: each call of it warns as it would at its place in the program."""

    target: Callable[..., Value]
    place: WarningPlace

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        with Hearing(self.place.tell):
            return self.target(*args, **kwargs)

    @property
    def __name__(self) -> str:
        return getattr(self.target, "__name__", "call")
