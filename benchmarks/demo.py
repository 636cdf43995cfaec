"""Shows a stranger in under three minutes what framefuse does: the curve, some models, and where the plots are."""

from __future__ import annotations

import argparse
import time

import torch
from rich.console import Console

from benchmarks.calls.curve import COUNTS, INPUTS
from benchmarks.harness.compilers import cold_caches
from benchmarks.harness.report import hardware
from benchmarks.run import BY_NAME, contestants, present, wrong

MODELS = ("mlp", "bert", "gpt2", "vit", "mobilenetv3")
# What the command line of each benchmark would have said.
SETTINGS = {
    "device": "cpu",
    "dtype": "float32",
    "statements": COUNTS,
    "inputs": INPUTS,
    "passes": 11,
    "only": MODELS,
    "seconds": 3.0,
    "fresh": False,
}


def demo(options: argparse.Namespace) -> int:
    """Runs the curve and some models; the exit status is 1 where a model gave other results than eager."""
    console = Console()
    start = time.perf_counter()
    torch.set_num_threads(options.threads)
    settings = argparse.Namespace(**vars(options), **SETTINGS)
    with cold_caches():
        compilers = contestants(settings, console)
        _, curve_files = present(BY_NAME["curve"], settings, compilers, console)
        console.print()
        rows, model_files = present(BY_NAME["models"], settings, compilers, console)
    console.print(f"\n{hardware()}; {time.perf_counter() - start:.0f} s", highlight=False, soft_wrap=True)
    console.print(f"plots: {curve_files[-1]} {model_files[-1]}", highlight=False, soft_wrap=True)
    return int(wrong(rows))
