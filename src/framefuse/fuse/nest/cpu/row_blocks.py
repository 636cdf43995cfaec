"""Takes short rows some at a time: what costs much and is computed once for each row is one vector loop over theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framefuse.fuse.grouping.cells import Cell
from framefuse.fuse.grouping.work import loop_time
from framefuse.fuse.nest.cpu.blocked_axis import blocked
from framefuse.fuse.nest.nest import Nest
from framefuse.fuse.nest.sweeps import Sweep
from framefuse.fuse.nest.values import compute
from framefuse.ir import costs
from framefuse.ir.loops import Loop, LoopKind, Scratch, Statement, Store
from framefuse.ir.numbers import Expr, Symbol, expr, product

STEP = Symbol("@step")


def computed_by_rows(nest: Nest, sweeps: Sequence[Sweep], rows: Sequence[Symbol]) -> list[Cell]:
    """What is worth a loop over rows: costly values of one level that each row has of its reductions, where rows are
    many and short; none where a value that is kept for later is not a number that its memory holds as it is.
    """
    group, hints = nest.group, nest.hinted()
    if not rows or hints[rows[-1]] < costs.CPU_BLOCK_LEAST or group.rows is None:
        return []
    inner = {axis for current in sweeps for axis in current.inner}
    if nest.hint(product(group.axes[axis] for axis in inner)) > costs.CPU_BLOCK_ROW:
        return []
    found = [
        cell
        for cell in nest.shape.order
        if cell.kind == "op" and nest.shape.levels[cell] and nest.shape.axes[cell] == group.rows
        and loop_time(cell.node) >= costs.CPU_BLOCK_TIME
    ]  # fmt: skip
    level = nest.shape.levels[found[0]] if found else 0
    kept = [*found, *_reduced(sweeps, level)]
    if any(nest.shape.levels[cell] != level for cell in found) or any(not _is_plain(cell) for cell in kept):
        return []
    return found


def _is_plain(cell: Cell) -> bool:
    dtype = cell.node.dtype
    return dtype.is_float and compute(dtype) is dtype


def _reduced(sweeps: Sequence[Sweep], level: int) -> list[Cell]:
    return [reduce for current in sweeps if current.level < level for reduce in current.reduces]


def row_blocks(
    nest: Nest,
    rows: Sequence[Symbol],
    sweeps: Sequence[Sweep],
    found: Sequence[Cell],
    run: Callable[[Sweep], None],
) -> tuple[list[Statement], Expr]:
    """The loops over blocks of rows, of which the outermost is parallel, around three: over the rows of a block, by
    what ``run`` writes for each sweep that ``found`` need, over their values of ``found``, and by the other sweeps.
    Returns the statements and the extent.
    """
    parameters, size, axis, level = nest.emitter.parameters, costs.CPU_BLOCK, rows[-1], nest.shape.levels[found[0]]
    with blocked(nest, rows[:-1], axis, size) as block:

        def loop(kind: LoopKind, some: Sequence[Sweep], kept: Sequence[Cell]) -> None:
            step = nest.new_axis()
            parameters.name(STEP, step.expr)
            parameters.name(axis, block.start.expr + step.expr)
            names = [nest.emitter.fresh("s") for _ in kept]
            with nest.scope((axis,)) as line:
                for current in some:
                    run(current)
                for name, cell in zip(names, kept, strict=True):
                    value = nest.emitter.value(cell).value
                    line.body.append(Store(name, step.expr, value))
            for name, cell in zip(names, kept, strict=True):
                block.body.append(Scratch(name, cell.node.dtype, expr(size)))
                nest.emitter.kept[cell] = (name, STEP.expr, cell.node.dtype)
                nest.emitter.readable.add(cell)
            block.body.append(Loop(step, block.height, tuple(line.body), kind))

        loop(LoopKind.SERIAL, [each for each in sweeps if each.level < level], _reduced(sweeps, level))
        loop(LoopKind.VECTOR, (), found)
        loop(LoopKind.SERIAL, [each for each in sweeps if each.level >= level], ())
    return block.loops, block.extent
