"""Reports the compiler's own faults: once for each kind, with a folder that describes it; under ``check`` it raises."""

from __future__ import annotations

import logging

from framefuse.errors import CompilerBug, Reason
from framefuse.explain.faults import write_fault
from framefuse.ir.source import Line
from framefuse.ir.stops import reason
from framefuse.options import Options
from framefuse.runtime.compilation import Compilation

logger = logging.getLogger("framefuse")
_reported: dict[str, str] = {}  # by fact: what to report it with


def report_bug(error: Exception, line: Line, options: Options, stages: Compilation | None = None) -> Reason:
    """The reason for leaving a function eager after one of our own faults, logged once for each kind with the folder
    that tells of it; ``stages`` is what was made before it.

    Raises CompilerBug instead under the option ``check``, so that no test passes on a fault.
    """
    fact = f"{type(error).__name__}: {' '.join(str(error)[:200].split())}"
    if options.check:
        raise CompilerBug(f"{line}: framefuse failed on it: {fact}") from error
    if fact not in _reported:
        try:
            _reported[fact] = f"with the folder {write_fault(options.report, error, line, stages)}"
        except Exception as other:
            _reported[fact] = f"with the program (no report was written: {other})"
        message = "%s: framefuse failed on it: %s. The call ran eagerly; please report this %s"
        logger.warning(message, line, fact, _reported[fact])
    return reason("fault", fact, line, f"Report it {_reported[fact]}; nothing else is affected.")
