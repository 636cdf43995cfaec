"""Gives the kernels of a recorded call on the CPU as objects that a library is linked of."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.aot.exported_program import Code, Result
from framefuse.aot.recording import Recorded
from framefuse.aot.tails import tails, within
from framefuse.codegen import llvm
from framefuse.ir.loops import Kernel
from framefuse.ir.loops.key import key_of
from framefuse.ir.plan import KernelStep
from framefuse.ir.schedule import RunKernel


def cpu_code(call: Recorded, results: Sequence[Result]) -> Code:
    """The function of each kernel step, the slots that it writes, which of them follow convolutions, and the distinct
    kernels by their functions.
    """
    code = call.stages.code
    assert code is not None, "the native backend made it"
    items = [item for item in code.schedule.items if isinstance(item, RunKernel)]
    plan = call.stages.plan
    steps = [(place, step) for place, step in enumerate(plan.steps) if isinstance(step, KernelStep)]
    known = {place: item.kernel for (place, _), item in zip(steps, items, strict=True)}
    found = tails(plan, known, frozenset(result.slot for result in results))
    known |= {tail.step: within(known[tail.step], step, tail) for tail in found.values()
              if isinstance(step := plan.steps[tail.step], KernelStep)}  # fmt: skip
    functions: dict[object, str] = {}
    kernels: dict[str, Kernel] = {}
    named: dict[int, str] = {}
    written: dict[int, tuple[int, ...]] = {}
    for place, step in steps:
        kernel = known[place]
        name = functions.setdefault(key_of(kernel), f"framefuse_kernel_{len(functions)}")
        kernels.setdefault(name, kernel)
        named[place] = name
        buffers = zip(step.buffers, kernel.buffers, strict=True)
        written[place] = tuple(slot for slot, buffer in buffers if buffer.written)
    files = {f"{function}.o": llvm.object_file(kernel, function) for function, kernel in kernels.items()}
    return Code(named, written, found, files)
