"""Reports the compiler's own faults: once for each kind, with a folder that describes it; under ``check`` it raises."""

from __future__ import annotations

import importlib
import logging
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from framefuse.errors import CompilerBug, Reason
from framefuse.ir.late_imports import later
from framefuse.ir.source import Line
from framefuse.ir.stops import reason
from framefuse.options import Options
from framefuse.runtime.compilation import Compilation

if TYPE_CHECKING:
    from framefuse.explain.faults import write_fault
else:
    write_fault = later("framefuse.explain.faults", "write_fault")

logger = logging.getLogger("framefuse")
_reported: dict[str, str] = {}  # by fact: what to report it with


def report_bug(error: Exception, line: Line, options: Options, stages: Compilation | None = None) -> Reason:
    """The reason for leaving a function eager after one of our own faults, logged once for each kind with the folder
    that tells of it; ``stages`` is what was made before it.

    Raises CompilerBug instead under the option ``check``, so that no test passes on a fault.
    """
    fact = f"{type(error).__name__}: {' '.join(str(error)[:200].split())}"
    if options.check:
        raise CompilerBug(f"{line}: framefuse failed on it in {_place(error)}: {fact}") from error
    if fact not in _reported:
        try:
            folder = write_fault(options.report, error, line, stages)
            if stages is not None:
                _write_case(folder, fact, stages)
            _reported[fact] = f"with the folder {folder}"
        except Exception as other:
            _reported[fact] = f"with the program (no report was written: {other})"
        message = "%s: framefuse failed on it: %s. The call ran eagerly; please report this %s"
        logger.warning(message, line, fact, _reported[fact])
    return reason("fault", fact, line, f"Report it {_reported[fact]}; nothing else is affected.")


def _place(error: Exception) -> str:
    """The file of ours in which it was raised, or that called what raised it."""
    package = Path(__file__).parents[1]
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    ours = [file.relative_to(package).as_posix() for file in files if file.is_relative_to(package)]
    return ours[-1] if ours else "framefuse"


def _write_case(folder: Path, fact: str, stages: Compilation) -> None:
    """Writes what was captured as a program of its own, for :func:`framefuse.minify`, where it has that form."""
    room = importlib.import_module("framefuse.verification.fault_case")  # by name: it stands above
    try:
        (folder / room.FILE).write_text(room.fault_text(stages.trace, fact), encoding="utf-8")
    except Exception as error:  # Stop, mostly
        logger.debug("the program of a fault is not written: %s: %s", type(error).__name__, error)
