"""A graph is divided into what eager walks together; no piece computes what another one does."""

import pytest
import torch
import torch.nn.functional as F

from framefuse.autodiff.divide import divide
from framefuse.capture.record import record
from framefuse.driver.backward import holders
from framefuse.lower import lower


def divided(function, *tensors):
    """The division of the function's graph, with the number of nodes that each part computes."""
    recording = record(function, [tensor.requires_grad_() for tensor in tensors], {}, owner=None, dynamic=None)
    trace = recording.trace
    graph = lower(trace)
    found = divide(graph, holders(graph, trace))
    assert all(part.home for part in found.parts)
    return found, [len(part.graph.nodes) - len(part.graph.inputs) for part in found.parts]


def square(size=4):
    return torch.randn(size, size)


def test_one_result_is_one_piece():
    found, _ = divided(lambda x, w: ((x @ w).tanh() @ w.t()).sum(), square(), square())
    assert len(found.parts) == 1 and found.graph.outputs[0].requires_grad and len(found.graph.outputs) == 1


def test_two_heads_and_their_trunk():
    def heads(x, a, b):
        h = x.tanh() * x
        return h @ a, h @ b

    found, _ = divided(heads, square(), square(), square())
    trunk, *rest = found.parts
    assert trunk.home == 3 and sorted(part.home for part in rest) == [1, 2]
    assert trunk.outputs == (2,) and [part.feeds for part in rest] == [(2,), (2,)]
    assert sorted(part.graph.differentiable for part in rest) == [(1, 3), (2, 3)]  # no head reaches the other's weight


def test_heads_without_a_trunk():
    found, _ = divided(lambda x, y: (x.exp(), y.exp()), square(), square())
    assert [part.graph.differentiable for part in found.parts] == [(0,), (1,)] and len(found.graph.outputs) == 2


@pytest.mark.parametrize("keeps", [lambda h, x: (h,), lambda h, x: (h * 2, h.sin()), lambda h, x: (x,)])
def test_outputs_along_the_way_cost_nothing(keeps):
    def layers(count):
        def function(x, w):
            kept = []
            for _ in range(count):
                h = F.layer_norm(x, (4,)) @ w
                kept.extend(keeps(h, x))
                x = x + F.gelu(h)
            return x, kept

        return divided(function, square(), square())

    (_, few), (_, many) = layers(4), layers(8)
    assert sum(many) <= 2.2 * sum(few)


def test_slices_stand_with_what_they_are_of():
    def attention(x, w):
        q, k, v = (x @ w).chunk(3, -1)
        return (q.softmax(-1) * v).sum(), k.contiguous(), v.contiguous()

    found, _ = divided(attention, square(), torch.randn(4, 12))
    assert len(found.parts[0].graph.differentiable) == 2  # the product's piece alone takes inputs that require grad
    assert all(not set(part.graph.differentiable) & {0, 1} for part in found.parts[1:])


def test_equal_values_that_eager_computed_twice_are_apart():
    found, _ = divided(lambda x: (x.tanh().exp(), x.tanh().sin()), square())
    assert sorted(part.home for part in found.parts) == [1, 2] and len(found.graph.outputs) == 2


def test_a_value_that_two_results_share_is_one_piece():
    def function(x):
        h = x.tanh()
        return h.exp(), h.sin()

    assert sorted(part.home for part in divided(function, square())[0].parts) == [1, 2, 3]


def test_a_cut_reaches_nothing():
    found, _ = divided(lambda x, w: (x.exp(), x.exp().detach() * w), square(), square())
    assert [part.graph.differentiable for part in sorted(found.parts, key=lambda part: part.home)] == [(0,), (1,)]
