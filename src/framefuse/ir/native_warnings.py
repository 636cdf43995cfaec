"""Hears the warnings of torch's C code that framefuse calls, and has them told at the program's own line."""

from __future__ import annotations

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
LOCK = threading.RLock()


class Hearing:
    """While it is entered, ``tell`` gets the warnings that C gives in framefuse's frames of this thread."""

    def __init__(self, tell: Callable[[Warning], None]) -> None:
        self.tell = tell
        self.thread = threading.get_ident()

    def __enter__(self) -> None:
        with LOCK:
            self.filters: list[Value] = warnings.filters  # type: ignore[assignment]
            self.shown = warnings._showwarnmsg  # type: ignore[attr-defined]
            self.filters.insert(0, HEARD)  # without the counter of changes: what was told once stays so
            warnings._showwarnmsg = self._show  # type: ignore[attr-defined]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with LOCK:
            if warnings._showwarnmsg == self._show:  # type: ignore[attr-defined]
                warnings._showwarnmsg = self.shown  # type: ignore[attr-defined]
            if HEARD in self.filters:
                self.filters.remove(HEARD)

    def _show(self, message: warnings.WarningMessage) -> None:
        ours = HEARD[3].match(sys._getframe(1).f_globals.get("__name__", ""))
        if threading.get_ident() != self.thread or not ours:
            self.shown(message)
            return
        told = message.message
        with unheard():
            self.tell(told if isinstance(told, Warning) else message.category(told))


@contextmanager
def unheard() -> Iterator[None]:
    """Warns as nobody heard: what Python code of torch warns is told by whoever hears that."""
    hearing = getattr(warnings._showwarnmsg, "__self__", None)  # type: ignore[attr-defined]
    if not isinstance(hearing, Hearing):
        yield
        return
    hearing.__exit__(None, None, None)
    try:
        yield
    finally:
        hearing.__enter__()


@dataclass(frozen=True, slots=True)
class WarningPlace:
    """A line of the program: the name of its module, its file and number."""

    module: str
    file: str
    line: int

    def tell(self, warning: Warning) -> None:
        """Warns as C would if the program had called it there."""
        module = sys.modules.get(self.module)
        known = vars(module).setdefault("__warningregistry__", {}) if module is not None else {}
        warnings.warn_explicit(warning, type(warning), self.file, self.line, self.module, known)


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
