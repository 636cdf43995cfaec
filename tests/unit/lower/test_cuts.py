"""Pieces of tensors are views of them, as eager's are, and cost no call of the library."""

import pytest
import torch

import framefuse
from framefuse.ir.schedule import RunCall
from framefuse.runtime.function import compiled_function

CUTS = {
    "sections": lambda x: torch.tensor_split(x, 3, 1),
    "longer sections": lambda x: [piece * 2 for piece in x.tensor_split(5, 0)],
    "sections by name": lambda x: torch.tensor_split(x, sections=2, dim=-1)[1] + 1,
    "places": lambda x: torch.tensor_split(x, (1, 4), dim=-1),
    "places by name": lambda x: torch.tensor_split(x, indices=(1, 2)),
    "columns": lambda x: torch.hsplit(x, 2),
    "columns at places": lambda x: [piece * 3 for piece in x.hsplit([1, 3])],
    "rows": lambda x: x.vsplit(2),
    "of a line": lambda x: torch.hsplit(x.reshape(-1), 4)[3] - 1,
    "depth": lambda x: torch.dsplit(x.reshape(2, -1, 2), 2),
    "written": lambda x: (y := x + 0, y.tensor_split(2)[1].add_(1))[0],
    "pairs": lambda x: torch.cartesian_prod(x[0], x[1, :3], x[:, 0]),
    "hundredths": lambda x: x.round(decimals=2) + 1,
    "tens": lambda x: (x * 100).round(decimals=-1),
}


def parts(result):
    return result if isinstance(result, (tuple, list)) else (result,)


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("tracks", [False, True])
def test_pieces_are_eagers(name, tracks):
    function = CUTS[name]
    fast = framefuse.compile(function)
    for rows, columns in ((6, 8), (6, 8), (8, 8), (4, 12), (10, 6)):
        x = torch.randn(rows, columns)
        pairs = [(run, x.clone().requires_grad_(tracks)) for run in (fast, function)]
        (mine, given), (other, expected) = [(parts(run(leaf)), leaf) for run, leaf in pairs]
        assert len(mine) == len(other)
        for ours, eagers in zip(mine, other, strict=True):
            assert torch.equal(ours, eagers) and ours.stride() == eagers.stride()
            assert (ours._base is None) == (eagers._base is None)
        if tracks:
            for pieces in (mine, other):
                sum(
                    (piece * torch.arange(1.0, piece.numel() + 1).view(piece.shape)).sum() for piece in pieces
                ).backward()
            assert torch.equal(given.grad, expected.grad)
    state = compiled_function(fast)
    assert state.dispatch.hits >= 1
    assert not any(
        isinstance(item, RunCall) for product in state.products for item in product.stages.code.schedule.items
    )


def test_pieces_that_must_be_of_one_size():
    fast = framefuse.compile(lambda x: torch.hsplit(x, 2)[0] * 2)
    for columns in (8, 8, 6):
        x = torch.randn(3, columns)
        torch.testing.assert_close(fast(x), x[:, : columns // 2] * 2)
    with pytest.raises(RuntimeError, match="is not divisible by the split_size"):
        fast(torch.randn(3, 7))
