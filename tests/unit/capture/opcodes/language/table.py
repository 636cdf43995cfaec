"""Holds a program to eager: results, exceptions with their tracebacks, effects, and whether compiled code ran."""

from __future__ import annotations

import dataclasses
import enum
import traceback
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

import framefuse

CALLS = 4


@dataclasses.dataclass(frozen=True)
class Row:
    """A program: ``make()`` gives the function of one tensor, or it with a function that shows the state it changes.

    ``eager`` is the code of the reason for which every call runs eagerly, None for a program that compiles; ``traces``
    the number of traces that the calls need; ``after`` what is done with the result outside.
    """

    name: str
    make: Callable[[], Any]
    eager: str | None
    traces: int
    after: Callable[[Any], Any]


class Table(list[Row]):
    """The rows of one family of constructs."""

    def row(
        self, eager: str | None = None, traces: int = 1, after: Callable[[Any], Any] = lambda result: result
    ) -> Callable[[Any], Any]:
        def register(make: Any) -> Any:
            self.append(Row(make.__name__, make, eager, traces, after))
            return make

        return register


def argument(call: int) -> torch.Tensor:
    """New data for each call; the last one has another size."""
    generator = torch.Generator().manual_seed(call)
    return torch.rand(5 if call == CALLS - 1 else 4, 3, generator=generator) + 0.5


def outcome(function: Any, x: torch.Tensor, after: Any) -> tuple[str, Any]:
    try:
        return "value", form(after(function(x)))
    except Exception as error:
        return "error", error_form(error)


def check(row: Row) -> None:
    """Runs the row eagerly and compiled; raises AssertionError where they differ."""
    plain, compiled = row.make(), row.make()
    watch, watch_compiled = (lambda: None), (lambda: None)
    if isinstance(plain, tuple):
        plain, watch = plain
        compiled, watch_compiled = compiled
    compiled = framefuse.compile(compiled)
    for call in range(CALLS):
        expected = outcome(plain, argument(call), row.after), form(watch())
        got = outcome(compiled, argument(call), row.after), form(watch_compiled())
        difference = differ(expected, got)
        assert difference is None, f"call {call}: {difference}"
    state = framefuse.api.compiled_function(compiled)
    reasons = "; ".join(f"{reason.code}: {reason.fact} {reason.line}" for reason in state.reasons)
    if row.eager is None:
        assert compiled.hits == CALLS - row.traces, f"{compiled.hits} hits, {len(state.products)} traces; {reasons}"
    else:
        breaks = {reason.code for reason in state.breaks}
        assert breaks or not compiled.hits, f"it compiles now, the row says {row.eager}"
        codes = breaks | {reason.code for reason in state.reasons}
        for steps in state.points.learnt.values():  # where the next recording will break
            codes |= {why[0] for why in steps.values() if why is not None}
        assert row.eager in codes, reasons


def form(value: Any, depth: int = 0) -> Any:
    """What can be compared of a value: classes and functions by name, objects by their parts."""
    if isinstance(value, torch.Tensor):
        return value
    kind = type(value)
    if value is None or kind in (int, float, bool, str, bytes, complex, range, slice):
        return (kind.__name__, repr(value))
    if depth > 8:
        return "deep"
    if isinstance(value, BaseException):
        return error_form(value)
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return value.__qualname__
    if isinstance(value, enum.Enum):
        return (kind.__qualname__, value.name)
    parts: list[Any] = [kind.__qualname__]
    if isinstance(value, dict):
        parts.append([(form(key, depth + 1), form(part, depth + 1)) for key, part in value.items()])
    elif isinstance(value, (list, tuple, deque)):
        parts.append([form(part, depth + 1) for part in value])
    elif isinstance(value, (set, frozenset)):
        parts.append(sorted(repr(form(part, depth + 1)) for part in value))
    if isinstance(getattr(value, "__dict__", None), dict):
        parts.append([(name, form(part, depth + 1)) for name, part in vars(value).items()])
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                parts.append((name, form(getattr(value, name), depth + 1)))
    return parts


def error_form(error: BaseException | None, depth: int = 0) -> Any:
    if error is None or depth > 5:
        return None
    entries = [
        (entry.name, entry.lineno)
        for entry in traceback.extract_tb(error.__traceback__)
        if entry.filename != __file__ and "framefuse/" not in entry.filename.replace("\\", "/").split("tests/")[0]
    ]
    return [
        type(error).__qualname__, str(error), form(error.args, 4), entries, error.__suppress_context__,
        error_form(error.__cause__, depth + 1), error_form(error.__context__, depth + 1),
        getattr(error, "__notes__", None),
        [error_form(part, depth + 1) for part in error.exceptions] if isinstance(error, BaseExceptionGroup) else None,
    ]  # fmt: skip


def differ(expected: Any, got: Any, path: str = "result") -> str | None:
    """Where two forms differ, None where they do not."""
    if isinstance(expected, torch.Tensor):
        if not isinstance(got, torch.Tensor) or expected.dtype != got.dtype or expected.shape != got.shape:
            return f"{path}: expected {expected!r}, got {got!r}"
        close = torch.allclose(expected, got, rtol=1e-4, atol=1e-5, equal_nan=True)
        return None if close else f"{path}: other numbers"
    if isinstance(expected, (list, tuple)):
        if type(expected) is not type(got) or len(expected) != len(got):
            return f"{path}: expected {expected!r}, got {got!r}"
        for number, (a, b) in enumerate(zip(expected, got, strict=True)):
            found = differ(a, b, f"{path}.{number}")
            if found is not None:
                return found
        return None
    return None if type(expected) is type(got) and expected == got else f"{path}: expected {expected!r}, got {got!r}"
