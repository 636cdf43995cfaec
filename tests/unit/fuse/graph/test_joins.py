"""Slices of joined values are slices of their pieces, wherever sizes say in which they lie."""

import pytest
import torch
from tests.unit.fuse.graphs import Builder, check, symbol

import framefuse
from framefuse.fuse import fuse
from framefuse.fuse.graph.joins import with_pieces
from framefuse.ir import costs

ROWS, COLUMNS = symbol("s0"), symbol("s1")


def joined(b, *rows):
    """A cat of inputs with so many rows."""
    return b.cat([b.input((size, COLUMNS)) for size in rows], 0)


def read(graph):
    """The operations that the first output of a graph is computed by, from it to the inputs."""
    node, ops = graph.outputs[0].node, []
    while node.op != "input":
        ops.append(node.op)
        node = node.inputs[0]
    return ops


def test_a_slice_inside_of_a_piece_reads_that_piece():
    b = Builder(s0=6, s1=5)
    whole = joined(b, 2, ROWS, 3)
    graph = with_pieces(b.graph(b.neg(b.slice(whole, (3, 0), (ROWS - 1, COLUMNS)))))
    assert read(graph) == ["neg", "slice"]
    check(graph, fuse(graph), torch.randn(2, 5), torch.randn(6, 5), torch.randn(3, 5))


def test_a_whole_piece_is_no_slice():
    b = Builder(s0=6, s1=5)
    whole = joined(b, 2, ROWS, 3)
    graph = with_pieces(b.graph(b.neg(b.slice(whole, (2, 0), (ROWS, COLUMNS)))))
    assert read(graph) == ["neg"]


def test_what_lies_in_several_pieces_is_joined_from_them():
    b = Builder(s0=6, s1=5)
    whole = joined(b, 2, ROWS, 3)
    graph = with_pieces(b.graph(b.neg(b.slice(whole, (1, 0), (ROWS + 2, COLUMNS)))))
    cat = graph.outputs[0].node.inputs[0]
    assert cat.op == "cat" and [str(piece.shape[0]) for piece in cat.inputs] == ["1", "s0", "1"]
    check(graph, fuse(graph), torch.randn(2, 5), torch.randn(6, 5), torch.randn(3, 5))
    check(graph, fuse(graph), torch.randn(2, 1), torch.randn(0, 1), torch.randn(3, 1))


def test_a_value_may_be_joined_with_itself():
    b = Builder(s1=5)
    piece = b.input((4, COLUMNS))
    graph = with_pieces(b.graph(b.neg(b.slice(b.cat([piece, piece], 0), (2, 1), (5, COLUMNS - 1)))))
    cat = graph.outputs[0].node.inputs[0]
    assert [str(part.shape[0]) for part in cat.inputs] == ["2", "3"]
    check(graph, fuse(graph), torch.randn(4, 5))


def test_steps_and_places_that_sizes_do_not_tell_stay_as_they_are():
    for starts, steps, rows in (((0, 0), (2, 1), 3), ((1, 0), (1, 1), 4)):
        b = Builder(s0=6, s1=5)
        whole = joined(b, ROWS, 3)
        graph = b.graph(b.neg(b.slice(whole, starts, (rows, COLUMNS), steps)))
        assert with_pieces(graph).nodes == graph.nodes
        check(graph, fuse(graph), torch.randn(6, 5), torch.randn(3, 5))


@pytest.mark.parametrize(
    ("starts", "rows", "steps"), [((ROWS + 4, 0), ROWS + 5, (-1, 1)), ((2, COLUMNS - 1), ROWS, (1, -1))]
)
def test_what_is_read_from_its_end_is_no_whole_piece(starts, rows, steps):
    b = Builder(s0=6, s1=5)
    graph = with_pieces(b.graph(b.neg(b.slice(joined(b, 2, ROWS, 3), starts, (rows, COLUMNS), steps))))
    assert read(graph)[:2] == ["neg", "slice"]
    check(graph, fuse(graph), torch.randn(2, 5), torch.randn(6, 5), torch.randn(3, 5))


def test_a_joined_value_joins_no_other():
    b = Builder(s0=6, s1=5)
    graph = with_pieces(b.graph(b.cat([joined(b, 2, ROWS), joined(b, 1, 3)], 0)))
    assert [node.op for node in graph.outputs[0].node.inputs] == ["input"] * 4
    check(graph, fuse(graph), *(torch.randn(rows, 5) for rows in (2, 6, 1, 3)))


def test_reshapes_back_to_a_shape_are_gone():
    b = Builder(s0=6, s1=5)
    whole = b.reshape(b.reshape(joined(b, ROWS, 3), 1, ROWS + 3, COLUMNS), ROWS + 3, COLUMNS)
    assert read(with_pieces(b.graph(b.neg(b.slice(whole, (0, 0), (ROWS, COLUMNS)))))) == ["neg"]


@pytest.mark.parametrize("axis", [0, 1])
def test_many_rows_are_joined_without_a_view_of_each(axis):
    b = Builder(s0=6, s1=5)
    rows = [b.input((ROWS, COLUMNS)) for _ in range(costs.CAT_PIECES + 1)]
    shape = (1, ROWS, COLUMNS) if axis == 0 else (ROWS, 1, COLUMNS)
    graph = with_pieces(b.graph(b.neg(b.cat([b.reshape(row, *shape) for row in rows], axis))))
    assert read(graph) == ["neg", "reshape", "cat"]
    compiled = framefuse.compile(lambda rows: torch.stack(rows, axis).sin())
    for _ in range(3):
        given = [torch.randn(6, 5) for _ in rows]
        torch.testing.assert_close(compiled(given), torch.stack(given, axis).sin())
    assert read(with_pieces(b.graph(b.cat([b.reshape(row, *shape) for row in rows], axis)))) == ["cat", "reshape"]
