"""Writes what was compiled as one HTML file that needs nothing else: `framefuse.report`."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from framefuse.errors import UserError, demand_folder, kind_of, writing
from framefuse.explain.page_data import FunctionPage, page_of
from framefuse.explain.pictures import picture, stages_of, timeline
from framefuse.explain.report import explain
from framefuse.explain.report_facts import Process, ReportFacts, facts_of
from framefuse.explain.shares import sizes_of_call
from framefuse.explain.tables import Tables
from framefuse.explain.units import duration, share, short_path, size
from framefuse.ir.values import Arguments, Keywords, Value
from framefuse.runtime.function import CompiledFunction, behind, compiled_function

if TYPE_CHECKING:
    import jinja2

FOLDER = Path(__file__).parent  # of the templates


def report(compiled: Value, path: str | os.PathLike[str], args: Arguments, kwargs: Keywords, time: bool) -> Path:
    """What :func:`framefuse.report` does."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"path is {kind_of(path)}. Give the name of a file, as report.html")
    demand_folder(path)
    explanation = explain(compiled, args, kwargs, time)
    state = compiled_function(behind(compiled)[0])
    assert state is not None  # explain has refused anything else
    given = sizes_of_call(compiled, args, kwargs) if time else {}
    with writing(path):
        return write(path, [page_of(state, "f1", explanation, given)], Process())


def write_all(path: str | os.PathLike[str], states: Iterable[CompiledFunction], process: Process) -> Path:
    """One file for several functions of a script; a process that is one of several has its rank in the file's name."""
    target = Path(path)
    if process.rank is not None:
        target = target.with_suffix(f".rank{process.rank}{target.suffix}")
    return write(target, [page_of(state, f"f{number}") for number, state in enumerate(states, 1)], process)


def write(path: str | os.PathLike[str], pages: list[FunctionPage], process: Process) -> Path:
    """Writes the file, and returns where it lies."""
    facts = ReportFacts(tuple(map(facts_of, pages)), process)
    return _written(path, _template("page.html").render(pages=pages, process=process, facts=facts.json()))


def write_tables(path: str | os.PathLike[str], tables: Tables) -> Path:
    """Writes a file of tables, and returns where it lies."""
    return _written(path, _template("tables.html").render(shown=tables))


def _written(path: str | os.PathLike[str], text: str) -> Path:
    target = Path(path)
    target.write_text(text, encoding="utf-8", errors="backslashreplace")
    return target


@functools.cache
def _template(name: str) -> jinja2.Template:
    loader = library().FileSystemLoader(FOLDER)
    environment: jinja2.Environment = library().Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(duration=duration, size=size, share=share, short_path=short_path)
    environment.filters.update(picture=picture, timeline=timeline, stages_of=stages_of)
    return environment.get_template(name)


def library() -> ModuleType:
    """jinja2, which only who writes pages needs."""
    try:
        return importlib.import_module("jinja2")
    except ImportError:
        raise UserError("A report is written by jinja2. Install it: pip install jinja2") from None
