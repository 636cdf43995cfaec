"""Says what was compiled, what not, why (`framefuse.explain`), and how long it takes: `framefuse.profile`."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from framefuse.ir.values import Value
from framefuse.runtime.function import CompiledFunction

if TYPE_CHECKING:
    from framefuse.explain.graphs import Graphs
    from framefuse.explain.profile import Profile
    from framefuse.explain.report import Explanation


def explain(compiled: Value, *args: Value, time: bool = False, **kwargs: Value) -> Explanation:
    """Explains what :func:`framefuse.compile` or :func:`framefuse.install` made of a function or module.

    Nothing of the program runs: ``args`` and ``kwargs``, if given, are only compared with the guards, to say which
    graph takes such a call. With ``time=True`` calls on them are timed, compiled beside eager, and so is each break:
    what is between the compiled stretches that it parts. What these calls change in tensors, gradients, optimizers,
    attributes, containers and random generators is put back behind each one, what they print is held back; a call that
    may change anything else (a call into C at a break, a hook, other processes) is not made, and the explanation says
    what it would have changed. A parameter of the function that is called ``time`` can be given by position.

    Raises:
        UserError: ``compiled`` is not a result of ``framefuse.compile``.
    """
    # Imported when it is first needed: it knows all stages, which cost more to import than many programs to run.
    explanation: Explanation = importlib.import_module("framefuse.explain.report").explain(compiled, args, kwargs, time)
    return explanation


def graphs(compiled: Value) -> list[Graphs]:
    """The graphs of what was compiled of a function or module so far, in the order of compiling: captured, forward, and
    backward for each case that was asked for. They print, run on other inputs, and are FX modules.

    Call it a few times first, with ``backward()`` where it trains.

    Raises:
        UserError: ``compiled`` is not a result of ``framefuse.compile``.
    """
    all_graphs: list[Graphs] = importlib.import_module("framefuse.explain.graphs").graphs(compiled)
    return all_graphs


def html_report(
    compiled: Value, path: str | os.PathLike[str], *args: Value, time: bool = False, **kwargs: Value
) -> Path:
    """Writes what was compiled of a function or module as one HTML file, which needs no network; returns its path.

    It shows what :func:`framefuse.explain` tells, and more: what is left to gain, the program's lines with the kernels
    that compute them, each compilation with its reason, each step with its bytes, and the loop nests of kernels.
    ``args``, ``kwargs`` and ``time`` are as for :func:`framefuse.explain`: nothing of the program runs unless ``time``
    is True.

    Raises:
        UserError: ``compiled`` is not a result of ``framefuse.compile``, or jinja2 is not installed.
    """
    written: Path = importlib.import_module("framefuse.explain.page").report(compiled, path, args, kwargs, time)
    return written


def profile(function: Value, *args: Value, calls: int = 5, **kwargs: Value) -> Profile:
    """Runs a compiled function and tables its kernels, products and library calls: how often each ran, its time and its
    share, the bytes that it moves, the share of the device's bandwidth and of its arithmetic, and the user's lines.

    This calls ``function`` with these arguments: three times, so that it is compiled, and ``calls`` times to measure.
    All that the function does happens so often; nothing else changes. It may also be a function that calls compiled
    ones, such as a step of training. The bandwidth is that of a copy, and the arithmetic that of a large product,
    measured on this machine when a process first asks. Times are those of the fastest call; each step is measured by
    itself, which adds a microsecond or so to a call for each, shown as rest. What a captured graph repeats has no
    steps; use the default mode to see them.

    Raises:
        UserError: ``function`` cannot be called, or no compiled code ran in its calls.
    """
    table: Profile = importlib.import_module("framefuse.explain.profile").profile(function, args, kwargs, calls)
    return table


def _shown(state: CompiledFunction) -> str:
    explanation: Explanation = importlib.import_module("framefuse.explain.report").describe(state)
    return explanation._repr_html_()


CompiledFunction.shown = staticmethod(_shown)
