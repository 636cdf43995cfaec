"""Runs many generated programs on all cores, for `make fuzz`; prints the first one that differs, cut down."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tests.fuzz.choice import Choice
from tests.fuzz.oracle import Difference, run
from tests.fuzz.program import Program, written
from tests.fuzz.sequences import sequenced
from tests.fuzz.shrink import Shrinker
from tests.fuzz.training import training
from tests.fuzz.writes import writing

from framefuse.driver.wiring import load_stages

CHUNK = 300  # programs that one process runs; the process then ends, and its memory with it
SILENCE = 1800  # seconds without a sign of life after which a process counts as hanging, also on a busy machine
SKIPPED = 10_000  # seeds of a worker that ended which the next one leaves out, far more than any has run
SHRINKING = 60  # seconds of work that a failing program may take to be cut down
KINDS: dict[str, Callable[[Choice], Program]] = {
    "": written, "writes": writing, "training": training, "sequences": sequenced,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--programs", type=int, default=20_000, help="how many different programs to run")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; chunk k draws from seed + k")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--go-on", action="store_true", help="collect differences instead of ending at the first")
    parser.add_argument("--writes", action="store_true", help="only programs about memory and history")
    parser.add_argument("--training", action="store_true", help="only programs that train")
    parser.add_argument("--sequences", action="store_true", help="only programs that are given sizes in sequences")
    parser.add_argument("--device", default="cpu", help="where programs make their tensors: cpu or cuda")
    parser.add_argument("--work", nargs=2, metavar=("STEP", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    kind = next((kind for kind in KINDS if kind and getattr(options, kind)), "")
    if options.work is not None:
        serve(kind, options.device, options.seed, int(options.work[0]), Path(options.work[1]))
    further = ["--device", options.device, *([f"--{kind}"] if kind else [])]
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("XDG_CACHE_HOME", folder)  # the user's own cache stays as it is
        return Run(options.programs, options.seed, options.workers, options.go_on, Path(folder), further).run()


# ---- one process -----------------------------------------------------------------------------------------------------


def serve(kind: str, device: str, first: int, step: int, folder: Path) -> NoReturn:
    """Runs the chunks of ``first`` and every ``step``-th seed behind it, each in a process of its own, without end."""
    os.environ.setdefault("FRAMEFUSE_CHECK", "1")
    load_stages()
    torch.set_num_threads(1)
    for seed in itertools.count(first, step):
        last, errors = folder / f"{seed}.py", folder / f"{seed}.txt"
        child = os.fork()  # what is imported is there
        if not child:
            with open(errors, "w") as file:
                os.dup2(file.fileno(), 2)
            draw(seed, last, kind, device)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            program = last.read_text() if last.exists() else "before its first program"
            text = f"seed {seed} ended with status {status}\n{errors.read_text()[-3000:]}\n{program}"
            print(json.dumps({"difference": text}), flush=True)
        last.unlink(missing_ok=True)
        errors.unlink()


def draw(seed: int, last: Path, kind: str = "", device: str = "cpu") -> None:
    """Runs the programs of one seed on a device; writes a line of JSON for every few, and one for a difference."""
    if device != "cpu":  # torch's context of a default device would stand around every program
        torch.set_default_device(device)
    count: Counter[str] = Counter()
    for number in range(CHUNK):
        choice = Choice(f"{seed}/{number}")
        program = KINDS[kind](choice)
        last.write_text(str(program))
        try:
            tally = run(program)
        except Difference as difference:
            print(json.dumps({"difference": f"# {seed}/{number}\n{least(kind, choice, difference)}"}), flush=True)
            continue
        grad = "trains" if program.trains else "grad" if program.grad else "no grad"
        count.update(programs=1, calls=tally.calls, hits=tally.hits, traces=tally.traces, errors=tally.errors)
        count.update([program.backend, grad, *(["hit"] if tally.hits else [])])
        count.update({f"[{code}]": number for code, number in tally.reasons.items()})
        if count["programs"] >= 10 or number == CHUNK - 1:
            print(json.dumps(count), flush=True)
            count.clear()


def least(kind: str, choice: Choice, difference: Difference) -> str:
    """What is told of the smallest program found that differs as the one of these choices does, or in another way."""
    told = str(difference)
    ends = time.process_time() + SHRINKING

    def differs(numbers: list[int]) -> list[int] | None:
        nonlocal told
        tried = Choice(numbers=numbers)
        program = KINDS[kind](tried)
        if time.process_time() > ends or len(tried.drawn) > len(numbers):
            return None
        try:
            run(program)
        except Difference as found:
            told = min(told, str(found), key=len)
            return tried.drawn
        return None

    Shrinker(choice.drawn, differs).shrink()
    return told


# ---- all processes ---------------------------------------------------------------------------------------------------


class Run:
    """Keeps the workers busy and adds up what they report."""

    def __init__(self, programs: int, seed: int, workers: int, go_on: bool, folder: Path, further: list[str]) -> None:
        self.programs, self.seed, self.workers, self.go_on, self.folder = programs, seed, workers, go_on, folder
        self.further = further  # arguments of the processes that run programs
        self.total: Counter[str] = Counter()
        self.differences: list[str] = []
        self.lock = threading.Lock()
        self.console = Console()
        self.started = time.monotonic()

    def run(self) -> int:
        """Runs until enough programs have passed or one differs; the exit status."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        seeds = range(self.seed, self.seed + self.workers)
        threads = [threading.Thread(target=self._work, args=(seed,), daemon=True) for seed in seeds]
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

    def _work(self, seed: int) -> None:
        """Keeps a worker at it until enough is done; one that ends or hangs is a difference, and the next goes on with
        the seed behind.
        """
        while not self._done():
            self._read(seed)
            seed += self.workers * SKIPPED

    def _read(self, seed: int) -> None:
        """Adds up what one worker says, until enough is done or it ends."""
        command = [sys.executable, "-m", "tests.fuzz.run", "--seed", str(seed), *self.further]
        command += ["--work", str(self.workers), str(self.folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            assert process.stdout is not None
            end = functools.partial(os.killpg, process.pid, signal.SIGKILL)
            watch = threading.Timer(SILENCE, end)
            watch.start()
            for line in process.stdout:
                watch.cancel()
                self._add(json.loads(line))
                if self._done():
                    end()
                    return
                watch = threading.Timer(SILENCE, end)
                watch.start()
            watch.cancel()
        programs = "\n".join(path.read_text() for path in self.folder.glob("*.py"))
        self._add({"difference": f"a worker ended or was silent for {SILENCE} s\n{programs}"})

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
