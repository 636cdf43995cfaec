"""Writes a product and what is done with it as one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from framefuse.fuse.addressing.ranges import address
from framefuse.fuse.grouping.cells import Group
from framefuse.fuse.grouping.choices import FusedProduct, Line
from framefuse.fuse.grouping.fused_products import axes_of
from framefuse.fuse.nest.forms import title_of, work_of
from framefuse.fuse.nest.gpu.decode import decode_elements, gpu_nest
from framefuse.fuse.nest.nest import Built, Nest
from framefuse.fuse.nest.sweeps import shape_of, sweeps_of
from framefuse.fuse.nest.values import Computed, cast, stored
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.graph import Node
from framefuse.ir.loops import (
    Accumulate,
    Accumulator,
    Apply,
    Let,
    Load,
    Local,
    Loop,
    LoopKind,
    Product,
    Statement,
    Store,
    Value,
)
from framefuse.ir.numbers import Expr, Symbol


def build_product(product: FusedProduct, strides_of: Callable[[Node], tuple[Expr, ...]], exact: bool) -> Built:
    """The kernel of a product and of what is done with it; ``exact`` rounds the product as the library does."""
    group, cell, factors = product.group, product.cell, product.factors
    nest = gpu_nest(group, strides_of)
    (only,) = sweeps_of(nest.shape)
    work = work_of(nest, [only])
    axes = axes_of(product)
    assert axes is not None
    rows, columns = nest.join(axes[0]), nest.join(axes[1])
    emitter, parameters = nest.emitter, nest.emitter.parameters
    row, column, inner = (nest.new_axis() for _ in range(3))
    with nest.scope() as top:
        emitter.floor = 1
        with nest.loop(rows, row, factors.rows, LoopKind.PARALLEL):
            _count(nest, rows, row)
            with nest.loop(columns, column, factors.columns, LoopKind.VECTOR) as scope:
                _count(nest, columns, column)

                def element(of: tuple[Node, Line], first: Symbol, second: Symbol) -> Value:
                    base, (offset, down, along) = of
                    at = parameters.index(offset)
                    at = at + first.expr * parameters.index(down) + second.expr * parameters.index(along)
                    return cast(Load(parameters.buffer(base, base.dtype), at, base.dtype), FLOAT32)

                total, lets, before = emitter.fresh("a"), list[Statement](), dict(product.before)
                operands: list[Value] = []
                for number, (of, places) in enumerate(((factors.left, (row, inner)), (factors.right, (inner, column)))):
                    if number in before:
                        operands.append(_computed(nest, before[number], factors.layout[number], places, lets))
                    else:
                        operands.append(element(of, *places))
                term = Accumulate(total, Apply("mul", tuple(operands), FLOAT32))
                scope.body.append(Accumulator(total, "sum", FLOAT32))
                scope.body.append(Loop(inner, parameters.index(factors.terms), (*lets, term)))
                value: Value = Local(total, FLOAT32)
                if factors.bias is not None:
                    value = Apply("add", (value, element(factors.bias, row, column)), FLOAT32)
                dtype = cell.node.dtype
                if exact:
                    value = cast(cast(value, dtype), FLOAT32)
                name = emitter.fresh("v")
                scope.body.append(Let(name, value))
                scope.known[cell] = Computed(Local(name, FLOAT32), None if exact else dtype)
                if product.kept:
                    where = parameters.index(address(cell.index, strides_of(cell.node)))
                    buffer = parameters.buffer(cell.node, dtype, write=True)
                    scope.body.append(Store(buffer, where, cast(Local(name, FLOAT32), dtype)))
                nest.point(only, ())
    title = f"{product.node.attr('name').strip('_')}_{title_of(group)}"
    built = nest.built(title, top.body, factors.rows, work, True)
    lines = tuple(dict.fromkeys([line for line in (product.node.line, *built.kernel.lines) if line is not None]))
    kernel = replace(built.kernel, product=Product(row, column, inner, total), lines=lines)
    return replace(built, kernel=kernel)


def _computed(
    nest: Nest, group: Group, layout: str, places: tuple[Symbol, Symbol], lets: list[Statement]
) -> Value:
    """An operand as the kernel ``group`` computes it, at the place of the loops; ``lets`` are what it takes."""
    ((node, cell),) = group.roots.items()
    own = Nest(group, shape_of(group), nest.strides_of)
    own.emitter.parameters, own.axis_count = nest.emitter.parameters, nest.axis_count
    own.emitter.counter = nest.emitter.counter
    axes = [symbol for position in cell.index for symbol in position.symbols]
    first, second = places if layout == "n" else places[::-1]
    with own.emitter.parameters.apart(), own.scope(axes) as scope:
        _count(own, axes[:-1], first)
        own.emitter.parameters.name(axes[-1], second.expr)
        value = cast(stored(own.emitter.value(cell), node.dtype), FLOAT32)
    lets += scope.body
    nest.axis_count, nest.emitter.counter = own.axis_count, own.emitter.counter
    return value


def _count(nest: Nest, axes: Sequence[Symbol], symbol: Symbol) -> None:
    """Names the positions of axes in the row-major count ``symbol``."""
    decode_elements(nest, symbol.expr, axes, [nest.loops.extents[axis] for axis in axes])
