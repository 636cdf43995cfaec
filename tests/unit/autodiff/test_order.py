"""What rests on no tangent is computed right before its first reader; the rest of the order stays."""

from hypothesis import given
from hypothesis import strategies as st

from framefuse.autodiff.order import late
from framefuse.ir.builder import Builder
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.numbers import expr


def leaf(b):
    return b.opaque("input", (), (("index", len(b.nodes)),), FLOAT32, (expr(4),), None, "cpu")


def test_activations_wait_for_their_layer():
    b = Builder({})
    x, g = leaf(b), leaf(b)
    first = b.pointwise("exp", x)
    second = b.pointwise("sin", first)
    third = b.pointwise("cos", x)
    h = b.pointwise("mul", g, third)
    i = b.pointwise("mul", h, second)
    j = b.pointwise("mul", i, first)
    assert late(b.nodes, [g]) == [x, g, third, h, first, second, i, j]


def test_what_nobody_reads_stays():
    b = Builder({})
    x, g = leaf(b), leaf(b)
    unread = b.pointwise("exp", x)
    assert late(b.nodes, [g]) == [x, g, unread]


@given(st.data())
def test_operands_come_first(data):
    b = Builder({})
    leaves = [leaf(b) for _ in range(4)]
    values = list(leaves)
    for _ in range(data.draw(st.integers(0, 20))):
        pair = data.draw(st.tuples(st.sampled_from(values), st.sampled_from(values)))
        values.append(b.pointwise(data.draw(st.sampled_from(["add", "mul"])), *pair))
    order = late(b.nodes, leaves[: data.draw(st.integers(0, 4))])
    assert sorted(map(id, order)) == sorted(map(id, b.nodes))
    place = {node: number for number, node in enumerate(order)}
    assert all(place[operand] < place[node] for node in order for operand in node.inputs)
