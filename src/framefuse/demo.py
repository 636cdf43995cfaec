"""Shows on any machine what framefuse does: three small programs timed against eager, and what became of the first."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from framefuse.api import compile
from framefuse.explain import explain

CALLS, PASSES = 6, 50  # calls in one measurement, short beside the turns of other processes; measurements of each
LINE = "{:<34} {:>9} {:>9} {:>6} {:>10}  {}"


@dataclass(frozen=True)
class Program:
    """``make`` gives a fresh callable, always the same one, and ``inputs`` the arguments of its call number n."""

    name: str
    make: Callable[[], Callable[..., Any]]
    inputs: Callable[[int], tuple[Any, ...]]


def score(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Ten pointwise statements and a sum."""
    x = torch.sin(x) * scale
    x = torch.relu(x + 0.2) - 0.1
    x = torch.exp(x * 0.5) + 0.3
    x = torch.sigmoid(x) * 1.2
    return (torch.cos(x) + 0.4).sum()


def network() -> torch.nn.Sequential:
    """A network of three blocks, with the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        blocks = [[torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU()] for _ in range(3)]
        return torch.nn.Sequential(*(layer for block in blocks for layer in block), torch.nn.Linear(64, 10))


def inference() -> Callable[[torch.Tensor], torch.Tensor]:
    """The network without gradients."""
    return network().requires_grad_(False).eval()


def training() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A step of training: loss, gradients, Adam."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def rows(number: int) -> torch.Tensor:
    """Rows for the network, of two sizes in turn."""
    return torch.randn(16 + number % 2, 64)


PROGRAMS = (
    Program("ten pointwise statements", lambda: score, lambda n: (torch.randn(8, 16 + n % 3), 0.5 + n)),
    Program("a network, inference", inference, lambda n: (rows(n),)),
    Program("the network, a step of training", training, lambda n: (rows(n), torch.randint(0, 10, (16 + n % 2,)))),
)


@dataclass(frozen=True)
class Figures:
    """Microseconds a call, milliseconds of the first compiled call, and whether every result was eager's."""

    eager: float
    fast: float
    first: float
    equal: str


def seconds(function: Callable[..., Any], inputs: Sequence[tuple[Any, ...]]) -> float:
    """What one of these calls takes."""
    start = time.perf_counter()
    for arguments in inputs:
        function(*arguments)
    return (time.perf_counter() - start) / len(inputs)


def compared(eager: Callable[..., Any], fast: Callable[..., Any], inputs: Sequence[tuple[Any, ...]]) -> str:
    """Whether both gave the same in the same calls in the same order: "yes", or the first line of what differs."""
    try:
        for arguments in inputs:
            torch.testing.assert_close(fast(*arguments), eager(*arguments))
    except AssertionError as error:
        return "no: " + str(error).splitlines()[0]
    return "yes"


def measure(program: Program) -> tuple[Figures, Callable[..., Any]]:
    """The figures of one program, and its compiled form."""
    inputs = [program.inputs(number) for number in range(CALLS)]
    seconds(program.make(), inputs)
    eager, fast = program.make(), compile(program.make())
    first = seconds(fast, inputs[:1])
    seconds(eager, inputs[:1])
    equal = compared(eager, fast, inputs[1:])
    turns = [(seconds(eager, inputs), seconds(fast, inputs)) for _ in range(PASSES)]
    slow, quick = (statistics.median(times) for times in zip(*turns, strict=True))
    return Figures(slow * 1e6, quick * 1e6, first * 1e3, equal), fast


def demo(threads: int = 1) -> int:
    """Prints a line for each program and what became of the first; 1 where a result was not eager's."""
    torch.set_num_threads(threads)
    print(LINE.format("", "eager us", "compiled", "times", "first, ms", "equal"))
    wrong, shown = 0, None
    for program in PROGRAMS:
        figures, fast = measure(program)
        shown = shown or explain(fast)
        wrong += figures.equal != "yes"
        times = figures.eager, figures.fast, figures.eager / figures.fast
        cells = (*(f"{value:.1f}" for value in times), f"{figures.first:.0f}")
        print(LINE.format(program.name, *cells, figures.equal), flush=True)
    print(f"\n{shown}")
    return int(wrong > 0)
