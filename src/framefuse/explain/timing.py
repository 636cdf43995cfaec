"""Times a compiled call against eager if all that it changes can be put back, else says what it would change."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import BinaryIO, TextIO

import torch

from framefuse import _native
from framefuse.errors import Reason
from framefuse.explain.break_times import BreakTime, break_times, changes, prints, reached
from framefuse.explain.step_times import StepTime, awake, measured
from framefuse.guards.changes import value_at
from framefuse.guards.check import Hit, check
from framefuse.guards.missed import missed
from framefuse.ir.facts import Source
from framefuse.ir.source import Line
from framefuse.ir.target import default_generator
from framefuse.ir.trace import Build, Effect, Trace
from framefuse.ir.values import Arguments, Function, Keywords, Value
from framefuse.runtime.function import CompiledFunction
from framefuse.runtime.recorded_call import Product


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians of interleaved calls, in seconds: the original, the compiled one, and its guards alone, which compare
    ``words`` fields and know ``dicts`` dicts to be unchanged. ``steps`` are the times of the steps of compiled code, by
    the identity of the item of the schedule, ``breaks`` those of the breaks.
    """

    eager: float
    compiled: float
    guards: float | None
    words: int = 0
    dicts: int = 0
    steps: Mapping[int, StepTime] = field(default_factory=dict, repr=False, compare=False)
    breaks: Mapping[Reason, BreakTime] = field(default_factory=dict, repr=False, compare=False)


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

    Only a call is made of which all is known that it changes: its traces say so, and breaks whose steps read or print.
    Memory that it writes, version counters, random generators and the counters of ``explain`` are put back, and what it
    prints is held back; a call that changes anything else is not made.
    """
    if answer.product is None and not args and not kwargs:
        return "time=True times a call. Give its arguments too: explain(f, *args, time=True)"
    if answer.product is None or answer.hit is None:
        return f"no graph takes such a call ({answer.why}). Call it with these arguments first"
    products, breaks = reached(state, answer.product)
    traces = [product.stages.trace for product in products]
    lasting = _lasting(traces, breaks)
    if lasting is not None:
        return lasting
    weighed = awake() if breaks else contextlib.nullcontext()  # where eager won, calls are eager for a while
    with _kept(state, _written(answer, traces), traces), _quiet(traces, breaks), weighed:
        return _measured(compiled, state, answer.bound, args, kwargs)


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
    printed = any(_called(effect) for trace in traces for effect in trace.effects)
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


def _lasting(traces: Sequence[Trace], breaks: Iterable[Reason]) -> str | None:
    """What the call changes that cannot be put back, None if there is nothing."""
    for why in breaks:
        if changes(why):
            return f"what runs at the break{_at(why.line)} may change anything. framefuse.profile makes such calls"
    return next((lasting for trace in traces if (lasting := _lasts(trace)) is not None), None)


def _lasts(trace: Trace) -> str | None:
    """What a stretch changes that cannot be put back."""
    for effect in trace.effects:
        if _called(effect) != "print" and not _said_before(effect):
            return f"the call {_done(effect)}{_at(effect.line)}"
    for call in trace.calls:
        if getattr(call.target, "commits", False):
            return f"{call.name} takes part in other processes{_at(call.line)}"
        if call.random and call.kwargs.get("generator") is not None:
            return f"{call.name} draws from a generator of its own{_at(call.line)}"
        if call.written and call.grad_enabled and _history(trace, call.written):
            return f"{call.name} changes the history of a tensor that requires grad{_at(call.line)}"
    return None


def _callee(effect: Effect) -> Value:
    """What an effect calls, as an object or the place where it lies; None where it writes."""
    callee = effect.value.parts[0] if effect.kind == "invoke" and isinstance(effect.value, Build) else None
    return callee.value if isinstance(callee, Build) and callee.kind in ("source", "const") else callee


def _called(effect: Effect) -> str:
    """The name of what an effect calls; nothing where it writes."""
    callee = _callee(effect)
    return str(callee) if isinstance(callee, Source) else getattr(callee, "__qualname__", "")


def _said_before(effect: Effect) -> bool:
    """Whether it calls what does nothing for arguments that it knows, as ``warning_once`` of loggers does."""
    callee = _callee(effect)
    found = value_at(callee, (), {}) if isinstance(callee, Source) else callee
    found = getattr(found, "__func__", found)
    once = isinstance(found, functools._lru_cache_wrapper) and found.cache_parameters()["maxsize"] is None
    return once and _is_fixed(effect.value.parts[1])


def _is_fixed(part: Value) -> bool:
    """Whether a part of an effect is what it was in the recorded call."""
    if not isinstance(part, Build):
        return isinstance(part, (str, int, float, type(None)))
    if part.kind == "source":
        return not part.value.is_argument
    return part.kind == "const" or (part.kind == "tuple" and all(map(_is_fixed, part.parts)))


def _done(effect: Effect) -> str:
    """What an effect does, by the program's names."""
    if effect.kind == "invoke":
        return f"calls {_called(effect) or 'a function'}, which may change anything"
    if effect.kind in ("global", "delglobal"):
        return f"changes {effect.key}"
    target = str(effect.target) if isinstance(effect.target, Source) else "an object"
    return f"changes {target}.{effect.key}" if effect.kind in ("attr", "setattr", "delattr") else f"changes {target}"


def _history(trace: Trace, written: tuple[int, ...]) -> bool:
    """Whether a write among inputs' memory is one that autograd keeps."""
    storages = {trace.metas[entry.value].storage for entry in trace.written_inputs}
    return any(trace.metas[value].requires_grad and trace.metas[value].storage in storages for value in written)


def _at(line: Line | None) -> str:
    return f" ({line.place}: {line.text})" if line is not None else ""


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
    compiled: Function, state: CompiledFunction, bound: Arguments, args: Arguments, kwargs: Keywords
) -> Timing:
    owner = () if state.owner is None else (state.owner,)
    original: Function = functools.partial(state.function, *owner)
    wait = torch.accelerator.synchronize if _elsewhere(state) else _nothing
    once = _eager_seconds(original, args, kwargs, 1, wait)
    inner = max(1, min(1000, int(0.002 / max(once, 1e-7))))
    eager: list[float] = []
    fast: list[float] = []
    end = time.perf_counter() + 0.6
    while len(fast) < 5 or (time.perf_counter() < end and len(fast) < 200):
        eager.append(_eager_seconds(original, args, kwargs, inner, wait))
        fast.append(_seconds(compiled, args, kwargs, inner, wait))
    found = measured(functools.partial(compiled, *args, **kwargs))
    cost = _guard_cost(state, bound)
    return Timing(statistics.median(eager), statistics.median(fast), *cost, found.steps, break_times(found, (state,)))


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
