"""Writes what was compiled as one HTML file that needs nothing else: `framefuse.report`."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from framefuse.errors import UserError, kind_of
from framefuse.explain.page_data import FunctionPage, page_of
from framefuse.explain.report import explain
from framefuse.explain.shares import sizes_of_call
from framefuse.ir.values import Arguments, Keywords, Value
from framefuse.runtime.function import CompiledFunction, compiled_function

if TYPE_CHECKING:
    import jinja2

TEMPLATE = Path(__file__).with_name("page.html")


def report(compiled: Value, path: str | os.PathLike[str], args: Arguments, kwargs: Keywords, time: bool) -> Path:
    """What :func:`framefuse.report` does."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"path is {kind_of(path)}. Give the name of a file, as report.html")
    explanation = explain(compiled, args, kwargs, time)
    function = compiled.func if type(compiled) is functools.partial else compiled
    state = compiled_function(function)
    assert state is not None  # explain has refused anything else
    given = sizes_of_call(compiled, args, kwargs) if time else {}
    return write(path, [page_of(state, "f1", explanation, given)])


def write_all(path: str | os.PathLike[str], states: Iterable[CompiledFunction]) -> Path:
    """One file for several functions."""
    return write(path, [page_of(state, f"f{number}") for number, state in enumerate(states, 1)])


def write(path: str | os.PathLike[str], pages: list[FunctionPage]) -> Path:
    """Writes the file, and returns where it lies."""
    target = Path(path)
    target.write_text(html(pages), encoding="utf-8", errors="backslashreplace")
    return target


def html(pages: list[FunctionPage]) -> str:
    """The text of the file."""
    return _template().render(pages=pages)


@functools.cache
def _template() -> jinja2.Template:
    environment: jinja2.Environment = library().Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(duration=_duration, size=_size, share=_share)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def library() -> ModuleType:
    """jinja2, which only who writes pages needs."""
    try:
        return importlib.import_module("jinja2")
    except ImportError:
        raise UserError("A report is written by jinja2. Install it: pip install jinja2") from None


def _duration(seconds: float) -> str:
    if seconds < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _size(count: int | None) -> str:
    if count is None:
        return "known in the run"
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"
