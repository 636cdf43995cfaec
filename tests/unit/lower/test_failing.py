"""What eager raises for some contents, sizes or numbers is raised where nobody reads the result, or not all of it."""

import pytest
import torch
import torch.nn.functional as F
from tests.unit.lower.recording import trace_of

import framefuse
from framefuse.lower import lower

ONES, ZERO_FIRST = torch.ones(6, dtype=torch.int64), torch.tensor([0, 1, 1, 1, 1, 1])
ZERO_LAST, NUMBERS = torch.tensor([1, 1, 1, 1, 1, 0]), torch.arange(1, 7)
GOOD, BAD = torch.tensor([0, 1, 1]), torch.tensor([0, 1, 9])
TABLE, COLUMN = torch.randn(4, 3), torch.randn(4)
PARTS = torch.tensor([0.0, 0.1, 0.3, 0.5, 0.7, 0.9])
HALVES = PARTS.bfloat16()


def reads(call):
    """A function that makes the call, and nobody looks at its result."""

    def unread(*args):
        call(*args)
        return args[0] + 1

    return unread


def written(x, index):
    x.clone()[index] = 1.0
    return x + 1


def definite(x):
    torch.linalg.cholesky(x @ x.T)
    return x + 1


# name: the function, arguments that it takes, and arguments of the same kind for which eager raises.
CASES = {
    "unread quotient": (reads(lambda a, b: a // b), (NUMBERS, ONES), (NUMBERS, ZERO_FIRST)),
    "unread remainder": (reads(lambda a, b: a % b), (NUMBERS, ONES), (NUMBERS, ZERO_FIRST)),
    "unread number as divisor": (reads(lambda a, n: torch.fmod(a, n)), (NUMBERS, 3), (NUMBERS, 0)),
    "unread quotient towards zero": (
        reads(lambda a, b: torch.div(a, b, rounding_mode="trunc")), (NUMBERS, ONES), (NUMBERS, ZERO_FIRST),
    ),
    "slice of a quotient": (lambda a, b: (a // b)[:3], (NUMBERS, ONES), (NUMBERS, ZERO_LAST)),
    "quotient of a slice of a sum": (lambda a, b: ((a // b) + a)[:3] * 2, (NUMBERS, ONES), (NUMBERS, ZERO_LAST)),
    "quotient expanded to nothing": (
        lambda a, b, c: (a // b)[:, None] + c, (NUMBERS, ONES, ONES[:2]), (NUMBERS, ZERO_LAST, ONES[:0]),
    ),
    "probability": (lambda x, y: F.binary_cross_entropy(x, y) * 2, (PARTS, PARTS), (PARTS * 2, PARTS)),
    "target": (lambda x, y: F.binary_cross_entropy(x, y, reduction="none"), (PARTS, PARTS), (PARTS, PARTS - 1)),
    "variance": (lambda x, v: F.gaussian_nll_loss(x, x * 2, v) * 2, (PARTS, PARTS), (PARTS, PARTS - 0.05)),
    "variance of 16 bits": (
        lambda x, v: F.gaussian_nll_loss(x, x * 2, v) * 2, (HALVES, HALVES), (HALVES, HALVES - 0.05),
    ),
    "unread probability": (reads(F.binary_cross_entropy), (PARTS, PARTS), (PARTS * float("nan"), PARTS)),
    "slice of an entropy": (
        lambda x, y: F.binary_cross_entropy(x, y, reduction="none")[:3], (PARTS, PARTS), (PARTS, PARTS.exp() - 0.9),
    ),
    "unread rows": (reads(lambda x, i: x[i]), (TABLE, GOOD), (TABLE, BAD)),
    "slice of rows": (lambda x, i: x[i][:2], (TABLE, GOOD), (TABLE, BAD)),
    "slice of an embedding": (lambda x, i: F.embedding(i, x)[:2], (TABLE, GOOD), (TABLE, BAD)),
    "embedding expanded to nothing": (
        lambda x, i, y: F.embedding(i, x)[None] + y[:, None, None], (TABLE, GOOD, COLUMN), (TABLE, BAD, COLUMN[:0]),
    ),
    "slice of gathered": (
        lambda x, i: x.gather(0, i[:, None].expand(3, 2))[:2], (TABLE, GOOD), (TABLE, BAD),
    ),
    "rows at rows of positions": (lambda x, i, j: x[i[j][:1]], (TABLE, GOOD, GOOD), (TABLE, GOOD, BAD)),
    "unread list of positions": (reads(lambda x: x[..., [0, 0]]), (TABLE,), (TABLE[:, :0],)),
    "written list of positions": (
        reads(lambda x: x.clone().__setitem__((..., [0, 0]), 1.0)), (TABLE,), (TABLE[:, :0],),
    ),
    "unread pieces": (reads(lambda x: x.split([1, x.shape[0] - 1])), (TABLE,), (TABLE[:0],)),
    "unread part": (reads(lambda x, n: x.narrow(0, 0, n)), (TABLE, 2), (TABLE, -1)),
    "unread copies": (reads(lambda x, n: x.repeat(n - 1, 1)), (TABLE, 3), (TABLE, 0)),
    "unread one_hot": (reads(lambda x, i: F.one_hot(i, 4)), (TABLE, GOOD), (TABLE, BAD)),
    "unread index_add": (
        reads(lambda x, i: torch.zeros(4).index_add(0, i, torch.ones(3))), (TABLE, GOOD), (TABLE, BAD),
    ),
    "unread write": (written, (TABLE, GOOD), (TABLE, BAD)),
    "unread factors": (definite, (torch.eye(3) * 2,), (torch.zeros(3, 3),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_eager_raises_and_so_does_compiled_code(name):
    function, good, bad = CASES[name]
    compiled = framefuse.compile(function)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(*good), function(*good))
        assert compiled.hits == 2
        with pytest.raises(Exception) as expected:
            function(*bad)
        with pytest.raises(type(expected.value)) as found:
            compiled(*bad)
        assert str(found.value) == str(expected.value)
        torch.testing.assert_close(compiled(*good), function(*good))
    assert compiled.hits in (3, 4)  # guards held for the bad ones too, or a size did not


@pytest.mark.parametrize(
    ("function", "kept"),
    [
        (lambda i, x: F.embedding(i, x) + 1, 0),
        (lambda i, x: F.layer_norm(F.embedding(i, x), (3,)).sum(), 0),
        (lambda i, x: (F.embedding(i, x) @ x.T)[:1], 0),
        (lambda i, x: F.embedding(i // 2, x), 0),
        (lambda i, x: F.embedding(i // 2, x)[:1], 0),  # a view: its base is computed whole
        (lambda i, x: (i // 2)[:1], 0),
        (lambda i, x: (i // (i + 1))[:1], 0),
        (lambda i, x: x.cumsum(0)[:1], 0),
        (lambda i, x: (x.cumsum(0), x + 1)[1], 0),
    ],
)
def test_what_is_computed_whole_anyhow_is_not_kept(function, kept):
    graph = lower(trace_of(function, GOOD, TABLE))
    assert len([node for node in graph.kept if node.op != "library"]) == kept
    assert len([node for node in graph.nodes if node.op == "library"]) == len(
        [node for node in graph.nodes if node.op == "result"]
    )


def test_an_expanded_embedding_costs_no_memory():
    """Nothing is kept for the positions of a batch: an empty one is another case."""

    def function(positions, table, x):
        return F.embedding(positions, table)[None] + x

    graph = lower(trace_of(function, GOOD, TABLE, torch.randn(2, 3, 3)))
    assert graph.kept == ()
    assert any(relation.op == "!=" for relation in graph.relations)
