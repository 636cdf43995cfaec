"""Says when calls run as they would without framefuse: by the user's switch, by torch's stance, under a tracer.

A tool of ``sys.monitoring`` (CPython 3.12 and later) only keeps new code from being compiled: what is compiled already
goes on, since a call does not ask for such tools.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Literal

from framefuse import _native
from framefuse.errors import Recompile
from framefuse.ir.source import Line
from framefuse.ir.values import Value

logger = logging.getLogger("framefuse")
FIRST_EAGER = ("eager_then_compile", "aot_eager_then_compile")
TOOLS = (0, 1)  # of sys.monitoring: debuggers, coverage


class Switch:
    """Turns compiled code off, or on, for the whole process: at once when it is made, until the end of its ``with``
    block, or until another. As a decorator it gives what ``mark(function)`` does, and turns nothing.
    """

    def __init__(self, off: bool, mark: Callable[[Value], Value]) -> None:
        self.off, self.mark = off, mark
        self.before = _native.switch_off(off)

    def __call__(self, function: Value) -> Value:
        _native.switch_off(self.before)
        return self.mark(function)

    def __enter__(self) -> Switch:
        _native.switch_off(self.off)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        _native.switch_off(self.before)
        return False


def stance() -> str:
    """What ``torch.compiler.set_stance`` says; "default" where torch's compiler was never imported."""
    home = sys.modules.get("torch._dynamo.eval_frame")
    return str(getattr(getattr(home, "_stance", None), "stance", "default"))


def holds_back(first: bool, line: Line | None) -> bool:
    """Whether a call of what stands at ``line``, for which nothing is compiled, is to run eagerly, now that it would
    compile; ``first`` says that no call came before it.

    Raises:
        Recompile: the stance forbids compiling.
    """
    if monitored():
        tell()
        return True
    now = stance()
    if now == "fail_on_recompile":
        place = "a call" if line is None else line.place
        raise Recompile(f"{place} would compile under the stance 'fail_on_recompile'. Call it before, or set another")
    return now == "eager_on_recompile" or (now in FIRST_EAGER and first)


def monitored() -> bool:
    """Whether a debugger or coverage tool listens through ``sys.monitoring``, of CPython 3.12 and later."""
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and any(monitoring.get_tool(tool) is not None for tool in TOOLS)


@functools.cache
def tell() -> None:
    """Says once why calls run eagerly."""
    logger.warning(
        "compiled functions run eagerly while a debugger or coverage tool traces them, so that each line is seen"
    )


_native.watch_switch(sys.modules, tell)
