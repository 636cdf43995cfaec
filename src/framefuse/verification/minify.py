"""Makes a program that is wrong, fails, crashes, hangs or is slow when compiled into one of a few lines."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from framefuse.errors import UserError, demand_folder, writing
from framefuse.ir.progress import telling
from framefuse.ir.values import Arguments, Function, Keywords
from framefuse.verification.case import Case, cases
from framefuse.verification.case_text import SLOWER, program_text
from framefuse.verification.eager_case import eager_case
from framefuse.verification.fault_case import stored
from framefuse.verification.runs import Program
from framefuse.verification.shrink import Shrinker
from framefuse.verification.slowness import Slower, slowness_of_all
from framefuse.verification.verify import last_call, program_of, verify

KINDS = ("wrong", "crash", "hang", "slow")
APART = ("crash", "hang")  # each attempt is a process of its own
SCRIPT = """
import sys, time, torch, framefuse
space, inputs, training = torch.load(sys.argv[1], weights_only=False)
names = dict(torch=torch, inf=float("inf"), nan=float("nan"))
exec(compile(space, "case", "exec"), names)
def run(f):
    begun = time.perf_counter()
    with torch.set_grad_enabled(training):
        results = [part for part in f(*inputs) if isinstance(part, torch.Tensor) and part.requires_grad]
        if results:
            torch.autograd.backward(results, [torch.ones_like(part) for part in results])
    return time.perf_counter() - begun
eager = max(run(names["f"]) for _ in range(2))
def start(f):
    begun = time.perf_counter()
    framefuse.compile(f, options={"verify": False, "cache": False})(torch.ones(2))
    return time.perf_counter() - begun
start(lambda x: x + 1)
print(eager, start(lambda x: x * 3), flush=True)
f = framefuse.compile(names["f"], options={"verify": False})
run(f), run(f)
"""
EAGER = 20  # times eager's time that two calls may take, one of them recorded, behind what it takes to compile
# To compile one operation takes 20 ms where all is imported. So often that, and so often for each call, is more than a
# program takes on a machine that is as busy; what it imports needs a few seconds.
COMPILE, CALL, FLOOR = 40.0, 2.0, 3.0
AGAIN = 3  # times that, for what was found


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
    if not seconds > 0:
        raise UserError(f"seconds is {seconds!r}. Give how long a program may take, as 30.0")
    if path is not None:
        demand_folder(path)
    if isinstance(function, (str, Path)):
        function, args, training = stored(Path(function))
    name, program, options = program_of(function, args, kwargs, training)
    small = None
    for quick in (True, False) if kind in APART else (False,):  # what is given little time may be no hang
        small = _smallest(name, kind, program, options, seconds, quick)
        if small is not None:
            break
    if small is not None:
        call, line = last_call(small)
        text = program_text(small, f"{kind}: {call}{f' of {line}' if line else ''}", slow=kind == "slow")
        return _written(Minified(kind, call, line, text, case=small), path)
    if kind == "wrong":  # the trace may be right, and serve what it was not made for
        found = verify(function, args, kwargs, training)
        if found.text:
            return _written(Minified(kind, found.call, found.line, found.text), path)
    if kind == "slow":
        raise UserError(_not_slow(name, slowness_of_all(program, options)))
    raise UserError(f"no stretch of {name} shows this by itself. Ask framefuse.verify, or try another kind=")


def _not_slow(name: str, found: float) -> str:
    """What is said of a program none of whose stretches is slow, which takes ``found`` of eager's time."""
    takes = f"compiled, {name} takes {found:.2f} of eager's time"
    if found <= SLOWER:
        return f"{takes}: it is not slow. Time it by framefuse.explain(f, *args, time=True)"
    advice = "Ask framefuse.explain(f, *args, time=True) for the price of each break"
    return f"{takes}, but none of its stretches is slow: what lies between them is. {advice}"


def _smallest(name: str, kind: str, program: Program, options: Keywords, seconds: float, quick: bool) -> Case | None:
    """The smallest case that shows it; where attempts are ``quick``, it shows it in several times that as well."""
    shows = _shows(kind, options, seconds, 1 if quick else 0)
    shrinker = Shrinker(shows, seconds=20 * seconds)
    with telling(lambda: f"minifying {name}", shrinker.state):
        case = next((case for case in _candidates(kind, program, options) if shows(case)), None)
        small = None if case is None else shrinker.shrunk(case)
        if quick and small is not None and not _shows(kind, options, seconds, AGAIN)(small):
            return None
    return small


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
    with writing(path):
        Path(path).write_text(found.text, encoding="utf-8")
    return replace(found, path=Path(path))


def _shows(kind: str, options: Keywords, seconds: float, quick: int) -> Callable[[Case], bool]:
    """Whether a case is of the kind that is looked for."""
    if kind == "wrong":
        return lambda case: bool(case.differs(options)[0])
    if kind == "slow":
        return Slower(options)
    return lambda case: _apart(case, seconds, quick) == kind


def _apart(case: Case, seconds: float, quick: int = 0) -> str:
    """How a process of its own ends that runs the case: ``crash``, ``hang`` or nothing. It is given ``seconds``, where
    eager does with less, or ``quick`` times what compiling mostly takes.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, script = Path(folder) / "case.pt", Path(folder) / "case.py"
        torch.save((case.body[0], case.inputs, case.training), given)
        script.write_text(SCRIPT, encoding="utf-8")
        command = [sys.executable, str(script), str(given)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            line = process.stdout.readline() if process.stdout is not None else b""  # imports are not what is timed
            try:
                ended = process.wait(_patience(line.split(), case, seconds, quick))
            except subprocess.TimeoutExpired:
                process.kill()
                return "hang"
    return "crash" if ended < 0 else ""


def _patience(took: Sequence[bytes], case: Case, seconds: float, quick: int) -> float:
    """How long a process may take, which tells the seconds of eager and of compiling next to nothing."""
    eager, start = map(float, took) if len(took) == 2 else (0.0, 0.0)
    whole = max(seconds, EAGER * eager)
    mostly = max(FLOOR, start * (COMPILE + CALL * len(case.graph.nodes)) + EAGER * eager)
    return min(whole, quick * mostly) if quick else whole
