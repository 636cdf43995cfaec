"""Runs a function for real under the interpreter, and turns what the recorder saw into a trace for each stretch."""

from __future__ import annotations

import inspect
import time
import types
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch

from framefuse.capture import opcodes
from framefuse.capture.callables import autocast, chosen_kernels, inference_modes, warning_filters
from framefuse.capture.callables.module_calls import CALL
from framefuse.capture.entry import Entry, Segment, entry, refused
from framefuse.capture.exits.resume import rebuild
from framefuse.capture.exits.resume_points import ResumePoint, ResumePoints
from framefuse.capture.exits.snapshot import Unrepresentable, take
from framefuse.capture.facts.settle import settle
from framefuse.capture.facts.sources import Sources
from framefuse.capture.facts.told_apart import guard_partition
from framefuse.capture.program import leaves
from framefuse.capture.program.breaks import Break
from framefuse.capture.program.decoded import decode
from framefuse.capture.program.frame import Frame, InterpretedGenerator, bind_locals
from framefuse.capture.program.lookups import type_get
from framefuse.capture.program.tracebacks import is_ours, raised_at, users
from framefuse.capture.recording.outcome import autograd_held, inputs_of, separate_tensors, versions_of
from framefuse.capture.recording.recipe import Recipes
from framefuse.capture.recording.recorder import Recorder
from framefuse.capture.recording.recording_mode import RecordingMode
from framefuse.capture.recording.replaced_queries import refused as refused_now
from framefuse.capture.recording.tracked_calls import settle_views
from framefuse.capture.run import interpreter
from framefuse.errors import Reason
from framefuse.ir.facts import Assumptions, Source
from framefuse.ir.native_warnings import Hearing
from framefuse.ir.nested import numbers_in
from framefuse.ir.numbers import Expr, Real
from framefuse.ir.own_class import is_a
from framefuse.ir.source import Line, written_at
from framefuse.ir.stops import reason
from framefuse.ir.trace import Build, Call, Effect, Trace, outside, refs
from framefuse.ir.values import Arguments, Function, Keywords, Value


@dataclass(slots=True)
class Recording:
    """What a run gave: ``value`` or the user's ``exception`` of the call, and its ``segments`` or the ``reason`` why
    there are none. ``learnt`` says that the next recording will get further, ``declined`` that nothing was run.
    """

    value: Value = None
    exception: BaseException | None = None
    segments: tuple[Segment, ...] = ()
    reason: Reason | None = None
    learnt: bool = False
    fault: Exception | None = None  # our own; the run went on without us
    declined: bool = False

    @property
    def trace(self) -> Trace | None:
        """The trace of a run without a break."""
        return self.segments[0].trace if self.segments and self.segments[-1].follow is None else None


class Tree(Protocol):
    """What compiles segments while a run goes on, so that a loop over a point that was met before runs compiled."""

    @property
    def points(self) -> ResumePoints | None:
        """The points of the function."""

    @property
    def whole(self) -> bool:
        """Whether a break ends the recording, but at what torch has for control flow."""

    def compile(self, segments: Sequence[Segment]) -> bool:
        """Compiles segments that follow each other; False when one of them cannot be."""

    def enter(self, point: ResumePoint, values: Sequence[Value]) -> Value:
        """Runs compiled code from ``point`` to the end of the call."""

    def moving(self, start: ResumePoint | None, values: Sequence[Value]) -> frozenset[Source]:
        """The places of numbers that become symbols, since earlier recordings from there found others."""


def record(
    function: Function,
    args: Arguments,
    kwargs: Keywords,
    *,
    owner: Value = None,
    dynamic: bool | str | None = None,
    tree: Tree | None = None,
    moving: frozenset[Source] = frozenset(),
) -> Recording:
    """Calls ``function`` once, for real, and records the call.

    ``owner`` is a long-lived object among the arguments: what lies under it is held by identity. ``dynamic`` False
    makes sizes constants. ``tree`` takes the segments of a run with breaks; without one a break ends the recording, and
    ``moving`` are the places of numbers that become symbols.
    Whatever cannot be recorded costs the trace only; the call completes and behaves as it does without framefuse.
    """
    first = entry(function)
    why = refused(function, first) or _unknown(first)
    if why is not None and why.code == "debugger":
        return Recording(reason=why, declined=True)
    if why is not None or first is None:
        return _run_natively(function, args, kwargs, why)
    try:
        slots = bind_locals(first.function, (*first.leading, *args), kwargs)
    except TypeError:
        return _run_natively(function, args, kwargs, reason("raises", "a TypeError", written_at(first.function)))
    run = _Run(_begun(first.function, slots).function, dynamic, tree, None, slots, moving)
    run.enter(first.function, slots, owner)
    return run.run()


def resume(
    point: ResumePoint, values: Sequence[Value], *, dynamic: bool | str | None = None, tree: Tree | None = None,
    error: BaseException | None = None,
) -> Recording:  # fmt: skip
    """Goes on at ``point`` for real and records what follows; without ``tree`` it is only run.

    ``error`` is what the opaque step before the point raised.
    """
    run = _Run(point.name, dynamic, tree, point, values)
    if tree is None:
        run.recorder.kill("raises", "a run that is not recorded")
    run.resume(point, tuple(values), error)
    return run.run()


def _unknown(first: Entry | None) -> Reason | None:
    """Why a function cannot be interpreted that is otherwise one to record."""
    code = None if first is None else decode(first.function.__code__)
    if first is None or code is None or code.missing is None:
        return None
    return reason("opcode", code.missing, written_at(first.function))


def _begun(function: types.FunctionType, slots: Sequence[Value]) -> Line:
    """Where the user wrote what a call of ``function`` runs: of a module that is called, its ``forward``."""
    if function is CALL and slots and is_a(slots[0], torch.nn.Module):
        forward = type_get(type(slots[0]), "forward")
        if is_a(forward, types.FunctionType):
            return written_at(forward)
    inner = inspect.unwrap(function)
    if is_ours(function.__globals__) and is_a(inner, types.FunctionType):
        return written_at(inner)
    return written_at(function)


def _run_natively(function: Function, args: Arguments, kwargs: Keywords, why: Reason | None) -> Recording:
    try:
        return Recording(value=function(*args, **kwargs), reason=why)
    except BaseException as error:
        return Recording(exception=error, reason=why)


# An opaque step: what is called, None where nothing is, with its arguments.
Step = tuple[Function | None, Arguments, Keywords | None]


class Closed(NamedTuple):
    """A segment that ended in a break: the point that it leads to, the opaque step before that, and what goes on to
    it.
    """

    point: ResumePoint
    target: Function | None
    args: Arguments
    kwargs: Keywords
    values: tuple[Value, ...]
    generators: list[InterpretedGenerator]


class _Run:
    """One run: the recorder and the machine of the segment under way, and the segments before it."""

    def __init__(
        self,
        name: str,
        dynamic: bool | str | None,
        tree: Tree | None,
        start: ResumePoint | None,
        values: Sequence[Value],
        known_moving: frozenset[Source] = frozenset(),
    ) -> None:
        self.name = name
        self.dynamic = dynamic
        self.tree = tree
        self.segments: list[Segment] = []
        self.visited: set[int] = set()
        self.known_moving = known_moving
        self.carried: frozenset[int] = frozenset()
        self.renew(start, values)

    def renew(self, start: ResumePoint | None, values: Sequence[Value]) -> None:
        """A fresh recorder and machine for the segment that begins at ``start`` with these values."""
        self.started = time.perf_counter()
        moving = self.tree.moving(start, values) if self.tree is not None else self.known_moving
        self.recorder = Recorder(self.dynamic, moving)
        tree = self.tree
        whole = tree is not None and tree.whole
        self.machine = interpreter(self.recorder, None if tree is None or whole else tree.points, whole)
        self.recorder.attach(self.machine, RecordingMode(self.recorder))
        self.recorder.carried, self.recorder.forget = self.carried, self.forget
        self.start: ResumePoint | None = None
        self.bound: tuple[Value, ...] = ()
        self.error: BaseException | None = None
        self.owed: tuple[Value, Value] | None = None
        self.grad_enabled = torch.is_grad_enabled()

    def forget(self) -> None:
        """The recording is dead: the stretches before it lead nowhere, and nobody holds what they ended with."""
        self.segments, self.bound = [], ()

    def enter(self, function: types.FunctionType, slots: list[Value], owner: Value) -> None:
        """Begins at the first instruction of ``function``."""
        frame = Frame(function, decode(function.__code__))
        frame.bottom = True
        self.machine.start(frame)
        sources = self.recorder.sources
        sources.root(function)
        self.recorder.functions.guard(function)
        self.recorder.functions.assign_cells(function)
        self.line = _begun(function, slots)
        self.bound = tuple(slots) if self.tree is not None else ()
        frame.locals[: len(slots)] = _arguments(sources, function.__code__, slots, owner)
        if owner is not None and type_get(type(owner), "__call__") is function:  # its class gave what is run
            sources.guard_type(owner)

    def resume(self, point: ResumePoint, values: tuple[Value, ...], error: BaseException | None) -> None:
        """Begins at a point."""
        mode = refused_now()
        if mode is not None:
            self.recorder.kill("torch-mode", mode)
        state = rebuild(point, values, self.machine)
        self.machine.exits.resumed()
        self.machine.handled = state.handled
        self.start, self.bound, self.line, self.error = point, values, point.line, error
        if point.has_outcome and error is None:
            self.owed = (state.outcome, state.continuation)
        if error is not None:
            self.recorder.kill("raises", type(error).__name__)

    def run(self) -> Recording:
        """Runs to the end of the call, over all breaks."""
        while True:
            recorder, machine = self.recorder, self.machine
            frame = machine.frames[0]
            stop: Break | None = None
            try:
                # A dead recorder stays off the stack: the program's own modes come and go above it.
                with recorder.mode if recorder.alive else nullcontext():
                    if self.owed is not None:
                        (outcome, continuation), self.owed = self.owed, None
                        machine.exits.settle_outcome(outcome, continuation)
                    error, self.error = self.error, None
                    value = machine.loop(0, error)
            except Break as raised:
                stop = raised
            except BaseException as error:
                memo = recorder.settled()
                recorder.kill("raises", type(error).__name__)
                if recorder.relations.tracked:
                    settle(error, memo)
                recorder.drop()
                left = users(error.__traceback__)
                if recorder.reason is not None and recorder.reason.line is None:
                    recorder.reason = replace(recorder.reason, line=raised_at(left))
                return self._recording(exception=error.with_traceback(left))
            if stop is None:
                machine.frames.append(frame)
                return self._finish(value)
            done = self._break(stop)  # after the handler: what the step raises has no context of ours
            if done is not None:
                return done

    # Breaks ---------------------------------------------------------------------------------------------------------

    def _break(self, stop: Break) -> Recording | None:
        """Ends the segment, runs the opaque step for real and begins the next one; gives the end of the call when
        compiled code ran it.
        """
        recorder, machine = self.recorder, self.machine
        machine.exits.note_library()
        why = reason(stop.code, stop.detail, recorder.line())
        closed = recorder.attempt(lambda: self._close(stop, why), None)
        if closed is None:  # the recording is dead, the frames are whole
            if recorder.bug is None:
                machine.exits.learn_call(stop.code, stop.detail)
            recorder.kill(stop.code, stop.detail)
            inner = recorder.reason
            if inner is not None and inner != why:
                fact = f"{why.fact} No break is possible there: {inner.fact[0].lower()}{inner.fact[1:]}"
                recorder.reason = replace(why, fact=fact)
            self._step(stop)
            return None
        point, target, args, kwargs, values, generators = closed
        error: BaseException | None = None
        outcome: tuple[Value, ...] = ()
        if target is not None:
            try:
                with self._heard(target):
                    outcome = (target(*args, **kwargs),)
            except BaseException as raised:
                error = raised
                outcome = (None,)
        assert self.tree is not None
        if error is None and (id(point) in self.visited or point.handle is not None):
            segments, self.segments = self.segments, []
            if self.tree.compile(segments):
                _let_go(generators)
                machine.release()
                return self._compiled(point, (*outcome, *values))
        self.visited.add(id(point))
        given = (value for place, value in enumerate(values, 1) if place not in self.carried)
        if outcome and any(outcome[0] is value for value in given):  # what a weak reference gives, for one
            self.carried -= {0}
        try:
            self.renew(point, (*outcome, *values))
            if not self.segments:  # compiling was vain
                self.recorder.kill(why.code, stop.detail)
            self.resume(point, (*outcome, *values), error)
        except Exception as fault:  # the frames before the step are still whole: they go on unrecorded
            self.recorder, self.machine = recorder, machine
            recorder.blame(fault)
            self.error = error
            self.owed = (outcome[0], stop.continuation) if target is not None and error is None else None
        else:
            _let_go(generators)
            machine.release()
        return None

    def _step(self, stop: Break) -> None:
        """Runs an opaque step where the frames stay as they are."""
        if stop.target is None:
            return
        args, kwargs = self.machine.exits.hand_over(stop.args_of_target, stop.kwargs, {})
        try:
            with self._heard(stop.target):
                self.owed = (self.machine.natives.handling(stop.target, args, kwargs), stop.continuation)
        except BaseException as raised:
            self.error = raised

    def _heard(self, target: Function) -> AbstractContextManager[None]:
        """Within it what C code warns, and a class of torch of its caller, is put down to the program's line. Other
        Python code warns where it stands.
        """
        heard = type(target) in leaves.NATIVE_KINDS or leaves.is_class_of_torch(target)
        return Hearing(self.recorder.tell) if heard else nullcontext()

    def _compiled(self, point: ResumePoint, values: tuple[Value, ...]) -> Recording:
        """The rest of the call by compiled code."""
        assert self.tree is not None
        try:
            return Recording(value=self.tree.enter(point, values))
        except BaseException as error:
            return Recording(exception=error)

    def _close(self, stop: Break, why: Reason) -> Closed | None:
        """Ends the segment with a trace that leads to a point; None, and a dead recording, where that cannot be."""
        recorder = self.recorder
        recipes = Recipes(recorder)
        assert self.tree is not None and self.tree.points is not None
        line = recorder.line() or self.line
        try:
            taken = take(self.machine, recipes, stop.continuation, stop.target is not None)
            point = self.tree.points.find(taken, self.name, line, why)
        except Unrepresentable as found:
            recorder.kill("snapshot", str(found))
            return None
        step = (stop.target, stop.args_of_target, stop.kwargs or None)
        leaves = [*taken.leaves, *[taken.numbers[place] for place in point.free]]
        trace = self._trace(leaves, recipes, step)
        if any(id(part) in recipes.made for part in taken.moving):
            recorder.kill("snapshot", "an iterator that something else has too")
            trace = None
        if trace is None:
            return None
        trace = replace(trace, asks=stop.asks)
        memo = recorder.settled()
        for cell in recipes.cells:
            with suppress(ValueError):  # empty
                cell.cell_contents = settle(cell.cell_contents, memo)
        args = tuple([settle(part, memo) for part in stop.args_of_target])
        kwargs = {key: settle(part, memo) for key, part in stop.kwargs.items()}
        values = tuple([settle(part, memo) for part in leaves])
        sources, shift = recorder.sources, int(point.has_outcome)
        own = [place + shift for place, part in enumerate(leaves) if recorder.is_own(sources.source_of(part))]
        self.carried = frozenset([*range(shift), *own])
        recorder.journal.settle(memo)
        self.segments.append(Segment(trace, self.start, self.bound, point))
        recorder.close()
        return Closed(point, stop.target, args, kwargs, values, taken.generators)

    # The end --------------------------------------------------------------------------------------------------------

    def _finish(self, value: Value) -> Recording:
        recorder = self.recorder
        trace = recorder.attempt(lambda: self._trace(value, Recipes(recorder)), None) if recorder.alive else None
        if recorder.relations.tracked or recorder.generators:
            memo = recorder.settled()
            given = value
            value = recorder.attempt(lambda: settle(given, memo), given)
            recorder.journal.settle(memo)
        whole = False
        if trace is not None and recorder.bug is None:
            self.segments.append(Segment(trace, self.start, self.bound, None))
            whole = True
        recorder.close()
        return self._recording(value=value, whole=whole)

    def _recording(self, value: Value = None, exception: BaseException | None = None, whole: bool = False) -> Recording:
        """What the run gave, which ends here; segments that lead nowhere are dropped."""
        if whole:
            self.machine.release()
            return Recording(value, exception, tuple(self.segments))
        inference_modes.learn(self.machine)
        warning_filters.learn(self.machine)
        learnt = self.machine.exits.learnt
        self.machine.release()
        return Recording(value, exception, (), self.recorder.reason, learnt, self.recorder.bug)

    def _trace(self, value: Value, recipes: Recipes, step: Step | None = None) -> Trace | None:
        """The trace of this segment; with an opaque ``step`` after it, ``value`` is the list of what goes on to its
        point.
        """
        recorder = self.recorder
        recorder.waits.end()
        build = recipes.build
        effects = recorder.journal.effects(build)
        effects += autocast.left(recorder) + chosen_kernels.left(recorder)
        if torch.is_grad_enabled() != self.grad_enabled:
            mode = Build("tuple", None, (torch.is_grad_enabled(),))
            effects += (Effect("run", Build("const", torch._C._set_grad_enabled), None, mode, recorder.line()),)
        handed = [build(part) for part in (*step, *value)] if step is not None else ()
        result = build(value) if step is None else Build("tuple", None, tuple(handed))
        recorder.journal.separate()
        separate_tensors(recorder)
        guard_partition(recorder.sources)
        if not recorder.alive:
            return None
        inputs = inputs_of(recorder)
        if not recorder.alive:
            return None
        leaving = outside(result, effects)
        settle_views(recorder, leaving)
        warning_filters.settle(recorder)
        inference_modes.settle(recorder, [entry.value for entry in inputs], leaving)
        held = autograd_held(recorder, leaving) if recorder.alive else None
        if not recorder.alive:
            return None
        relations = recorder.relations
        relations.settle_errors(_used(recorder.calls, result, effects))
        return Trace(
            name=self.name,
            line=self.line,
            assumptions=Assumptions(
                recorder.state,
                tuple(recorder.sources.facts.values()),
                inputs,
                tuple(relations.stated.values()),
                tuple((symbol, formula) for formula, symbol in relations.definitions.items()),
                tuple(relations.comparisons.values()),
            ),
            calls=tuple(recorder.calls),
            metas=tuple(recorder.metas),
            size_symbols=dict(recorder.sizes.symbols),
            hints=dict(relations.hints),
            real_hints=dict(relations.real_hints),
            result=result,
            effects=effects,
            opcodes=self.machine.opcodes,
            inlined=self.machine.inlined,
            seconds={"capture": time.perf_counter() - self.started},
            autograd=held,
            versions=versions_of(recorder),
            tied=recorder.sources.tied,
            ranges=tuple(dict.fromkeys(self.machine.ranges)),
        )


def _used(calls: Sequence[Call], result: Value, effects: tuple[Effect, ...]) -> Iterator[Expr | Real]:
    """The numbers that a trace gives, or that calls take whose results it gives."""
    needed = set(outside(result, effects))
    yield from numbers_in((result, [(effect.target, effect.key, effect.value) for effect in effects]))
    for call in reversed(calls):
        if call.written or call.random or not needed.isdisjoint(refs(call.result)):
            needed.update(refs((call.args, call.kwargs)))
            yield from numbers_in((call.args, call.kwargs))


def _let_go(generators: list[InterpretedGenerator]) -> None:
    """Others go on in place of these."""
    for generator in generators:
        generator.state = "done"


def _arguments(sources: Sources, code: types.CodeType, slots: list[Value], owner: Value) -> list[Value]:
    """The slots with sources, facts and symbols."""
    plain = code.co_argcount + code.co_kwonlyargcount
    given: list[Value] = []
    for number, value in enumerate(slots):
        source = Source("arg", None, number)
        if value is owner and value is not None:
            sources.fact(source, "is", value, id(value))
            sources.root(value)
            given.append(value)
        elif number < plain:
            given.append(sources.guard_value(source, value, free=True))
        else:
            given.append(_extra(sources, source, value))
    return given


def _extra(sources: Sources, source: Source, value: Value) -> Value:
    """``*args`` or ``**kwargs``: made for this call, elements are arguments of their own."""
    if is_a(value, tuple):
        sources.fact(source, "length", len(value))
        return tuple([sources.guard_value(Source("item", source, n), part, free=True) for n, part in enumerate(value)])
    if value:
        sources.fact(source, "keys", tuple(value))
    else:
        sources.fact(source, "length", 0)
    return {key: sources.guard_value(Source("item", source, key), part, free=True) for key, part in value.items()}


__all__ = ["Recording", "Segment", "Tree", "opcodes", "record", "resume"]
