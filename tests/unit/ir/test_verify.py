"""verify() names the node that breaks a fact of its row."""

import dataclasses

import pytest
import torch
from tests.unit.lower.recording import lowered

from framefuse.errors import CompilerBug
from framefuse.ir.dtypes import FLOAT16, INT64
from framefuse.ir.graph import Graph
from framefuse.ir.numbers import expr
from framefuse.ir.verify import verify


def graph() -> Graph:
    return lowered(lambda x, y: (torch.exp(x) + y).sum(0), torch.randn(3, 4), torch.randn(3, 4))


def broken(first: str, **changes: object) -> Graph:
    whole = graph()
    place = next(i for i, node in enumerate(whole.nodes) if node.op == first)
    node = dataclasses.replace(whole.nodes[place], **changes)
    nodes = (*whole.nodes[:place], node, *whole.nodes[place + 1 :])
    return dataclasses.replace(whole, nodes=nodes, outputs=())


def test_a_lowered_graph_is_in_order():
    verify(graph())


@pytest.mark.parametrize(
    ("op", "changes", "words"),
    [
        ("exp", {"dtype": INT64}, "dtype"),
        ("exp", {"op": "sine"}, "no row"),
        ("exp", {"attrs": (("axes", (0,)),)}, "attributes"),
        ("add", {"dtype": FLOAT16}, "dtype"),
        ("add", {"shape": (expr(3),)}, "operand shapes"),
        ("sum", {"shape": (expr(3), expr(4))}, "axes"),
        ("exp", {"inputs": ()}, "operands for 1"),
    ],
)
def test_each_broken_fact_is_found(op, changes, words):
    with pytest.raises(CompilerBug, match=words):
        verify(broken(op, **changes), after="a pass")


def test_an_operand_that_comes_later_is_found():
    whole = graph()
    with pytest.raises(CompilerBug, match="later"):
        verify(dataclasses.replace(whole, nodes=tuple(reversed(whole.nodes))))
