"""Turns kernels that a driver launches, or that Python runs, into steps of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from framefuse.ir.code import DeviceCode, LaunchedCode, PythonCode, Run
from framefuse.ir.numbers import Expr
from framefuse.ir.plan import CallStep, LaunchStep, Step
from framefuse.ir.schedule import RunKernel
from framefuse.runtime.plan_steps import Steps


def launch_extent(item: RunKernel, code: DeviceCode) -> Expr:
    """The extent of a launch of a kernel's ``code``: of its parallel axis, or the programs that the code asks for."""
    if code.programs is None:
        return item.extent
    programs: Expr = code.programs.substitute(item.sizes)
    return programs


def launch_fits(item: RunKernel, code: DeviceCode) -> Iterator[tuple[Expr, tuple[int, int, int]]]:
    """What a launch of a kernel's ``code`` asks of the graph's numbers: a value, (multiple, low, high)."""
    for fit in code.fits:
        yield fit.value.substitute(item.sizes), (fit.multiple, fit.low, fit.high)


@dataclass(frozen=True, slots=True)
class ByPython:
    """A kernel that Python runs; raises RuntimeError where a check fails, so that the call runs eagerly."""

    run: Run

    def __call__(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int | float], extent: int) -> None:
        if self.run(tensors, numbers, extent):
            raise RuntimeError("a check failed")


def step_of(item: RunKernel, compiled: LaunchedCode | PythonCode, steps: Steps) -> Step:
    """The step that runs a kernel whose code is no machine code of this CPU."""
    if isinstance(compiled, LaunchedCode):
        return _launch(item, compiled, steps)
    return _by_python(item, compiled, steps)


def _launch(item: RunKernel, compiled: LaunchedCode, steps: Steps) -> LaunchStep:
    """A kernel that a driver launches."""
    code = compiled.code
    return LaunchStep(
        name=code.name,
        function=code.function,
        variant=compiled.variant,
        arguments=tuple(_argument(item, kind, place, steps) for kind, place in code.arguments),
        extent=steps.numbers.slot_of(launch_extent(item, code)),
        blocks=code.blocks,
        threads=compiled.threads,
        shared=code.shared,
        device=int(item.device.partition(":")[2] or 0),
        keep=code.keep,
        fits=tuple((steps.numbers.slot_of(value), *bounds) for value, bounds in launch_fits(item, code)),
    )


def _argument(item: RunKernel, kind: str, place: int, steps: Steps) -> tuple[str, int]:
    if kind == "pointer":
        return kind, steps.slot(item.buffers[place])
    return kind, steps.numbers.slot_of(item.numbers[place])


def _by_python(item: RunKernel, compiled: PythonCode, steps: Steps) -> CallStep:
    """A kernel that Python runs, as a call on the memory that it reads and writes."""
    buffers = tuple(("tensor", steps.slot(memory)) for memory in item.buffers)
    slots = map(steps.numbers.slot_of, item.numbers)
    numbers = tuple(("real" if n.real else "int", slot) for n, slot in zip(item.kernel.numbers, slots, strict=True))
    extent = steps.numbers.slot_of(launch_extent(item, compiled.code))
    args = (("tuple", *buffers), ("tuple", *numbers), ("int", extent))
    return CallStep(compiled.code.name, ByPython(compiled.run), args, (), (), inside=True)
