"""Writes what is known of one of our own faults into a folder: the exception, versions, the user's lines, stages."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import traceback
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import torch

from framefuse.codegen.disk_cache import cache_folder
from framefuse.explain.files import stage_files
from framefuse.ir.source import Line
from framefuse.runtime.compilation import Compilation

AROUND = 5  # lines of the user's program that are shown before and after the one at hand


def write_fault(folder: str, error: BaseException, line: Line, stages: Compilation | None) -> Path:
    """Writes the folder of a fault below ``folder`` (empty: the user's cache folder) and returns it; the same fault has
    the same folder. ``stages`` is what was made before it. Raises OSError where nothing can be written.
    """
    base = Path(folder) if folder else cache_folder("faults")
    trace = "".join(traceback.format_exception(error))
    target = base / f"fault_{type(error).__name__}_{_mark(error)}"
    os.makedirs(target, exist_ok=True)
    for old in target.iterdir():
        old.unlink()
    (target / "error.txt").write_text(trace, encoding="utf-8")
    for name, text in _files(line, stages):
        try:
            content = text()
        except Exception as other:  # what is broken may not print either
            content = f"cannot be printed: {type(other).__name__}: {other}"
        (target / name).write_text(content + "\n", encoding="utf-8", errors="backslashreplace")
    return target


def _files(line: Line, stages: Compilation | None) -> Iterator[tuple[str, Callable[[], str]]]:
    yield "versions.txt", versions
    yield "program.txt", lambda: program(line)
    if stages is None:
        yield "stages.txt", lambda: "none: the call was still being recorded"
    else:
        yield "stages.txt", lambda: "\n".join(stages.made)
        yield from stage_files(stages)


def versions() -> str:
    """What the fault may depend on, a line each."""
    version_of = {"python": platform.python_version(), "platform": platform.platform(), "processor": platform.machine()}
    version_of["torch"] = torch.__version__
    for name in ("framefuse", "llvmlite", "numpy"):
        try:
            version_of[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            version_of[name] = "not installed"
    return "\n".join(f"{name} {version}" for name, version in version_of.items())


def program(line: Line) -> str:
    """The user's line with those around it."""
    try:
        lines = Path(line.file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    shown = [
        f"{'>' if number == line.line else ' '} {number:5} {text}"
        for number, text in enumerate(lines, 1)
        if abs(number - line.line) <= AROUND
    ]
    return "\n".join([str(line), *shown])


def _mark(error: BaseException) -> str:
    """Eight letters that are equal for faults that come from the same place."""
    places = [f"{each.name}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__)[-6:]]
    text = re.sub(r"0x[0-9a-f]+|\d+", "", str(error))
    return hashlib.sha256("|".join((*places, text)).encode()).hexdigest()[:8]
