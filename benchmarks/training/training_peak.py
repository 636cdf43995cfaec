"""Measures the memory that one contestant's step of training takes at its peak; prints its bytes.

Run as `python -m benchmarks.training.training_peak MODEL CONTESTANT`, a process for each: in a heap with a
history, what is freed is neither given back nor where it is wanted next, and the figure is that history's.
`ENVIRONMENT` is the environment that it needs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

import torch
from torch import nn

from benchmarks.harness.peak import LARGE, kept_bytes, nothing, peak_bytes
from benchmarks.harness.processes import ROOT
from benchmarks.training.contestants import BATCHES, Settings, contestant, drop_gradients
from benchmarks.zoo.training_zoo import TRAININGS, Batch, Step

WARM, REPEATS = 4, 5  # steps before, which compile and make the optimizer's state; steps measured
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(LARGE), "MALLOC_TRIM_THRESHOLD_": str(LARGE)}


def peak_of(step: Step, model: nn.Module, batch: Batch, ours: bool) -> float:
    """Bytes that one step takes at its peak above parameters, buffers and the state of the optimizer."""
    kept = kept_bytes if ours else nothing
    return peak_bytes(lambda: step(*batch), lambda: drop_gradients(model), REPEATS, kept)


def peak_in_fresh_process(model: str, name: str, settings: Settings) -> float:
    """The bytes of the contestant ``name``, measured by this file run as a program."""
    command = [sys.executable, "-m", "benchmarks.training.training_peak", model, name]
    command += ["--threads", str(torch.get_num_threads()), "--batch", str(settings.batch or 0)]
    command += ["--length", str(settings.length or 0)]
    environment = {**os.environ, **ENVIRONMENT}
    finished = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{finished.stderr[-3000:]}")
    return float(json.loads(finished.stdout.splitlines()[-1]))


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(TRAININGS))
    parser.add_argument("contestant")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1)")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--length", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    training = TRAININGS[options.model]
    model = training.build()
    batches = [training.batches(seed, options.batch or None, options.length or None) for seed in range(BATCHES)]
    step = contestant(options.contestant, training, model).step
    for turn in range(WARM):
        step(*batches[turn % BATCHES])
    print(json.dumps(peak_of(step, model, batches[0], options.contestant.startswith("framefuse"))))


if __name__ == "__main__":
    main()
