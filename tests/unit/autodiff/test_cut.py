"""What backward needs can be computed from what is saved, at the least price; the choices are those a person makes."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefuse.autodiff.cut import _cut, _Joint, _Prices, choose_saved
from framefuse.ir.builder import Builder
from framefuse.ir.dtypes import BOOL, FLOAT32
from framefuse.ir.numbers import Symbol, expr
from framefuse.ir.ops import CALL, TABLE

LARGE = (512, 1024)


class Joint:
    """A joint graph by hand: everything made before ``backward()`` is forward."""

    def __init__(self, **hints):
        self.b = Builder({Symbol(name): value for name, value in hints.items()})
        self.split = 0
        self.gradients = []

    def input(self, *shape):
        sizes = tuple(map(expr, shape))
        return self.b.opaque("input", (), (("index", len(self.b.nodes)),), FLOAT32, sizes, None, "cpu")

    def __getattr__(self, name):
        return lambda *operands: self.b.pointwise(name, *operands)

    def number(self, value, like):
        return self.b.full(value, like.dtype, like.shape)

    def random(self, *shape):
        attrs = (("target", None), ("name", "rand"), ("args", ()), ("kwargs", {}), ("random", True))
        attrs += (("orders", ()), ("views", ()))
        call = self.b.opaque("library", (), attrs, FLOAT32, (), None, "cpu")
        sizes = tuple(map(expr, shape))
        return self.b.opaque("result", (call,), (("path", ()),), FLOAT32, sizes, sizes, "cpu")

    def backward(self, *shape):
        self.split = len(self.b.nodes)
        return self.input(*shape)

    def saved(self, *gradients, free=(), forbidden=()):
        forward, backward = self.b.nodes[: self.split], self.b.nodes[self.split :]
        found = choose_saved(forward, backward, gradients, free=free, forbidden=forbidden, hints=self.b.hints)
        for gradient in gradients:
            assert known(gradient, set(found), {node for node in backward if node.op == "input"})
        return found


def known(node, saved, tangents):
    """Whether backward can compute the node."""
    if node in saved or node in tangents or node.op == "full":
        return True
    if node.op == "input" or (TABLE[node.op].kind == CALL and not rests(node, tangents)):
        return False
    return all(known(operand, saved, tangents) for operand in node.inputs)


def rests(node, tangents):
    return node in tangents or any(rests(operand, tangents) for operand in node.inputs)


def test_the_result_that_eager_saved():
    j = Joint()
    x = j.input(*LARGE)
    r = j.exp(x)
    g = j.backward(*LARGE)
    assert j.saved(j.mul(g, r), free=[r], forbidden=[x]) == (r,)


def test_a_chain_is_computed_again_from_an_input():
    j = Joint()
    x = j.input(*LARGE)
    values = [x]
    for op in ("sin", "cos", "sin", "exp", "sin"):
        values.append(getattr(j, op)(values[-1]))
    g = j.backward(*LARGE)
    for value in reversed(values[:-1]):
        g = j.mul(g, j.cos(value))
    assert j.saved(g, free=[x]) == (x,)


def test_an_expensive_value_is_not_computed_again():
    j = Joint()
    x = j.input(*LARGE)
    dear, cheap = x, j.exp(x)
    for _ in range(4):
        dear = j.digamma(dear)
    g = j.backward(*LARGE)
    assert j.saved(j.mul(g, dear), j.mul(g, cheap), free=[x]) == (x, dear)


def test_an_activation_between_products_is_computed_from_what_went_in():
    j = Joint()
    x, w1, w2 = j.input(512, 256), j.input(256, 1024), j.input(1024, 256)
    h = j.b.matmul(x, w1)
    a = j.mul(h, j.sigmoid(h))
    j.b.matmul(a, w2)
    g = j.backward(512, 256)
    ga = j.b.matmul(g, j.b.permute(w2, (1, 0)))
    gw2 = j.b.matmul(j.b.permute(a, (1, 0)), g)
    s = j.sigmoid(h)
    gh = j.mul(ga, j.add(s, j.mul(a, j.sub(j.number(1.0, s), s))))
    found = j.saved(gw2, j.b.matmul(j.b.permute(x, (1, 0)), gh), free=[x, w1, w2])
    assert found == (x, w2, h)


def test_a_mask_is_smaller_than_what_it_is_made_of():
    j = Joint()
    x = j.input(*LARGE)
    j.maximum(x, j.number(0.0, x))
    g = j.backward(*LARGE)
    mask = j.gt(x, j.number(0.0, x))  # made by the sweep; rests on no tangent
    assert mask.dtype is BOOL
    assert j.saved(j.where(mask, g, j.number(0.0, g)), forbidden=[x]) == (mask,)
    assert j.saved(j.where(mask, g, j.number(0.0, g)), free=[x]) == (x,)


def test_what_is_random_is_saved_by_its_smallest_descendant():
    j = Joint()
    x = j.input(*LARGE)
    kept = j.lt(j.random(*LARGE), j.number(0.9, x))
    j.mul(x, j.b.cast(kept, FLOAT32))
    g = j.backward(*LARGE)
    assert j.saved(j.mul(g, j.b.cast(kept, FLOAT32)), free=[x]) == (kept,)


@pytest.mark.parametrize("rows, columns, expected", [(512, 1024, "sum"), (2, 3, "input")])
def test_reductions_of_much_are_saved(rows, columns, expected):
    j = Joint()
    x = j.input(rows, columns)
    total = j.b.reduce("sum", j.exp(x), (1,))
    g = j.backward(rows)
    found = j.saved(j.mul(g, total), free=[x])
    assert [node.op for node in found] == [expected]


def test_the_smaller_side_of_an_expansion():
    j = Joint()
    x = j.b.matmul(j.input(8, 16), j.input(16, 1))
    wide = j.b.expand(x, (expr(8), expr(4096)))
    g = j.backward(8, 4096)
    assert j.saved(j.mul(g, j.exp(wide))) == (x,)


def test_one_copy_of_a_slice_and_no_copy_of_all():
    j = Joint()
    x = j.b.matmul(j.input(512, 16), j.input(16, 3072))
    parts = [j.b.narrow(x, 1, start, 1024) for start in (0, 1024, 2048)]
    g = j.backward(512, 1024)
    assert j.saved(j.mul(g, parts[1])) == (parts[1],)
    assert j.saved(*(j.mul(g, part) for part in parts)) == (x,)


def test_a_residual_sum_is_saved_rather_than_what_is_computed_from_it():
    """It is in memory for the layer after; what a norm makes of it would be written for backward alone."""
    j = Joint()
    x, scale, w = j.input(*LARGE), j.random(512, 1), j.input(1024, 1024)
    total = j.add(x, j.b.matmul(j.sin(x), w))
    normed = j.mul(total, j.b.expand(scale, total.shape))
    j.add(total, j.b.matmul(j.sin(normed), w))
    g = j.backward(*LARGE)
    assert set(j.saved(j.mul(g, normed))) == {total, scale}


def test_residual_sums_are_not_computed_from_one_another():
    j = Joint()
    layers = 12
    x, w = j.input(*LARGE), j.input(1024, 1024)
    sums = [x]
    for _ in range(layers):
        h = j.b.matmul(j.sin(sums[-1]), w)
        h = j.b.matmul(j.sin(h), w)
        sums.append(j.add(sums[-1], h))
    g = j.backward(*LARGE)
    back = j.b.permute(w, (1, 0))
    gradients = []
    for value in reversed(sums[:-1]):
        h = j.b.matmul(j.sin(value), w)
        gradients.append(j.b.matmul(j.b.permute(j.sin(h), (1, 0)), g))
        gh = j.mul(j.b.matmul(g, back), j.cos(h))
        gradients.append(j.b.matmul(j.b.permute(j.sin(value), (1, 0)), gh))
        g = j.add(g, j.mul(j.b.matmul(gh, back), j.cos(value)))
    found = j.saved(g, *gradients, free=[x, w])
    # x and w, and two values of a layer: the sum, or the product that it adds to the one before
    assert len(found) == 2 + 2 * layers - 1
    saved = set(found)
    recomputed = [value for value in sums[1:-1] if value not in saved]
    assert all(sums[sums.index(value) - 1] in saved for value in recomputed)


def test_a_mask_from_positions_is_computed_wherever_it_is_read():
    j = Joint()
    x, w = j.input(512, 512), j.input(512, 512)
    positions = j.b.iota(0, 1, FLOAT32, expr(512))
    row = j.b.expand(j.b.reshape(positions, (expr(512), expr(1))), (expr(512), expr(512)))
    mask = j.le(j.b.expand(positions, (expr(512), expr(512))), row)
    value = x
    for _ in range(12):
        value = j.b.matmul(j.where(mask, value, j.number(0.0, value)), w)
    g = j.backward(512, 512)
    for _ in range(12):
        g = j.where(mask, j.b.matmul(g, w), j.number(0.0, g))
    assert j.saved(g, free=[x, w]) == (w,)


def test_sizes_that_only_the_run_tells():
    j = Joint(s0=512)
    x = j.input(Symbol("s0").expr, Symbol("u0").expr)
    r = j.exp(x)
    g = j.backward(Symbol("s0").expr, Symbol("u0").expr)
    assert j.saved(j.mul(g, r), free=[x]) == (x,)


def test_backward_that_needs_nothing():
    j = Joint()
    x = j.input(4)
    j.add(x, x)
    g = j.backward(4)
    assert j.saved(j.add(g, g), free=[x]) == ()
    assert j.saved(j.number(0.0, x), free=[x]) == ()


# ---- against every other choice


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_other_choice_is_cheaper(data):
    draw = data.draw
    j = Joint()
    rows = draw(st.sampled_from([4, 64, 512]))
    shape = (rows, 256)
    x, w = j.input(*shape), j.input(256, 256)
    values = [x]
    for _ in range(draw(st.integers(1, 7))):
        value = draw(st.sampled_from(values))
        kind = draw(st.sampled_from(["exp", "digamma", "add", "row", "product", "random", "relu"]))
        if kind in ("exp", "digamma"):
            values.append(getattr(j, kind)(value))
        elif kind == "add":
            values.append(j.add(value, draw(st.sampled_from(values))))
        elif kind == "row":
            values.append(j.sub(value, j.b.expand(j.b.reduce("sum", value, (1,), keep=True), value.shape)))
        elif kind == "product":
            values.append(j.b.matmul(value, w))
        elif kind == "random":
            values.append(j.mul(value, j.random(*shape)))
        else:
            values.append(j.where(j.gt(value, j.number(0.0, value)), value, j.number(0.0, value)))
    g = j.backward(*shape)
    gradients = []
    for value in draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)):
        gradients.append(j.mul(g, j.exp(value)))
        if draw(st.booleans()):
            gradients.append(j.b.matmul(j.b.permute(value, (1, 0)), g))
    asides = draw(st.sampled_from([(x, w), (x,), ()]))
    forward, backward = j.b.nodes[: j.split], j.b.nodes[j.split :]
    joint = _Joint(forward, backward, gradients)
    prices = _Prices(forward, frozenset(asides), frozenset({x, w} - set(asides)), j.b.hints)
    found = _cut(joint, prices)
    candidates = [node for node in joint.uses if node.op not in ("full", "library")]
    best = min(
        cost
        for size in range(min(len(candidates), 4) + 1)
        for chosen in combinations(candidates, size)
        if (cost := price(set(chosen), joint, prices)) is not None
    )
    mine = price(set(found), joint, prices)
    assert mine is not None
    assert mine <= best


def price(saved, joint, prices):
    """What the choice costs; None where backward cannot be computed from it."""
    total = sum(prices.saving(node) for node in saved)
    again = set()
    stack = [node for node in joint.read if node not in saved]
    while stack:
        node = stack.pop()
        if node in again or node.op == "full":
            continue
        if node.op == "input" or TABLE[node.op].kind == CALL:
            return None
        again.add(node)
        stack.extend(operand for operand in node.inputs if operand not in saved)
    return total + sum(prices.again(node, joint.uses[node].in_memory) for node in again if node in joint.uses)
