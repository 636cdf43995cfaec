"""Times a compiled call against eager if all that it changes can be put back, else says what it would change."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from framefuse import _native
from framefuse.explain.step_times import StepTime, measured
from framefuse.guards.check import Hit, check
from framefuse.guards.missed import missed
from framefuse.ir.source import Line
from framefuse.ir.target import default_generator
from framefuse.ir.trace import Trace
from framefuse.ir.values import Arguments, Function, Keywords
from framefuse.runtime.function import CompiledFunction
from framefuse.runtime.recorded_call import Product


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians of interleaved calls, in seconds: the original, the compiled one, and its guards alone, which compare
    ``words`` fields and know ``dicts`` dicts to be unchanged. ``steps`` are the times of the steps of compiled code, by
    the identity of the item of the schedule.
    """

    eager: float
    compiled: float
    guards: float | None
    words: int = 0
    dicts: int = 0
    steps: Mapping[int, StepTime] = field(default_factory=dict, repr=False, compare=False)


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

    Only a call that compiled code takes as a whole is made: its trace says all that it changes. Memory that it writes,
    version counters, random generators and the counters of ``explain`` are put back; a call that changes anything else
    is not made.
    """
    if answer.product is None or answer.hit is None:
        return f"no graph takes such a call ({answer.why}). Call it with these arguments first"
    product, hit = answer.product, answer.hit
    trace = product.stages.trace
    lasting = _lasting(state, trace)
    if lasting is not None:
        return lasting
    register_of = product.stages.guards.register_of
    written = [hit.registers[register_of[entry.source]] for entry in trace.written_inputs]
    with _kept(state, written, trace):
        return _measured(compiled, state, answer.bound, args, kwargs)


def _lasting(state: CompiledFunction, trace: Trace) -> str | None:
    """What the call changes that cannot be put back, None if there is nothing."""
    if state.breaks and any(entry.follow is not None for entry in state.dispatch.entries):
        why = next(iter(state.breaks))
        return f"what runs at the break{_at(why.line)} may change anything"
    if trace.effects:
        effect = trace.effects[0]
        target = getattr(effect.target, "kind", "") and str(effect.target)
        named = f"{target}.{effect.key}" if effect.kind in ("attr", "setattr", "delattr") else target
        return f"the call changes {named or 'an object'}{_at(effect.line)}"
    for call in trace.calls:
        if getattr(call.target, "commits", False):
            return f"{call.name} takes part in other processes{_at(call.line)}"
        if call.random and call.kwargs.get("generator") is not None:
            return f"{call.name} draws from a generator of its own{_at(call.line)}"
        if call.written and call.grad_enabled and _history(trace, call.written):
            return f"{call.name} changes the history of a tensor that requires grad{_at(call.line)}"
    return None


def _history(trace: Trace, written: tuple[int, ...]) -> bool:
    """Whether a write among inputs' memory is one that autograd keeps."""
    storages = {trace.metas[entry.value].storage for entry in trace.written_inputs}
    return any(trace.metas[value].requires_grad and trace.metas[value].storage in storages for value in written)


def _at(line: Line | None) -> str:
    return f" ({line.place}: {line.text})" if line is not None else ""


@contextmanager
def _kept(state: CompiledFunction, written: list[torch.Tensor], trace: Trace) -> Iterator[None]:
    """Puts back what the calls within change."""
    counts = state.dispatch.calls, state.dispatch.hits
    values = [(tensor, tensor.detach().clone(), tensor._version) for tensor in written if not tensor.is_inference()]
    frozen = [(tensor, tensor.clone()) for tensor in written if tensor.is_inference()]
    devices = dict.fromkeys(("cpu", *(meta.device for meta in trace.metas)))
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
        state.dispatch.calls, state.dispatch.hits = counts


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
    steps = measured(functools.partial(compiled, *args, **kwargs)).steps
    return Timing(statistics.median(eager), statistics.median(fast), *_guard_cost(state, bound), steps)


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


def _seconds(
    function: Function, args: Arguments, kwargs: Keywords, count: int, wait: Callable[[], None]
) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(count):
        function(*args, **kwargs)
    wait()
    return (time.perf_counter() - start) / count
