"""Counts what a step of a schedule reads, writes and multiplies, at given sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch

from framefuse.ir.loops.nodes import Load, Loop, Statement
from framefuse.ir.loops.walk import values_of
from framefuse.ir.numbers import Expr, Symbol
from framefuse.ir.schedule import Item, Memory, RunCall, RunKernel, RunMatmul, Schedule
from framefuse.ir.source import Line

Sizes = Mapping[Symbol, int]
Work: TypeAlias = RunKernel | RunMatmul | RunCall  # the items that take time

# Library calls that are one product: the operand whose last dimension is summed over.
PRODUCTS = {"linear": 0, "mm": 0, "bmm": 0, "mv": 0, "matmul": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def known_sizes(schedule: Schedule, given: Sizes) -> Sizes:
    """The sizes, and the symbols of the schedule that are the largest of some."""
    known = dict(given)
    for symbol, among in schedule.largest:
        values = [value_of(each, known) for each in among]
        if values and None not in values:
            known[symbol] = max(value for value in values if value is not None)
    return known


def value_of(number: Expr, sizes: Sizes) -> int | None:
    """What a number is at these sizes, None where only the run tells."""
    return number.evaluate(sizes) if number.symbols <= sizes.keys() else None


def touched(item: Item) -> tuple[list[int], list[int]]:
    """The buffers that a step reads and writes."""
    if isinstance(item, RunKernel):
        pairs = list(zip(item.kernel.buffers, item.buffers, strict=True))
        written = [memory for buffer, memory in pairs if buffer.written]
        return [memory for buffer, memory in pairs if not buffer.written], written
    if isinstance(item, RunMatmul):
        return [item.a, item.c], [item.out]
    return (list(item.operands), [memory for _, memory in item.outs]) if isinstance(item, RunCall) else ([], [])


def bytes_of(schedule: Schedule, numbers: Iterable[int], sizes: Sizes, by: Item | None = None) -> int | None:
    """The bytes of these buffers, None where only the run tells; of what the step ``by`` reads no more than it reads
    elements: rows of a table.
    """
    total, most = 0, _elements_read(by, sizes) if isinstance(by, RunKernel) else {}
    for number in numbers:
        memory = schedule.memories[number]
        extents = _extents(memory.sizes, sizes)
        if extents is None:
            return None
        whole = math.prod(extents)
        total += min(whole, most.get(number, whole)) * memory.dtype.size
    return total


def _elements_read(item: RunKernel, sizes: Sizes) -> dict[int, int]:
    """How many elements a kernel reads of each buffer that it only reads, each as often as it does."""
    known = {symbol: value_of(number, sizes) for symbol, number in item.sizes.items()}
    counts: dict[str, int] = {}
    if not _count_reads(item.kernel.body, 1, {key: size for key, size in known.items() if size is not None}, counts):
        return {}
    pairs = list(zip(item.kernel.buffers, item.buffers, strict=True))
    written = {number for buffer, number in pairs if buffer.written}
    found: dict[int, int] = {}
    for buffer, number in pairs:
        if number not in written:
            found[number] = found.get(number, 0) + counts.get(buffer.name, 0)
    return found


def _count_reads(body: Sequence[Statement], turns: int, sizes: Sizes, counts: dict[str, int]) -> bool:
    """Adds the reads of statements that run so many times, by buffer; False where only the run tells how many."""
    for statement in body:
        if isinstance(statement, Loop):
            extent = value_of(statement.extent, sizes)
            if extent is None or not _count_reads(statement.body, turns * extent, sizes, counts):
                return False
        else:
            for value in values_of((statement,)):
                if isinstance(value, Load):
                    counts[value.buffer] = counts.get(value.buffer, 0) + turns
    return True


def flops_of(item: Work, schedule: Schedule, sizes: Sizes) -> int | None:
    """The multiplications and additions of a product of floats, None for other work."""
    written = touched(item)[1]
    if len(written) != 1 or schedule.memories[written[0]].dtype.torch not in FLOATS:
        return None
    if isinstance(item, RunMatmul):
        extents = _extents(item.sizes, sizes)
        return None if extents is None else 2 * math.prod(extents)
    if not isinstance(item, RunCall):
        return None
    place = PRODUCTS.get(str(item.node.attr("name")))
    if place is None or place >= len(item.operands):
        return None
    inner = schedule.memories[item.operands[place]].sizes[-1:]
    extents = _extents((*schedule.memories[written[0]].sizes, *inner), sizes)
    return None if extents is None or not inner else 2 * math.prod(extents)


def _extents(numbers: Iterable[Expr], sizes: Sizes) -> list[int] | None:
    values = [value_of(number, sizes) for number in numbers]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None


def shape_of(memory: Memory, sizes: Sizes | None = None) -> str:
    """A buffer's element type and sizes: those symbols that are among ``sizes`` as numbers."""
    known = [None if sizes is None else value_of(size, sizes) for size in memory.sizes]
    shown = (size if value is None else value for size, value in zip(memory.sizes, known, strict=True))
    return f"{memory.dtype}[{', '.join(map(str, shown))}]"


def kind_of_work(item: Work) -> tuple[str, str]:
    """What a step is, and what it is called."""
    if isinstance(item, RunKernel):
        return "kernel", item.kernel.title
    return ("product", "matmul") if isinstance(item, RunMatmul) else ("call", str(item.node.attr("name")))


def lines_of(item: Work) -> tuple[Line, ...]:
    """The user's lines that asked for a step, where they are known."""
    if isinstance(item, RunKernel):
        return item.kernel.lines
    line = item.node.line if isinstance(item, RunCall) else item.line
    return () if line is None else (line,)


def is_view(item: Work) -> bool:
    """Whether a step only makes a tensor over memory that is there: it moves nothing."""
    return isinstance(item, RunCall) and item.node.attr("name") == "as_strided"


def device_of(item: Work) -> str:
    """Where a step works."""
    if isinstance(item, RunKernel):
        return item.device
    return item.node.device if isinstance(item, RunCall) else "cpu"
