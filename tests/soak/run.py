"""Runs random models for hours, compiled against eager: equal results, level memory, no fault; for `make soak`."""

from __future__ import annotations

import argparse
import copy
import gc
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from tests.soak.models import drawn

import framefuse
from benchmarks.starting.memory import resident_bytes
from framefuse.options import MODES
from framefuse.runtime.function import compiled_function

GROWTH = 20_000  # bytes that a round may leave behind, over the second half: code that a process keeps for good


class Wrong(Exception):
    """A compiled result or gradient is not eager's."""


class Faults(logging.Handler):
    """Keeps what framefuse logs as a fault of its own."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "framefuse failed" in text:
            self.found.append(text)


@dataclass
class Soak:
    """What happened so far: rounds by family, calls and hits, memory after rounds, and what went wrong."""

    seed: int
    rounds: int = 0
    count: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[int, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def round(self) -> None:
        """One model from its first call to its end."""
        random = Random(f"{self.seed}/{self.rounds}")
        torch.manual_seed(random.getrandbits(31))
        family, eager, inputs = drawn(random)
        settings = {"dynamic": random.choice((None, None, True, False)), "mode": random.choice(MODES)}
        trains = random.random() < 0.5
        module = copy.deepcopy(eager)
        compiled = framefuse.compile(module, **settings)
        name = f"seed {self.seed}, round {self.rounds}: {family}, {settings}, {'training' if trains else 'inference'}"
        try:
            for _ in range(random.randint(3, 10)):
                trained = trains and random.random() < 0.9
                self.call(random, (eager.train(trained), compiled.train(trained)), inputs(random), trained)
            if random.random() < 0.3 and family != "branching":  # which counts its calls
                self.threads(random, eager.eval(), compiled.eval(), inputs)
        except Wrong as wrong:
            self.wrong.append(f"{name}: {wrong}")
        except Exception as error:
            self.wrong.append(f"{name}: {type(error).__name__}: {error}")
        state = compiled_function(compiled)
        assert state is not None
        self.count.update(calls=state.dispatch.calls, hits=state.dispatch.hits, traces=len(state.products))
        self.count[family] += 1
        if random.random() < 0.05:
            framefuse.reset()
        self.rounds += 1

    def call(self, random: Random, modules: Sequence[torch.nn.Module], args: tuple[Any, ...], trained: bool) -> None:
        """The same call of both, under the same random numbers; a step of training compares gradients too."""
        seed, found = random.getrandbits(31), []
        for module in modules:
            torch.manual_seed(seed)
            module.zero_grad()
            with torch.set_grad_enabled(trained):
                result = module(*args)
            if trained:
                sum(part.float().pow(2).mean() for part in tensors(result)[:3]).backward()  # type: ignore[union-attr]
            found.append((result, [parameter.grad for parameter in module.parameters()], list(module.buffers())))
        same(found[1], found[0])
        if trained:
            with torch.no_grad():
                for module in modules:
                    for parameter in module.parameters():
                        if parameter.grad is not None:
                            parameter.sub_(parameter.grad, alpha=1e-3)

    def threads(self, random: Random, eager: torch.nn.Module, compiled: torch.nn.Module, inputs: Any) -> None:
        """Calls from several threads at once."""
        cases = [inputs(random) for _ in range(12)]
        got: dict[int, Any] = {}

        def work(first: int) -> None:
            for index in range(first, len(cases), 3):
                with torch.no_grad():
                    got[index] = compiled(*cases[index])

        workers = [threading.Thread(target=work, args=(first,)) for first in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        with torch.no_grad():
            for index, case in enumerate(cases):
                same(got.get(index), eager(*case))

    def sample(self) -> None:
        """Memory after everything of the past rounds is gone."""
        gc.collect()
        self.memory.append((self.rounds, resident_bytes()))

    def growth(self) -> float:
        """Bytes a round, over the second half of the samples (0: too few of them)."""
        half = self.memory[len(self.memory) // 2 :]
        (begun, first), (ended, last) = half[0], half[-1]
        return (last - first) / (ended - begun) if ended > begun + 200 else 0.0


def tensors(found: Any) -> list[torch.Tensor]:
    """The tensors of floating point in a nest of results."""
    if isinstance(found, torch.Tensor):
        return [found] if found.is_floating_point() else []
    parts = found.values() if isinstance(found, dict) else found if isinstance(found, (list, tuple)) else ()
    return [tensor for part in parts for tensor in tensors(part)]


def same(compiled: Any, eager: Any) -> None:
    """Raises Wrong where two nests of results differ by more than roundings of float32."""
    try:
        torch.testing.assert_close(compiled, eager, rtol=2e-3, atol=2e-4, equal_nan=True)
    except (AssertionError, ValueError) as error:
        raise Wrong(str(error)[:400]) from None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0, help="how long (120)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (0)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    faults, soak = Faults(), Soak(options.seed)
    logging.getLogger("framefuse").addHandler(faults)
    begun = told = time.monotonic()
    while time.monotonic() < begun + 60 * options.minutes:
        soak.round()
        if soak.rounds % 25 == 0:
            soak.sample()
        if time.monotonic() > told + 60:
            told = time.monotonic()
            print(line(soak, faults, told - begun), flush=True)
        for text in soak.wrong[soak.count["told"] :]:
            soak.count["told"] += 1
            print(text, flush=True)
    soak.sample()
    print(line(soak, faults, time.monotonic() - begun))
    for text in faults.found:
        print(text)
    grown = soak.growth()
    if grown > GROWTH:
        print(f"memory grows by {grown / 1e3:.1f} kB a round")
    return int(bool(soak.wrong or faults.found or grown > GROWTH))


def line(soak: Soak, faults: Faults, seconds: float) -> str:
    """Where it stands, in one line."""
    held = soak.memory[-1][1] / 1e6 if soak.memory else 0.0
    count = soak.count
    hits = f"{count['hits']} of {count['calls']} calls hit"
    memory = f"{held:.0f} MB, {soak.growth() / 1e3:.1f} kB a round"
    bad = f"{len(soak.wrong)} wrong, {len(faults.found)} faults"
    return f"{seconds / 60:.0f} min: {soak.rounds} models, {count['traces']} traces, {hits}, {memory}, {bad}"


if __name__ == "__main__":
    sys.exit(main())
