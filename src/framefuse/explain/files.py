"""Writes what the stages made of a compile as files named by meaning, or prints it to the standard error stream."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from framefuse.errors import Reason
from framefuse.ir.late_imports import later
from framefuse.ir.schedule import RunKernel
from framefuse.ir.values import Function
from framefuse.options import Options
from framefuse.runtime.compilation import Compilation
from framefuse.runtime.recorded_call import Product

if TYPE_CHECKING:
    from framefuse.codegen.targets import code_file
    from framefuse.ir.code import KernelCode
    from framefuse.ir.loops import Kernel
    from framefuse.ir.loops.key import key_of
    from framefuse.ir.loops.print import kernel_text
    from framefuse.ir.passes import Step
    from framefuse.ir.plan_printer import plan_text
    from framefuse.ir.printer import graph_text
    from framefuse.ir.trace_printer import trace_text
else:
    key_of = later("framefuse.ir.loops.key", "key_of")
    kernel_text = later("framefuse.ir.loops.print", "kernel_text")
    plan_text = later("framefuse.ir.plan_printer", "plan_text")
    graph_text = later("framefuse.ir.printer", "graph_text")
    trace_text = later("framefuse.ir.trace_printer", "trace_text")
    code_file = later("framefuse.codegen.targets", "code_file")

logger = logging.getLogger("framefuse")
_count = itertools.count(1)


def publish(function: Function | None, product: Product | None, reason: Reason | None, options: Options) -> None:
    """Follows the options ``log`` and ``report`` for one compile of ``function``; where that fails, it says so."""
    if not options.log and not options.report:
        return
    try:
        _publish(function, product, reason, options)
    except Exception as error:  # a full disk is no error of the user's call
        if options.check:
            raise
        logger.warning("the files of a compile could not be written: %s: %s", type(error).__name__, error)


def _publish(function: Function | None, product: Product | None, reason: Reason | None, options: Options) -> None:
    name = product.stages.trace.name if product is not None else getattr(function, "__qualname__", repr(function))
    number = next(_count)
    if options.log:
        print("\n".join(_log(name, number, product, reason, options.log)), file=sys.stderr)
    if options.report and product is not None:
        write_report(Path(options.report), name, number, product)


def write_report(folder: Path, name: str, number: int, product: Product) -> Path:
    """Writes ``folder/name_number/`` with one file for each stage's product; returns that folder."""
    target = folder / f"{re.sub(r'[^A-Za-z0-9_]+', '_', name).strip('_')}_{number}"
    os.makedirs(target, exist_ok=True)
    for file, text in stage_files(product.stages):
        (target / file).write_text(text() + "\n", encoding="utf-8")
    return target


def stage_files(stages: Compilation) -> Iterator[tuple[str, Callable[[], str]]]:
    """A file for each product of the stages that is there: its name, and what makes its text."""
    names = stages.made
    yield "1_captured.txt", lambda: trace_text(stages.trace)
    if "guards" in names:
        yield "2_guards.txt", lambda: "\n".join(stages.guards.program.texts)
    if stages.captured is not None:
        module = stages.captured.module
        yield "3_fx.py", lambda: str(module.code)
    if "graph" in names:
        yield "3_graph.py", lambda: graph_text(stages.graph)
    for number, step in enumerate(_steps(stages), 1):
        if step.text:
            yield f"3_pass_{number:02}_{step.name.replace(' ', '_')}.txt", functools.partial(str, step.text)
    for index, (kernel, compiled) in enumerate(_kernels(stages)):
        stem = f"4_{index}_{re.sub(r'[^A-Za-z0-9_]+', '_', kernel.title)}"
        yield f"{stem}.txt", functools.partial(kernel_text, kernel)
        suffix, text = code_file(kernel, compiled)
        yield f"{stem}.{suffix}", text
    if "plan" in names:
        yield "5_plan.txt", lambda: plan_text(stages.plan)


def _steps(stages: Compilation) -> tuple[Step, ...]:
    """What users' passes and those of fuse did; their texts are there where the option ``report`` asked for them."""
    schedule = stages.planned if stages.code is None else stages.code.schedule
    own = stages.rewritten.steps if stages.rewritten is not None else ()
    joint = stages.halves.steps if stages.halves is not None else ()
    return (*own, *joint, *(schedule.steps if schedule is not None else ()))


def _kernels(stages: Compilation) -> list[tuple[Kernel, KernelCode | None]]:
    """The distinct kernels of a product with their code, if it was made, in order of first use; another backend's
    product has none.
    """
    schedule = stages.planned if stages.code is None else stages.code.schedule
    items = enumerate(schedule.items if schedule is not None else ())
    codes = {} if stages.code is None else stages.code.kernels
    runs = ((item.kernel, codes.get(index)) for index, item in items if isinstance(item, RunKernel))
    return list({key_of(kernel): (kernel, compiled) for kernel, compiled in runs}.values())


def _log(name: str, number: int, product: Product | None, reason: Reason | None, level: str) -> Iterator[str]:
    if product is None:
        yield f"{name}: runs eagerly: {reason}"
        return
    seconds = sum(product.seconds.values())
    yield f"{name}#{number}: {len(product.stages.trace.calls)} calls compiled in {seconds * 1e3:.1f} ms"
    if level == "graphs":
        yield graph_text(product.stages.graph)
    if level == "kernels":
        for kernel, _ in _kernels(product.stages):
            yield kernel_text(kernel)
