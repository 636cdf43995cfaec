"""Chains of views are the strided view that torch makes of them, or none."""

import pytest
import torch
from tests.unit.fuse.graphs import Builder, symbol

from framefuse.fuse.addressing.strided import is_product_layout, one_batch_stride, strided
from framefuse.ir.numbers import Symbol, expr

S, T = symbol("s0"), symbol("s1")
HINTS = {Symbol("s0"): 3, Symbol("s1"): 5}


def strides_of(node):
    return node.strides


CHAINS = {
    "heads": lambda b, x: b.permute(b.reshape(x, S, T, 2, 4), 0, 2, 1, 3),
    "part": lambda b, x: b.slice(x, (1, 0, 2), (S - 1, T, 3), (1, 1, 2)),
    "joined": lambda b, x: b.reshape(x, S * T, 8),
    "split and joined": lambda b, x: b.reshape(b.reshape(x, S, T, 2, 4), S * T, 8),
    "wide": lambda b, x: b.expand(b.reshape(x, S, T, 1, 8), (S, T, 7, 8)),
}


def torch_view(node, x):
    if node.op == "input":
        return x
    a = torch_view(node.inputs[0], x)
    shape = [size.evaluate(HINTS) for size in node.shape]
    match node.op:
        case "reshape":
            return a.view(shape)
        case "permute":
            return a.permute(node.attr("axes"))
        case "expand":
            return a.expand(shape)
    for axis, (start, step) in enumerate(zip(node.attr("starts"), node.attr("steps"), strict=True)):
        first = start.evaluate(HINTS)
        a = a[(slice(None),) * axis + (slice(first, first + step * (shape[axis] - 1) + 1, step),)]
    return a


@pytest.mark.parametrize("name", CHAINS)
def test_views(name):
    b = Builder()
    x = b.input((S, T, 8))
    node = CHAINS[name](b, x)
    view = strided(node, strides_of, HINTS)
    wanted = torch_view(node, torch.empty(3, 5, 8))
    assert view.base is x and not view.is_whole
    assert tuple(stride.evaluate(HINTS) for stride in view.strides) == wanted.stride()
    assert view.offset.evaluate(HINTS) == wanted.storage_offset()


def test_what_strides_cannot_say():
    b = Builder()
    x = b.input((S, T, 8))
    assert strided(b.reshape(b.permute(x, 1, 0, 2), S * T, 8), strides_of, HINTS) is None
    assert strided(b.slice(x, (S - 1, 0, 0), (S, T, 8), (-1, 1, 1)), strides_of, HINTS) is None


def test_product_layouts():
    one = expr(1)
    assert is_product_layout(S, T, T, one) and is_product_layout(S, T, one, S)
    assert is_product_layout(S, expr(4), S * 4, one)
    assert not is_product_layout(S, T, one * 0, one)
    assert not is_product_layout(S, T, T * 2, one * 2)
    assert one_batch_stride((S, T), (T * 6, expr(6))) == 6
    assert one_batch_stride((S, T), (expr(6), S * 6)) is None
    assert one_batch_stride((S, T), (expr(0), expr(0))) == 0
