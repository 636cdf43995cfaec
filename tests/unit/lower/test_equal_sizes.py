"""Sizes that the program relies on to be equal have one name in the graph, and both are still checked."""

import gc

import pytest
import torch

import framefuse
from framefuse.ir.builder import Builder
from framefuse.ir.comparisons import Relation
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.graph import Graph, Output
from framefuse.ir.numbers import Symbol, expr
from framefuse.ir.schedule import RunKernel
from framefuse.lower.equal_sizes import with_equal_sizes
from framefuse.runtime.function import compiled_function

A, C, D, E = (expr(Symbol(name)) for name in "acde")


def graph(*shapes, relations=(), attrs=()):
    builder = Builder({symbol: 3 for shape in shapes for size in shape for symbol in size.symbols})
    inputs = [
        builder.opaque("input", (), (("index", place),), FLOAT32, shape, shape, "cpu")
        for place, shape in enumerate(shapes)
    ]
    call = builder.opaque("library", tuple(inputs), attrs, FLOAT32, (), None, "cpu")
    result = builder.opaque("result", (call,), (("path", ()),), FLOAT32, shapes[-1], shapes[-1], "cpu")
    outputs = (Output(7, result, None),)
    return Graph("f", tuple(inputs), tuple(builder.nodes), outputs, (), tuple(relations), kept=(call,))


def equal(left, right):
    return Relation("==", left, right)


def test_the_earliest_name_is_taken_through_chains_of_relations():
    found = with_equal_sizes(graph((A, C), (D, E)), [equal(E, D), equal(D, A)])
    assert [node.shape for node in found.inputs] == [(A, C), (A, A)] and found.inputs[1].strides == (A, A)
    assert found.outputs[0].node.shape == (A, A) and found.outputs[0].node is found.nodes[-1]
    assert found.kept == (found.nodes[2],) and found.nodes[2].inputs == found.inputs


def test_attributes_are_renamed_wherever_sizes_stand_in_them():
    attrs = (("args", (D + 1, slice(None, D, 2), [D, "d"])), ("kwargs", {"size": (D, A)}))
    found = with_equal_sizes(graph((A,), (D,), attrs=attrs), [equal(A, D)])
    call = found.nodes[2]
    assert call.attr("args") == (A + 1, slice(None, A, 2), [A, "d"]) and call.attr("kwargs") == {"size": (A, A)}
    assert attrs[1][1] == {"size": (D, A)}


def test_relations_of_the_graph_count_and_stay():
    made = graph((A,), (D,), relations=[equal(A, D)])
    found = with_equal_sizes(made, ())
    assert found.inputs[1].shape == (A,) and found.relations == made.relations


def test_a_size_that_is_a_number_is_that_number_in_all_that_equal_it():
    shapes = [(A, C), (D, E)]
    for relations in (
        [equal(D, expr(3)), equal(E, A), equal(D, A)],
        [equal(E, A), equal(D, A), equal(expr(3), A)],
        [equal(expr(3), E), equal(D, A), equal(E, A)],
    ):
        found = with_equal_sizes(graph(*shapes), relations)
        three = expr(3)
        assert [node.shape for node in found.inputs] == [(three, C), (three, three)]
        assert found.inputs[1].strides == (three, three)


def test_a_norm_of_known_width_is_one_kernel():
    """The rows are as long as the weights, which are known: what is computed of both is one loop."""
    for dtype in (torch.float32, torch.bfloat16):
        norm = torch.nn.LayerNorm(48).to(dtype)
        compiled = framefuse.compile(norm)
        with torch.no_grad():
            for rows in (4, 4, 5):
                x = torch.randn(rows, 48).to(dtype)
                torch.testing.assert_close(compiled(x), norm(x))
            (product,) = compiled_function(compiled).products
            assert [node.shape[1].constant for node in product.stages.graph.inputs[:1]] == [48]
            assert len([item for item in product.stages.code.schedule.items if isinstance(item, RunKernel)]) == 1
            with pytest.raises(RuntimeError, match="48"):
                compiled(torch.randn(4, 49).to(dtype))


def test_nothing_else_is_taken_for_equality():
    made = graph((A,), (D,))
    others = [Relation("<=", A, D), Relation("!=", A, D), equal(A, D + 1), equal(E, expr(3)), equal(A, E), equal(A, A)]
    assert with_equal_sizes(made, others) is made


def test_a_training_step_of_equal_shapes_is_one_kernel_each_way_and_unequal_sizes_compile_anew():
    def f(x, w):
        return torch.relu(x * w)

    compiled = framefuse.compile(f)

    def check(*shapes):
        arguments = [torch.randn(shape, requires_grad=True) for shape in shapes]
        found, expected = compiled(*arguments), f(*arguments)
        tangent = torch.randn(expected.shape)
        assert torch.equal(found, expected)
        for ours, theirs in zip(
            torch.autograd.grad(found, arguments, tangent),
            torch.autograd.grad(expected, arguments, tangent),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs)

    for shape in ((4, 5), (4, 5), (6, 7), (1, 3), (3, 1)):
        check(shape, shape)
    dispatch = compiled.__framefuse__.dispatch
    before = len(dispatch.entries)
    assert dispatch.hits >= 2
    check((4, 5), (5,))
    check((4, 1), (4, 5))
    check((4, 5), (4, 5))
    assert len(dispatch.entries) > before
    (plan,) = [e.plan.plan for e in dispatch.entries if len(e.plan.plan.slots[1].sizes) == 2 and square(e.plan.plan)]
    (attach,) = [step.function for step in plan.steps if type(step).__name__ == "CallStep"]
    backward = [entry.plan.plan for side in gc.get_referents(attach) for entry in getattr(side, "entries", ())]
    assert backward
    for made in (plan, *backward):
        assert sum(type(step).__name__ == "KernelStep" for step in made.steps) == 1


def square(plan):
    return plan.slots[0].sizes == plan.slots[1].sizes
