"""Says which passes of users change the graphs of a stage: those registered, and those of a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from framefuse.ir.passes import UserPass

# The graphs that users' passes change, in the order in which they are made of a call.
STAGES = ("captured", "lowered", "joint", "forward", "backward")

PASSES: dict[str, tuple[UserPass, ...]] = dict.fromkeys(STAGES, ())
WITHIN: ContextVar[tuple[UserPass, ...]] = ContextVar("within", default=())
SUSPENDED: ContextVar[bool] = ContextVar("suspended", default=False)


def passes_of(stage: str) -> tuple[UserPass, ...]:
    """The passes of a stage in order, those of this context last."""
    return () if SUSPENDED.get() else (*PASSES[stage], *(row for row in WITHIN.get() if row.stage == stage))


def key() -> tuple[str, ...] | None:
    """What tells the passes in force from others in the keys of kept programs; None where nothing does."""
    found: list[str] = []
    for stage in STAGES:
        for row in passes_of(stage):
            if row.version is None:
                return None
            found += (stage, row.name, row.version)
    return tuple(found)


@contextmanager
def suspended() -> Iterator[None]:
    """While it lasts nothing that this thread compiles is changed: for what patterns are recorded from."""
    token = SUSPENDED.set(True)
    try:
        yield
    finally:
        SUSPENDED.reset(token)
