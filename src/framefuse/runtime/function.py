"""Keeps what framefuse knows of one compiled function: its traces, counters, reasons and settings."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from framefuse import _native
from framefuse.errors import Reason, UserError, rethrow
from framefuse.options import Options


@dataclass(slots=True)
class Product:
    """One compiled trace and all that its stages made of it, by name, with the seconds that each took."""

    stages: dict[str, Any]
    seconds: dict[str, float]


@dataclass(slots=True)
class Outcome:
    """What recording and compiling one call gave: the call's own value or exception, and a product or the reason for
    none.
    """

    value: Any = None
    exception: BaseException | None = None
    product: Product | None = None
    entry: Any = None
    reason: Reason | None = None


# function, args, kwargs, owner, options, products so far -> outcome; the pipeline gives it
Compiler = Callable[
    [Callable[..., Any], tuple[Any, ...], dict[str, Any], Any, Options, Sequence[Product]], Outcome
]

LIVE: weakref.WeakSet[CompiledFunction] = weakref.WeakSet()
ended: list[Callable[[CompiledFunction], None]] = []  # called with what is about to die, still whole


@dataclass(eq=False)
class CompiledFunction:
    """The Python half of a compiled function; ``dispatch`` is the native half that users call.

    ``function`` is what runs when nothing compiled applies. ``owner`` is the long-lived first argument (the module of
    a compiled module) or None. ``products`` are in the order of compiling; ``reasons`` are the distinct reasons for
    which calls ran eagerly, with counts. ``failures`` counts, by gradient mode, the recordings in a row that gave no
    trace, and ``waits`` the calls that run eagerly before the next attempt.
    """

    function: Callable[..., Any]
    owner: Any
    options: Options
    compiler: Compiler
    products: list[Product] = field(default_factory=list)
    reasons: dict[Reason, int] = field(default_factory=dict)
    eager_calls: int = 0
    given_up: Reason | None = None
    failures: dict[bool, int] = field(default_factory=dict)
    waits: dict[bool, int] = field(default_factory=dict)
    dispatch: Any = field(init=False)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self.dispatch = _native.Dispatch(self.function, self.miss, owner=self.owner)
        LIVE.add(self)

    def miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call for which no trace holds: records, compiles and adds a trace, or runs eagerly where that is vain."""
        if self.given_up is not None or self._waiting():
            self.eager_calls += 1
            return self.function(*args, **kwargs)
        with self._lock:
            before = _native.bypass(True)  # what native code calls while this call is recorded runs as eager does
            try:
                outcome = self.compiler(self.function, args, kwargs, self.owner, self.options, self.products)
            finally:
                _native.bypass(before)
            self._file(outcome)
        if outcome.exception is not None:
            rethrow(outcome.exception)
        if self.options.fullgraph and outcome.reason is not None:
            raise UserError(str(outcome.reason))
        return outcome.value

    def __del__(self) -> None:
        for call in tuple(ended):
            call(self)

    def _waiting(self) -> bool:
        """True while a call under this gradient mode is not worth another recording, after earlier ones gave no trace.
        """
        mode = torch.is_grad_enabled()
        left = self.waits.get(mode, 0)
        self.waits[mode] = max(0, left - 1)
        return left > 0

    def _file(self, outcome: Outcome) -> None:
        mode = torch.is_grad_enabled()
        if outcome.entry is not None and outcome.product is not None:
            self.products.append(outcome.product)
            self.dispatch.add(outcome.entry)
            self.failures.pop(mode, None)
            self.waits.pop(mode, None)
            if len(self.products) >= self.options["trace_limit"]:
                self._give_up(
                    Reason(
                        "S002",
                        f"{len(self.products)} traces were compiled, the limit: new cases run eagerly",
                        'raise it with options={"trace_limit": N}, or change fewer things that decide control flow',
                    )
                )
        elif outcome.reason is not None:
            self.eager_calls += 1
            self.reasons[outcome.reason] = self.reasons.get(outcome.reason, 0) + 1
            if outcome.exception is None:
                self.failures[mode] = failed = self.failures.get(mode, 0) + 1
                self.waits[mode] = PATIENCE**failed

    def _give_up(self, reason: Reason) -> None:
        self.given_up = reason
        self.reasons.setdefault(reason, 1)

    def reset(self) -> None:
        """Drops all compiled code; the next call compiles anew."""
        with self._lock:
            self.dispatch.clear()
            self.products.clear()
            self.reasons.clear()
            self.failures.clear()
            self.waits.clear()
            self.given_up = None
            self.eager_calls = 0


# A recording that gave no trace cost several eager calls for nothing: the n-th in a row is followed by PATIENCE**n
# calls that run eagerly at once, so that a function which never compiles costs ever less.
PATIENCE = 4


def live_functions() -> Sequence[CompiledFunction]:
    """Every compiled function that is still in use."""
    return tuple(LIVE)


def compiled_function(compiled: Any) -> CompiledFunction | None:
    """The record behind a result of ``framefuse.compile``, or of a function or module that is installed; None for
    anything else, such as a wrapper to which ``functools.wraps`` copied the attributes of one of these.
    """
    inner = vars(compiled).get("_compiled_call_impl") if isinstance(compiled, torch.nn.Module) else None
    for found in (getattr(inner, "__framefuse__", None), getattr(compiled, "__framefuse__", None)):
        if isinstance(found, CompiledFunction) and (
            any(compiled is part for part in (found.dispatch, found.function, found.owner))
            or (isinstance(compiled, torch.nn.Module) and vars(compiled) is getattr(found.owner, "__dict__", None))
        ):
            return found
    return None
