"""Measures contestants that train a vision transformer, a process for each: first steps, steps in turn, memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch

from benchmarks.harness.processes import Failed, Process
from benchmarks.harness.report import Row, Say, Value
from benchmarks.training import vit_steps
from benchmarks.training.training_peak import ENVIRONMENT
from benchmarks.training.training_steps import SAME_GRADIENT, Curve, gradient_difference, loss_difference, verdict

SECONDS = 5.0  # of timing for the contestants of a dtype and mode
DTYPES = ("bfloat16", "float32")
SHORT = {"bfloat16": "bf16", "float32": "fp32", "max-autotune-no-cudagraphs": "max, no graphs"}  # for 80 columns
PARTS = {"": "model", "_loss": "loss", "_whole": "step"}  # what is compiled, by how the contestant's name ends
NAMES = ("framefuse", "torch", *PARTS.values())
COUNT, LEAST = 5, 3  # steps timed in a turn; turns at least


@dataclass(frozen=True)
class Settings:
    """What the command line says. ``only``: of NAMES; a compiler there leaves the other out, a part the other parts."""

    compilers: tuple[str, ...] = ("framefuse", "torch")
    dtypes: tuple[str, ...] = DTYPES
    modes: tuple[str, ...] = ("default",)
    only: tuple[str, ...] = ()
    whole: bool = False
    steps: vit_steps.Settings = field(default_factory=vit_steps.Settings)
    seconds: float = SECONDS

    def contestants(self) -> list[str]:
        """The names of what is measured in each mode beside eager."""
        compilers = [name for name in self.compilers if name in self.only] or self.compilers
        parts = [ending for ending, part in PARTS.items() if part in self.only] or list(PARTS)
        pairs = [(compiler, ending) for compiler in compilers for ending in parts]
        return [a + b for a, b in pairs if a == "framefuse" or b != "_whole" or self.whole]


@dataclass(eq=False)
class Entry:
    """One contestant: what was found of it so far, and its process while that runs."""

    name: str
    mode: str
    row: dict[str, Value]
    process: Process | None = None
    first: dict[str, Any] = field(default_factory=dict)

    def ask(self, command: str, *arguments: object) -> Any:
        """What its process answers; None where it failed, which the row says then."""
        try:
            return self.process.ask(command, *arguments) if self.process else None
        except Failed as error:
            return self.fail(str(error))

    def fail(self, reason: str) -> None:
        """Leaves it out from now on."""
        self.row |= {"equal": f"not run: {reason}", "follows": "not run"}
        self.process = None


def steps(settings: Settings) -> int:
    """How often `vit` reports progress."""
    names, modes = len(settings.contestants()), len(settings.modes)
    return 1 + len(settings.dtypes) * (2 * modes - 1 + 2 * (1 + names * modes))


def vit(say: Say, settings: Settings) -> list[Row]:
    """One row for eager and for each contestant and mode, in each dtype."""
    mode, *others = settings.modes
    first = {dtype: members(settings, dtype, mode, eager=True) for dtype in settings.dtypes}
    everything = [entry for group in first.values() for entry in group]
    with closing(everything):
        say(f"{settings.steps.model}: {len(everything)} processes start")
        start(everything, settings)
        for dtype in settings.dtypes:
            everything += in_dtype(say, settings, first[dtype], others)
    return [entry.row for dtype in settings.dtypes for entry in everything if entry.row["dtype"] == dtype]


def in_dtype(say: Say, settings: Settings, first: Sequence[Entry], others: Sequence[str]) -> list[Entry]:
    """Measures the contestants of the first mode of a dtype, whose processes run, and those of the other modes, which
    it gives.

    All of a mode take turns, and those beside which figures are stated, eager and torch.compile's default, stay for the
    other modes. Captured graphs keep their memory, so that all modes at once would not fit.
    """
    dtype = str(first[0].row["dtype"])
    said = f"{settings.steps.model}, {dtype}"
    stay = [entry for entry in first if entry.name == "eager" or is_default_torch(entry)]
    later: list[Entry] = []
    entries = list(first)
    with closing(later):
        for mode in (None, *others):
            if mode is not None:
                entries = members(settings, dtype, mode)
                later += entries
                say(f"{said}: {len(entries)} processes start")
                start(entries, settings)
            for entry in entries:
                say(f"{said}: first steps of {title(entry)}")
                entry.first = entry.ask("first") or {}
            together = [*entries, *(entry for entry in stay if entry not in entries)]
            say(f"{said}: {len(together)} columns in turn")
            compare(entries, first[0], together, settings.seconds)
            for entry in entries:
                say(f"{said}: memory of {title(entry)}")
                measure_memory(entry, settings)
            stay += [entry for entry in entries if is_default_torch(entry) and entry not in stay]
            leave([entry for entry in entries if entry not in stay])
    leave(first)
    return later


def members(settings: Settings, dtype: str, mode: str, eager: bool = False) -> list[Entry]:
    """The contestants of a mode, of which nothing is known yet."""
    return [made(name, mode, dtype) for name in ["eager"] * eager + settings.contestants()]


def made(name: str, mode: str, dtype: str) -> Entry:
    """One of them."""
    compiler, mark, part = name.partition("_")
    row: dict[str, Value] = {"dtype": dtype, "compiler": compiler, "mode": None, "part": None}
    if name != "eager":
        row |= {"mode": mode, "part": PARTS[mark + part], "short_mode": SHORT.get(mode, mode)}
    return Entry(name, mode, row | {"floats": SHORT[dtype]})


def title(entry: Entry) -> str:
    """The contestant in words."""
    row = entry.row
    return "eager" if entry.name == "eager" else f"{row['compiler']}, {row['mode']}, {row['part']}"


def is_default_torch(entry: Entry) -> bool:
    """Whether others are compared with it."""
    return entry.name.startswith("torch") and entry.mode == "default"


def process_of(entry: Entry, settings: Settings, environment: dict[str, str] | None = None) -> Process:
    """A new process for the contestant."""
    own = replace(settings.steps, dtype=str(entry.row["dtype"]), mode=entry.mode, threads=torch.get_num_threads())
    return Process("benchmarks.training.vit_steps", vit_steps.arguments(entry.name, own), environment)


def start(entries: Sequence[Entry], settings: Settings) -> None:
    """Starts a process for each; all are ready, and quiet, before the first is asked anything."""
    for entry in entries:
        entry.process = process_of(entry, settings)
    for entry in entries:
        assert entry.process is not None
        try:
            entry.process.answer()
        except Failed as error:
            entry.fail(str(error))


def leave(entries: Sequence[Entry]) -> None:
    """Ends the processes of these, all at a time."""
    there = [entry.process for entry in entries if entry.process is not None]
    for process in there:
        process.dismiss()
    for process in there:
        process.close()
    for entry in entries:
        entry.process = None


@contextmanager
def closing(entries: list[Entry]) -> Iterator[None]:
    """Ends every process that still runs at the end."""
    try:
        yield
    finally:
        leave(entries)


def in_turn(entries: Sequence[Entry], seconds: float) -> dict[int, float]:
    """Median seconds of a step of each entry whose process runs, by its id: short turns in a changing order, so that a
    slow second of the machine meets all alike.
    """
    one_round = sum(entry.first["step_s"] for entry in entries if entry.process) * (COUNT + vit_steps.WARM)
    samples: dict[int, list[float]] = {}
    for turn in range(max(LEAST, int(seconds / max(one_round, 1e-3)))):
        begin = turn % max(1, len(entries))
        for entry in [*entries[begin:], *entries[:begin]]:
            samples.setdefault(id(entry), []).extend(entry.ask("turn", COUNT) or [])
    return {place: median(taken) for place, taken in samples.items() if taken}


def compare(fresh: Sequence[Entry], eager: Entry, entries: Sequence[Entry], seconds: float) -> None:
    """Times the entries in turn and writes the figures of those just found into their rows."""
    medians = in_turn(entries, seconds)
    there = [entry for entry in entries if entry.process and id(entry) in medians]
    torch_default = {entry.name: medians[id(entry)] for entry in there if is_default_torch(entry)}
    for entry in (entry for entry in fresh if entry in there):
        taken, first = medians[id(entry)], entry.first
        entry.row |= {"step_ms": taken * 1e3, "runs": first["runs"], "steady_s": first["steady_s"]}
        entry.row["losses"] = " ".join(f"{loss:.6g}" for loss in first["losses"])
        entry.row |= {"first_s": first["seconds"][0], "second_s": first["seconds"][1]}
        if eager.process is None or entry is eager:
            entry.row |= {"equal": "yes", "follows": "yes"} if entry is eager else {"equal": "unknown: no eager"}
            continue
        ending = entry.name.removeprefix(str(entry.row["compiler"]))
        beside = torch_default.get("torch" + ending, torch_default.get("torch_loss"))
        entry.row["eager_ms"] = medians[id(eager)] * 1e3
        entry.row["times_eager"] = medians[id(eager)] / taken
        entry.row["times_torch"] = None if beside is None or is_default_torch(entry) else beside / taken
        entry.row["loss_difference"] = loss_difference(curve_of(first), curve_of(eager.first))
        entry.row["equal"] = follows(first, eager.first)
        entry.row["follows"] = str(entry.row["equal"]).partition(":")[0]


def curve_of(first: dict[str, Any]) -> Curve:
    """What a process said of its first steps; of the gradients only their norms."""
    norms = [None if norm is None else torch.tensor(norm) for norm in first["norms"]]
    return Curve(first["losses"], norms, first.get("seconds", []), vit_steps.WATCHED)


def follows(first: dict[str, Any], eager: dict[str, Any]) -> str:
    """ "yes" where losses, and the norms of the third step's gradients, differ from eager's by no more than a
    thousandth or than eager's own after a rounding of its weights: to bfloat16 under autocast.
    """
    expected = curve_of(eager)
    own = [curve_of(run) for run in eager["disturbed"]]
    bound = max([SAME_GRADIENT, *(gradient_difference(run, expected) for run in own)])
    return verdict(curve_of(first), expected, lambda: max(loss_difference(run, expected) for run in own), bound)


def measure_memory(entry: Entry, settings: Settings) -> None:
    """Writes the peak of a step into the row; on a CPU it needs a process whose heap is made for it."""
    if entry.process is None:
        return
    if settings.steps.device != "cpu":
        entry.row |= entry.ask("peak") or {}
        return
    other = Entry(entry.name, entry.mode, {}, process_of(entry, settings, ENVIRONMENT))
    with closing([other]):
        assert other.process is not None
        try:
            other.process.answer()
            other.process.ask("first")
            entry.row |= other.process.ask("peak")
        except Failed as error:
            entry.fail(str(error))
