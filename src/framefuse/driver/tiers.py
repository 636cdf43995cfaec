"""Has kernels compiled quickly where calls run eagerly meanwhile, and once more, better, when that code runs."""

from __future__ import annotations

from dataclasses import replace

from framefuse import _native
from framefuse.driver import behind
from framefuse.driver.kernels import compile_kernel
from framefuse.ir.native_code import NativeCode
from framefuse.ir.schedule import RunKernel
from framefuse.options import Options
from framefuse.runtime.compilation import Compilation


def quick(stages: Compilation) -> bool:
    """Whether better code can be had for kernels of a program."""
    return stages.code is not None and any(
        isinstance(code, NativeCode) and code.quick for code in stages.code.kernels.values()
    )


def improve(stages: Compilation, plan: _native.PlanProgram, options: Options) -> None:
    """Compiles the kernels of a program that were compiled quickly once more; each run of the plan takes for each step
    what is there by then.
    """
    code, graph = stages.code, stages.graph
    assert code is not None
    kernels = dict(code.kernels)
    for index, compiled in code.kernels.items():
        item = code.schedule.items[index]
        if not isinstance(compiled, NativeCode) or not compiled.quick or not isinstance(item, RunKernel):
            continue
        behind.PROCESS.checkpoint()
        better = compile_kernel(item, graph, options)
        assert isinstance(better, NativeCode)
        plan.replace_kernel(compiled.address, better.address, better.keep)
        kernels[index] = better
    stages.code = replace(code, kernels=kernels)
