"""Records calls and compiles their traces: the tree of compiled stretches that grows while a function runs."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, cast

import torch

from framefuse import _native
from framefuse.capture.entry import Segment
from framefuse.driver import behind, own_backwards, peeled
from framefuse.driver.ambient import as_recorded
from framefuse.driver.calls import Call, call_of
from framefuse.driver.faults import report_bug
from framefuse.driver.passes import OWN, Pass, check_order, keeps_by, run, through_backend, told, verified
from framefuse.driver.programs import Program
from framefuse.driver.wiring import connect, load_stages
from framefuse.errors import Pinned, Reason, Stop, UserError
from framefuse.explain.files import publish
from framefuse.guards.changes import moving
from framefuse.guards.missed import missed
from framefuse.guards.versions import Versions, unchanged, versions
from framefuse.ir import passes_in_force, whole_kernels
from framefuse.ir.collector import collector_paused, made_to_last
from framefuse.ir.custom_runs import COMPILING
from framefuse.ir.elements import EITHER, branch_of
from framefuse.ir.facts import Source
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.late_imports import later
from framefuse.ir.source import Line
from framefuse.ir.stops import detail, reason
from framefuse.ir.values import Arguments, FxBackend, Keywords, Value
from framefuse.options import resolve
from framefuse.runtime import resume_dispatch
from framefuse.runtime.compilation import Compilation
from framefuse.runtime.function import CompiledFunction, Compiler
from framefuse.runtime.recorded_call import Outcome, Pending, Product
from framefuse.runtime.resume_dispatch import ResumeDispatch

if TYPE_CHECKING:
    from framefuse.capture.exits.point_names import point_names
    from framefuse.capture.exits.resume_points import ResumePoint, ResumePoints
    from framefuse.capture.record import Recording, record, resume
    from framefuse.driver.tiers import improve, quick
else:
    point_names = later("framefuse.capture.exits.point_names", "point_names")
    ResumePoints = later("framefuse.capture.exits.resume_points", "ResumePoints")
    record = later("framefuse.capture.record", "record")
    improve = later("framefuse.driver.tiers", "improve")
    quick = later("framefuse.driver.tiers", "quick")
    resume = later("framefuse.capture.record", "resume")

logger = logging.getLogger("framefuse.cache")
listener = logging.getLogger("framefuse.capture")
TURN = 0.05  # seconds for which another thread waits for a function's lock at a time
CUT = frozenset(("run-time-size",))  # reasons that a break before the operation heals
WHOLE = frozenset(("autocast", "autocast-cache"))  # that no break heals: what autocast keeps is kept across it


def own(name: str) -> Compiler:
    """One of framefuse's own compilers."""
    return compiler(OWN[name])


def through(backend: FxBackend) -> Compiler:
    """What hands the captured FX graph to ``backend(gm, example_inputs) -> callable``."""
    return compiler(through_backend(backend))


def compiler(passes: tuple[Pass, ...]) -> Compiler:
    """What records calls and compiles their traces by ``passes``."""
    connect()
    COMPILING.update(backward=_own_backward, step=_own_step)
    check_order(passes, frozenset(("trace", "bound", "rewritten", "kept", "key")))
    return _Compiler(passes)


def _own_backward(function: Value) -> Value:
    return own_backwards.compiled(_native_compiler, function)


def _own_step(function: Value) -> Value:
    return CompiledFunction(function, None, resolve(None), own("native")).dispatch


def _native_compiler() -> Compiler:
    return own("native")


@dataclass(frozen=True, slots=True)
class _Compiler:
    passes: tuple[Pass, ...]

    def call(self, state: CompiledFunction, args: Arguments, kwargs: Keywords) -> Outcome:
        tree = self.tree(state)
        options = state.options
        with collector_paused() as collecting:
            call = call_of(state.function, args, kwargs, options) if keeps_by(self.passes) else None
            if call is not None and tree.find(call, collecting):
                return Outcome(found=True)
            tree.call = call
            try:
                load_stages()
            except Exception as error:  # another torch than those that the stages know
                return Outcome(reason=report_bug(error, _line_of(state), options), declined=True)
            tree.begin()
            recording = record(
                state.function, args, kwargs, owner=state.owner, dynamic=options.dynamic,
                tree=tree,
            )  # fmt: skip
            return self.outcome(tree, recording)

    def resume(
        self,
        state: CompiledFunction,
        point: resume_dispatch.ResumePoint,
        values: Sequence[Value],
        record: bool,
        error: BaseException | None = None,
    ) -> Outcome:
        place = cast("ResumePoint", point)
        if not record:
            recording = resume(place, values, error=error)
            return Outcome(recording.value, recording.exception)
        tree = self.tree(state)
        tree.begin()
        with collector_paused():
            return self.outcome(tree, resume(place, values, dynamic=state.options.dynamic, tree=tree))

    def under_transform(self, state: CompiledFunction, args: Arguments, kwargs: Keywords) -> Value:
        return peeled.call(state, args, kwargs)

    def tree(self, state: CompiledFunction) -> _Tree:
        return _Tree(self.passes, state)

    def outcome(self, tree: _Tree, recording: Recording) -> Outcome:
        stopped = [segment.follow.why for segment in recording.segments if segment.follow is not None]
        if recording.exception is None:
            whole_kernels.refuse((*stopped, recording.reason))
        if recording.fault is not None:
            line = recording.reason.line if recording.reason is not None else None
            tree.reason = report_bug(recording.fault, line or _line_of(tree.state), tree.state.options)
        elif recording.segments:
            for segment in recording.segments:
                trace = segment.trace
                what = f"recorded {len(trace.calls)} calls and {len(trace.assumptions.facts)} facts"
                told(trace, "capture", what, trace.seconds.get("capture", 0.0))
            tree.compile(recording.segments)
        elif recording.reason is not None and tree.reason is None:  # what a stage refused is the cause
            tree.refuse(recording.reason)
        if recording.exception is None:
            whole_kernels.refuse((tree.reason,))
        learnt = recording.learnt or tree.learnt
        return Outcome(recording.value, recording.exception, tree.reason, learnt, recording.declined)


Made = tuple[Segment, Product, _native.Compiled]


@dataclass(slots=True)
class _Tree:
    """The compiled code of one function while a run of it is recorded, which is that of ``call`` from its beginning."""

    passes: tuple[Pass, ...]
    state: CompiledFunction
    reason: Reason | None = None
    learnt: bool = False  # that a stage refused costs one step from the next recording on
    call: Call | None = None
    misses: dict[int, str | None] = field(default_factory=dict)  # by start: what its last trace did not hold for
    # Programs that were compiled quickly, with their plans and places on disk.
    hurried: list[tuple[Compilation, _native.PlanProgram, Program | None]] = field(default_factory=list)

    @property
    def points(self) -> ResumePoints | None:
        return cast("ResumePoints | None", self.state.points)

    @property
    def whole(self) -> bool:
        return self.state.options.fullgraph

    def begin(self) -> None:
        """Has the function's points, before a run of it is recorded."""
        state = self.state
        if state.points is None:
            state.points = ResumePoints(limit=state.options.point_limit, replayed=state.options.graphs)

    def refuse(self, reason: Reason) -> None:
        """Nothing of this run is compiled."""
        if self.reason is not None and self.learnt:  # one more operation of it
            return
        self.reason = reason
        listener.info("%s stays eager at %s: %s", _line_of(self.state).function, reason.line, reason.fact)
        publish(self.state.function, None, reason, self.state.options)

    def find(self, call: Call, collecting: bool) -> bool:
        """Takes the code that an earlier process made of an equal call, where its guards hold; each file is looked at
        once.
        """
        if call.key in self.state.looked_for:
            return False
        self.state.looked_for.add(call.key)
        with made_to_last(collecting):
            return self.take(call)

    def take(self, call: Call) -> bool:
        """Takes the code of a file that was not looked at yet."""
        start = time.perf_counter()
        found = call.found()
        if found is None:
            return False
        segment = Segment(found.trace, None, call.bound, None)
        stages = Compilation(found.trace, call.bound, kept=found.guards)
        seconds = {"found": time.perf_counter() - start}
        try:
            entry, _ = self.compiled(segment, stages, seconds, found.program)
            if not isinstance(entry.guards.check(call.bound), tuple):
                return False
        except Exception as error:  # the call is another one: the recording says what there is to say
            logger.debug("a kept call is not used: %s: %s", type(error).__name__, error)
            return False
        told(segment.trace, "cache", "found the call", seconds["found"])
        product = Product(stages, seconds)
        self.state.add(None, product, entry)
        publish(self.state.function, product, None, self.state.options)
        return True

    def compile(self, segments: Sequence[Segment]) -> bool:
        """Compiles segments that follow each other, or has another thread do so; all of them count, or none."""
        if self.hand_over(segments):
            return True
        made = self.all(segments)
        self.add(made)
        return bool(made)

    def all(self, segments: Sequence[Segment], known: Versions | None = None) -> list[Made]:
        """What was made of the segments, nothing where one of them cannot be compiled; ``known`` are the classes as
        they were when they were recorded, if that is over.
        """
        entries: list[Made] = []
        for segment in segments:
            compiled = self.one(segment, known)
            if compiled is not None:
                entries.append((segment, *compiled))
            elif not self.learnt:
                return []
        return entries if len(entries) == len(segments) else []  # what is refused of any is learnt at once

    def add(self, made: Sequence[Made]) -> None:
        """Has later calls run what was made."""
        for segment, product, entry in made:
            self.state.add(resume_dispatch_of(segment.start), product, entry)
            publish(self.state.function, product, None, self.state.options)
        if made:
            self.state.streak.last.append(made[-1][2])

    def hand_over(self, segments: Sequence[Segment]) -> bool:
        """Gives the segments to another thread where no call is to wait for their code, and where nothing of the call
        itself is needed for it.
        """
        options, state = self.state.options, self.state
        if options.patience is None or options.fullgraph or options.verify or not keeps_by(self.passes):
            return False
        if state.together or any(map(passes_in_force.passes_of, passes_in_force.STAGES)):
            return False
        known = versions(segment.trace.assumptions for segment in segments)
        if known is None:
            return False
        for segment in segments:
            if segment.follow is not None:  # the rest of this very call goes on there
                state.resume_dispatch(segment.follow, segment.follow.count)
        if self.call is not None:
            self.call = replace(self.call, bound=())
        pending = state.pending = Pending()
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        tree, left = replace(self), [replace(segment, bound=()) for segment in segments]
        if not behind.PROCESS.put(lambda: tree.work(left, known, pending, device)):
            state.pending = None
            return False
        return True

    def work(self, segments: Sequence[Segment], known: Versions, pending: Pending, device: int | None) -> None:
        """What another thread does with the segments: later calls run their code, or learn why there is none."""
        state = self.state
        try:
            with as_recorded(segments[0].trace.assumptions.state, device) as same:
                with behind.PROCESS.hurry():
                    made = self.all(segments, known) if same else []
                self.deliver(made, resume_dispatch_of(segments[0].start), pending)
                if self.hurried:  # behind what other calls have no code for yet
                    behind.PROCESS.put(self.improve)
        except Exception as error:  # a fault under the option check, or a mistake of the user's: the next call's
            pending.error = error
        finally:
            if pending.error is None and state.pending is pending:
                state.pending = None
            pending.done.set()

    def improve(self) -> None:
        """What another thread does when code that was compiled quickly runs: better code takes its place."""
        try:
            for stages, plan, place in self.hurried:
                improve(stages, plan, self.state.options)
                if place is not None:
                    place.keep(stages)
        except Exception as error:  # the code that is there goes on
            logger.debug("no better code: %s: %s", type(error).__name__, error)

    def deliver(self, made: Sequence[Made], start: ResumeDispatch | None, pending: Pending) -> None:
        """Adds what was made, unless all was dropped meanwhile. The lock may be held by a call that forks."""
        state = self.state
        while not state.lock.acquire(timeout=TURN):
            behind.PROCESS.checkpoint()
        try:
            if state.pending is not pending:
                return
            self.add(made)
            if self.reason is not None:
                state.file(Outcome(reason=self.reason, learnt=self.learnt), start)
            state.together = not made and self.reason is None
        finally:
            state.lock.release()

    def one(self, segment: Segment, known: Versions | None = None) -> tuple[Product, _native.Compiled] | None:
        """The product and the native entry of one segment."""
        trace = segment.trace
        stages = Compilation(trace, segment.bound)
        seconds = {"capture": trace.seconds.get("capture", 0.0)}
        try:
            entry, place = self.compiled(segment, stages, seconds)
            if known is not None and not unchanged(stages.guards, known):
                fact = "A class has changed while another thread compiled what depends on it."
                raise Stop(reason("changed-itself", fact, trace.line, "Change classes before the first call."))
        except Stop as stop:
            self.refuse(stop.reason)
            self.learn(stop.reason)
            return None
        except UserError:
            raise
        except Exception as error:
            if known is not None and behind.PROCESS.ending:
                raise behind.Ended from error
            self.fault(error, trace.line, stages)
            return None
        if place is not None:
            self.keep(segment, place, stages)
        if quick(stages):
            self.hurried.append((stages, entry.plan, place))
        start = resume_dispatch_of(segment.start)
        return Product(stages, seconds, why=self.misses.get(id(start))), entry

    def compiled(
        self, segment: Segment, stages: Compilation, seconds: dict[str, float], known: Program | None = None
    ) -> tuple[_native.Compiled, Program | None]:
        """The native entry of one segment, with the place where its program is kept, which may be ``known``; takes down
        the ``seconds``.
        """
        options = self.state.options
        spent, place = run(self.passes, stages, options, known)
        seconds.update(spent)
        guards = _native.GuardSet(stages.guards.program)
        plan = _native.PlanProgram(stages.plan)
        follow = None
        if segment.follow is not None:
            follow = self.state.resume_dispatch(segment.follow, segment.follow.count).dispatch
        entry = _native.Compiled(guards, plan, follow, self.in_vain(segment))
        if options.verify:
            verified(stages, options)
        stages.forget_call()
        return entry, place

    def in_vain(self, segment: Segment) -> Callable[[_native.Compiled], None] | None:
        """What drops the entry of a segment whose branches often raise: breaks from then on."""
        branches = set(filter(None, map(branch_of, segment.trace.calls)))
        if not branches or self.state.options.fullgraph:
            return None
        holder = weakref.ref(resume_dispatch_of(segment.start) or self.state)

        def drop(entry: _native.Compiled) -> None:
            EITHER.update(branches)
            if (place := holder()) is not None:
                place.dispatch.remove(entry)

        return drop

    def keep(self, segment: Segment, program: Program, stages: Compilation) -> None:
        """Keeps a call that is one stretch: what a break learns belongs to the process."""
        if self.call is not None and segment.start is None and segment.follow is None:
            self.call.keep(segment.trace, program, stages.assumptions, stages.guards)

    def fault(self, error: Exception, line: Line, stages: Compilation) -> None:
        """One of our own faults, in a stage that may know on which operation."""
        pinned = isinstance(error, Pinned)
        cause = error.__cause__ if isinstance(error.__cause__, Exception) and pinned else error
        place = error.line if isinstance(error, Pinned) else None
        self.reason = report_bug(cause, place or line, self.state.options, stages)
        if place is not None:
            self.learn(self.reason)

    def learn(self, why: Reason) -> None:
        """From the next recording on the operation that a stage refused is left to the interpreter, or the innermost
        call around it for which that is possible.
        """
        points = self.points
        if points is None or self.whole or why.line is None or why.code in WHOLE:
            return
        heals = None if why.code in CUT else (why.code, detail(why))
        site = why.line.site
        while site is not None and not points.learn(site.code, site.step, heals):
            site = site.caller
        self.learnt |= site is not None

    def moving(self, start: ResumePoint | None, values: Sequence[Value]) -> frozenset[Source]:
        """The places whose numbers are not what earlier traces from ``start`` were made for."""
        if start is not None and start.handle is None:
            return frozenset()
        try:
            return self._moving(start, values)
        except Exception as error:  # the call has not begun: it goes on with what the stages make of it alone
            line = start.line if start is not None else _line_of(self.state)
            self.reason = report_bug(error, line, self.state.options)
            return frozenset()

    def _moving(self, start: ResumePoint | None, values: Sequence[Value]) -> frozenset[Source]:
        handle = resume_dispatch_of(start)
        products = [product for product in self.state.products if product.start is handle]
        if not products:
            return frozenset()
        sources = moving((product.stages.trace.assumptions for product in products), values)
        names = self.state.names if start is None or handle is None else point_names(start)
        self.misses[id(handle)] = missed(self.state.guarded(handle), tuple(values), names, sources)
        return sources

    def enter(self, point: ResumePoint, values: Sequence[Value]) -> Value:
        """Runs compiled code from ``point`` to the end of the call."""
        before = _native.bypass(False)
        try:
            point_dispatch = resume_dispatch_of(point)
            assert point_dispatch is not None
            return point_dispatch.dispatch(*values)
        finally:
            _native.bypass(before)


def resume_dispatch_of(point: ResumePoint | None) -> ResumeDispatch | None:
    """The native half of a point, where compiled code leads to it."""
    handle = None if point is None else point.handle
    assert handle is None or isinstance(handle, ResumeDispatch)
    return handle


def _line_of(state: CompiledFunction) -> Line:
    return state.line or Line("", 0, repr(state.function))
