"""The index of a cat whose pieces are parts of one value addresses the element that torch's cat would."""

import itertools

import pytest
import torch
from tests.unit.fuse.graphs import Builder, symbol

from framefuse.fuse.addressing.one_source import one_source
from framefuse.ir.numbers import Symbol, expr

S, T = symbol("s0"), symbol("s1")
HINTS = {Symbol("s0"): 7, Symbol("s1"): 5}


def edge(b, x):
    first, last = b.slice(x, (0, 0), (1, T)), b.slice(x, (S - 1, 0), (1, T))
    return b.cat(
        [b.node("expand", (first,), (expr(3), T), x.dtype), x, b.node("expand", (last,), (expr(2), T), x.dtype)], 0
    )


def reflected(b, x):
    return b.cat([b.slice(x, (3, 0), (3, T), (-1, 1)), x, b.slice(x, (S - 2, 0), (2, T), (-1, 1))], 0)


def twice_reflected(b, x):
    """A slice of a cat that became a cat of slices."""
    y = b.cat([b.slice(x, (0, 2), (S, 2), (1, -1)), x], 1)
    parts = [b.slice(p, (3, 0), (3, p.shape[1]), (-1, 1)) for p in y.inputs]
    return b.cat([b.cat(parts, 1), y], 0)


def windows(b, x):
    parts = [b.reshape(b.slice(x, (row, 0), (4, T)), 1, 4, T) for row in range(4)]
    return b.cat(parts, 0)


def steps_of_windows(b, x):
    rows = []
    for row in range(3):
        parts = (b.slice(x, (row, 2 * column), (4, 2), (1, 1)) for column in range(2))
        rows.append(b.cat([b.reshape(part, 1, 1, 4, 2) for part in parts], 1))
    return b.cat(rows, 0)


CATS = {
    "edge": edge,
    "reflected": reflected,
    "twice reflected": twice_reflected,
    "symmetric": lambda b, x: b.cat([b.slice(x, (2, 0), (3, T), (-1, 1)), x], 0),
    "one end": lambda b, x: b.cat([b.slice(x, (0, 0), (1, T)), x], 0),
    "rolled": lambda b, x: b.cat([b.slice(x, (3, 0), (S - 3, T)), b.slice(x, (0, 0), (3, T))], 0),
    "wrapped": lambda b, x: b.cat([b.slice(x, (S - 2, 0), (2, T)), x, b.slice(x, (0, 0), (3, T))], 0),
    "any order": lambda b, x: b.cat([x, b.slice(x, (4, 0), (3, T), (-1, 1)), x], 0),
    "windows": windows,
    "windows of windows": steps_of_windows,
    "of another": lambda b, x: b.cat([x, b.input((S, T))], 0),
    "many": lambda b, x: b.cat([b.slice(x, (n * n % 3, 0), (2, T)) for n in range(4)], 0),
}


def contents(node, x):
    """What torch computes."""
    if node.op == "input":
        return x
    operands = [contents(operand, x) for operand in node.inputs]
    shape = [size.evaluate(HINTS) for size in node.shape]
    match node.op:
        case "cat":
            return torch.cat(operands, node.attr("axis"))
        case "slice":
            starts = [start.evaluate(HINTS) for start in node.attr("starts")]
            for axis, (start, step, size) in enumerate(zip(starts, node.attr("steps"), shape, strict=True)):
                operands[0] = operands[0].index_select(axis, start + step * torch.arange(size))
            return operands[0]
        case "reshape":
            return operands[0].reshape(shape)
    return operands[0].expand(shape)


@pytest.mark.parametrize("name", CATS)
def test_each_point_addresses_the_element_of_the_cat(name):
    b = Builder()
    x = b.input((S, T))
    node = CATS[name](b, x)
    axes = [Symbol(f"@a{n}") for n in range(len(node.shape))]
    extents = dict(zip(axes, node.shape, strict=True))
    found = one_source(node, tuple(axis.expr for axis in axes), extents, HINTS)
    if name in ("of another", "many"):
        assert found is None
        return
    source, index = found
    assert source is x and not any("@place" in str(position) for position in index)
    values = torch.arange(35).reshape(7, 5)
    expected = contents(node, values)
    for point in itertools.product(*map(range, expected.shape)):
        here = {**HINTS, **dict(zip(axes, point, strict=True))}
        assert values[tuple(position.evaluate(here) for position in index)] == expected[point]
