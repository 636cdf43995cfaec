"""Keeps what framefuse knows of one compiled function: its traces, counters, reasons and settings."""

from __future__ import annotations

import functools
import logging
import math
import os
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch

from framefuse import _native
from framefuse.errors import Reason, UserError
from framefuse.ir.source import Line, written_at
from framefuse.ir.stops import reason
from framefuse.ir.values import Arguments, Function, Keywords, Value
from framefuse.options import Options
from framefuse.runtime.pickles import Reduced, reduced
from framefuse.runtime.recorded_call import Outcome, Pending, Product, throw
from framefuse.runtime.resume_dispatch import ResumeDispatch, ResumePoint
from framefuse.runtime.switch import holds_back
from framefuse.runtime.trace_limits import (
    IDLE,
    LIMIT,
    STREAK,
    UNASKED,
    VAIN,
    WITHIN,
    Attempts,
    Bound,
    Lessons,
    Payments,
    Streak,
    in_vain,
)
from framefuse.runtime.weighing import (
    FIRST,
    MOST,
    NOTHING,
    SETTLE,
    Times,
    Weighing,
    allowed,
    asks_the_same,
    gains_nothing,
    is_small,
    may_lose,
)

if TYPE_CHECKING:  # the rest of the stage is imported with the compiler
    from framefuse.ir.trace import Trace
    from framefuse.runtime.derivative import Derivative


class Points(Protocol):
    """The points of a function, as the room that records has them."""

    def leave_library(self, why: tuple[str, str]) -> bool: ...


class Compiler(Protocol):
    """What records and compiles; the driver gives it. Compiled code is handed to :meth:`CompiledFunction.add`."""

    def call(self, state: CompiledFunction, args: Arguments, kwargs: Keywords) -> Outcome:
        """A call of the function for which nothing compiled applies."""

    def resume(
        self,
        state: CompiledFunction,
        point: ResumePoint,
        values: Sequence[Value],
        record: bool,
        error: BaseException | None = None,
    ) -> Outcome:
        """Goes on at a point of the function; ``error`` was raised by the step before it."""

    def under_transform(self, state: CompiledFunction, args: Arguments, kwargs: Keywords) -> Value:
        """The value of a call inside of a function transform; Declined where it has to run as it is."""


Shown = Callable[["CompiledFunction"], str]
LIVE: weakref.WeakSet[CompiledFunction] = weakref.WeakSet()
listeners: list[Callable[[CompiledFunction, Product], None]] = []  # called with what was just compiled
ended: list[Callable[[CompiledFunction], None]] = []  # called with what is about to die, still whole


@dataclass(frozen=True, slots=True)
class Mapped:
    """A way in which transforms around a function map it, told by its ``key``, and what is compiled for that: None
    where its calls run as they are.
    """

    key: object
    below: CompiledFunction | None


@dataclass(eq=False, repr=False)
class CompiledFunction:
    """The Python half of a compiled function; ``dispatch`` is the native half that users call.

    ``function`` is what runs when nothing compiled applies. ``owner`` is the long-lived first argument (the module of
    a compiled module) or None. ``products`` are in the order of compiling; ``reasons`` are the distinct reasons for
    which calls ran eagerly, with counts; ``breaks`` are the reasons of the breaks between compiled stretches. ``bound``
    limits the products that start at the function's beginning, ``recordings`` the calls that are recorded, in part or
    as a whole; ``attempts`` says when the next one is, after some that gave nothing.
    ``pending`` is there while another thread makes code, ``together`` says that none can: calls wait.
    ``recorder`` is the thread that recorded last, ``recompile`` compiles something else in the same way. ``of_class``
    says that the class of ``owner`` gave ``function`` for its call; ``methods`` of it are compiled beside that.
    """

    shown: ClassVar[Shown]  # what a notebook shows of it, as HTML: the room that explains stands above, and gives it

    function: Function
    owner: Value
    options: Options
    compiler: Compiler
    of_class: bool = False
    products: list[Product] = field(default_factory=list)
    reasons: dict[Reason, int] = field(default_factory=dict)
    eager_calls: int = 0
    bound: Bound = field(init=False)
    attempts: Attempts = field(default_factory=Attempts)
    recordings: Bound = field(init=False)
    weighing: Weighing = field(default_factory=Weighing)
    points: Points | None = None
    resume_dispatches: list[ResumeDispatch] = field(default_factory=list)
    breaks: dict[Reason, int] = field(default_factory=dict)
    ended: Reason | None = None  # of the last recording, if the next one gets further
    lessons: Lessons = field(default_factory=Lessons)
    streak: Streak = field(default_factory=Streak)
    payments: Payments = field(default_factory=Payments)
    recorder: int | None = None
    recompile: Function | None = None
    methods: tuple[str, ...] = ()
    pending: Pending | None = None
    together: bool = False
    mapped: list[Mapped] = field(default_factory=list)
    looked_for: set[str] = field(default_factory=set)  # the kept calls of earlier processes that were looked at
    dispatch: _native.Dispatch = field(init=False)

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.bound, self.recordings = self.new_bound(), self.new_recordings()
        self.dispatch = self.native()
        LIVE.add(self)

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        return type(self).shown(self)

    @property
    def line(self) -> Line | None:
        """Where the user wrote it: a module's is its ``forward``. None for what has no code in Python."""
        forward = getattr(type(self.owner), "forward", None) if isinstance(self.owner, torch.nn.Module) else None
        for function in (forward, self.function):
            function = getattr(function, "__func__", function)
            if isinstance(function, types.FunctionType):
                return written_at(function)
        return None

    @property
    def names(self) -> dict[str, str]:
        """What the user calls the bound arguments, by the text of their source: parameters, those of a module's
        ``forward`` in place of its ``__call__``'s.
        """
        code = getattr(self.function, "__code__", None)
        if code is None:
            return {}
        names = _native.bound_names(code)
        by_source = {f"args[{place}]": name for place, name in enumerate(names)}
        forward = getattr(type(self.owner), "forward", None) if isinstance(self.owner, torch.nn.Module) else None
        if names[1:] == ("args", "kwargs") and isinstance(forward, types.FunctionType):
            for place, name in enumerate(_native.bound_names(forward.__code__)[1:]):
                by_source[f"args[1][{place}]"] = by_source[f"args[2][{name!r}]"] = name
        return by_source

    def guarded(self, start: ResumeDispatch | None) -> list[tuple[_native.GuardSet, Trace]]:
        """The guard sets of the traces that begin at a point, or at the beginning, with these traces."""
        stages = {id(p.stages.guards.program): p.stages for p in self.products if p.start is start}
        sets = [entry.guards for entry in (self if start is None else start).dispatch.entries]
        guarded = [(guards, stages.get(id(guards.program))) for guards in sets]
        return [(guards, known.trace) for guards, known in guarded if known is not None]

    def reduce(self) -> Reduced:
        """How the native half is pickled."""
        return reduced(self.dispatch, self.function, self.owner, self.recompile)

    def native(self) -> _native.Dispatch:
        """The native half."""
        return _native.Dispatch(self.function, self.miss, owner=self.owner, weighed=self.weighed)

    def miss(self, args: Arguments, kwargs: Keywords) -> Value:
        """A call for which no trace holds: records, compiles and adds traces, or gives Declined where that is vain:
        then the native half calls the function.
        """
        if self.of_class and type(self.owner).__call__ is not self.function:
            self.eager_calls += 1
            return type(self.owner).__call__(*args, **kwargs)
        if torch._C._functorch.peek_interpreter_stack() is not None:
            value = self.compiler.under_transform(self, args, kwargs)
            if value is not _native.Declined:
                return value
        first = not self.eager_calls and not self.products
        waits = self.attempts.waiting() and not self.options.fullgraph  # which raises each time
        vain = self.behind() or waits or not self.takes()
        if vain or holds_back(first, self.line):
            self.eager_calls += 1
            return _native.Declined
        lock = self.lock
        if not lock.acquire(blocking=False):  # another thread records, and may wait for what this call does
            self.eager_calls += 1
            return _native.Declined
        before = _native.bypass(True)  # what native code calls while this call is recorded runs as eager does
        given = args if self.dispatch.owner is None else args[1:]
        try:
            if self.pending is not None:  # since the look above
                return _native.Declined
            met = self.met(self.dispatch, lambda: self.dispatch.bind(*given, **kwargs))
            if not met:
                with self.recording():
                    outcome = self.compiler.call(self, args, kwargs)
                self.file(outcome)
            pending = self.pending
        finally:
            _native.bypass(before)
            lock.release()
        if pending is not None and self.options.patience:
            pending.done.wait(min(self.options.patience, threading.TIMEOUT_MAX))
        if met or outcome.found:
            self.dispatch.calls -= 1  # the same call
            return self.dispatch(*given, **kwargs)
        if outcome.declined and not self.options.fullgraph:
            return _native.Declined
        if outcome.exception is not None:
            throw(outcome)
        if self.options.fullgraph and outcome.reason is not None:
            raise UserError(str(outcome.reason))
        return outcome.value

    def behind(self) -> bool:
        """Whether another thread makes code of this function now; raises what it has raised."""
        pending = self.pending
        if pending is None or pending.error is None:
            return pending is not None
        self.pending = None
        raise pending.error

    def settle(self) -> None:
        """Waits until no other thread makes code of this function, or of a backward of its graphs."""
        pending = self.pending
        if pending is not None:
            pending.done.wait()
        for derivative in self.derivatives():
            derivative.settle()
        for each in self.mapped:
            if each.below is not None:
                each.below.settle()

    def derivatives(self) -> list[Derivative]:
        """The places in autograd of all graphs."""
        return [derivative for product in self.products for derivative in product.stages.derivatives]

    def met(self, dispatch: _native.Dispatch, bound: Callable[[], Arguments | None]) -> bool:
        """Whether another thread compiled the case at hand after this thread's call had missed; ``bound`` gives the
        bound arguments. The caller holds the lock and is about to record.
        """
        last, self.recorder = self.recorder, threading.get_ident()
        if last is None or last == self.recorder:
            return False
        arguments = bound()
        return arguments is not None and any(type(entry.guards.check(arguments)) is tuple for entry in dispatch.entries)

    def __del__(self) -> None:
        for call in tuple(ended):
            call(self)

    def resume_dispatch(self, point: ResumePoint, count: int) -> ResumeDispatch:
        """The native half of a point, made when it is first reached; it takes ``count`` values."""
        handle = point.handle
        if not isinstance(handle, ResumeDispatch):
            handle = point.handle = ResumeDispatch(self, point, count)
            if not self.resume_dispatches:
                self.dispatch.weigh(MOST if torch.cuda.is_initialized() else FIRST, 0)
            self.resume_dispatches.append(handle)
            self.breaks.setdefault(point.why, 0)
        return handle

    def add(self, start: ResumeDispatch | None, product: Product, entry: _native.Compiled) -> None:
        """Takes compiled code that starts at a point, or at the function's beginning."""
        product.start, product.call = start, self.dispatch.calls
        self.products.append(product)
        self.streak.small = self.streak.small and is_small(product.stages)
        for listen in tuple(listeners):
            listen(self, product)
        if product.why is not None:
            line = self.line or product.stages.trace.line
            logger.info("%s: %s is compiled again because %s", line.place, line.function, product.why)
        place = self if start is None else start
        place.dispatch.add(entry)
        place.bound.add(sum(product.seconds.values()), self.dispatch.eager)
        while len(place.dispatch.entries) > place.bound.limit:
            place.dispatch.remove(place.dispatch.entries[-1])  # the one that was hit longest ago
        if place.bound.reached:
            self._say(place.bound.told(), product.stages.trace.line)
        if not self.dispatch.weighs and may_lose(product.stages):
            self.dispatch.weigh(SETTLE if gains_nothing(product.stages) else FIRST, 0)
        if start is None:
            self.attempts.succeeded()

    def new_bound(self) -> Bound:
        """The bound of one more place where traces start."""
        limit = self.options.trace_limit
        return Bound(limit, self.options.compile_seconds, most=VAIN * max(1.0, limit / LIMIT))

    def new_recordings(self) -> Bound:
        """The bound of the calls that are recorded: a new case has a trace here and another behind its break."""
        return Bound(2 * self.options.trace_limit, math.inf, most=STREAK)

    def records(self, hit: bool = False) -> bool:
        """Whether the call at hand, which compiled code has begun where it is a ``hit``, may be or is recorded."""
        if self.dispatch.weighs and self.dispatch.recorded:
            return not self.streak.small or self.streak.recorded <= self.recordings.most
        vain = self.streak.missed(self.dispatch.hits, hit) if self.streak.small else 0
        limit, most, self.recordings.limit = self.options.trace_limit, VAIN, MOST
        if self.resume_dispatches:
            self.recordings.limit, most = 2 * limit if self.computes() else max(1, limit // IDLE), STREAK
        self.recordings.most = most * max(1.0, limit / LIMIT)
        if not self.recordings.allows(self.dispatch.eager, vain):
            self._say(self.streak.told(product.why for product in self.products), self.line, logging.INFO)
            return False
        return self._pays(hit)

    def _pays(self, hit: bool) -> bool:
        """Whether a recording of the case at hand may pay for itself. Behind compiled code of a function whose calls
        are not small one may always: the interpreter, which goes on there, takes longer than an eager call.
        """
        small, dispatch = self.streak.small, self.dispatch
        if self.options.fullgraph or (hit and not small):
            return True
        if self.payments.allows(dispatch.calls, dispatch.hits, dispatch.eager, time.perf_counter(), small):
            return True
        self._say(self.payments.told(), self.line, logging.INFO)
        return False

    def computes(self) -> bool:
        """Whether some graph has work of torch's in it; another backend's always has."""
        stages = (product.stages for product in self.products)
        return any(each.computes or each.code is None or each.library_targets for each in stages)

    def takes(self) -> bool:
        """Whether one more trace may start at the beginning; where not, calls do not ask until it may, or for some."""
        dispatch, records = self.dispatch, self.records()
        if records and self.bound.allows(dispatch.eager, in_vain(dispatch.entries)):
            return True
        some = dispatch.eager * (1 + UNASKED / (UNASKED + dispatch.waited))
        if dispatch.eager < (paid := self.payments.until()):
            some = min(some, paid)
        dispatch.until = self.bound.until if records else some
        return False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """The call at hand is recorded in the block, or more of it is."""
        counts = not (self.dispatch.weighs and self.dispatch.recorded)
        self.dispatch.recorded = True
        products, entries, start = len(self.products), len(self.streak.last), time.perf_counter()
        try:
            yield
        finally:
            now = time.perf_counter()
            self.lessons.took = now - start
            if self.pending is None:
                seconds = sum(sum(product.seconds.values()) for product in self.products[products:])
                made, eager = self.streak.last[entries:], self.dispatch.eager
                self.payments.made(made, seconds or self.lessons.took, eager, now)
            self.streak.recorded += 1.0 if counts else WITHIN
            if counts:
                self.recordings.add(self.lessons.took, self.dispatch.eager)

    def weighed(self, eager: float, compiled: float, least_eager: float, least_compiled: float) -> None:
        """Takes the seconds of a weighing; where compiled calls are slower than eager ones, calls are eager for some
        time. What runs on a GPU has no time here, as a call does not wait for it: only what the clock need not tell is
        lost, or what is the same for the device.
        """
        times = Times(eager, compiled, least_eager, least_compiled)
        bound = allowed([product.stages for product in self.products], self.breaks)
        dispatches = [self.dispatch, *(point.dispatch for point in self.resume_dispatches)]
        alike = all(len(dispatch.entries) <= 1 for dispatch in dispatches)
        same = not self.breaks and all(asks_the_same(product.stages) for product in self.products)
        told = same or bound == NOTHING or not torch.cuda.is_initialized()
        lost = told and self.weighing.lost(times, bound, alike)
        self.dispatch.weigh(*self.weighing.next(lost))
        if lost and not any(reason.code == "slower" for reason in self.reasons):
            fact = times.told(bool(self.resume_dispatches), bound)
            why = reason("slower", fact, self.line or Line("", 0, repr(self.function)))
            self.reasons[why] = 1
            logger.info("%s: %s", why.line, fact)

    def _say(self, told: tuple[str, str], line: Line | None, level: int = logging.WARNING) -> None:
        """Says once, in one line, that calls of this function wait, and why."""
        if any(reason.code == "limit" for reason in self.reasons):
            return
        fact, advice = told
        self.reasons[reason("limit", fact, line, advice)] = 1
        logger.log(level, "%s: %s %s", line, fact, advice)

    def _drop_hollow(self) -> bool:
        """Drops compiled code that computes nothing, which only leads from one break to the next: eager is faster.
        Whether there is no other.
        """
        hollow = all(product.stages.is_hollow for product in self.products)
        if hollow:
            for dispatch in (self.dispatch, *(place.dispatch for place in self.resume_dispatches)):
                dispatch.clear()
        return hollow

    def file(self, outcome: Outcome, start: ResumeDispatch | None = None) -> None:
        """Takes note of a recording that gave nothing."""
        if outcome.reason is None:
            return
        self.eager_calls += start is None
        if outcome.learnt:  # the next recording breaks where this one ended
            self.ended = outcome.reason
            self.streak.recorded = max(0.0, self.streak.recorded - 1)
            if not self.lessons.over():
                return
            if self._drop_hollow() and self.points is not None and self.points.leave_library(self.lessons.why()):
                self.lessons = Lessons()
                return
            self._say(self.lessons.told(), outcome.reason.line)
        self.reasons[outcome.reason] = self.reasons.get(outcome.reason, 0) + 1
        if outcome.exception is not None:  # the next call may return; one that raises again and again runs eagerly
            if start is None:
                self.attempts.raised(self.lessons.took, self._eager())
            return
        if start is not None:
            self.prune(start)
        self.attempts.failed(self.lessons.took, self._eager(), outcome.reason.code == "fault")

    def _eager(self) -> float:
        """The seconds of a call that ran eagerly."""
        return self.dispatch.eager / max(1, self.dispatch.waited)

    def prune(self, point: ResumeDispatch) -> None:
        """Drops the compiled code that leads to a point from which only the interpreter goes on, and what then leads
        nowhere: eager is faster.
        """
        gone = [point]
        while gone:
            target = gone.pop()
            target.dispatch.clear()
            holders: list[CompiledFunction | ResumeDispatch] = [self, *self.resume_dispatches]
            for holder in holders:
                entries = holder.dispatch.entries
                for entry in entries:
                    if entry.follow is target.dispatch:
                        holder.dispatch.remove(entry)
                if entries and not holder.dispatch.entries and isinstance(holder, ResumeDispatch):
                    gone.append(holder)
        self.attempts.pruned(self.dispatch.hits)

    def reset(self) -> None:
        """Drops all compiled code; the next call compiles anew."""
        with self.lock:
            self.dispatch.clear()
            for point in self.resume_dispatches:
                point.dispatch.clear()
            self.resume_dispatches.clear()
            self.mapped.clear()
            self.points = None
            self.breaks.clear()
            self.bound, self.recordings = self.new_bound(), self.new_recordings()
            self.weighing, self.attempts = Weighing(), Attempts()
            self.lessons, self.streak, self.payments = Lessons(), Streak(), Payments(self.dispatch.calls)
            self.products.clear()
            self.reasons.clear()
            self.looked_for.clear()
            self.pending = None
            self.eager_calls = 0


def _in_child() -> None:
    """A child has no other threads than the one that forked: nobody would release the locks that they held, or make the
    code that was handed to them.
    """
    for state in tuple(LIVE):
        if state.pending is not None and state.pending.error is None:
            state.pending = None
        for derivative in state.derivatives():
            derivative.alone()
        if not state.lock._is_owned():  # type: ignore[attr-defined]
            state.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _hide_from_torch_compile() -> None:
    """What runs below a miss is no code for torch.compile, which may be on where a compiled function is called."""
    frames = torch._C._dynamo.eval_frame
    try:
        skip = frames._FrameAction.SKIP
        for function in (CompiledFunction.miss, ResumeDispatch.miss, ResumeDispatch.run, ResumeDispatch.failed):
            frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    except AttributeError:  # a torch without it: slower and, at worst, an error of torch.compile's own
        pass


_hide_from_torch_compile()

logger = logging.getLogger("framefuse")


def live_functions() -> Sequence[CompiledFunction]:
    """Every compiled function that is still in use."""
    return tuple(LIVE)


def compiled_function(compiled: Value) -> CompiledFunction | None:
    """The record behind a result of ``framefuse.compile``, or of a function or module that is installed; None for
    anything else, such as a wrapper to which ``functools.wraps`` copied the attributes of one of these.
    """
    call = type(compiled).__call__ if isinstance(compiled, torch.nn.Module) else None
    inner = _native.behind_door(call, compiled) if isinstance(call, types.FunctionType) else None
    for record in (getattr(inner, "__framefuse__", None), getattr(compiled, "__framefuse__", None)):
        if isinstance(record, CompiledFunction) and (
            any(compiled is part for part in (record.dispatch, record.function, record.owner))
            or (isinstance(compiled, torch.nn.Module) and vars(compiled) is getattr(record.owner, "__dict__", None))
        ):
            return record
    return None


def behind(function: Value) -> tuple[Value, Arguments, Keywords]:
    """What a partial or a bound method calls, with the arguments that it puts before those of a call."""
    if type(function) is functools.partial:
        return function.func, function.args, function.keywords
    if type(function) is types.MethodType:
        return function.__func__, (function.__self__,), {}
    return function, (), {}
