"""Runs torch's gradcheck and gradgradcheck in float64 on compiled operators: `python -m tests.operators.gradchecks`."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import warnings
from collections import Counter
from typing import Any

import torch
from tests.operators.calls import LEFT_OUT, leaves, program
from tests.unit.differential import changed, tensors
from tests.unit.operator_database import OPERATORS

import framefuse
from framefuse.api import compiled_function

LARGEST = 60  # elements of all operands of a sample: each is moved by itself


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.operators.gradchecks", description=__doc__)
    parser.add_argument("--names", default="", help="names of operators, with commas; all of them by default")
    parser.add_argument("--samples", type=int, default=2, help="how many samples of an operator")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kinds: Counter[str] = Counter()
    names, start = set(filter(None, options.names.split(","))), time.perf_counter()
    for op in OPERATORS:
        if op.name in LEFT_OUT or not op.supports_autograd or (names and op.name not in names):
            continue
        if torch.float64 not in op.supported_backward_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        drawn = itertools.islice(op.sample_inputs_func(op, "cpu", torch.float64, True), 40)
        small = (sample for sample in drawn if 0 < elements(sample) <= LARGEST)
        for number, sample in enumerate(itertools.islice(small, options.samples)):
            kind = check(op, sample)
            kinds[kind.partition(":")[0]] += 1
            if kind.startswith("wrong"):
                print(f"{op.name}.{op.variant_test_name} [{number}] {kind}", flush=True)
    print(f"{dict(kinds)}, {time.perf_counter() - start:.0f} s")
    return bool(kinds["wrong"])


def elements(sample: Any) -> int:
    """The number of elements that are moved."""
    return sum(part.numel() for part in tensors((sample.input, sample.args, sample.kwargs)) if part.requires_grad)


def check(op: Any, sample: Any) -> str:
    """What became of one sample: right, wrong as eager's own is, wrong, or not compiled."""
    given = leaves(((sample.input, *sample.args), dict(sample.kwargs)))
    moved = [part for part in tensors(given) if part.requires_grad]
    call = program(op.op)
    compiled = framefuse.compile(call)
    state = compiled_function(compiled)

    def over(function: Any) -> Any:
        def run(*values: torch.Tensor) -> Any:
            places = iter(values)
            args, kwargs = changed(given, lambda part: next(places) if part.requires_grad else part)
            torch.manual_seed(3)
            found = op.gradcheck_wrapper(function, *args, **kwargs)
            found = sample.output_process_fn_grad(found)
            return tuple(part for part in tensors(found) if part.is_floating_point() or part.is_complex())

        return run

    kinds = [torch.autograd.gradcheck, *([torch.autograd.gradgradcheck] if op.supports_gradgrad else [])]
    for kind in kinds:
        how = {"fast_mode": True, "check_batched_grad": False, "nondet_tol": op.gradcheck_nondet_tol}
        problem = failure(kind, over(compiled), moved, how)
        if problem:
            theirs = failure(kind, over(call), moved, how)
            return f"eager's: {theirs}" if theirs else f"wrong: {kind.__name__} {problem}"
    return "right" if state.dispatch.hits else "eager"


def failure(kind: Any, run: Any, moved: list[torch.Tensor], how: dict[str, Any]) -> str:
    """What one check says, empty where it is content."""
    try:
        kind(run, tuple(moved), **how)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}".replace("\n", " ")
    return ""


if __name__ == "__main__":
    sys.exit(main())
