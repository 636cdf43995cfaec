"""Has kernels compiled quickly where calls run eagerly meanwhile, and once more, better, when that code runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from framefuse import _native
from framefuse.driver import behind
from framefuse.ir.code import NativeCode
from framefuse.ir.late_imports import later
from framefuse.ir.schedule import RunKernel
from framefuse.options import Options
from framefuse.runtime.compilation import Compilation

if TYPE_CHECKING:
    from framefuse.driver.kernels import compile_kernel
else:
    compile_kernel = later("framefuse.driver.kernels", "compile_kernel")


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
