"""Runs a program eagerly, compiled, and on twice the digits; names the stage, the call and the line that differs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch

from framefuse import api
from framefuse.errors import UserError, kind_of
from framefuse.ir.values import Arguments, Function, Keywords, Value
from framefuse.runtime.function import behind, compiled_function
from framefuse.verification.calls import first_other
from framefuse.verification.case import Case, cases
from framefuse.verification.case_text import program_text
from framefuse.verification.eager_case import eager_case
from framefuse.verification.effect_case import EffectCase, effect_case
from framefuse.verification.guard_case import GuardCase, guard_case
from framefuse.verification.other_arguments import variants
from framefuse.verification.program_state import state_of
from framefuse.verification.runs import Outcome, Program, difference, tensors
from framefuse.verification.shrink import Shrinker, behind_view

# What each backend leaves out, the shortest way first: the stage that comes in is at fault where this one differs and
# those before it do not.
WAYS = (("aot_eager", "lower"), ("python", "fuse"), ("native", "codegen"))

FAILED = re.compile(r"framefuse failed on it in (capture|guards|lower|autodiff|fuse|codegen|runtime|driver|ir)/")
RECORDINGS = 8  # calls after which a program that records further each time is taken as it is


@dataclass(frozen=True, slots=True)
class Verification:
    """What :func:`framefuse.verify` found. ``ok`` says that compiled code is as near to the exact results as eager is.

    Attributes:
        where, how: which part differs (``result``, ``gradients``, ``arguments``, ``state``, ``aliases``, ``error``).
        stage: the room of the compiler that the fault is in: ``guards``, ``capture``, ``lower``, ``autodiff``,
            ``fuse``, ``codegen``, or ``runtime`` where no stretch of the program shows it alone.
        call, line: the torch call that differs first, and the user's line.
        case: the smallest program that shows it; ``text`` is that as a file.
        exact: whether there was a run on twice the digits to compare with.
        compiled: whether anything of the program ran compiled, so that there was something to compare.
    """

    name: str
    where: str = ""
    how: str = ""
    stage: str = ""
    call: str = ""
    line: str = ""
    case: Case | GuardCase | EffectCase | None = field(default=None, repr=False)
    exact: bool = True
    checked: tuple[str, ...] = ()
    compiled: bool = True

    @property
    def ok(self) -> bool:
        return not self.where

    @property
    def text(self) -> str:
        """The smallest program that shows the fault, as a file that runs and is a test; empty where there is none."""
        if isinstance(self.case, (GuardCase, EffectCase)):
            return self.case.text
        return program_text(self.case, f"{self.stage}: {self.call} differs ({self.where})") if self.case else ""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        measure = "the exact results (float64) as eager is" if self.exact else "eager's results as rounding allows"
        if self.ok and not self.compiled:
            return f"{self.name}: nothing of it runs compiled, so there is nothing to compare; see framefuse.explain"
        if self.ok:
            return f"{self.name}: compiled code is as near to {measure} ({', '.join(self.checked)})"
        lines = [f"{self.name}: compiled code differs in its {self.where}: {self.how}", f"stage: {self.stage}"]
        if self.call:
            lines.append(f"first call that differs: {self.call}{f'  ({self.line})' if self.line else ''}")
        if self.case is not None:
            lines += ["smallest program that shows it:", "", self.text]
        else:
            lines.append("No stretch of it alone shows this. Report it with the program")
        return "\n".join(lines)


UNVERIFIED = {"verify": False}  # what is compiled to be compared is not itself compared


def verify(function: Function, args: Arguments, kwargs: Keywords, training: bool | None) -> Verification:
    """What :func:`framefuse.verify` gives."""
    return _Verifier(*program_of(function, args, kwargs, training)).verified()


def program_of(
    function: Function, args: Arguments, kwargs: Keywords, training: bool | None
) -> tuple[str, Program, dict[str, Value]]:
    """The name of a program, its call of the function that was compiled or is to be, and the options of that. Faults of
    the compiler raise under these.
    """
    if not callable(function):
        raise UserError(f"{kind_of(function)} is not callable. Give a function or an nn.Module")
    if training is not None and not isinstance(training, bool):
        raise UserError(f"training is {training!r}. Give True, False or None")
    inner, before, named = behind(function)
    compiled = compiled_function(inner)
    options: dict[str, Value] = {**UNVERIFIED, "check": True}
    if compiled is not None:
        options |= {"numerics": compiled.options.numerics, "cpu_target": compiled.options.cpu_target}
        function = compiled.owner if compiled.owner is not None else compiled.function
        args, kwargs = (*before, *args), {**named, **kwargs}
    state = state_of(function, (*args, *kwargs.values()))
    if training is None:
        training = torch.is_grad_enabled() and _trains(state.tensors.values(), (args, kwargs))
    name = getattr(function, "__qualname__", type(function).__name__)
    return name, Program(function, args, kwargs, state, training), options


def _trains(owned: Iterable[torch.Tensor], given: Value) -> bool:
    return any(tensor.requires_grad for tensor in (*owned, *tensors(given)))


@dataclass(frozen=True, slots=True)
class _Verifier:
    name: str
    program: Program
    options: Keywords

    def verified(self) -> Verification:
        with self.program.begun():
            return self._verified()

    def _verified(self) -> Verification:
        reference = self.program.reference()
        if reference.eager.error:
            raise UserError(f"{self.name} fails under eager: {reference.eager.error}. Give arguments that it takes")
        compiled = self.compiled("native")
        found = Verification(self.name, exact=reference.exact is not None)
        for number, outcome in enumerate(self.runs(compiled, self.program)):
            turn = "compiled call" if number else "recorded call"
            where, how = difference(outcome, reference)
            if where:
                return self.placed(replace(found, where=where, how=f"{how} ({turn})"), self.program)
        state, checked = compiled_function(compiled), ["recorded call", "compiled call"]
        if state is not None and not state.products:
            return replace(found, compiled=False)
        for other in variants(self.program):
            progress(f"{self.name}: {other.text}")
            where, how = self.answers(compiled, other.program)
            if where:
                how = f"{how} (called after other arguments: {other.text})"
                fresh, _ = self.answers(self.compiled("native"), other.program)
                if not fresh:
                    case = guard_case(other.text, other.was, other.now, self.options)
                    return replace(found, where=where, how=how, stage="guards", call=other.text, case=case)
                return self.placed(replace(found, where=where, how=how), other.program)
            checked.append(other.text)
        progress("")
        return replace(found, checked=tuple(checked))

    def compiled(self, backend: str) -> Function:
        made: Function = api.compile(self.program.function, backend=backend, options=self.options)
        return made

    def answers(self, compiled: Function, program: Program) -> tuple[str, str]:
        """How compiled code differs on a program that eager runs; empty where it does not."""
        reference = program.reference()
        if reference.eager.error:
            return "", ""
        answers = (difference(outcome, reference) for outcome in self.runs(compiled, program))
        return next((found for found in answers if found[0]), ("", ""))

    def runs(self, compiled: Function, program: Program) -> Iterator[Outcome]:
        """Runs of compiled code: a recorded one, and others until a recording gets no further than that before."""
        progress(f"{self.name}: compiled calls")
        yield program.run(compiled)
        state = compiled_function(compiled)
        for _ in range(RECORDINGS):
            made = state and (len(state.products), state.ended)
            yield program.run(compiled)
            if state is None or (len(state.products), state.ended) == made:
                return

    def smallest(self, case: Case | None) -> Case | None:
        """A smaller case that shows a fault; None where the case shows none."""
        if case is None or not case.differs(self.options)[0]:
            return None
        progress(f"{self.name}: making it smaller")
        return Shrinker(lambda tried: bool(tried.differs(self.options)[0])).shrunk(case)

    def placed(self, found: Verification, program: Program) -> Verification:
        """The verification with the stage, the call, the line and the smallest program."""
        written = found.how.partition(":")[0]
        if found.where == "state" and written in [place.text for place in program.state.places]:
            return replace(found, stage="capture", call=written, case=effect_case(written, self.options))
        stretches = cases(program, self.options)
        failed = FAILED.search(found.how)
        if failed is not None:  # the compiler says in which room; where it captured nothing, eager's calls show it
            eager = eager_case(program)
            placed = located(found, [*stretches, *([eager] if eager is not None else [])], self.options)
            return replace(placed, stage=failed[1])
        if self.answers(self.compiled("eager"), program)[0]:
            call, line = first_other(program, stretches)
            return replace(found, stage="capture", call=call, line=line, case=self.smallest(eager_case(program)))
        return located(found, stretches, self.options)


def progress(text: str) -> None:
    """Shows on a terminal what is being run, in one line."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


def located(found: Verification, stretches: Iterable[Case], options: Keywords) -> Verification:
    """The verification with the stage, the call, the line and the smallest program, by the stretches of the program."""
    for case in stretches:
        if case.differs(options)[0]:
            progress(f"{found.name}: making it smaller")
            small = Shrinker(lambda tried: bool(tried.differs(options)[0])).shrunk(case)
            small, blamed = behind_view(small, lambda tried: bool(tried.differs(options)[0]))
            call, line = last_call(small) if blamed is None else named(blamed)
            progress("")
            return replace(found, stage=stage_of(small, options), call=call, line=line, case=small)
    return replace(found, stage="runtime")


def stage_of(case: Case, options: Keywords) -> str:
    """The first stage with which a case differs."""
    for backend, stage in WAYS:
        where, _ = case.differs(options, backend)
        if where:
            return "autodiff" if stage == "lower" and where == "gradients" else stage
    return "codegen"


def last_call(case: Case) -> tuple[str, str]:
    """The call that gives the result of a case, and its line."""
    call = [node for node in case.graph.nodes if node.op not in ("placeholder", "output")][-1:]
    if not call:
        return "", ""
    return named(call[0])


def named(call: torch.fx.Node) -> tuple[str, str]:
    """What a call calls, and its line."""
    target = call.target
    return target if isinstance(target, str) else target.__name__, str(call.meta.get("stack_trace") or "")
