"""Runs a program eagerly and compiled, call by call in two equal worlds, and says how the worlds come to differ."""

from __future__ import annotations

import contextlib
import dis
import io
import itertools
import linecache
import os
import random
import re
import signal
import sys
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.fuzz.compare import ROUNDING, Comparison, Versions
from tests.fuzz.program import Program
from torch.utils.hooks import RemovableHandle

import framefuse

SECONDS = 20
NOTRACE = False
NODE = re.compile(r"grad_fn=<[\w.]+>")  # a compiled graph is one node of autograd, with a name of its own
_count = itertools.count(1)
Given = tuple[tuple[Any, ...], dict[str, Any]]
Calls = Generator[Given, Any, None]


class Late(BaseException):
    """A program takes too long; no handler of the program may catch it."""


class Difference(AssertionError):
    """Compiled code did something else than eager."""


@dataclass
class Tally:
    """What a program exercised: calls, those answered by compiled code, traces, errors raised, stops by cause."""

    calls: int = 0
    hits: int = 0
    traces: int = 0
    errors: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


class World:
    """One execution of the program's text: its globals, the generator of its calls, and what was printed."""

    def __init__(self, program: Program, compiler: Callable[[Any], Any]) -> None:
        self.file = f"<program {next(_count)}>"
        self.space: dict[str, Any] = {"__name__": "program"}
        exec(compile(program.source, self.file, "exec", dont_inherit=True), self.space)
        linecache.cache[self.file] = (len(program.source), None, program.source.splitlines(True), self.file)
        self.target = compiler(self.space["target"])
        self.calls: Calls = self.space["calls"]()
        self.begun = False
        self.handles = 0
        self.printed = io.StringIO()  # one for all calls, so that sys.stdout stays what it was when recorded
        self.results: list[Any] = []
        self.versions: Versions = {}
        self.given: Given = ((), {})
        self.result: Any = None
        self.error: BaseException | None = None
        self.grad = False
        self.random: Any = None
        self.trains = program.trains

    def prepare(self, grad: bool) -> bool:
        """Goes on to the arguments of the next call, telling what the last one gave; False after the last."""
        with torch.set_grad_enabled(grad), self._own_names():
            try:
                following = self.calls.send(self.result if self.begun else None)
            except StopIteration:
                following = None
            self.begun = True
        if following is not None:
            self.given = following
            for tensor in tensors_in(following) if self.trains else ():
                if tensor.is_floating_point() and tensor.is_leaf and not tensor.is_inference():
                    tensor.requires_grad_()
        self.result, self.error, self.grad, self.random = None, None, grad, None
        self.printed.seek(0)
        self.printed.truncate()
        return following is not None

    @contextlib.contextmanager
    def _own_names(self) -> Iterator[None]:
        """Torch counts hooks by one counter for all."""
        before, RemovableHandle.next_id = RemovableHandle.next_id, self.handles
        try:
            yield
        finally:
            self.handles, RemovableHandle.next_id = RemovableHandle.next_id, before

    def step(self, grad: bool) -> None:
        """Makes the call."""
        args, kwargs = self.given
        for generator in generators():  # torch.manual_seed costs a millisecond: it asks after each device
            generator.manual_seed(7)
        random.seed(7)
        with contextlib.redirect_stdout(self.printed), torch.set_grad_enabled(grad), self._own_names():
            try:
                self.result = self.target(*args, **kwargs)
            except Exception as error:
                self.error = error
            self.grad = torch.is_grad_enabled()
        self.random = [each.get_state().numpy().tobytes() for each in generators()], random.getstate()

    def gradients(self) -> Any:
        """The gradients of the arguments for what the call gave, None where it gave none; or the error."""
        if self.error is not None:
            return None
        with torch.enable_grad():
            try:  # of some views autograd refuses to say even whether they are leaves
                given = (self.given, self.space.get("LEAVES", ()))
                leaves = [tensor for tensor in tensors_in(given) if tensor.requires_grad and tensor.is_leaf]
                found = (self.result, self.given) if "LEAVES" in self.space else self.result  # written back as well
                results = [t for t in tensors_in(found) if t.requires_grad and t.is_floating_point()]
                if not leaves or not results:
                    return None
                weights = [torch.arange(t.numel()).reshape(t.shape).to(t.dtype).cos() for t in results]
                total = sum((t * weight).sum() for t, weight in zip(results, weights, strict=True))
                return torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
            except RuntimeError as error:
                return f"{type(error).__name__}: {str(error)[:60]}"  # the rest names nodes

    def raised(self) -> tuple[Any, ...]:
        """The exception as the user sees it: type, text, causes, and the program's own frames of the traceback."""
        error, found = self.error, []
        while error is not None:
            frames = [each for each in lines(error) if each[0].co_filename == self.file]
            names = [(code.co_name, line) for code, line in frames]
            found.append((type(error).__name__, str(error), names if not NOTRACE else 0))
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return tuple(found)

    def roots(self) -> dict[str, Any]:
        """Everything that the program can still see: state, arguments, this result and earlier ones."""
        frame = self.calls.gi_frame  # type: ignore[attr-defined]
        hidden = (types.ModuleType, types.FunctionType)
        state = {
            name: value
            for name, value in self.space.items()
            if not name.startswith("__") and not isinstance(value, hidden)
        }
        local = dict(frame.f_locals) if frame is not None else {}
        return {"state": state, "between": local, "given": self.given, "result": self.result, "earlier": self.results}


def generators() -> list[torch.Generator]:
    """Those that the programs' operations draw from."""
    device = torch.get_default_device()
    return [torch.default_generator, *([torch.cuda.default_generators[0]] if device.type == "cuda" else [])]


def lines(error: BaseException) -> Iterator[tuple[types.CodeType, int]]:
    """The code and the line of each frame of a traceback.

    CPython 3.11 runs some pairs of instructions as one once a function is warm, and then names the first of them where
    the second finds a local unbound: its line is that of the second here, as it is in a function that is not warm.
    """
    step = error.__traceback__
    while step is not None:
        code, line = step.tb_frame.f_code, step.tb_lineno
        if isinstance(error, UnboundLocalError):
            pair = itertools.islice((i for i in dis.get_instructions(code) if i.offset >= step.tb_lasti), 2)
            reads = [i for i in pair if i.opname.startswith("LOAD_FAST") and f"'{i.argval}'" in str(error)]
            if reads and reads[0].positions is not None:
                line = reads[0].positions.lineno or line
        yield code, line
        step = step.tb_next


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts, each once, in order."""
    found: dict[int, torch.Tensor] = {}

    def walk(part: Any, depth: int) -> None:
        if isinstance(part, torch.Tensor):
            found.setdefault(id(part), part)
        elif depth < 4 and isinstance(part, (tuple, list)):
            for each in part:
                walk(each, depth + 1)
        elif depth < 4 and isinstance(part, dict):
            for each in part.values():
                walk(each, depth + 1)

    walk(value, 0)
    return list(found.values())


def run(program: Program, seconds: int = SECONDS) -> Tally:
    """Runs the program in both worlds; raises Difference, headed by what differs and followed by the program."""
    before = signal.signal(signal.SIGPROF, _late)  # of the process's own time: a busy machine is no difference
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _run(program, seconds)
    except Difference as difference:
        raise Difference(f"{difference}\n\n{program}") from None
    except Late:
        raise Difference(f"no end after {seconds} s of work\n\n{program}") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _late(*_: Any) -> None:
    raise Late


def compiler_of(program: Program) -> Callable[[Any], Any]:
    def compiled(target: Any) -> Any:
        return framefuse.compile(target, dynamic=program.dynamic, backend=program.backend)

    return compiled


def _run(program: Program, seconds: int) -> Tally:
    os.environ.pop("FRAMEFUSE_FUZZ", None)
    eager, compiled = World(program, lambda target: target), World(program, compiler_of(program))
    tally = Tally()
    state = compiled.target.__framefuse__
    try:
        while eager.prepare(program.grad):
            compiled.prepare(program.grad)
            problem = difference(eager, compiled)  # learns the versions of all tensors
            if problem:
                raise Difference(f"before call {tally.calls + 1}: {problem}")
            state.attempts.waits.clear()  # a failed recording is tried again at the next call, not four calls later
            begun = time.process_time()
            try:
                eager.step(program.grad)
            except Late:
                if time.process_time() - begun > seconds / 2:  # a program without an end: a list grows as it is read
                    return tally
                raise
            compiled.step(program.grad)
            tally.calls += 1
            tally.errors += eager.error is not None
            problem = difference(eager, compiled) or unequal(compiled.gradients(), eager.gradients())
            if problem:
                raise Difference(f"call {tally.calls}: {problem}")
            for world in (eager, compiled):
                world.results = [world.result, *world.results[:2]]
    finally:
        tally.hits, tally.traces = state.dispatch.hits, len(state.products)
        tally.reasons.update({reason.code: count for reason, count in state.reasons.items()})
        for world in (eager, compiled):
            linecache.cache.pop(world.file, None)
            world.calls.close()  # type: ignore[attr-defined]
    return tally


def difference(eager: World, compiled: World) -> str:
    """How the worlds differ after the same call; empty when they do not."""
    if eager.raised() != compiled.raised():
        return f"raised {compiled.raised()}, eager {eager.raised()}"
    said, expected = (NODE.sub("grad_fn", world.printed.getvalue()) for world in (compiled, eager))
    if said != expected:
        return f"printed {said!r}, eager {expected!r}"
    if eager.random != compiled.random:
        return "left other random states"
    if eager.grad != compiled.grad:
        return f"left gradient mode {compiled.grad}, eager {eager.grad}"
    comparison = Comparison(eager.versions, compiled.versions)
    return comparison.compare(compiled.roots(), eager.roots())


def unequal(compiled: Any, eager: Any) -> str:
    """How the gradients of the same call differ; empty when they do not."""
    if not isinstance(compiled, tuple) or not isinstance(eager, tuple):
        return "" if compiled == eager else f"gradients: {compiled}, eager {eager}"
    for place, (a, e) in enumerate(zip(compiled, eager, strict=True)):
        if (a is None) != (e is None):
            return f"gradient {place}: {a}, eager {e}"
        rounding = 0.0 if a is None else max(1e-4, ROUNDING[e.dtype])
        same = a is None or (a.dtype == e.dtype and a.shape == e.shape)
        if not same or (a is not None and not torch.allclose(a, e, rounding, rounding, equal_nan=True)):
            return f"gradient {place}: {a.tolist()}, eager {e.tolist()}"
    return ""


if sys.flags.optimize:
    raise RuntimeError("programs use assert")
