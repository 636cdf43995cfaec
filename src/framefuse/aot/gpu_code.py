"""Gives the kernels of a recorded call on a GPU as binaries, each for the sizes and addresses that calls may have."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from framefuse.aot.exported_program import Code, ForGpu, Image, Result
from framefuse.aot.own_views import root_of
from framefuse.aot.recording import Recorded, refused
from framefuse.codegen.triton.target import machine
from framefuse.codegen.unsupported import Unsupported
from framefuse.errors import UserError
from framefuse.ir.code import DeviceCode, LaunchedCode
from framefuse.ir.plan import LaunchStep, Plan
from framefuse.ir.schedule import RunKernel

COMPILERS = 16  # that work at once, at most
WHOLE = ("arena", "fresh", "call")  # slots that begin at an address of their own, a multiple of 16


def gpu_code(call: Recorded, results: Sequence[Result]) -> Code:
    """Raises UserError where a kernel has no code for other sizes or addresses."""
    arch = machine(str(call.device)).arch
    if not isinstance(arch, int):
        raise UserError(f"{call.device} is {arch}. Export is for the CPU and for CUDA")
    graph, plan = call.stages.code, call.stages.plan
    assert graph is not None, "the native backend made it"
    made = [graph.kernels[index] for index, item in enumerate(graph.schedule.items) if isinstance(item, RunKernel)]
    steps = [(place, step) for place, step in enumerate(plan.steps) if isinstance(step, LaunchStep)]
    names: dict[int, str] = {}
    codes: dict[str, LaunchedCode] = {}
    anywhere: set[str] = set()  # kernels that read what may begin anywhere
    kernels: dict[int, str] = {}
    for (place, step), code in zip(steps, made, strict=True):
        assert isinstance(code, LaunchedCode), code
        name = kernels[place] = names.setdefault(id(code.code), f"kernel_{len(names)}")
        codes[name] = code
        if any(kind == "pointer" and _is_anywhere(plan, slot) for kind, slot in step.arguments):
            anywhere.add(name)
    with ThreadPoolExecutor(min(os.cpu_count() or 1, COMPILERS)) as pool:
        waiting = {name: pool.submit(_variants, code, name in anywhere) for name, code in codes.items()}
    files: dict[str, bytes] = {}
    images: dict[str, tuple[Image, Image, Image]] = {}
    for name, future in waiting.items():
        try:
            fitted, aligned, any_address = (_image(each, files) for each in future.result())
        except Unsupported as error:
            raise refused(call.line, f"A kernel cannot be compiled: {error}") from error
        images[name] = fitted, aligned, any_address
    rounded = torch.backends.cuda.matmul.fp32_precision == "tf32"  # however it was told
    return Code(kernels, {}, {}, files, ForGpu(images, divmod(arch, 10), rounded))


def _is_anywhere(plan: Plan, slot: int) -> bool:
    """Whether the first element of a slot may lie at an address that is no multiple of 16."""
    return plan.slots[root_of(plan, slot)].place not in WHOLE or plan.slots[slot].place == "view"


def _variants(code: LaunchedCode, anywhere: bool) -> tuple[DeviceCode, DeviceCode, DeviceCode]:
    """The code for numbers like the recorded ones, for any numbers, and for any numbers and addresses."""
    assert code.other is not None, "an emitter for exports gives it"
    aligned = code.other(True) if code.code.fits else code.code
    return code.code, aligned, code.other(False) if anywhere else aligned


def _image(code: DeviceCode, files: dict[str, bytes]) -> Image:
    """The image of some code, in a file that equal code shares."""
    known = next((name for name, binary in files.items() if binary == code.binary), None)
    name = known or f"image_{len(files)}.cubin"
    files[name] = code.binary
    return Image(name, code.name, code.shared)
