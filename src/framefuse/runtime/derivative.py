"""The place of a compiled graph in autograd: its node's bodies, which compile each case of a backward once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from framefuse import _native
from framefuse.errors import Reason
from framefuse.ir.derivative import Piece
from framefuse.ir.source import Line

Values = tuple[Any, ...]  # list of saved values or roots, tuple of tangents, tuple of numbers, mask of wanted inputs


class Derivative:
    """``attach`` hangs the outputs of the forward plan into autograd.

    ``compile(values, again)`` gives the native entry of the case at hand, whose guards hold for it, and what the stages
    made of it, or the reason why there is none; ``reference(values, again)`` its gradients without compiled code;
    ``again`` is True for gradients that are to be differentiated. ``cases`` are what the stages made, in order, and
    ``reasons`` why calls had no compiled code, with how often.
    """

    def __init__(
        self,
        piece: Piece,
        line: Line,
        compile: Callable[[Values, bool], tuple[Any, Any] | Reason],
        reference: Callable[[Values, bool], tuple[Any, ...]],
    ) -> None:
        self.piece = piece
        self.line = line
        self.compile = compile
        self.reference = reference
        self.lock = threading.RLock()
        self.cases: list[Any] = []
        self.reasons: dict[Reason, int] = {}
        self.backward = _Side(self, False)
        self.differentiable = _Side(self, True)
        own = sum(entry.kind == "own" for entry in piece.saved)
        self.attach = _native.Attach(
            self.backward.dispatch,
            self.differentiable.dispatch,
            inputs=len(piece.inputs),
            outputs=len(piece.outputs),
            through=len(piece.saved) - own,
            own=own,
            roots=len(piece.roots),
            numbers=len(piece.numbers),
            name=piece.primal.name.rpartition(".")[2],
        )


class _Side:
    """One of the two ways backward is asked, with its compiled cases."""

    def __init__(self, derivative: Derivative, again: bool) -> None:
        self.derivative = derivative
        self.again = again
        self.tries = 0
        self.dispatch = _native.Dispatch(self.run, self.miss, point=4)

    def run(self, *values: Any) -> tuple[Any, ...]:
        """Computes the gradients without compiled code."""
        return self.derivative.reference(values, self.again)

    def miss(self, values: Values, kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """A case that was not met yet."""
        casts = [kind for kind in AUTOCAST if torch.is_autocast_enabled(kind)]
        if casts:  # the forward said what is cast; backward runs in those dtypes
            for kind in casts:
                torch.set_autocast_enabled(kind, False)
            try:
                gradients: tuple[Any, ...] = self.dispatch(*values)
                return gradients
            finally:
                for kind in casts:
                    torch.set_autocast_enabled(kind, True)
        with self.derivative.lock:
            if not any(type(made.guards.check(values)) is tuple for made in self.dispatch.entries):
                found = self.compile(values)
                if isinstance(found, Reason):
                    reasons = self.derivative.reasons
                    reasons[found] = reasons.get(found, 0) + 1
                    return self.run(*values)
                entry, case = found
                self.derivative.cases.append(case)
                self.dispatch.add(entry)
        result: tuple[Any, ...] = self.dispatch(*values)
        return result

    def compile(self, values: Values) -> tuple[Any, Any] | Reason:
        """One more case, up to the limit."""
        if self.tries == LIMIT:
            fact = f"{LIMIT} cases of one backward pass were met, the limit: this one is computed call by call."
            return Reason("limit", fact, "Ask for the same gradients in each step.", self.derivative.line)
        self.tries += 1
        return self.derivative.compile(values, self.again)


AUTOCAST = ("cpu", "cuda")  # the device types for which it may be on
LIMIT = 32  # cases of one backward: which gradients came, how they lie, which are wanted
