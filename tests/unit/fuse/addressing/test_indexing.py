"""Indices through views address the element that torch's own view would, and stay affine where axes can be split."""

import itertools

import pytest
import torch
from tests.unit.fuse.graphs import Builder, symbol

from framefuse.fuse.addressing.indexing import Split, operand_index, reshaped_index
from framefuse.ir.numbers import Floordiv, Symbol, expr

S, T = symbol("s0"), symbol("s1")
HINTS = {Symbol("s0"): 3, Symbol("s1"): 4}


def axes(count):
    return [Symbol(f"@a{n}") for n in range(count)]


def same_elements(node, base, shape):
    """Each point of ``node`` maps to the element of ``base`` that torch's view holds there."""
    names = axes(len(shape))
    extents = dict(zip(names, node.shape, strict=True))
    index = operand_index(node, tuple(name.expr for name in names), extents, HINTS, may_split=False)
    source = torch.arange(base.numel()).reshape(base.shape)
    view = {
        "reshape": lambda: source.reshape(shape),
        "permute": lambda: source.permute(node.attr("axes")),
        "expand": lambda: source.expand(shape),
    }[node.op]()
    for point in itertools.product(*map(range, shape)):
        values = {**HINTS, **dict(zip(names, point, strict=True))}
        place = tuple(position.evaluate(values) for position in index)
        assert source[place] == view[point]


@pytest.mark.parametrize(
    ("source", "target"),
    [((S, 6), (S, 2, 3)), ((S, T, 2), (S * T, 2)), ((6, 4), (4, 6)), ((S, 1, T), (S, T)), ((2, 3, 4), (24,))],
)
def test_reshapes(source, target):
    b = Builder()
    node = b.reshape(b.input(source), *target)
    same_elements(node, torch.empty([expr(s).evaluate(HINTS) for s in source]), [s.evaluate(HINTS) for s in node.shape])


def test_moves():
    b = Builder()
    x = b.input((S, 1, 4))
    same_elements(b.permute(x, 2, 0, 1), torch.empty(3, 1, 4), (4, 3, 1))
    same_elements(b.expand(x, (2, S, T, 4)), torch.empty(3, 1, 4), (2, 3, 4, 4))


def test_joining_dimensions_is_affine():
    i, j = axes(2)
    (index,) = reshaped_index((i.expr, j.expr), (S, expr(4)), (S * 4,), {i: S, j: expr(4)}, may_split=True)
    assert index is i.expr * 4 + j.expr


def test_taking_apart_what_was_joined_is_affine():
    i, j = axes(2)
    index = reshaped_index((i.expr * T + j.expr,), (S * T,), (S, T), {i: S, j: T}, may_split=True)
    assert index == (i.expr, j.expr)


def test_a_dimension_is_split_at_the_radix():
    (i,) = axes(1)
    with pytest.raises(Split) as asked:
        reshaped_index((i.expr,), (S * 4,), (S, expr(4)), {i: S * 4}, may_split=True)
    assert asked.value.axis is i and asked.value.inner == 4


def test_a_falling_index_is_divided():
    (i,) = axes(1)
    outer, _ = reshaped_index((5 - i.expr,), (expr(6),), (expr(2), expr(3)), {i: expr(6)}, may_split=True)
    assert isinstance(outer.terms[0][0][0], Floordiv)
