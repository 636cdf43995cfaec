"""Turns a kernel into the few choices of blocks, warps and stages that are worth measuring for it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from framefuse.codegen.optimise import optimised
from framefuse.codegen.specialisation import Choice, Hints
from framefuse.codegen.triton.blocks import ROW, STAGES, WARP, Blocks, choose, per_thread
from framefuse.codegen.triton.estimates import estimate, power
from framefuse.codegen.triton.products import choices
from framefuse.ir.loops import Check, Kernel
from framefuse.ir.loops.walk import statements

MOST = 12  # of one kernel: each is compiled
LEAST_POINTS, MOST_POINTS = 128, 8192
MOST_WARPS = 32
LEAST_PROGRAMS = 16  # that several rows a program leave
# (width, stages) of a row that goes in turns
TURNS = (2048, 1), (1024, 1), (2048, STAGES), (4096, 1), (8192, 1), (1024, STAGES)
# (points along memory, rows of a turn) of a reduction across memory
ACROSS = (32, 64), (64, 32), (128, 16), (64, 64), (128, 32), (32, 32), (16, 64), (256, 8)


def candidates(kernel: Kernel, hints: Hints) -> tuple[Choice, ...]:
    """Choices for :func:`framefuse.codegen.triton.blocks.choose`, at most :data:`MOST`; that which is made without
    measuring comes first, and alone where nothing can be chosen or measured. ``hints`` are the recorded values of the
    numbers.
    """
    if kernel.product is not None:
        return choices(kernel, hints)[:MOST]
    kernel = optimised(kernel).kernel
    blocks = choose(kernel, hints, fitted=True)
    if any(isinstance(statement, Check) for statement in statements(kernel.body)):
        return (blocks.choice,)  # a check that fails on made-up positions would end the use of the GPU
    rows = max(1, estimate(kernel.extent, hints))
    further: Iterator[Choice] = iter(())
    match blocks.form:
        case "points":
            further = _points(blocks, rows, per_thread(kernel))
        case "rows":
            further = _rows(blocks, rows, per_thread(kernel))
        case "across":
            further = _across(blocks, rows)
        case "tile":
            further = (Choice(blocks.points, 0, warps) for warps in (4, 8, 2, 1, 16))
    return tuple(dict.fromkeys([blocks.choice, *further]))[:MOST]


def _points(blocks: Blocks, rows: int, share: int) -> Iterator[Choice]:
    """Programs of a quarter to four times the points, by the elements of a thread."""
    least, most = max(LEAST_POINTS, blocks.points // 4), min(MOST_POINTS, blocks.points * 4, max(WARP, power(rows)))
    for warps in (4, 2, 8, 1):
        for elements in (8, 4, 16, 2):
            points = elements * warps * WARP
            if least <= points <= most and elements <= 2 * share:
                yield Choice(points, 0, warps)


def _rows(blocks: Blocks, rows: int, share: int) -> Iterator[Choice]:
    """Whole rows, one or more a program, with fewer or more threads, and rows in turns, which may overlap: in turn, so
    that the first few are of both kinds.
    """
    for pair in zip_longest(_whole(blocks, rows, share), _in_turns(power(blocks.longest))):
        yield from (choice for choice in pair if choice is not None)


def _whole(blocks: Blocks, rows: int, share: int) -> Iterator[Choice]:
    whole = power(blocks.longest)
    if whole > 2 * ROW:
        return
    for points in dict.fromkeys((blocks.points, 1, max(1, blocks.points // 4), 2 * blocks.points)):
        for elements in (16, 8, 32, 4):
            warps = max(1, points * whole // (elements * WARP))
            fair = points == 1 or -(-rows // points) >= LEAST_PROGRAMS
            if fair and warps <= MOST_WARPS and elements <= 4 * share and (points == 1 or warps <= 8):
                yield Choice(points, whole, warps)
                if points != blocks.points:
                    break  # one of the other programs tells whether they are better


def _in_turns(whole: int) -> Iterator[Choice]:
    for width, stages in TURNS:
        if width < whole:
            yield Choice(1, width, min(16, max(1, width // (8 * WARP))), stages)


def _across(blocks: Blocks, rows: int) -> Iterator[Choice]:
    for points, width in ACROSS:
        if points <= power(rows) and width <= 2 * power(blocks.longest):
            yield Choice(points, width, min(8, max(1, points * width // (16 * WARP))), blocks.stages)
    width = blocks.choice.width
    yield Choice(blocks.points, width, blocks.warps, STAGES if blocks.stages == 1 else 1)
    yield Choice(blocks.points, width, min(8, 2 * blocks.warps), blocks.stages)
