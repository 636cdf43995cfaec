"""Times a compiled call against eager if all that it changes can be put back, else says what it would change."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import BinaryIO, TextIO

import torch

from framefuse import _native
from framefuse.errors import Reason
from framefuse.explain.break_times import BreakTime, break_times, prints, reached
from framefuse.explain.permanent import called, lasting, undoing
from framefuse.explain.step_times import CALLS, StepTime, awake, measured
from framefuse.explain.undo import Undo
from framefuse.guards.changes import value_at
from framefuse.guards.check import Hit, check
from framefuse.guards.missed import missed
from framefuse.ir.progress import telling
from framefuse.ir.target import default_generator
from framefuse.ir.trace import Trace
from framefuse.ir.values import Arguments, Function, Keywords, Value
from framefuse.runtime.function import CompiledFunction
from framefuse.runtime.recorded_call import Product

ENOUGH, MOST_CALLS = 0.6, 200  # seconds, and calls of each kind, that are measured
FEWEST, PATIENCE, FEWEST_SLOW = 5, 3.0, 3  # calls of each kind at least, and where they take so many seconds


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians of interleaved calls, in seconds: the original, the compiled one, and its guards alone, which compare
    ``words`` fields and know ``dicts`` dicts to be unchanged. ``steps`` are the times of the steps of compiled code, by
    the identity of the item of the schedule, ``breaks`` those of the breaks, both of one call that took ``whole``.
    """

    eager: float
    compiled: float
    guards: float | None
    words: int = 0
    dicts: int = 0
    steps: Mapping[int, StepTime] = field(default_factory=dict, repr=False, compare=False)
    breaks: Mapping[Reason, BreakTime] = field(default_factory=dict, repr=False, compare=False)
    whole: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What takes a call: the compiled trace with what its guards loaded, or ``why`` none does; ``unfit`` arguments are
    an error of the call's.
    """

    bound: Arguments
    product: Product | None = None
    hit: Hit | None = None
    why: str = ""
    unfit: bool = False


def answering(state: CompiledFunction, args: Arguments, kwargs: Keywords) -> Answer:
    """What takes such a call at the function's beginning; nothing of the program runs."""
    unnamed = state.owner is not None and state.dispatch.owner is None  # an installed module is an argument like any
    bound = state.dispatch.bind(*((state.owner,) if unnamed else ()), *args, **kwargs)
    if bound is None:
        return Answer((), why="these arguments do not fit its parameters", unfit=True)
    for product in state.products:
        if product.start is None:
            outcome = check(product.stages.guards.program, bound)
            if isinstance(outcome, Hit):
                return Answer(bound, product, outcome)
    return Answer(bound, why=missed(state.guarded(None), bound, state.names) or "nothing is compiled")


def timed(
    compiled: Function, state: CompiledFunction, answer: Answer, args: Arguments, kwargs: Keywords
) -> Timing | str:
    """The timing of such a call, or why the call is not made.

    Only a call is made of which all is known that it changes: its traces say so, and breaks whose steps read, print or
    compute gradients. Memory that it writes, attributes, containers, optimizers, version counters, random generators
    and the counters of ``explain`` are put back, and what it prints is held back; a call that changes anything else is
    not made.
    """
    if answer.product is None and not args and not kwargs:
        return "time=True times a call. Give its arguments too: explain(f, *args, time=True)"
    if answer.product is None or answer.hit is None:
        return f"no graph takes such a call ({answer.why}). Call it with these arguments first"
    products, breaks = reached(state, answer.product)
    traces = [product.stages.trace for product in products]
    change = lasting(traces, breaks)
    if change is not None:
        return change
    undo = undoing((state.function, state.owner, args, kwargs), answer.bound, traces, breaks)
    if isinstance(undo, str):
        return undo
    weighed = awake() if breaks else contextlib.nullcontext()  # where eager won, calls are eager for a while
    with _kept(state, _written(answer, traces), traces), _quiet(traces, breaks), weighed:
        try:
            return _measured(compiled, state, answer.bound, args, kwargs, undo)
        finally:
            if undo is not None:
                undo.put_back()


def _written(answer: Answer, traces: Sequence[Trace]) -> list[torch.Tensor]:
    """What the call may write: of one stretch what its trace says; where there are more, any tensor that it comes to
    from outside, as what is handed over a break may be one.
    """
    if answer.product is None or answer.hit is None or not any(trace.written_inputs for trace in traces):
        return []
    first, *behind = traces
    register_of, held = answer.product.stages.guards.register_of, answer.hit.registers
    given = [held[register_of[entry.source]] for entry in first.written_inputs]
    given += [*held, *_tensors(answer.bound)] if behind else []
    later = (entry.source for trace in behind for entry in trace.assumptions.inputs)
    given += [value_at(source, (), {}) for source in later if not source.is_argument]
    found = {id(tensor): tensor for tensor in given if isinstance(tensor, torch.Tensor)}
    return [tensor for tensor in found.values() if 0 not in tensor.stride() or not tensor.numel()]


def _tensors(value: Value, depth: int = 6) -> Iterator[torch.Tensor]:
    """The tensors of nested containers, modules and plain objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from (*value.parameters(), *value.buffers())
    elif depth:
        parts = value if isinstance(value, (list, tuple)) else value if isinstance(value, dict) else _attributes(value)
        for part in parts.values() if isinstance(parts, dict) else parts:
            yield from _tensors(part, depth - 1)


def _attributes(value: Value) -> dict[str, Value]:
    return getattr(value, "__dict__", {}) if not isinstance(value, (type, ModuleType, FunctionType)) else {}


@contextmanager
def _quiet(traces: Sequence[Trace], breaks: Sequence[Reason]) -> Iterator[None]:
    """Holds back what the call prints."""
    printed = any(called(effect) for trace in traces for effect in trace.effects)
    if not printed and not any(map(prints, breaks)):
        yield
        return
    with open(os.devnull, "wb") as nowhere, contextlib.redirect_stdout(_sink(sys.stdout, nowhere)):
        yield


def _sink(stream: TextIO, nowhere: BinaryIO) -> TextIO:
    """What takes the place of a stream: one of the same types, where these are Python's, as guards know them."""
    if not isinstance(stream, io.TextIOWrapper):
        return io.StringIO()
    sink: io.TextIOWrapper = type(stream).__new__(type(stream))
    io.TextIOWrapper.__init__(sink, io.BytesIO() if isinstance(stream.buffer, io.BytesIO) else nowhere)
    return sink


@contextmanager
def _kept(state: CompiledFunction, written: list[torch.Tensor], traces: Sequence[Trace]) -> Iterator[None]:
    """Puts back what the calls within change."""
    dispatches = (state.dispatch, *(point.dispatch for point in state.resume_dispatches))
    counts = [(dispatch, dispatch.calls, dispatch.hits) for dispatch in dispatches]
    values = [(tensor, tensor.detach().clone(), tensor._version) for tensor in written if not tensor.is_inference()]
    frozen = [(tensor, tensor.clone()) for tensor in written if tensor.is_inference()]
    devices = dict.fromkeys(("cpu", *(meta.device for trace in traces for meta in trace.metas)))
    generators = [drawn_from for device in devices if (drawn_from := default_generator(device)) is not None]
    drawn = [(generator, generator.get_state()) for generator in generators]
    try:
        yield
    finally:
        for generator, seed in drawn:
            generator.set_state(seed)
        for tensor, value, version in values:
            tensor.data.copy_(value)
            torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
        with torch.inference_mode():
            for tensor, value in frozen:
                tensor.copy_(value)
        for dispatch, calls, hits in counts:
            dispatch.calls, dispatch.hits = calls, hits


def _measured(
    compiled: Function, state: CompiledFunction, bound: Arguments, args: Arguments, kwargs: Keywords, undo: Undo | None
) -> Timing:
    """Times calls; what they change for good is put back behind each one."""
    owner = () if state.owner is None else (state.owner,)
    original: Function = functools.partial(state.function, *owner)
    wait = torch.accelerator.synchronize if _elsewhere(state) else _nothing
    put_back = _nothing if undo is None else functools.partial(undo.put_back, False)
    eager: list[float] = []
    fast: list[float] = []
    with telling(lambda: f"timing {_name(state)}", lambda: f"call {len(eager) + len(fast) + 1}"):
        once = _eager_seconds(original, args, kwargs, 1, wait)
        put_back()
        inner = max(1, min(1000, int(0.002 / max(once, 1e-7)))) if undo is None else 1
        begun = time.perf_counter()
        while _goes_on(len(fast), time.perf_counter() - begun):
            eager.append(_eager_seconds(original, args, kwargs, inner, wait))
            put_back()
            fast.append(_seconds(compiled, args, kwargs, inner, wait))
            put_back()
        rounds = FEWEST_SLOW if statistics.median(fast) * CALLS > PATIENCE else CALLS
        found = measured(functools.partial(compiled, *args, **kwargs), rounds, behind=put_back)
    cost = _guard_cost(state, bound)
    breaks = break_times(found, (state,))
    return Timing(statistics.median(eager), statistics.median(fast), *cost, found.steps, breaks, found.seconds)


def _goes_on(calls: int, spent: float) -> bool:
    """Whether another pair of calls is worth its time."""
    return calls < (FEWEST_SLOW if spent > PATIENCE else FEWEST if spent > ENOUGH else MOST_CALLS)


def _name(state: CompiledFunction) -> str:
    return type(state.owner).__name__ if state.owner is not None else getattr(state.function, "__name__", "a function")


def _guard_cost(state: CompiledFunction, bound: Arguments) -> tuple[float | None, int, int]:
    """Seconds of one check of the trace that the call uses, and how many words and dicts it looks at."""
    guards = state.dispatch.entries[0].guards
    runs = [guards.measure(bound, 100) for _ in range(15)]
    if any(isinstance(seconds, int) for seconds in runs):
        return None, 0, 0
    return statistics.median(runs), guards.words, guards.dicts


def _elsewhere(state: CompiledFunction) -> bool:
    """Whether a graph works on a device that calls do not wait for."""
    graphs = [product.stages.graph for product in state.products]
    return any(node.device != "cpu" for graph in graphs for node in graph.nodes)


def _nothing() -> None:
    """A call on the CPU has ended when it returns."""


def _eager_seconds(
    function: Function, args: Arguments, kwargs: Keywords, count: int, wait: Callable[[], None]
) -> float:
    before = _native.bypass(True)  # an installed function is reached by its door too
    try:
        return _seconds(function, args, kwargs, count, wait)
    finally:
        _native.bypass(before)


def _seconds(function: Function, args: Arguments, kwargs: Keywords, count: int, wait: Callable[[], None]) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(count):
        function(*args, **kwargs)
    wait()
    return (time.perf_counter() - start) / count
