"""Random graphs of every kind of primitive over random shapes give torch's results."""

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.unit.fuse.graphs import Builder, check, kernels, symbol, text_of

from framefuse.fuse import fuse
from framefuse.ir import costs
from framefuse.ir.dtypes import FLOAT64, INT64
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.numbers import Symbol, expr

HINTS = {"s0": 3, "s1": 4}
UNARY = ("neg", "exp", "abs", "sin", "sigmoid")
BINARY = ("add", "sub", "mul", "maximum")


class Growing:
    """A graph that grows by drawn steps; every value is small enough that sums of products stay comparable."""

    def __init__(self, draw):
        self.draw = draw
        self.b = Builder(**HINTS)
        sizes = [symbol("s0"), symbol("s1"), 2, 3, 1]
        self.values = []
        for _ in range(draw(st.integers(1, 2))):
            shape = draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=3))
            self.values.append(self.b.input(shape, FLOAT64))

    def pick(self):
        return self.draw(st.sampled_from(self.values))

    def axis(self, a):
        return self.draw(st.integers(0, len(a.shape) - 1))

    def unary(self):
        op = self.draw(st.sampled_from(UNARY))
        a = self.pick()
        return self.b.sin(getattr(self.b, op)(a)) if op == "exp" else getattr(self.b, op)(a)

    def binary(self):
        a = self.pick()
        twins = [v for v in self.values if v.shape == a.shape]
        return getattr(self.b, self.draw(st.sampled_from(BINARY)))(a, self.draw(st.sampled_from(twins)))

    def row(self):
        """A reduction that is broadcast back: the start of a norm or a softmax."""
        a = self.pick()
        if not a.shape:
            return self.b.neg(a)
        kept = self.b.reduce(self.draw(st.sampled_from(("sum", "prod"))), a, self.axis(a), keep=True)
        return self.b.sub(a, self.b.sin(kept))

    def reduce(self):
        a = self.pick()
        if not a.shape:
            return self.b.abs(a)
        axes = self.draw(st.sets(st.integers(0, len(a.shape) - 1), min_size=1))
        return self.b.sin(self.b.reduce("sum", a, *sorted(axes)))

    def scan(self):
        """Running sums or extremes along an axis."""
        a = self.pick()
        if not a.shape:
            return self.b.sin(a)
        op = self.draw(st.sampled_from(("cumsum", "cummax")))
        return self.b.node(op, (a,), a.shape, a.dtype, axis=self.axis(a))

    def permute(self):
        a = self.pick()
        return self.b.permute(a, *self.draw(st.permutations(range(len(a.shape)))))

    def flatten(self):
        a = self.pick()
        if len(a.shape) < 2:
            return self.b.reshape(a, 1, *a.shape)
        axis = self.draw(st.integers(0, len(a.shape) - 2))
        return self.b.reshape(a, *a.shape[:axis], a.shape[axis] * a.shape[axis + 1], *a.shape[axis + 2 :])

    def split(self):
        """Takes a dimension apart that an earlier step put together, or that has a constant size."""
        a = self.pick()
        for axis, size in enumerate(a.shape):
            for inner in (symbol("s0"), symbol("s1"), 2, 3):
                outer = size // inner
                if outer * inner is size and outer.constant != 1 and outer.constant != 0:
                    return self.b.reshape(a, *a.shape[:axis], outer, inner, *a.shape[axis + 1 :])
        return self.b.reshape(a, *a.shape, 1)

    def expand(self):
        a = self.pick()
        return self.b.expand(a, (2, *a.shape))

    def slice(self):
        a = self.pick()
        if not a.shape:
            return a
        axis = self.axis(a)
        turned = [(0, 1)] * len(a.shape)
        size = a.shape[axis]
        turned[axis] = self.draw(st.sampled_from([(size - 1, -1), (0, 1)]))
        return self.b.slice(a, [start for start, _ in turned], a.shape, [step for _, step in turned])

    def pad(self):
        a = self.pick()
        before = [self.draw(st.integers(0, 1)) for _ in a.shape]
        shape = [size + n + self.draw(st.integers(0, 1)) for size, n in zip(a.shape, before, strict=True)]
        return self.b.pad(a, before, shape, 0.25)

    def cat(self):
        a = self.pick()
        if not a.shape:
            return a
        twins = [v for v in self.values if v.shape == a.shape]
        pieces = self.draw(st.lists(st.sampled_from(twins), min_size=1, max_size=2))
        return self.b.cat([a, *pieces], self.axis(a))

    def take(self):
        a = self.pick()
        if not a.shape or a.shape[0].constant == 0:
            return a
        positions = self.b.node("iota", (), (a.shape[0],), INT64, start=a.shape[0] - 1, step=-1)
        return self.b.take(a, positions, 0)

    def scatter(self):
        """A value's elements added where a count along one of its axes says, to another value or to a number."""
        a = self.pick()
        if not a.shape:
            return a
        axis, along, count = self.axis(a), self.axis(a), self.draw(st.integers(1, 3))
        line = self.b.node("iota", (), (a.shape[along],), INT64, start=1, step=1)
        lying = [size if place == along else 1 for place, size in enumerate(a.shape)]
        index = self.b.remainder(self.b.reshape(line, *lying), count)
        shape = (*a.shape[:axis], expr(count), *a.shape[axis + 1 :])
        number = self.b.node("full", (), shape, a.dtype, value=0.5)
        onto = self.draw(st.sampled_from([number, *(v for v in self.values if v.shape == shape)]))
        total = self.b.scatter_add(onto, index, a, axis)
        return self.b.sin(total) if self.draw(st.booleans()) else total

    def matmul(self):
        a = self.pick()
        if len(a.shape) < 2:
            return a
        axes = [*range(len(a.shape) - 2), len(a.shape) - 1, len(a.shape) - 2]
        return self.b.sin(self.b.matmul(a, self.b.permute(a, *axes)))


STEPS = ["unary", "binary", "row", "reduce", "permute", "flatten", "split", "expand", "slice", "pad", "cat", "take"]
STEPS += ["matmul", "scatter", "scan"]


@st.composite
def graphs(draw):
    growing = Growing(draw)
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=2, max_size=9)):
        value = getattr(growing, step)()
        limit = 1
        for size in value.shape:
            limit *= size.evaluate({Symbol(name): hint for name, hint in HINTS.items()})
        if limit <= 150 and len(value.shape) <= 4:
            growing.values.append(value)
    outputs = {id(v): v for v in (growing.values[-1], growing.pick())}
    return growing.b.graph(*outputs.values())


@pytest.fixture(scope="module", params=["rows", "chunks", "tiles"])
def threads(request):
    """Three settings: what small tensors get, and the forms for large ones at limits that small tensors pass."""
    with pytest.MonkeyPatch.context() as patch:
        small = {"BLOCK": 2, "CHUNK": 3} if request.param != "rows" else {}
        if request.param == "tiles":
            small |= {"CPU_STAGED_ABOVE": -1, "CPU_TILED_ABOVE": 1, "CPU_TILE": 3, "CPU_TILE_ROWS": 2}
            small |= {"CROSSED": 2, "CPU_SQUARE": (2, 3), "KEPT_ABOVE": 0.0, "SAVED_ABOVE": 0.0}
        for name, value in small.items():
            patch.setattr(costs, name, value)
        yield request.param != "chunks"


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(graph=graphs(), sizes=st.sampled_from([(3, 4), (1, 2), (5, 1), (0, 3), (2, 0)]))
def test_random_graphs(graph, sizes, threads):
    values = {Symbol("s0"): sizes[0], Symbol("s1"): sizes[1]}
    note(text_of(graph))
    schedule = fuse(graph, threads=threads, check=True)
    note("\n".join(map(kernel_text, kernels(schedule))))
    tensors = [
        torch.randn([size.evaluate(values) for size in node.shape], dtype=node.dtype.torch) for node in graph.inputs
    ]
    check(graph, schedule, *tensors)
