"""Runs a user's script unchanged and prints what framefuse made of each function that it compiled."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

from framefuse.explain.report import Explanation, explain
from framefuse.runtime.function import live_functions


def explain_script(path: str, arguments: Sequence[str] = ()) -> list[Explanation]:
    """Runs the script at ``path`` as ``__main__`` with ``arguments``; explains the compiled functions that are alive
    at its end, those called most first. What the script raises is not caught.
    """
    before = sys.argv
    sys.argv = [path, *arguments]
    try:
        namespace = runpy.run_path(path, run_name="__main__")
        found = [explain(state.dispatch) for state in live_functions()]
        del namespace  # held until here: compiled code dies with what the script defined
    finally:
        sys.argv = before
    return sorted(found, key=lambda explanation: -explanation.calls)
