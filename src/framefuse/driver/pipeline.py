"""The one place that knows the order of the stages: recording a call and turning its trace into a guarded plan."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from framefuse import _native
from framefuse.autodiff import halves, without_marks
from framefuse.capture import leaves, record, stacks
from framefuse.capture.points import Point, Points
from framefuse.capture.record import Recording, Segment, resume
from framefuse.codegen.aten import on_aten
from framefuse.codegen.targets import lacking, targets
from framefuse.driver.backward import derivatives, holders, unwritten
from framefuse.driver.kernels import Chosen, Uncompiled, choose_products, compile_kernels
from framefuse.driver.tuning import Tuning, total
from framefuse.errors import CompilerBug, Pinned, Reason, Stop, UserError
from framefuse.explain.faults import write_fault
from framefuse.explain.files import publish
from framefuse.fuse import fuse
from framefuse.fuse.verify import problems
from framefuse.guards.changes import moving
from framefuse.guards.missed import missed
from framefuse.guards.program import build
from framefuse.ir.code import LaunchedCode
from framefuse.ir.comparisons import Relation
from framefuse.ir.derivative import Halves
from framefuse.ir.facts import Assumptions, Source
from framefuse.ir.graph import Graph
from framefuse.ir.numbers import expr
from framefuse.ir.schedule import Schedule
from framefuse.ir.source import Line
from framefuse.ir.stops import detail, reason
from framefuse.ir.trace import Build, Trace
from framefuse.ir.verify import verify
from framefuse.lower import lower
from framefuse.options import Options
from framefuse.runtime.assemble import assemble
from framefuse.runtime.captures import with_region
from framefuse.runtime.derivative import Derivative
from framefuse.runtime.function import CompiledFunction, Compiler, Outcome, Product
from framefuse.runtime.fx_graph import backend_plan, example_inputs, fx_graph

Products = dict[str, Any]
CUT = frozenset(("run-time-size",))  # reasons that a break before the operation heals
WHOLE = frozenset(("autocast",))  # that no break heals: what autocast keeps is kept across it
POSITIONS = 2**31 - 2**20  # below it the kernels of a GPU count positions in 32 bits


@dataclass(frozen=True, slots=True)
class Pass:
    """One step: ``run(products, options)`` returns the product named ``gives`` from those named in ``needs``."""

    name: str
    run: Callable[[Mapping[str, Any], Options], Any]
    needs: tuple[str, ...]
    gives: str


def _lower(p: Mapping[str, Any], options: Options) -> Any:
    graph = lower(p["trace"], exact=options["numerics"] == "eager", targets=targets(options["cpu_target"]))
    if options["check"]:
        verify(graph)
    return graph


def _halves(p: Mapping[str, Any], options: Options) -> Halves | None:
    graph: Graph = p["lowered"]
    if not graph.trains:
        return None
    return halves(graph, unwritten(graph, p["trace"]), holders(graph, p["trace"]))


def _forward(p: Mapping[str, Any], options: Options) -> Graph:
    """The graph that runs when the function is called."""
    cut: Halves | None = p["halves"]
    graph = without_marks(p["lowered"]) if cut is None else cut.forward
    if options["check"]:
        verify(graph, "autodiff")
    return graph


def _inference(p: Mapping[str, Any], options: Options) -> Graph:
    graph: Graph = p["lowered"]
    if graph.trains or any(late.requires_grad for late in graph.late):
        raise Stop(reason("gradient", "A result for another backend requires grad", p["trace"].line))
    return without_marks(graph)


def _derivatives(p: Mapping[str, Any], options: Options) -> tuple[Derivative, ...]:
    cut: Halves | None = p["halves"]
    if cut is None:
        return ()
    trace: Trace = p["trace"]
    latest: Products = {}  # of the case that is compiled last, for a report of what failed on it

    def compile(graph: Graph, case: Trace) -> tuple[Any, Product]:
        nonlocal latest
        products: Products = {"lowered": graph, "trace": case}
        latest = products
        product = Product(products, run(CASE, products, options))
        publish(None, product, None, options)
        plan = _native.PlanProgram(products["plan"])
        return _native.Compiled(_native.GuardSet(products["guards"].program), plan), product

    return derivatives(cut, trace, compile, lambda error: report_bug(error, trace.line, options, latest))


def _products(p: Mapping[str, Any], options: Options) -> Chosen:
    """Which products are kernels of ours, in the modes that measure."""
    graph: Graph = p["graph"]
    devices = {node.device for node in graph.nodes}
    if not options.measures or any(lacking(device, options["cpu_target"]) for device in devices):
        return Chosen()
    return choose_products(_scheduled(graph, options, offers=True), options)


def _fuse(p: Mapping[str, Any], options: Options) -> Schedule:
    graph: Graph = p["graph"]
    for device in dict.fromkeys(node.device for node in graph.nodes):
        why = lacking(device, options["cpu_target"])
        if why is not None:
            return _on_aten(graph, options, device, why)
    if p["trace"].assumptions.state.deterministic and any(node.op == "scatter_add" for node in graph.nodes):
        return _scheduled(on_aten(graph), options)  # a forward made again, where terms are to be added in order now
    return _scheduled(graph, options, products=p["chosen"].products)


def _on_aten(graph: Graph, options: Options, device: str, why: str) -> Schedule:
    """For a device without kernels: one call of torch's own operations."""
    if why not in _warned:
        _warned.add(why)
        logger.warning("%s. Until then what runs on %s is compiled to torch's own operations", why, device)
    return _scheduled(on_aten(graph), options)


def _scheduled(
    graph: Graph, options: Options, offers: bool = False, products: frozenset[tuple[int, bool]] = frozenset()
) -> Schedule:
    schedule = fuse(
        graph,
        threads=options["threads"],
        exact=options["numerics"] == "eager",
        targets=targets(options["cpu_target"]),
        offers=offers,
        products=products,
    )
    if options["check"]:
        found = problems(schedule)
        if found:
            raise CompilerBug("the schedule breaks its rules: " + "; ".join(found))
    return schedule


def _codegen(p: Mapping[str, Any], options: Options) -> tuple[Schedule, dict[int, Any], Tuning | None]:
    """The schedule with the code of its kernels by item, and what measuring gave; another schedule where an emitter
    cannot express one.
    """
    schedule: Schedule = p["planned"]
    try:
        kernels, tuning = compile_kernels(schedule, options)
        tunings = [found for found in (p["chosen"].tuning, tuning) if found is not None]
        return schedule, kernels, total(tunings) if tunings else None
    except Uncompiled as error:
        return _on_aten(p["graph"], options, error.device, f"A kernel cannot be compiled: {error}"), {}, None


def _limits(p: Mapping[str, Any]) -> tuple[Relation, ...]:
    """What must hold of sizes where kernels count positions in 32 bits."""
    found: dict[Relation, None] = {}
    named = {symbol: values[0] for symbol, values in p["schedule"].largest if len(values) == 1}
    for index, compiled in p["kernels"].items():
        item = p["schedule"].items[index]
        for limit in compiled.code.limits if isinstance(compiled, LaunchedCode) else ():
            last = limit.substitute(item.sizes).substitute(named)
            found[Relation("<", last, expr(POSITIONS), "positions of 32 bits")] = None
            found[Relation("<=", expr(0), last, "positions of 32 bits")] = None
    return tuple(found)


def _assume(p: Mapping[str, Any], options: Options) -> Assumptions:
    graph = p["graph"]
    return p["trace"].assumptions.with_relations((*graph.relations, *_limits(p)), graph.values)


def _assume_trace(p: Mapping[str, Any], options: Options) -> Assumptions:
    """The trace's own relations; the graph says what the sizes inside are in terms of the inputs' sizes."""
    return p["trace"].assumptions.with_relations((), p["graph"].values)


def _guards(p: Mapping[str, Any], options: Options) -> Any:
    inputs = p["trace"].assumptions.inputs
    lists = [inputs[place].source.base for place in p["graph"].consumed]
    return build(p["assumptions"], sources=(*_sources(p["trace"]), *dict.fromkeys(lists)))


def _examples(p: Mapping[str, Any], options: Options) -> tuple[Any, ...]:
    """The values of this very call that the FX graph's placeholders stand for."""
    guards = p["guards"]
    checked = _native.GuardSet(guards.program).check(p["bound"])
    if isinstance(checked, int):
        fact = guards.program.texts[checked] if checked >= 0 else "torch's global state"
        raise Stop(
            reason("changed-itself", f"The call itself changed what it depends on: {fact}.", p["trace"].line)
        )
    registers, numbers = checked
    return example_inputs(p["trace"], p["captured"], registers, numbers, guards.number_of, guards.register_of)


def _assemble(p: Mapping[str, Any], options: Options) -> Any:
    guards = p["guards"]
    plan = assemble(
        p["trace"],
        p["schedule"],
        p["kernels"],
        guards.number_of,
        guards.program.numbers,
        guards.register_of,
        p["derivatives"],
    )
    return with_region(plan, options["graph_limit"]) if options.graphs else plan


# From a graph to its plan: that of a trace, and that of each case of a backward.
CASE = (
    Pass("autodiff", _halves, ("lowered", "trace"), "halves"),
    Pass("autodiff", _forward, ("lowered", "halves"), "graph"),
    Pass("fuse", _products, ("graph",), "chosen"),
    Pass("fuse", _fuse, ("graph", "chosen", "trace"), "planned"),
    Pass("codegen", _codegen, ("planned", "graph", "chosen"), "code"),
    Pass("codegen", lambda p, options: p["code"][0], ("code",), "schedule"),
    Pass("codegen", lambda p, options: p["code"][1], ("code",), "kernels"),
    Pass("codegen", lambda p, options: p["code"][2], ("code",), "tuning"),
    Pass("guards", _assume, ("trace", "graph", "schedule", "kernels"), "assumptions"),
    Pass("guards", _guards, ("assumptions", "trace", "graph"), "guards"),
    Pass("autodiff", _derivatives, ("halves", "trace"), "derivatives"),
    Pass("assemble", _assemble, ("trace", "schedule", "kernels", "guards", "derivatives"), "plan"),
)
NATIVE = (Pass("lower", _lower, ("trace",), "lowered"), *CASE)


def through_backend(backend: Callable[..., Any]) -> tuple[Pass, ...]:
    """The passes that hand the captured FX graph to ``backend(gm, example_inputs) -> callable``."""

    def call(p: Mapping[str, Any], options: Options) -> Any:
        try:
            return backend(p["captured"].module, list(p["examples"]))
        except Exception as error:
            name = getattr(backend, "__name__", type(backend).__name__)
            text = f"the backend {name} raised {type(error).__name__}: {error}. Mend it, or choose backend='eager'"
            raise UserError(text) from error

    def plan(p: Mapping[str, Any], options: Options) -> Any:
        guards = p["guards"]
        count = guards.program.numbers
        known = p["graph"].values
        return backend_plan(
            p["trace"], p["captured"], p["callable"], guards.number_of, count, guards.register_of, known
        )

    return (
        Pass("fx", lambda p, options: fx_graph(p["trace"]), ("trace",), "captured"),
        Pass("lower", _lower, ("trace",), "lowered"),
        Pass("lower", _inference, ("lowered", "trace"), "graph"),
        Pass("guards", _assume_trace, ("trace", "graph"), "assumptions"),
        Pass("guards", _guards, ("assumptions", "trace", "graph"), "guards"),
        Pass("examples", _examples, ("captured", "guards", "bound", "trace"), "examples"),
        Pass("backend", call, ("captured", "examples"), "callable"),
        Pass("assemble", plan, ("trace", "graph", "captured", "callable", "guards"), "plan"),
    )


def run(passes: tuple[Pass, ...], products: Products, options: Options) -> dict[str, float]:
    """Runs ``passes`` over ``products`` in place; returns the seconds by name of pass."""
    seconds: dict[str, float] = {}
    for step in passes:
        start = time.perf_counter()
        products[step.gives] = step.run(products, options)
        seconds[step.name] = seconds.get(step.name, 0.0) + time.perf_counter() - start
    return seconds


def check_order(passes: tuple[Pass, ...], given: frozenset[str]) -> None:
    """Raises AssertionError when a pass needs a product that nothing before it gives."""
    known = set(given)
    for step in passes:
        missing = set(step.needs) - known
        assert not missing, f"pass {step.name} needs {', '.join(sorted(missing))}, which no earlier pass gives"
        known.add(step.gives)


def compiler(passes: tuple[Pass, ...]) -> Compiler:
    """What records calls and compiles their traces by ``passes``."""
    check_order(passes, frozenset({"trace", "bound"}))
    return _Compiler(passes)


@dataclass(frozen=True, slots=True)
class _Compiler:
    passes: tuple[Pass, ...]

    def call(self, state: CompiledFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
        tree = self.tree(state)
        options = state.options
        with collector_paused():
            recording = record(
                state.function, args, kwargs, owner=state.owner, dynamic=options.dynamic,
                tree=tree,
            )  # fmt: skip
            return self.outcome(tree, recording)

    def resume(
        self,
        state: CompiledFunction,
        point: Any,
        values: Sequence[Any],
        record: bool,
        error: BaseException | None = None,
    ) -> Outcome:
        if not record:
            recording = resume(point, values, error=error)
            return Outcome(recording.value, recording.exception)
        tree = self.tree(state)
        with collector_paused():
            return self.outcome(tree, resume(point, values, dynamic=state.options.dynamic, tree=tree))

    def tree(self, state: CompiledFunction) -> _Tree:
        if state.points is None:
            state.points = Points(limit=state.options["point_limit"], replayed=state.options.graphs)
        return _Tree(self.passes, state)

    def outcome(self, tree: _Tree, recording: Recording) -> Outcome:
        if recording.fault is not None:
            line = recording.reason.line if recording.reason is not None else None
            tree.reason = report_bug(recording.fault, line or _line_of(tree.state), tree.state.options)
        elif recording.segments:
            tree.compile(recording.segments)
        elif recording.reason is not None and tree.reason is None:  # what a stage refused is the cause
            tree.refuse(recording.reason)
        learnt = recording.learnt or tree.learnt
        return Outcome(recording.value, recording.exception, tree.reason, learnt, recording.declined)


@dataclass(slots=True)
class _Tree:
    """The compiled code of one function while a run of it is recorded."""

    passes: tuple[Pass, ...]
    state: CompiledFunction
    reason: Reason | None = None
    learnt: bool = False  # that a stage refused costs one step from the next recording on
    misses: dict[int, str | None] = field(default_factory=dict)  # by start: what its last trace did not hold for

    @property
    def points(self) -> Points | None:
        return None if self.state.options.fullgraph else self.state.points

    def refuse(self, reason: Reason) -> None:
        """Nothing of this run is compiled."""
        self.reason = reason
        publish(self.state.function, None, reason, self.state.options)

    def compile(self, segments: Sequence[Segment]) -> bool:
        """Compiles segments that follow each other; all of them count, or none."""
        made = []
        for segment in segments:
            found = self.one(segment)
            if found is None:
                return False
            made.append((segment, *found))
        for segment, product, entry in made:
            self.state.add(segment.start.handle if segment.start is not None else None, product, entry)
            publish(self.state.function, product, None, self.state.options)
        return True

    def one(self, segment: Segment) -> tuple[Product, Any] | None:
        """The product and the native entry of one segment."""
        options, trace = self.state.options, segment.trace
        products: Products = {"trace": trace, "bound": segment.bound}
        seconds = {"capture": trace.seconds.get("capture", 0.0)}
        try:
            seconds.update(run(self.passes, products, options))
            guards = _native.GuardSet(products["guards"].program)
            plan = _native.PlanProgram(products["plan"])
            follow = None
            if segment.follow is not None:
                follow = self.state.continuation(segment.follow, segment.follow.count).dispatch
            entry = _native.Compiled(guards, plan, follow)
        except Stop as stop:
            self.refuse(stop.reason)
            self.learn(stop.reason)
            return None
        except UserError:
            raise
        except Exception as error:
            self.fault(error, trace.line, products)
            return None
        for name in ("bound", "examples"):  # a product keeps no argument alive
            products.pop(name, None)
        start = segment.start.handle if segment.start is not None else None
        return Product(products, seconds, why=self.misses.get(id(start))), entry

    def fault(self, error: Exception, line: Line, products: Products) -> None:
        """One of our own faults, in a stage that may know on which operation."""
        pinned = isinstance(error, Pinned)
        cause = error.__cause__ if isinstance(error.__cause__, Exception) and pinned else error
        place = error.line if isinstance(error, Pinned) else None
        self.reason = report_bug(cause, place or line, self.state.options, products)
        if place is not None:
            self.learn(self.reason)

    def learn(self, why: Reason) -> None:
        """From the next recording on the operation that a stage refused is left to the interpreter, or the innermost
        call around it for which that is possible.
        """
        points = self.points
        if points is None or why.line is None or why.code in WHOLE:
            return
        heals = None if why.code in CUT else (why.code, detail(why))
        site = why.line.site
        while site is not None and not points.learn(site.code, site.step, heals):
            site = site.caller
        self.learnt |= site is not None

    def moving(self, start: Point | None, values: Sequence[Any]) -> frozenset[Source]:
        """The places whose numbers are not what earlier traces from ``start`` were made for."""
        if start is not None and start.handle is None:
            return frozenset()
        try:
            return self._moving(start, values)
        except Exception as error:  # the call has not begun: it goes on with what the stages make of it alone
            line = start.line if start is not None else _line_of(self.state)
            self.reason = report_bug(error, line, self.state.options)
            return frozenset()

    def _moving(self, start: Point | None, values: Sequence[Any]) -> frozenset[Source]:
        handle = start.handle if start is not None else None
        made = [product for product in self.state.products if product.start is handle]
        if not made:
            return frozenset()
        found = moving((product.stages["trace"].assumptions for product in made), values)
        names = self.state.names if handle is None else {}
        self.misses[id(handle)] = missed(self.state.guarded(handle), tuple(values), names, found)
        return found

    def enter(self, point: Point, values: Sequence[Any]) -> Any:
        """Runs compiled code from ``point`` to the end of the call."""
        before = _native.bypass(False)
        try:
            return point.handle.dispatch(*values)
        finally:
            _native.bypass(before)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keeps the cyclic collector from walking a growing heap over and over: it took up to nine tenths of a compile."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def report_bug(error: Exception, line: Line, options: Options, stages: Mapping[str, Any] | None = None) -> Reason:
    """The reason for leaving a function eager after one of our own faults, logged once for each kind with the folder
    that tells of it; ``stages`` are the products made before it.

    Raises CompilerBug instead under the option ``check``, so that no test passes on a fault.
    """
    fact = f"framefuse failed on it: {type(error).__name__}: {' '.join(str(error)[:200].split())}"
    if options["check"]:
        raise CompilerBug(f"{line}: {fact}") from error
    if fact not in _reported:
        try:
            _reported[fact] = f"with the folder {write_fault(options['report'], error, line, stages or {})}"
        except Exception as other:
            _reported[fact] = f"with the program (no report was written: {other})"
        logger.warning("%s: %s. The call ran eagerly; please report this %s", line, fact, _reported[fact])
    return Reason("fault", fact, f"Report it {_reported[fact]}; nothing else is affected.", line)


leaves.COMPILED.add(_native.Dispatch)
stacks.ON_FRAME[:] = [_native.at_frame]
stacks.HEADROOM[:] = [_native.headroom]
logger = logging.getLogger("framefuse")
_reported: dict[str, str] = {}  # by fact: what to report it with
_warned: set[str] = set()  # why graphs of this process run on ATen


def _line_of(state: CompiledFunction) -> Line:
    return state.line or Line("", 0, repr(state.function))


def _sources(trace: Trace) -> tuple[Source, ...]:
    """The sources that calls, the result and the effects read again at run time."""
    found: dict[Source, None] = {}

    def visit(part: Any) -> None:
        if isinstance(part, Source):
            found[part] = None
        elif isinstance(part, Build):
            if part.kind == "source":
                found[part.value] = None
            for child in part.parts:
                visit(child)
            visit(part.base)
        elif isinstance(part, tuple):
            for child in part:
                visit(child)

    for call in trace.calls:
        visit((call.args, *call.kwargs.values()))
    visit(trace.result)
    for effect in trace.effects:
        visit((effect.target, effect.key, effect.value))
    return tuple(found)
