"""Holds the whole operator database to eager on compiled calls: every operator, dtype and order of gradient."""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings

os.environ.setdefault("FRAMEFUSE_CHECK", "1")

import torch
from tests.operators.calls import LEFT_OUT, Tally, hold
from tests.unit.operator_database import OPERATORS

DTYPES = ("float32", "float64", "bfloat16", "complex64", "int64")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.operators.run", description=__doc__)
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="names of element types, with commas")
    parser.add_argument("--names", default="", help="names of operators, with commas; all of them by default")
    parser.add_argument("--samples", type=int, default=3, help="how many samples of an operator and dtype")
    parser.add_argument("--orders", type=int, default=2, help="how many times a result is differentiated")
    parser.add_argument("--device", default="cpu", help="the device of the arguments: cpu or cuda")
    parser.add_argument("--stride", default="0/1", help="K/N: every N-th operator, from the K-th")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tally, start = Tally(), time.perf_counter()
    names = set(filter(None, options.names.split(",")))
    first, step = map(int, options.stride.split("/"))
    for op in OPERATORS[first::step]:
        if op.name in LEFT_OUT or (names and op.name not in names):
            continue
        for dtype in (getattr(torch, name) for name in options.dtypes.split(",")):
            if dtype not in op.supported_dtypes(options.device):
                continue
            before = len(tally.wrong)
            grad = op.supports_autograd and dtype in op.supported_backward_dtypes(options.device)
            hold(op, dtype, tally, samples=options.samples, grad=grad, orders=options.orders, device=options.device)
            for line in tally.wrong[before:]:
                print(line.replace("\n", " ")[:400], flush=True)
    print(f"{dict(tally.kinds)}, {len(tally.wrong)} differ, {time.perf_counter() - start:.0f} s")
    for line, count in sorted(tally.eager.items()):
        if "eager raises" not in line:
            print(f"  eager {count}x {line}")
    return bool(tally.wrong)


if __name__ == "__main__":
    sys.exit(main())
