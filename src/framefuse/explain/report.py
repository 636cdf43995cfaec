"""Turns the record of a compiled function into an explanation: graphs, kernels, guards, stops and compile time."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from framefuse import _native
from framefuse.codegen.targets import emitter_of
from framefuse.errors import Reason, UserError
from framefuse.explain.break_times import BreakTime, dearest
from framefuse.explain.card import card
from framefuse.explain.saved import saved_bytes
from framefuse.explain.timing import Answer, Timing, answering, timed
from framefuse.ir import stops
from framefuse.ir.passes import Step
from framefuse.ir.plan import CallStep
from framefuse.ir.schedule import RunCall, RunKernel, RunMatmul
from framefuse.ir.source import Line
from framefuse.ir.tuning import Tuning, total
from framefuse.ir.values import Arguments, Keywords, Value
from framefuse.runtime.function import CompiledFunction, behind, compiled_function
from framefuse.runtime.kept_values import kept_by
from framefuse.runtime.recorded_call import Product

LAZY = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True, slots=True)
class Work:
    """One thing that a graph runs: ``kind`` kernel, matmul or call, its ``title`` and how often it occurs; ``place``
    names the device of a kernel and what compiled it.
    """

    kind: str
    title: str
    count: int
    place: str = ""


@dataclass(frozen=True, slots=True)
class Replays:
    """What was captured of a trace for replay, and what that costs: ``graphs`` of them in ``bytes`` of shared memory,
    captured in ``seconds``; each call copies ``copied`` inputs in and ``outs`` results out. ``why`` says why there is
    none, or are no more of them.
    """

    graphs: int = 0
    bytes: int = 0
    seconds: float = 0.0
    copied: int = 0
    outs: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """What a graph keeps that it derives from parameters and buffers: ``bytes`` of it now, derived in ``seconds``
    altogether by ``times`` rounds, that ``spared`` calls did without.
    """

    bytes: int
    seconds: float
    times: int
    spared: int


@dataclass(frozen=True, slots=True)
class Declined:
    """The runs of a graph that ended before they changed anything, so that their calls went on eagerly, of all its
    ``runs``; ``why`` is the first error that ended one, None where what was given or who looks on was no case for it.
    """

    count: int
    runs: int
    why: str | None


@dataclass(frozen=True, slots=True)
class GraphReport:
    """One compiled trace: where it starts, how many torch calls went into how many pieces, and what each pass took.

    ``saved`` are the bytes that it keeps for its backward pass, and those that eager keeps (None: not known);
    ``backward`` is what the cases of its backward pass run, compiled when they were first asked, and ``uncompiled`` why
    some have no compiled code, with how often they ran. ``tuning`` is what measuring gave, backward included, in the
    modes that measure; ``passes`` is what each pass of fuse did, in order; ``replays`` are the
    captured graphs of the forward, and those of each case of the backward, in the modes that replay. ``derived`` is
    what it keeps of parameters and buffers with the option ``freeze``; ``declined`` are the runs that were given up.
    ``why`` is what the trace before it did not hold for, if there was one.
    """

    name: str
    line: Line
    operations: int
    work: tuple[Work, ...]
    facts: int
    seconds: dict[str, float]
    saved: tuple[int, int | None] | None = None
    backward: tuple[tuple[Work, ...], ...] = ()
    uncompiled: tuple[tuple[Reason, int], ...] = ()
    tuning: Tuning | None = None
    replays: Replays | None = None
    backward_replays: tuple[Replays | None, ...] = ()
    why: str | None = None
    passes: tuple[Step, ...] = ()
    derived: KeptWeights | None = None
    declined: Declined | None = None

    def count(self, kind: str) -> int:
        """How many pieces of that kind run on each call."""
        return _pieces(self.work, kind)


def _pieces(work: tuple[Work, ...], kind: str) -> int:
    return sum(item.count for item in work if item.kind == kind)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What :func:`explain` found; ``str()`` of it is one screen.

    ``timing`` is a text where a call was not timed;
    ``answer`` says what takes a call on the arguments that were given. ``methods`` are those of a module that are
    compiled beside its own call, ``mapped`` what is compiled of it under ``torch.vmap``. ``ended`` is where the last
    recording that gave nothing ended, if the next one gets further.
    """

    name: str
    place: str
    graphs: tuple[GraphReport, ...]
    points: int
    breaks: tuple[Reason, ...]
    stops: tuple[tuple[Reason, int], ...]
    calls: int
    hits: int
    eager_calls: int
    timing: Timing | str | None
    answer: str | None = None
    methods: tuple[str, ...] = ()
    ended: Reason | None = None
    mapped: tuple[Explanation, ...] = ()

    @property
    def nothing(self) -> str:
        """Why there is no graph, as the end of a sentence."""
        if self.calls and self.ended is not None and not self.stops:
            where = self.ended.line.place if self.ended.line else "a line that is not known"
            return f" yet: the last recording ended at {where}, and the next call records further"
        if self.calls:
            return ""
        others = " or ".join(f"explain(model.{name})" for name in self.methods)
        return ": it has not been called yet" + (f"; see {others}" if others else "")

    @property
    def prices(self) -> Mapping[Reason, BreakTime]:
        """What the breaks took of the call that was timed."""
        return self.timing.breaks if isinstance(self.timing, Timing) else {}

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return card(self)

    def __str__(self) -> str:
        parts = (_head, _guards, _graphs, _breaks, _stops, _compile)
        lines = [line for part in parts for line in part(self)]
        return "\n".join([*lines, *(str(each) for each in self.mapped)])


def explain(compiled: Value, args: Arguments, kwargs: Keywords, time: bool) -> Explanation:
    """What :func:`framefuse.explain` gives for these arguments."""
    function, before, named = behind(compiled)
    state = compiled_function(function)
    if args or kwargs or time:
        args, kwargs = (*before, *args), {**named, **kwargs}
    if state is None:
        raise UserError(f"{compiled!r:.60} was not compiled by framefuse. Pass what framefuse.compile returned")
    answer = answering(state, args, kwargs) if args or kwargs or time else None
    explanation = describe(state, timed(function, state, answer, args, kwargs) if time and answer is not None else None)
    return explanation if answer is None else replace(explanation, answer=_answer(state, answer))


def describe(state: CompiledFunction, timing: Timing | str | None = None) -> Explanation:
    """The explanation of a compiled function from its record, once no other thread compiles it."""
    state.settle()
    owner = state.owner
    name = type(owner).__name__ if owner is not None else getattr(state.function, "__qualname__", repr(state.function))
    line = state.line
    dispatches = (state.dispatch, *(point.dispatch for point in state.resume_dispatches))
    plans = {id(entry.plan.plan): entry.plan for dispatch in dispatches for entry in dispatch.entries}
    return Explanation(
        name=name,
        place=line.place if line is not None else "",
        graphs=tuple(_graph(product, line, plans.get(id(product.stages.plan))) for product in state.products),
        points=sum(1 for point in state.resume_dispatches if point.bound.made),
        breaks=tuple(state.breaks),
        stops=(*state.reasons.items(), *_lazy(state)),
        calls=state.dispatch.calls,
        hits=state.dispatch.hits,
        eager_calls=state.eager_calls,
        timing=timing,
        methods=state.methods,
        ended=state.ended,
        mapped=tuple(
            replace(describe(each.below), name=f"{name} under torch.vmap", place=line.place if line is not None else "")
            for each in state.mapped
            if each.below is not None
        ),
    )


def _lazy(state: CompiledFunction) -> list[tuple[Reason, int]]:
    """Why nothing is ever recorded of a function that does nothing when it is called."""
    code = getattr(state.function, "__code__", None)
    if code is None or not code.co_flags & LAZY:
        return []
    return [(stops.reason("coroutine", code.co_qualname, state.line), max(1, state.dispatch.calls))]


def _answer(state: CompiledFunction, answer: Answer) -> str:
    if answer.product is not None:
        return f"graph {state.products.index(answer.product) + 1} takes such a call"
    if answer.unfit:
        return f"is an error: {answer.why}. Give what the function takes"
    return f"compiles once more: {answer.why}" if state.products else "records and compiles: nothing is compiled yet"


def _graph(product: Product, beginning: Line | None, plan: _native.PlanProgram | None) -> GraphReport:
    trace = product.stages.trace
    facts = len(trace.assumptions.facts) + len(trace.assumptions.inputs)
    halves = product.stages.halves
    saved = None
    if halves is not None:
        eager = None if trace.autograd is None else trace.autograd.bytes
        saved = saved_bytes(halves, halves.forward.hints), eager
    derivatives = product.stages.derivatives
    cases = [case for derivative in derivatives for case in derivative.cases]
    seconds = dict(product.seconds)
    if cases:
        seconds["backward"] = sum(sum(case.seconds.values()) for case in cases)
    codes = [part.stages.code for part in (product, *cases)]
    measured = [code.tuning for code in codes if code is not None and code.tuning is not None]
    return GraphReport(
        name=trace.name,
        line=beginning or trace.line if product.start is None else trace.line,
        why=product.why,
        operations=len(trace.calls),
        work=_work(product),
        facts=facts,
        seconds=seconds,
        saved=saved,
        backward=tuple(_work(case) for case in cases),
        uncompiled=tuple(row for derivative in derivatives for row in derivative.reasons.items()),
        tuning=total(measured) if measured else None,
        passes=_passes(product),
        derived=_derivation(product),
        declined=Declined(plan.declines, plan.runs, plan.declined) if plan is not None and plan.declines else None,
        replays=_replays(product),
        backward_replays=tuple(_replays(case) for case in cases),
    )


def _passes(product: Product) -> tuple[Step, ...]:
    """What each pass of fuse did."""
    code = product.stages.code
    return () if code is None else code.schedule.steps


def _derivation(product: Product) -> KeptWeights | None:
    """What a plan keeps of parameters and buffers; None where it derives nothing."""
    kept = kept_by(step.function for step in product.stages.plan.steps if isinstance(step, CallStep))
    if not kept:
        return None
    accounts = [each.account for each in kept]
    return KeptWeights(
        sum(each.bytes for each in kept),
        sum(account.seconds for account in accounts),
        max(account.computed for account in accounts),
        min(account.spared for account in accounts),
    )


def _replays(product: Product) -> Replays | None:
    """What was captured of a plan; None where the mode does not ask."""
    region = product.stages.plan.region
    if region is None or isinstance(region, str):
        return None if region is None else Replays(why=region)
    captures = region.captures
    return Replays(captures.count, captures.bytes, captures.seconds, captures.copied, captures.outs, captures.why)


def _work(product: Product) -> tuple[Work, ...]:
    counts: dict[tuple[str, str, str], int] = {}
    code = product.stages.code
    if code is None:
        return (Work("call", "backend", 1),)
    for place, item in enumerate(code.schedule.items):
        if isinstance(item, RunKernel):
            key = ("kernel", item.kernel.title, f"{item.device} by {emitter_of(code.kernels[place])}")
        elif isinstance(item, RunMatmul):
            key = ("matmul", "matmul", "")
        elif isinstance(item, RunCall):
            key = ("call", item.node.attr("name"), "")
        else:
            continue
        counts[key] = counts.get(key, 0) + 1
    return tuple(Work(kind, title, count, place) for (kind, title, place), count in counts.items())


# ---- text ------------------------------------------------------------------------------------------------------------


def _head(e: Explanation) -> list[str]:
    kernels = sum(graph.count("kernel") for graph in e.graphs)
    again = max(0, len(e.graphs) - e.points - 1)
    parts = [f"{e.name} ({e.place})", f"{_count(len(e.graphs), 'graph')}, {_count(kernels, 'kernel')}"]
    parts[1] += f", {_count(again, 'recompile')}"
    if isinstance(e.timing, Timing):
        ratio = e.timing.eager / e.timing.compiled
        parts.append(f"{_duration(e.timing.eager)} -> {_duration(e.timing.compiled)}  {ratio:.1f}x")
    untimed = [f"           not timed: {e.timing}"] if isinstance(e.timing, str) else []
    answer = [f"  call     {e.answer}"] if e.answer is not None and not isinstance(e.timing, Timing) else []
    return ["    ".join(parts), *answer, *untimed]


def _guards(e: Explanation) -> list[str]:
    if not e.graphs and e.mapped and not e.stops:
        return []
    if not e.graphs:
        why = [f"             {e.ended.fact}"] if e.ended is not None and not e.stops else []
        return ["  nothing is compiled" + e.nothing, *why]
    facts = sum(graph.facts for graph in e.graphs)
    timing, cost = e.timing, ""
    if isinstance(timing, Timing) and timing.guards is not None:
        looks = f"{_count(timing.words, 'word')} and {_count(timing.dicts, 'dict')}"
        cost = f", {_duration(timing.guards, 2)} per call ({looks} compared)"
    return [f"  guards   {_count(facts, 'fact')}{cost}"]


def _graphs(e: Explanation) -> list[str]:
    lines = []
    for number, graph in enumerate(e.graphs, 1):
        what = _made(graph.work)
        lines.append(f"  graph {number}  {graph.line.place}   {_count(graph.operations, 'op')} -> {what}")
        if graph.why is not None:
            lines.append(f"             compiled because {graph.why}")
        if graph.declined is not None:
            lines.append(f"             {ran_eagerly(graph.declined)}")
        if graph.saved is not None:
            ours, eager = graph.saved
            against = "" if eager is None else f", eager {_size(eager)}"
            lines.append(f"             keeps {_size(ours)} for backward{against}")
        if graph.derived is not None:
            lines.append(f"             {_kept(graph.derived)}")
        if graph.replays is not None:
            lines.append(f"             {_replayed(graph.replays)}")
        for work, count in Counter(graph.backward).items():
            lines.append(f"             backward -> {_made(work)}" + (f", {count} cases alike" if count > 1 else ""))
        for replays in graph.backward_replays:
            if replays is not None:
                lines.append(f"             backward {_replayed(replays)}")
        for reason, count in graph.uncompiled:
            lines.append(f"             backward call by call   [{reason.code}] x{count}: {reason.fact}")
        if graph.tuning is not None:
            lines += _tuning(graph.tuning)
        shown = sorted(graph.work, key=lambda item: -item.count)
        for item in shown[:8]:
            lines.append(f"             {item.title:<36.36} {item.kind:<7} x{item.count}{_place_of(item)}")
        if len(shown) > 8:
            lines.append(f"             and {len(shown) - 8} more")
    return lines


def _tuning(tuning: Tuning) -> list[str]:
    """What measuring took and gave: the kernels that others than the usual codes won, the greatest gain first."""
    if not tuning.kernels:
        return []
    measured = [kernel for kernel in tuning.kernels if not kernel.skipped]
    tried = sum(kernel.candidates for kernel in measured)
    new = sum(not kernel.stored for kernel in measured)
    known = f", {len(measured) - new} known from before" if new < len(measured) else ""
    line = f"             measured {_count(new, 'kernel')}{known}: {_count(tried, 'candidate')}, "
    took = f"{_duration(tuning.seconds)} ({_duration(tuning.compiling)} of it to compile)"
    lines = [f"{line}{took}, {_size(tuning.scratch)} of scratch memory"]
    won = sorted((kernel for kernel in measured if kernel.won), key=lambda kernel: kernel.best / kernel.first)
    usual = sorted((kernel for kernel in measured if kernel.share and not kernel.won), key=lambda kernel: kernel.share)
    for kernel in (*won, *usual)[:8]:
        gain = f"{_duration(kernel.first)} -> {_duration(kernel.best)}  by {kernel.won}"
        took = gain if kernel.won else f"{_duration(kernel.best)}  in its usual form"
        share = f", {kernel.share:.0%} of a copy's bandwidth" if kernel.share else ""
        lines.append(f"               {kernel.title:<34.34} {took}{share}")
    for why, count in Counter(kernel.skipped for kernel in tuning.kernels if kernel.skipped).items():
        lines.append(f"               {_count(count, 'kernel')} not measured: {why}")
    return lines


def _kept(derived: KeptWeights) -> str:
    """The price of what is derived from parameters and buffers, and how often it was there."""
    took = f"derived in {_duration(derived.seconds)}" + (f", {derived.times} times" if derived.times > 1 else "")
    return f"keeps {_size(derived.bytes)} of weights, {took}; {_count(derived.spared, 'call')} did without that"


def ran_eagerly(declined: Declined) -> str:
    """How many runs of a graph were given up, and what ended the first."""
    why = "" if declined.why is None else f": {' '.join(declined.why.split())[:160]}"
    return f"{declined.count} of {_count(declined.runs, 'run')} ended before they changed anything and ran eagerly{why}"


def _replayed(replays: Replays) -> str:
    """The captured graphs with their price, or why there is none."""
    if not replays.graphs:
        return f"not replayed: {replays.why or 'no case of it has come twice yet'}"
    cost = f"{_size(replays.bytes)} of memory, {_duration(replays.seconds)} to capture"
    copies = f"{_count(replays.copied, 'input')} and {_count(replays.outs, 'result')} copied in each call"
    more = f"; no more: {replays.why}" if replays.why else ""
    return f"replayed  {_count(replays.graphs, 'CUDA graph')}: {cost}, {copies}{more}"


def _place_of(item: Work) -> str:
    """Where a kernel runs, if that is not the CPU with its own code."""
    return "" if item.place in ("", "cpu by LLVM") else f"  {item.place}"


def _made(work: tuple[Work, ...]) -> str:
    """How many pieces of each kind there are."""
    pieces = [(kind, _pieces(work, kind)) for kind in ("kernel", "matmul", "call")]
    return ", ".join(_count(count, kind) for kind, count in pieces if count) or "nothing to compute"


def _size(count: int) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def _breaks(e: Explanation) -> list[str]:
    lines = []
    alike = Counter(dearest(e.prices, e.breaks))
    for reason, count in list(alike.items())[:8]:
        lines.append(f"  break    {_place(reason)}   [{reason.code}]".replace("    [", "  [") + _times(count))
        if reason in e.prices:
            lines.append(f"             takes {priced(e, reason)}")
        lines += [f"             {reason.fact}", f"             {reason.advice}"]
    if len(alike) > 8:
        lines.append(f"           and {len(alike) - 8} more")
    return lines


def priced(e: Explanation, why: Reason) -> str:
    """What a break took of the call that was timed."""
    price = e.prices[why]
    often = f" in {price.runs} runs" if price.runs > 1 else ""
    whole = e.timing.compiled if isinstance(e.timing, Timing) else price.seconds
    return f"{_duration(price.seconds)} of a call's {_duration(whole)}{often}: its step and handing over"


def _times(count: int) -> str:
    return f" x{count}" if count > 1 else ""


def _place(reason: Reason) -> str:
    return f"{reason.line.place}   {reason.line.text}" if reason.line else ""


def _stops(e: Explanation) -> list[str]:
    lines = []
    for reason, count in e.stops[:6]:
        lines.append(f"  eager    {_place(reason)}   [{reason.code}] x{count}".replace("    [", "  ["))
        lines.append(f"             {reason.fact}")
        lines.append(f"             {reason.advice}")
    return lines


def _compile(e: Explanation) -> list[str]:
    total: dict[str, float] = {}
    for graph in e.graphs:
        for name, seconds in graph.seconds.items():
            total[name] = total.get(name, 0.0) + seconds
    if not total:
        return []
    trains = any(graph.saved is not None for graph in e.graphs)  # others only pass through autodiff
    shown = [(name, seconds) for name, seconds in total.items() if trains or name != "autodiff"]
    parts = ", ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in shown)
    return [f"  compile  {sum(total.values()) * 1e3:.1f} ms: {parts}", *_passes_of_fuse(e)]


def _passes_of_fuse(e: Explanation) -> list[str]:
    """The passes of fuse that changed something in a graph, and the rest of them."""
    total: dict[str, float] = {}
    changed: set[str] = set()
    for graph in e.graphs:
        for step in graph.passes:
            total[step.name] = total.get(step.name, 0.0) + step.seconds
            changed |= {step.name} if step.changed else set()
    parts = [f"{name} {seconds * 1e3:.1f}" for name, seconds in total.items() if name in changed]
    if len(changed) < len(total):
        rest = sum(seconds for name, seconds in total.items() if name not in changed)
        parts.append(f"{len(total) - len(changed)} without effect {rest * 1e3:.1f}")
    return [f"  fuse     {sum(total.values()) * 1e3:.1f} ms: {', '.join(parts)}"] if total else []


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _duration(seconds: float, digits: int = 1) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.{digits}f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
