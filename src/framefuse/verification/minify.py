"""Makes a program that is wrong, fails, crashes, hangs or is slow when compiled into one of a few lines."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import torch

from framefuse import api
from framefuse.errors import UserError
from framefuse.ir.values import Arguments, Function, Keywords
from framefuse.verification.case import Case, cases
from framefuse.verification.case_text import SLOWER, program_text
from framefuse.verification.eager_case import eager_case
from framefuse.verification.fault_case import stored
from framefuse.verification.runs import Program, copied, mapped
from framefuse.verification.shrink import Shrinker
from framefuse.verification.verify import UNVERIFIED, last_call, program_of, verify

KINDS = ("wrong", "crash", "hang", "slow")
APART = ("crash", "hang")  # each attempt is a process of its own
ROUNDS = 7  # calls of which a time is the median
SCRIPT = """
import sys, torch, framefuse
space, inputs, training = torch.load(sys.argv[1], weights_only=False)
framefuse.compile(torch.neg)(torch.ones(2))
print("ready", flush=True)
names = dict(torch=torch, inf=float("inf"), nan=float("nan"))
exec(compile(space, "case", "exec"), names)
f = framefuse.compile(names["f"], options={"verify": False})
for _ in range(2):
    with torch.set_grad_enabled(training):
        results = [part for part in f(*inputs) if isinstance(part, torch.Tensor) and part.requires_grad]
        if results:
            torch.autograd.backward(results, [torch.ones_like(part) for part in results])
"""


@dataclass(frozen=True, slots=True)
class Minified:
    """The smallest program that was found: ``text`` is it as a file that runs and is a test, ``path`` where it was
    written; ``call`` and ``line`` are its last torch call and the user's line of that.
    """

    kind: str
    call: str
    line: str
    text: str
    path: Path | None = None
    case: Case | None = field(default=None, repr=False)

    def __str__(self) -> str:
        written = f"\nwritten to {self.path}" if self.path is not None else ""
        return f"{self.kind}: {self.call}{f'  ({self.line})' if self.line else ''}\n\n{self.text}{written}"


def minify(
    function: Function | str | Path,
    args: Arguments,
    kwargs: Keywords,
    path: str | Path | None,
    kind: str,
    training: bool | None,
    seconds: float,
) -> Minified:
    """What :func:`framefuse.minify` gives."""
    if kind not in KINDS:
        raise UserError(f"kind is {kind!r}. Choose one of: {', '.join(KINDS)}")
    if isinstance(function, (str, Path)):
        function, args, training = stored(Path(function))
    name, program, options = program_of(function, args, kwargs, training)
    shows = _shows(kind, options, seconds)
    case = next((case for case in _candidates(kind, program, options) if shows(case)), None)
    if case is not None:
        small = Shrinker(shows, seconds=20 * seconds).shrunk(case)
        call, line = last_call(small)
        text = program_text(small, f"{kind}: {call}{f' of {line}' if line else ''}", slow=kind == "slow")
        return _written(Minified(kind, call, line, text, case=small), path)
    if kind == "wrong":  # the trace may be right, and serve what it was not made for
        found = verify(function, args, kwargs, training)
        if found.text:
            return _written(Minified(kind, found.call, found.line, found.text), path)
    raise UserError(f"no stretch of {name} shows this by itself. Ask framefuse.verify, or try another kind=")


def _candidates(kind: str, program: Program, options: Keywords) -> Iterator[Case]:
    """The stretches that may show it: what framefuse captures, and the calls that eager makes. What ends or stops a
    process is not compiled in this one.
    """
    if kind not in APART:
        yield from cases(program, options)
    eager = eager_case(program)  # what was captured may be what is wrong
    if eager is not None:
        yield eager


def _written(found: Minified, path: str | Path | None) -> Minified:
    """The program with the file that it was written to, if it was to be."""
    if path is None:
        return found
    Path(path).write_text(found.text, encoding="utf-8")
    return replace(found, path=Path(path))


def _shows(kind: str, options: Keywords, seconds: float) -> Callable[[Case], bool]:
    """Whether a case is of the kind that is looked for."""
    if kind == "wrong":
        return lambda case: bool(case.differs(options)[0])
    if kind == "slow":
        return lambda case: _slowness(case, options) > SLOWER
    return lambda case: _apart(case, seconds) == kind


def _apart(case: Case, seconds: float) -> str:
    """How a process of its own ends that runs the case: ``crash``, ``hang`` or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        given, script = Path(folder) / "case.pt", Path(folder) / "case.py"
        torch.save((case.body[0], case.inputs, case.training), given)
        script.write_text(SCRIPT, encoding="utf-8")
        command = [sys.executable, str(script), str(given)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            if process.stdout is not None:
                process.stdout.readline()  # the imports, and the start on a busy machine, are not what is timed
            try:
                ended = process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                return "hang"
    return "crash" if ended < 0 else ""


def _slowness(case: Case, options: Keywords) -> float:
    """The time of a compiled call over that of eager's, medians of interleaved calls."""
    program = case.program()
    compiled = api.compile(program.function, options={**UNVERIFIED, **options})
    inputs = mapped(case.inputs, copied)
    times: tuple[list[float], list[float]] = ([], [])
    with torch.set_grad_enabled(case.training):
        for turn in range(ROUNDS + 2):
            for column, function in zip(times, (program.function, compiled), strict=True):
                begun = time.perf_counter()
                function(*inputs)
                if turn >= 2:
                    column.append(time.perf_counter() - begun)
    return median(times[1]) / median(times[0])
