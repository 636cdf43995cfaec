"""A process that compiles its part of the programs at its start, and measures those that it is asked for."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch

from benchmarks.harness.processes import serve
from benchmarks.harness.report import Row
from benchmarks.programs.measuring import Chosen, prepare, timed


def said(step: str) -> None:
    """Leaves a line, which is told of a process that dies."""
    print(step, file=sys.stderr, flush=True)


def prepared(part: Chosen, compilers: Sequence[str]) -> Mapping[str, Callable[[int], Row]]:
    """Compiles all programs; the command measures one by its place."""
    ready = []
    for program in part.programs():
        ready.append(prepare(program, compilers, part.device, said))
        if part.device != "cpu":
            torch.cuda.empty_cache()  # other processes need it
    return {"measure": lambda place: timed(ready[place], part.device)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    fields, names, threads = json.loads(sys.argv[1])
    torch.set_num_threads(threads)
    serve(lambda: prepared(Chosen(**fields), names))
