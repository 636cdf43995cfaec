"""Turns the kernels of a schedule into code for their devices: in parallel where that is slow, measured where asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from framefuse import _native
from framefuse.codegen.specialisation import Begun, Choice, Place, Specialisation
from framefuse.codegen.targets import COMPILERS, Backend, backend
from framefuse.codegen.unsupported import Uncompiled, Unsupported
from framefuse.driver import behind
from framefuse.driver.few_forms import Forms, may_measure, quick
from framefuse.driver.measuring import Measuring
from framefuse.driver.tuning import Tuner
from framefuse.driver.variants import compiled_together
from framefuse.ir.code import KernelCode
from framefuse.ir.compiled import Chosen
from framefuse.ir.graph import Graph
from framefuse.ir.loops.key import key_of
from framefuse.ir.numbers import Symbol
from framefuse.ir.schedule import Offer, RunKernel, Schedule
from framefuse.ir.tuning import Tuning
from framefuse.options import Options
from framefuse.runtime.trial import Trial

Made = TypeVar("Made")


def compile_kernels(schedule: Schedule, options: Options) -> tuple[dict[int, KernelCode], Tuning | None]:
    """The code of each kernel by the number of its item, and what measuring gave in a mode that measures.

    Raises Uncompiled.
    """
    wanted = {index: item for index, item in enumerate(schedule.items) if isinstance(item, RunKernel)}
    graph = schedule.graph
    keys = {
        index: (key_of(item.kernel), item.device, _guarded(item, graph), *_hints(item, graph, options))
        for index, item in wanted.items()
    }
    distinct: dict[Hashable, RunKernel] = {key: wanted[index] for index, key in reversed(keys.items())}

    tuner = Tuner(_measuring(schedule, options), options.tune_seconds) if options.measures and distinct else None

    def begin(item: RunKernel) -> Begun:
        return _begun(item, graph, options, tuner.known(item) if tuner is not None else None)

    answers = _compiled(distinct, begin, lambda item: _backend(item, options), options.check)
    code_of: dict[Hashable, KernelCode] = {}
    for key, answer in answers.items():
        if isinstance(answer, Unsupported):
            raise Uncompiled(answer, distinct[key].device)
        code_of[key] = answer
    if tuner is not None:
        tuning: Tuning | None = tuner.run(distinct, code_of)
    elif options.measure_seconds and may_measure() and not behind.PROCESS.here:
        forms = Forms(_measuring(schedule, options, trial_of=quick), options.measure_seconds)
        tuning = forms.run(distinct, code_of)
    else:
        tuning = None
    codes = {index: code_of[key] for index, key in keys.items()}
    return compiled_together(wanted, codes, COMPILERS), tuning


def _compiled(
    wanted: Mapping[Hashable, RunKernel],
    begin: Callable[[RunKernel], Begun],
    backend_of: Callable[[RunKernel], Backend],
    check: bool,
) -> dict[Hashable, KernelCode | Unsupported]:
    """The code of each kernel, or why there is none. Where compiling is slow, each code is made once, in threads, what
    takes longest first; so none of them waits for code that another one makes.
    """

    def tried(item: RunKernel, step: Callable[[], Made]) -> Made | Unsupported:
        behind.PROCESS.checkpoint()
        try:
            return step()
        except Unsupported as error:
            return error
        except Exception as error:
            if check or not backend_of(item).slow:
                raise
            lines = str(error).strip().splitlines() or [""]
            return Unsupported(f"{type(error).__name__}: {lines[0][:200]}")

    def finished(job: tuple[RunKernel, Begun]) -> KernelCode | Unsupported:
        return tried(job[0], job[1].finish)

    begun: dict[Hashable, tuple[RunKernel, Begun]] = {}
    answers: dict[Hashable, KernelCode | Unsupported] = {}
    for key, item in wanted.items():
        made = tried(item, partial(begin, item))
        if isinstance(made, Unsupported):
            answers[key] = made
        else:
            begun[key] = item, made
    slow = next((of for of in map(backend_of, wanted.values()) if of.slow), None)
    made_of: dict[Hashable, KernelCode | Unsupported] = {}
    jobs = {one.key: (item, one) for item, one in begun.values()}
    if slow is not None and len(jobs) > 1:
        ordered = sorted(jobs, key=lambda key: -jobs[key][1].length)
        with ThreadPoolExecutor(slow.threads(len(jobs))) as pool:
            made_of = dict(zip(ordered, pool.map(lambda key: finished(jobs[key]), ordered), strict=True))
    for key, (item, one) in begun.items():
        there = made_of.get(one.key)
        whole = isinstance(there, Unsupported) or one is jobs[one.key][1]  # others take that code for their own sizes
        answers[key] = there if there is not None and whole else finished((item, one))
    return answers


def prepare(graph: Graph, options: Options) -> None:
    """Tells compilers that are slow to start that kernels of a graph come, of which fuse is about to decide."""
    for device, nodes in Counter(node.device for node in graph.nodes).items():
        compiler = backend(device, options.cpu_target)
        if compiler is not None and compiler.slow:
            compiler.prepare(nodes)


def choose_products(schedule: Schedule, options: Options) -> Chosen:
    """Measures the offers of a schedule; of those that exclude each other the one that gains most is taken."""
    if not schedule.offers:
        return Chosen()
    graph = schedule.graph
    keys = [
        (*(key_of(each.kernel) for each in (o.fused, o.kernel, *o.before) if each is not None), o.fused.device,
         *_hints(o.fused, graph, options))
        for o in schedule.offers
    ]  # fmt: skip
    distinct: dict[Hashable, Offer] = dict(zip(reversed(keys), reversed(schedule.offers), strict=True))
    code_of: dict[Hashable, KernelCode] = {}
    tuner = Tuner(_measuring(schedule, options), options.tune_seconds)
    tuning = tuner.products(distinct, code_of)
    won = [(tuner.found[key], offer) for key, offer in zip(keys, schedule.offers, strict=True) if key in code_of]
    taken: dict[int, Offer] = {}
    covered: set[int] = set()
    for _, offer in sorted(won, key=lambda pair: pair[0].best - pair[0].first):
        if offer.product[0] not in taken and not covered & offer.covers:
            taken[offer.product[0]] = offer
            covered |= offer.covers
    return Chosen(frozenset(offer.product for offer in taken.values()), tuning, code_of)


def _measuring(
    schedule: Schedule, options: Options, trial_of: Callable[[str], Trial | None] | None = None
) -> Measuring:
    """How the kernels of a schedule are compiled in several forms, and measured."""
    graph = schedule.graph
    return Measuring(
        schedule,
        lambda item, choice: compile_kernel(item, graph, options, choice),
        lambda item: _backend(item, options),
        lambda item: dict(_hints(item, graph, options)),
        keep=options.cache,
        trial_of=trial_of,
    )


def _backend(item: RunKernel, options: Options) -> Backend:
    compiler = backend(item.device, options.cpu_target)
    assert compiler is not None, "fuse makes kernels for known devices"
    return compiler


def _guarded(item: RunKernel, graph: Graph) -> bool:
    """Whether guards can hold what a kernel asks of its numbers: they know none that a call sets while it runs."""
    bound = {symbol for symbol, _, _ in graph.bound}
    return not (bound and any(bound & value.symbols for value in (*item.numbers, item.extent)))


def _hints(item: RunKernel, graph: Graph, options: Options) -> list[tuple[Symbol, int]]:
    """The recorded values of a kernel's numbers, for a compiler that chooses by them."""
    if not _backend(item, options).hinted:
        return []
    return [
        (number, value.evaluate({symbol: graph.hints.get(symbol, 64) for symbol in value.symbols}))
        for number, value in item.sizes.items()
    ]


def compile_kernel(item: RunKernel, graph: Graph, options: Options, choice: Choice | None = None) -> KernelCode:
    """The code of a kernel for its device; ``choice`` is one of its backend's choices."""
    return _begun(item, graph, options, choice).finish()


def _begun(item: RunKernel, graph: Graph, options: Options, choice: Choice | None) -> Begun:
    """A kernel for its device, emitted where its backend has that as a step; else nothing is done yet."""
    index = int(item.device.partition(":")[2] or 0)

    def load(binary: bytes, name: str, shared: int) -> int:
        return _native.load_module(binary, name, shared, index)

    special = Specialisation(dict(_hints(item, graph, options)), guarded=_guarded(item, graph), choice=choice)
    hurried = behind.PROCESS.hurried and item.device == "cpu"
    compiler, place = _backend(item, options), Place(item.device, load, options.cache, quick=hurried)
    return compiler.compile(item.kernel, special, place)
