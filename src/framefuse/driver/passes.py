"""The passes that turn a trace into a plan, in order: framefuse's own, and those that serve another backend."""

from __future__ import annotations

import importlib
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from framefuse import _native
from framefuse.capture.recording.mode_stack import outside_modes
from framefuse.codegen.unsupported import Uncompiled
from framefuse.driver import behind
from framefuse.driver.ambient import as_recorded
from framefuse.driver.faults import report_bug
from framefuse.driver.programs import Program, program
from framefuse.errors import Stop, UserError
from framefuse.explain.files import publish
from framefuse.guards.program import build
from framefuse.ir import passes_in_force, progress, whole_kernels
from framefuse.ir.compiled import Chosen, GraphCode
from framefuse.ir.facts import Assumptions, Source
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.graph import Graph
from framefuse.ir.guards import Guards, KeptGuards
from framefuse.ir.late_imports import later
from framefuse.ir.native_code import NativeCode
from framefuse.ir.plan import Plan
from framefuse.ir.schedule import RunKernel, Schedule
from framefuse.ir.stops import reason
from framefuse.ir.trace import Build, Call, Trace, refs
from framefuse.ir.values import Arguments, Function, FxBackend, Value
from framefuse.options import Options
from framefuse.runtime.assemble import assemble
from framefuse.runtime.compilation import Compilation, Rewritten
from framefuse.runtime.derivative import Derivative
from framefuse.runtime.float_inputs import with_tensors
from framefuse.runtime.recorded_call import Product

if TYPE_CHECKING:
    from framefuse.autodiff import halves as cut_in_halves
    from framefuse.autodiff import with_kept_moments, without_marks
    from framefuse.codegen.aten import computed, on_aten
    from framefuse.codegen.interpreter import by_python
    from framefuse.codegen.python import compile_graph
    from framefuse.codegen.targets import lacking, targets
    from framefuse.driver.backward import carried, holders, unwritten
    from framefuse.driver.backward import derivatives as places_in_autograd
    from framefuse.driver.captured_passes import with_captured_passes
    from framefuse.driver.examples import examples_of
    from framefuse.driver.fixed_inputs import fixed_inputs
    from framefuse.driver.kernels import choose_products, compile_kernels, prepare
    from framefuse.driver.known_digits import asked
    from framefuse.driver.position_limits import limits as position_limits
    from framefuse.fuse import fuse
    from framefuse.ir.derivations import counter_beside
    from framefuse.ir.derivative import Halves
    from framefuse.ir.passes import Step
    from framefuse.ir.registered import changed as changed_by_users
    from framefuse.ir.tuning import total
    from framefuse.ir.verify import verify
    from framefuse.lower import lower
    from framefuse.runtime.captures import with_region
    from framefuse.runtime.fx_graph import Captured, backend_plan, fx_graph, telling
    from framefuse.runtime.kept_values import keeping
else:  # a call that an earlier process kept needs none of them
    cut_in_halves = later("framefuse.autodiff", "halves")
    with_kept_moments = later("framefuse.autodiff", "with_kept_moments")
    without_marks = later("framefuse.autodiff", "without_marks")
    computed = later("framefuse.codegen.aten", "computed")
    on_aten = later("framefuse.codegen.aten", "on_aten")
    by_python = later("framefuse.codegen.interpreter", "by_python")
    compile_graph = later("framefuse.codegen.python", "compile_graph")
    lacking = later("framefuse.codegen.targets", "lacking")
    targets = later("framefuse.codegen.targets", "targets")
    places_in_autograd = later("framefuse.driver.backward", "derivatives")
    holders = later("framefuse.driver.backward", "holders")
    carried = later("framefuse.driver.backward", "carried")
    unwritten = later("framefuse.driver.backward", "unwritten")
    with_captured_passes = later("framefuse.driver.captured_passes", "with_captured_passes")
    examples_of = later("framefuse.driver.examples", "examples_of")
    fixed_inputs = later("framefuse.driver.fixed_inputs", "fixed_inputs")
    asked = later("framefuse.driver.known_digits", "asked")
    choose_products = later("framefuse.driver.kernels", "choose_products")
    compile_kernels = later("framefuse.driver.kernels", "compile_kernels")
    prepare = later("framefuse.driver.kernels", "prepare")
    counter_beside = later("framefuse.ir.derivations", "counter_beside")
    fuse = later("framefuse.fuse", "fuse")
    verify = later("framefuse.ir.verify", "verify")
    lower = later("framefuse.lower", "lower")
    with_region = later("framefuse.runtime.captures", "with_region")
    keeping = later("framefuse.runtime.kept_values", "keeping")
    position_limits = later("framefuse.driver.position_limits", "limits")
    changed_by_users = later("framefuse.ir.registered", "changed")
    total = later("framefuse.ir.tuning", "total")
    backend_plan = later("framefuse.runtime.fx_graph", "backend_plan")
    fx_graph = later("framefuse.runtime.fx_graph", "fx_graph")
    telling = later("framefuse.runtime.fx_graph", "telling")

logger = logging.getLogger("framefuse")
_warned: set[str] = set()  # why graphs of this process run on ATen


@dataclass(frozen=True, slots=True)
class Pass:
    """One step: ``run`` takes the fields ``needs`` of a :class:`Compilation`, by default by the names of its
    parameters, and the options last; it returns the field that the pass ``gives``. What the passes up to one that
    is ``kept`` gave is kept on disk, and taken from there where it was made before.
    """

    name: str
    run: Callable[..., object]
    gives: str
    needs: tuple[str, ...] = ()
    kept: bool = False

    def __post_init__(self) -> None:
        if not self.needs:
            object.__setattr__(self, "needs", tuple(inspect.signature(self.run).parameters)[:-1])


def keeps_by(passes: tuple[Pass, ...]) -> bool:
    """Whether what these passes make may be kept."""
    return any(step.kept for step in passes)


def run(
    passes: tuple[Pass, ...], stages: Compilation, options: Options, known: Program | None = None
) -> tuple[dict[str, float], Program | None]:
    """Runs ``passes`` over ``stages`` in place; returns the seconds by name of pass, and the place where what they made
    is kept, which may be ``known``.
    """
    with outside_modes(), progress.shown(stages.trace):
        return _run(passes, stages, options, known)


def _run(
    passes: tuple[Pass, ...], stages: Compilation, options: Options, known: Program | None
) -> tuple[dict[str, float], Program | None]:
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    if passes_in_force.passes_of("captured") and stages.bound is not None:
        _rewrite_trace(stages, options)
        seconds["capture"] = time.perf_counter() - start
        start = time.perf_counter()
    place = known or (program(stages, options) if keeps_by(passes) else None)
    stages.key = place.key if place is not None else None
    filled = place.fill(stages) if place is not None else frozenset()
    if place is not None:
        seconds["cache"] = time.perf_counter() - start
        told(stages.trace, "cache", "found what was made" if filled else "found nothing", seconds["cache"])
    for step in passes:
        if step.gives in filled:
            continue
        behind.PROCESS.checkpoint()
        progress.at(step.name)
        start = time.perf_counter()
        setattr(stages, step.gives, step.run(*[getattr(stages, name) for name in step.needs], options))
        spent = time.perf_counter() - start
        seconds[step.name] = seconds.get(step.name, 0.0) + spent
        told(stages.trace, step.name, f"made {step.gives}", spent)
        if step.kept and place is not None and not filled:
            start = time.perf_counter()
            place.keep(stages)
            seconds["cache"] += time.perf_counter() - start
    return seconds, place


def told(trace: Trace, stage: str, what: str, seconds: float) -> None:
    """Tells the logger of a stage what it did for a trace."""
    listener = logging.getLogger(f"framefuse.{stage}")
    if listener.isEnabledFor(logging.DEBUG):
        listener.debug("%s (%s): %s, %.1f ms", trace.name, trace.line.place, what, 1e3 * seconds)


def check_order(passes: tuple[Pass, ...], given: frozenset[str]) -> None:
    """Raises AssertionError when a pass needs a product that nothing before it gives."""
    known = set(given)
    for step in passes:
        missing = set(step.needs) - known
        assert not missing, f"pass {step.name} needs {', '.join(sorted(missing))}, which no earlier pass gives"
        known.add(step.gives)


def _rewrite_trace(stages: Compilation, options: Options) -> None:
    """Puts what users' passes make of the captured graph in the place of the trace, before anything is made of it."""
    trace = stages.trace

    def examples(captured: Captured) -> Arguments:
        known = trace.assumptions.with_relations((), _lower(trace, options).values)
        guards = build(known, sources=_sources(trace))
        assert stages.bound is not None, "the call is still there"
        return examples_of(captured, guards, stages.bound, trace)

    stages.trace, steps = with_captured_passes(
        trace, examples, dump=bool(options.report), check=options.check
    )
    stages.rewritten = Rewritten("captured", None, steps) if steps else None


# ---- from a trace to its graph ---------------------------------------------------------------------------------------


def _lower(trace: Trace, options: Options) -> Graph:
    graph = lower(trace, exact=options.exact, targets=targets(options.cpu_target))
    if options.check:
        verify(graph)
    return graph


def _by_users(stage: str, place: str, within: str) -> tuple[Pass, ...]:
    """The passes that users registered for the graph of a stage, which is the field ``place``; their time counts as
    that of the passes ``within``.
    """

    def changed(graph: Graph, rewritten: Rewritten | None, options: Options) -> Rewritten | None:
        if not passes_in_force.passes_of(stage):
            return rewritten
        result, steps = changed_by_users(
            stage, graph, compile_graph, dump=bool(options.report), check=options.check
        )
        return Rewritten(stage, result, (*(rewritten.steps if rewritten is not None else ()), *steps))

    def graph(rewritten: Rewritten | None, graph: Graph, options: Options) -> Graph:
        mine = rewritten.graph if rewritten is not None and rewritten.stage == stage else None
        return graph if mine is None else mine

    rewriting = Pass(within, changed, "rewritten", (place, "rewritten"))
    return rewriting, Pass(within, graph, place, ("rewritten", place))


def _halves(lowered: Graph, trace: Trace, options: Options) -> Halves | None:
    if not lowered.trains:
        return None
    steps: list[Step] = []

    def change(graph: Graph) -> Graph:
        result, done = changed_by_users(
            "joint", graph, compile_graph, dump=bool(options.report), check=options.check
        )
        steps.extend(done)
        return result

    joint = change if passes_in_force.passes_of("joint") else None
    around = unwritten(lowered, trace), holders(lowered, trace)
    found = cut_in_halves(lowered, *around, joint, carried(lowered, trace))
    return replace(found, steps=tuple(steps)) if options.report else found


def _has_tiles(device: str, options: Options) -> bool:
    target = targets(options.cpu_target)(device)
    return target is not None and target.tiles


def _forward(lowered: Graph, halves: Halves | None, options: Options) -> Graph:
    """The graph that runs when the function is called."""
    if halves is None:
        tiled = {node.device for node in lowered.nodes if _has_tiles(node.device, options)}
        graph = without_marks(with_kept_moments(lowered, tiled))
    else:
        graph = halves.forward
    if options.check:
        verify(graph, "autodiff")
    return graph


# ---- from a graph to its code ----------------------------------------------------------------------------------------


def _products(graph: Graph, halves: Halves | None, trace: Trace, bound: Arguments | None, options: Options) -> Chosen:
    """Which products are kernels of ours, in the modes that measure."""
    devices = {node.device for node in graph.nodes}
    if not options.measures or any(lacking(device, options.cpu_target) for device in devices):
        return Chosen()
    fixed = fixed_inputs(trace, bound, options) if halves is None else {}
    return choose_products(_scheduled(graph, options, halves, offers=True, fixed=fixed), options)


def _fuse(
    graph: Graph, halves: Halves | None, chosen: Chosen, trace: Trace, bound: Arguments | None, options: Options
) -> Schedule:
    for device in dict.fromkeys(node.device for node in graph.nodes):
        why = lacking(device, options.cpu_target)
        if why is not None:
            return _on_aten(graph, options, device, why)
    prepare(graph, options)
    if trace.assumptions.state.deterministic and any(node.op == "scatter_add" for node in graph.nodes):
        return _scheduled(on_aten(graph), options)  # a forward made again, where terms are to be added in order now
    fixed = fixed_inputs(trace, bound, options) if halves is None else {}
    return _scheduled(graph, options, halves, products=chosen.products, fixed=fixed)


def _on_aten(graph: Graph, options: Options, device: str, why: str) -> Schedule:
    """For a device without kernels: one call of torch's own operations."""
    if why not in _warned:
        _warned.add(why)
        logger.warning("%s. Until then what runs on %s is compiled to torch's own operations", why, device)
    return _scheduled(on_aten(graph), options)


def _scheduled(
    graph: Graph,
    options: Options,
    halves: Halves | None = None,
    offers: bool = False,
    products: frozenset[tuple[int, bool]] = frozenset(),
    fixed: Mapping[int, bool] | None = None,
) -> Schedule:
    return fuse(
        graph,
        threads=options.threads,
        exact=options.exact,
        targets=targets(options.cpu_target),
        offers=offers,
        products=products,
        trains=halves is not None,
        fixed=fixed,
        asks=partial(asked, keep=options.cache),
        check=options.check,
        dump=bool(options.report),
    )


def _fuse_on_aten(graph: Graph, options: Options) -> Schedule:
    """The whole graph as one call of torch's own operations."""
    return _scheduled(on_aten(graph), options)


def _in_python(planned: Schedule, graph: Graph, options: Options) -> GraphCode:
    """The schedule's loop nests run by Python; those of a GPU are programs of its own form, and stay with torch."""
    items = {place: item for place, item in enumerate(planned.items) if isinstance(item, RunKernel)}
    if any(item.device != "cpu" for item in items.values()):
        return GraphCode(_scheduled(on_aten(graph), options))
    return GraphCode(planned, {place: by_python(item.kernel) for place, item in items.items()})


def _codegen(planned: Schedule, graph: Graph, chosen: Chosen, options: Options) -> GraphCode:
    """The code of the schedule's kernels, of another schedule where an emitter cannot express one."""
    try:
        kernels, tuning = compile_kernels(planned, options)
        tunings = [each for each in (chosen.tuning, tuning) if each is not None]
        return GraphCode(planned, kernels, total(tunings) if tunings else None)
    except Uncompiled as error:
        return GraphCode(_on_aten(graph, options, error.device, f"A kernel cannot be compiled: {error}"))


# ---- guards, backward, plan ------------------------------------------------------------------------------------------


def _assume(trace: Trace, graph: Graph, code: GraphCode, options: Options) -> Assumptions:
    native = all(isinstance(compiled, NativeCode) for compiled in code.kernels.values())
    limits = () if native else position_limits(code)
    return trace.assumptions.with_relations((*graph.relations, *limits), graph.values)


def _guards(
    assumptions: Assumptions,
    trace: Trace,
    graph: Graph,
    code: GraphCode,
    kept: KeptGuards | None,
    options: Options,
) -> Guards:
    bases = [trace.assumptions.inputs[place].source.base for place in graph.consumed]
    counters = (counter_beside(trace.assumptions.inputs[place].source) for place in code.schedule.witnesses)
    more = dict.fromkeys((*(base for base in bases if base is not None), *counters))
    found = kept.of(trace, assumptions, more) if kept is not None else None
    return found or build(assumptions, sources=(*_sources(trace), *more))


def _derivatives(
    halves: Halves | None, trace: Trace, key: str | None, case_passes: tuple[Pass, ...], options: Options
) -> tuple[Derivative, ...]:
    """The places in autograd of a graph that is kept under ``key``; ``case_passes`` compile each case of a backward."""
    if halves is None:
        return ()
    latest: Compilation | None = None  # of the case that is compiled last, for a report of what failed on it

    def compile(graph: Graph, case: Trace) -> tuple[_native.Compiled, Product]:
        nonlocal latest
        stages = latest = Compilation(case)
        stages.lowered = graph
        product = Product(stages, run(case_passes, stages, options)[0])
        publish(None, product, None, options)
        plan = _native.PlanProgram(stages.plan)
        return _native.Compiled(_native.GuardSet(stages.guards.program), plan), product

    alone = options.fullgraph or options.verify or any(map(passes_in_force.passes_of, passes_in_force.STAGES))
    patience = None if alone or not keeps_by(case_passes) else options.patience
    return places_in_autograd(
        halves, trace, key, compile, lambda error: report_bug(error, trace.line, options, latest), patience
    )


def _assemble(
    trace: Trace, code: GraphCode, guards: Guards, derivatives: tuple[Derivative, ...], options: Options
) -> Plan:
    whole_kernels.hold(trace, code.schedule)
    numbers = guards.program.numbers
    keep = partial(keeping, compute=computed, still=options.graphs) if options.freeze else None
    plan = assemble(
        trace, code.schedule, code.kernels, guards.number_of, numbers, guards.register_of, derivatives, keep
    )
    return with_region(plan, options.graph_limit) if options.graphs else plan


def _from_trace(*code: Pass) -> tuple[Pass, ...]:
    """The passes from a trace to its plan, of which those in ``code`` turn a graph into code. Each case of a backward
    goes the same way from its graph on.
    """

    def derivatives(
        halves: Halves | None, trace: Trace, key: str | None, options: Options
    ) -> tuple[Derivative, ...]:
        return _derivatives(halves, trace, key, case, options)

    halves = (Pass("autodiff", _halves, "halves"), Pass("autodiff", _forward, "graph"))
    rest = (
        *code,
        Pass("guards", _assume, "assumptions"),
        Pass("guards", _guards, "guards"),
        Pass("autodiff", derivatives, "derivatives"),
        Pass("assemble", _assemble, "plan"),
    )
    case = (*_by_users("backward", "lowered", "autodiff"), *halves, *rest)
    lowered = (Pass("lower", _lower, "lowered"), *_by_users("lowered", "lowered", "lower"))
    return (*lowered, *halves, *_by_users("forward", "graph", "autodiff"), *rest)


NATIVE = _from_trace(
    Pass("fuse", _products, "chosen"), Pass("fuse", _fuse, "planned"), Pass("codegen", _codegen, "code", kept=True)
)
# Backends that leave out a stage, so that a fault has a place: code generation; and that with fusion.
PYTHON = _from_trace(
    Pass("fuse", _products, "chosen"), Pass("fuse", _fuse, "planned"), Pass("codegen", _in_python, "code")
)
AOT_EAGER = _from_trace(Pass("fuse", _fuse_on_aten, "planned"), Pass("codegen", _in_python, "code"))
OWN = {"native": NATIVE, "python": PYTHON, "aot_eager": AOT_EAGER}


# ---- another backend -------------------------------------------------------------------------------------------------


def _unmarked(lowered: Graph, trace: Trace, options: Options) -> Graph:
    """The graph by which sizes are known; what the backend makes takes part in torch's autograd by itself. A history
    that it gave to an input could not be taken back where it fails.
    """
    if any(late.name == "copy_" for late in lowered.late):
        raise Stop(reason("gradient", "A write to an input, which another backend would track", trace.line))
    return without_marks(lowered)


def _assume_trace(trace: Trace, graph: Graph, options: Options) -> Assumptions:
    """The trace's own relations, and those of the graph where a call gave an operand back, since sizes may have decided
    that; the graph says what the sizes inside are in terms of the inputs' sizes.
    """
    relations = graph.relations if any(map(_gives_back, trace.calls)) else ()
    return trace.assumptions.with_relations(relations, graph.values)


def _guards_of_trace(assumptions: Assumptions, trace: Trace, options: Options) -> Guards:
    return build(assumptions, sources=_sources(trace))


def _gives_back(call: Call) -> bool:
    return not call.written and not {*refs((call.args, call.kwargs))}.isdisjoint(refs(call.result))


def _captured(trace: Trace, options: Options) -> Captured:
    return fx_graph(trace)


def _captured_for_users(trace: Trace, options: Options) -> Captured:
    return fx_graph(trace, floats=False, ints=options.dynamic is True)


def _examples(
    captured: Captured, guards: Guards, bound: Arguments, trace: Trace, options: Options
) -> Arguments:
    with as_recorded(trace.assumptions.state, None):  # the call may stand behind a break, within another mode
        return examples_of(captured, guards, bound, trace)


def verified(stages: Compilation, options: Options) -> None:
    """Compares a compiled trace with eager on the values of this very call, and warns where it differs. A trace that
    has no FX form, or whose call changed what it depends on, is not compared.
    """
    assert stages.bound is not None, "the call is still there"
    try:
        captured = fx_graph(stages.trace)
        examples = examples_of(captured, stages.guards, stages.bound, stages.trace, same=True)
    except Stop:
        return
    check = importlib.import_module("framefuse.verification.traces").check  # by name: it stands above, and calls us
    before = _native.bypass(False)
    try:
        check(captured.module.graph, examples, stages.trace.line, options)
    finally:
        _native.bypass(before)


def _backend_plan(
    trace: Trace, graph: Graph, captured: Captured, callable: Function, guards: Guards, options: Options
) -> Plan:
    numbers = guards.program.numbers
    return backend_plan(trace, captured, callable, guards.number_of, numbers, guards.register_of, graph.values)


def through_backend(backend: FxBackend) -> tuple[Pass, ...]:
    """The passes that hand the captured FX graph to ``backend(gm, example_inputs) -> callable``."""

    ours = getattr(backend, "__module__", "").startswith("framefuse.")

    def call(captured: Captured, examples: Arguments, trace: Trace, options: Options) -> Function:
        if captured.floats is None:  # a number that is another at each call, for which no tensor stands
            return captured.module.forward
        name = getattr(backend, "__name__", type(backend).__name__)
        try:
            with as_recorded(trace.assumptions.state, None):
                function = backend(captured.module, with_tensors(examples, captured.floats))
        except Exception as error:
            text = f"the backend {name} raised {type(error).__name__}: {error}. Mend it, or choose backend='eager'"
            raise UserError(text) from error
        if not callable(function):
            raise UserError(f"the backend {name} gave {function!r:.60}. Have it give a callable, such as gm.forward")
        return function if ours else telling(function, name, len(captured.outputs))

    return (
        Pass("fx", _captured if ours else _captured_for_users, "captured"),
        Pass("lower", _lower, "lowered"),
        Pass("lower", _unmarked, "graph"),
        Pass("guards", _assume_trace, "assumptions"),
        Pass("guards", _guards_of_trace, "guards"),
        Pass("examples", _examples, "examples"),
        Pass("backend", call, "callable"),
        Pass("assemble", _backend_plan, "plan"),
    )


def _sources(trace: Trace) -> tuple[Source, ...]:
    """The sources that calls, the result and the effects read again at run time."""
    sources: dict[Source, None] = {}

    def visit(part: Value) -> None:
        if isinstance(part, Source):
            sources[part] = None
        elif isinstance(part, Build):
            if part.kind == "source":
                sources[part.value] = None
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
    return tuple(sources)
