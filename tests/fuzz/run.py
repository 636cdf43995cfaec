"""Runs many generated programs on all cores, for `make fuzz`; prints the first one that differs, cut down."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

CHUNK = 300  # programs that Hypothesis draws in one process; the process then ends, and its memory with it
SILENCE = 600  # seconds without a sign of life after which a process counts as hanging, also on a busy machine
KINDS = ("writes", "training", "sequences")
SHRINKING = 60  # seconds that a failing program may take to be cut down


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--programs", type=int, default=20_000, help="how many different programs to run")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; chunk k draws from seed + k")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--go-on", action="store_true", help="collect differences instead of ending at the first")
    parser.add_argument("--writes", action="store_true", help="only programs about memory and history")
    parser.add_argument("--training", action="store_true", help="only programs that train")
    parser.add_argument("--sequences", action="store_true", help="only programs that are given sizes in sequences")
    parser.add_argument("--chunk", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--last", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.chunk is not None:
        draw(options.chunk, options.last, next((kind for kind in KINDS if getattr(options, kind)), ""))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("XDG_CACHE_HOME", folder)  # the user's own cache stays as it is
        further = [f"--{kind}" for kind in KINDS if getattr(options, kind)]
        return Run(options.programs, options.seed, options.workers, options.go_on, Path(folder), further).run()


# ---- one process -----------------------------------------------------------------------------------------------------


def draw(seed: int, last: Path, kind: str = "") -> None:
    """Runs the programs of one seed; writes a line of JSON for every few, and one for a difference."""
    os.environ.setdefault("FRAMEFUSE_CHECK", "1")
    import torch
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as from_seed
    from tests.fuzz.oracle import Difference, run
    from tests.fuzz.program import Program, programs
    from tests.fuzz.sequences import sequence_programs
    from tests.fuzz.training import training_programs
    from tests.fuzz.writes import writing_programs

    torch.set_num_threads(1)
    strategies = {"writes": writing_programs, "training": training_programs, "sequences": sequence_programs}
    seen: set[Program] = set()
    smallest: list[str] = []  # the shortest text of a difference so far
    failed_at: list[float] = []
    count: Counter[str] = Counter()

    def report() -> None:
        print(json.dumps(count), flush=True)
        count.clear()

    def end() -> None:
        """Shrinking goes from one program to the next for minutes; the smallest so far is small enough."""
        print(json.dumps({"difference": smallest[0]}), flush=True)
        os._exit(0)

    @from_seed(seed)
    @settings(max_examples=CHUNK, database=None, deadline=None, report_multiple_bugs=False,
              phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(strategies.get(kind, programs)())
    def each(program: Program) -> None:
        if failed_at and time.monotonic() - failed_at[0] > SHRINKING:
            end()
        if not failed_at and program in seen:
            return
        seen.add(program)
        last.write_text(str(program))
        try:
            tally = run(program)
        except Difference as difference:
            smallest[:] = [min([*smallest, str(difference)], key=len)]
            failed_at.append(time.monotonic())
            raise
        if failed_at:
            return
        grad = "trains" if program.trains else "grad" if program.grad else "no grad"
        count.update(programs=1, calls=tally.calls, hits=tally.hits, traces=tally.traces, errors=tally.errors)
        count.update([program.backend, grad, *(["hit"] if tally.hits else [])])
        count.update({f"[{code}]": number for code, number in tally.reasons.items()})
        if count["programs"] >= 10:
            report()

    try:
        each()
    except Difference:
        end()
    report()


# ---- all processes ---------------------------------------------------------------------------------------------------


class Run:
    """Keeps the workers busy and adds up what they report."""

    def __init__(
        self, programs: int, seed: int, workers: int, go_on: bool, folder: Path, further: Sequence[str] = ()
    ) -> None:
        self.programs, self.seed, self.workers, self.go_on, self.folder = programs, seed, workers, go_on, folder
        self.further = further
        self.total: Counter[str] = Counter()
        self.differences: list[str] = []
        self.lock = threading.Lock()
        self.console = Console()
        self.started = time.monotonic()

    def run(self) -> int:
        """Runs until enough programs have passed or one differs; the exit status."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self.workers)]
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task("programs", total=self.programs)
            for thread in threads:
                thread.start()
            told = 0
            while any(thread.is_alive() for thread in threads):
                time.sleep(0.5)
                if not self.console.is_terminal and self.total["programs"] >= told + 500:  # a log has no bar
                    told = self.total["programs"]
                    self.console.print(f"{told} programs, {self._rate()}")
                progress.update(task, completed=self.total["programs"], description=self._rate())
        self.console.print(self._summary(), markup=False, highlight=False, soft_wrap=True)
        return 1 if self.differences else 0

    def _done(self) -> bool:
        return self.total["programs"] >= self.programs or (bool(self.differences) and not self.go_on)

    def _work(self) -> None:
        while not self._done():
            with self.lock:
                seed, self.seed = self.seed, self.seed + 1
            self._chunk(seed)

    def _chunk(self, seed: int) -> None:
        last = self.folder / f"{seed}.py"
        command = [sys.executable, "-m", "tests.fuzz.run", "--chunk", str(seed), "--last", str(last), *self.further]
        with open(self.folder / f"{seed}.txt", "w+") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            assert process.stdout is not None
            watch = threading.Timer(SILENCE, process.kill)
            watch.start()
            for line in process.stdout:
                watch.cancel()
                watch = threading.Timer(SILENCE, process.kill)
                watch.start()
                self._add(json.loads(line))
                if self._done():
                    process.kill()
            watch.cancel()
            if process.wait() != 0 and not self._done():
                errors.seek(0)
                program = last.read_text() if last.exists() else "before its first program"
                text = errors.read()[-3000:]
                self._add({"difference": f"seed {seed} ended with status {process.returncode}\n{text}\n{program}"})
        last.unlink(missing_ok=True)

    def _add(self, found: dict[str, Any]) -> None:
        with self.lock:
            difference = found.pop("difference", None)
            if difference is not None:
                self.differences.append(difference)
                self.console.print(difference, markup=False, highlight=False, soft_wrap=True)
            self.total.update(found)

    def _rate(self) -> str:
        rate = self.total["programs"] / (time.monotonic() - self.started)
        return f"{rate:.0f} programs/s, {len(self.differences)} differ"

    def _summary(self) -> str:
        total = self.total
        hit, hits = total["hit"] / max(1, total["programs"]), total["hits"] / max(1, total["calls"])
        stops = ", ".join(f"{code} {number}" for code, number in total.most_common() if code.startswith("["))
        seconds = time.monotonic() - self.started
        return "\n".join(
            [
                f"{total['programs']} programs, {len(self.differences)} with a difference, {seconds:.0f} s",
                f"compiled and hit: {total['hit']} programs ({hit:.0%}), {total['hits']} of {total['calls']} calls"
                f" ({hits:.0%}), {total['traces']} traces",
                f"calls that raise: {total['errors']}; programs on native {total['native']}, on the backend eager"
                f" {total['eager']}, in grad mode {total['grad'] + total['trains']}, with gradients {total['trains']}",
                f"recordings that gave no trace: {stops}",
            ]
        )


if __name__ == "__main__":
    sys.exit(main())
