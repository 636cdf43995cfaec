"""Goes on behind a break: in compiled code where some holds, else by recording what follows or by interpreting it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from framefuse import _native
from framefuse.errors import Reason, UserError
from framefuse.ir.values import Arguments, Keywords, Value
from framefuse.runtime.recorded_call import answer
from framefuse.runtime.switch import holds_back
from framefuse.runtime.trace_limits import SLOW_RUNS, SLOW_SHARE, Bound, in_vain

if TYPE_CHECKING:  # it makes these
    from framefuse.runtime.function import CompiledFunction


class ResumePoint(Protocol):
    """A place where compiled code hands over, as the recorder keeps it; ``handle`` is what is kept of it here."""

    why: Reason
    handle: object


@dataclass(eq=False, repr=False)
class ResumeDispatch:
    """A point of a function where compiled code goes on after a break: its native half is ``dispatch``.

    ``slow`` counts the times that the interpreter went on from here without a recording, ``raised`` those after an
    exception of the opaque step.
    """

    parent: CompiledFunction
    point: ResumePoint
    count: int
    bound: Bound = field(init=False)
    slow: int = 0
    raised: int = 0
    dispatch: _native.Dispatch = field(init=False)

    def __post_init__(self) -> None:
        self.bound = self.parent.new_bound()
        self.dispatch = _native.Dispatch(self.run, self.miss, point=self.count, failed=self.failed)

    def run(self, *values: Value) -> Value:
        """Goes on without recording."""
        return answer(self.parent.compiler.resume(self.parent, self.point, values, False))

    def went_on(self, times: int) -> None:
        """Takes note of a call whose rest the interpreter runs, here for so many ``times``."""
        parent = self.parent
        calls = parent.streak.ran_slowly(parent.dispatch.hits, parent.payments.waits)
        parent.dispatch.pause(calls)
        if not calls and times > SLOW_RUNS + self.dispatch.hits // SLOW_SHARE:
            parent.prune(self)

    def failed(self, error: BaseException, values: Arguments) -> Value:
        """Goes on with the exception of the opaque step; where it often raises, eager is faster."""
        self.raised += 1
        self.parent.payments.waits = False
        self.went_on(self.raised)
        handed = (None, *values) if len(values) < self.count else values
        return answer(self.parent.compiler.resume(self.parent, self.point, handed, False, error))

    def miss(self, values: Arguments, kwargs: Keywords) -> Value:
        """A case that was not met here yet: records and compiles what follows, or only runs it."""
        parent = self.parent
        if parent.pending is not None:
            return self.run(*values)
        parent.payments.missed += 1
        parent.payments.waits = False
        vain = not parent.records(True) or not self.bound.allows(parent.dispatch.eager, in_vain(self.dispatch.entries))
        if vain or holds_back(False, parent.line):
            self.slow += 1
            self.went_on(self.slow)
            return self.run(*values)
        lock = parent.lock
        if not lock.acquire(blocking=False):
            return self.run(*values)
        before = _native.bypass(True)
        try:
            met = parent.pending is not None or parent.met(self.dispatch, lambda: values)
            if not met:
                with parent.recording():
                    outcome = parent.compiler.resume(parent, self.point, values, True)
                parent.file(outcome, self)
        finally:
            _native.bypass(before)
            lock.release()
        if met:
            return self.dispatch(*values)
        value = answer(outcome)
        if parent.options.fullgraph and outcome.reason is not None:
            raise UserError(str(outcome.reason))
        return value
