"""Measures a first call in a process that has imported everything and compiled nothing; prints one line of JSON.

Run as `python -m benchmarks.starting.first_call TARGET --compiler framefuse|torch`, where TARGET is a model of the zoo,
or `chain:30` for the chain of the curve with 30 statements, dynamic, whose 99 further shapes are timed as well.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext

import torch

import framefuse
from benchmarks.calls.chain import chain
from benchmarks.harness.compilers import COMPILERS, Function, cold_caches
from benchmarks.harness.processes import ROOT
from benchmarks.harness.timing import Arguments, timed
from benchmarks.zoo.zoo import MODELS
from framefuse.driver.wiring import load_stages


def target(name: str) -> tuple[Function, list[Arguments], bool | None]:
    """The function or module that `name` means, the inputs of its calls in order, and its `dynamic`."""
    if name.startswith("chain:"):
        return chain(int(name.partition(":")[2])), [(torch.randn(rows, 16),) for rows in range(4, 104)], True
    module, inputs = MODELS[name].build()
    return module, [inputs(seed) for seed in range(4)], None


def first_call(name: str, compiler: str) -> dict[str, float]:
    """Seconds: an eager call, the first compiled call, and the slowest and median of the calls after it. And the
    bytes of memory that the process holds for what was compiled.
    """
    function, inputs, dynamic = target(name)
    with torch.no_grad():
        for arguments in inputs:
            function(*arguments)
        eager = statistics.median(timed(function, arguments) for arguments in inputs)
        before = resident()
        compiled = COMPILERS[compiler](function, dynamic)
        first = timed(compiled, inputs[0])
        later = [timed(compiled, arguments) for arguments in inputs[1:]]
    held = float(resident() - before)
    return {
        "eager_s": eager, "first_s": first, "later_max_s": max(later), "later_s": statistics.median(later),
        "bytes": held,
    }  # fmt: skip


def resident() -> int:
    """The bytes of memory that this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_fresh_process(
    name: str, compiler: str, threads: int, caches: Mapping[str, str] | None = None
) -> dict[str, float]:
    """What `first_call` measures, taken in a process of its own; ``caches`` are variables that say where its caches
    lie, empty ones without.
    """
    command = [sys.executable, "-m", "benchmarks.starting.first_call", name, "--compiler", compiler]
    command += ["--threads", str(threads), *(["--kept"] if caches else [])]
    environment = {**os.environ, **(caches or {})}
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{answer.stderr}")
    measured: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return measured


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="a model of the zoo, or chain:N")
    parser.add_argument("--compiler", choices=list(COMPILERS), default="framefuse")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1)")
    parser.add_argument("--kept", action="store_true", help="with the caches that the environment names")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with nullcontext() if options.kept else cold_caches():
        if options.compiler == "framefuse" and not options.kept:
            framefuse.compile(target)  # imports what names the stages
            load_stages()  # which a first call does that finds nothing
        if options.compiler == "torch":
            for module in ("torch._dynamo", "torch._inductor.compile_fx"):
                importlib.import_module(module)
        print(json.dumps(first_call(options.target, options.compiler)))


if __name__ == "__main__":
    main()
