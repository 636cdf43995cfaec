"""Exported programs that look up bags of rows: results are eager's with other bags, also empty ones."""

import shutil

import pytest
import torch
import torch.nn.functional as F

import framefuse

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler")
LAYERS = torch.nn.ModuleList(
    torch.nn.EmbeddingBag(9, 4, mode=mode, padding_idx=padding, include_last_offset=last)
    for mode, padding, last in (("sum", None, False), ("mean", -3, False), ("max", None, True), ("max", 2, False))
)


def looked_up(rows, begins, square, scales):
    with_end = torch.cat([begins, torch.full([1], rows.shape[0], dtype=begins.dtype)])
    results = [layer(rows, with_end if layer.include_last_offset else begins) for layer in LAYERS]
    weight = LAYERS[0].weight
    results.append(F.embedding_bag(rows, weight, begins, mode="sum", per_sample_weights=scales, padding_idx=2))
    return results + [layer(square) for layer in LAYERS if not layer.include_last_offset]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_bags_are_eagers(dtype, tmp_path):
    def drawn(begins, seed):
        draw = torch.Generator().manual_seed(seed)
        rows, square = (torch.randint(9, shape, generator=draw).to(dtype) for shape in ((12 + seed,), (3, 4)))
        return rows, torch.tensor(begins, dtype=dtype), square, torch.randn(12 + seed, generator=draw)

    path = tmp_path / "program.so"
    framefuse.export(looked_up, drawn([0, 3, 7], 0), path, dynamic=True)
    program = framefuse.load(path)
    for begins, seed in (([0, 3, 7], 1), ([0, 0, 5, 5, 14], 2), ([0, 4, 15], 3), ([0, 2], 4)):
        given = drawn(begins, seed)
        for result, wanted in zip(program(*given), looked_up(*given), strict=True):
            torch.testing.assert_close(torch.as_tensor(result), wanted.detach())
    rows, begins, *rest = drawn([0, 3, 7], 1)
    for wrong in (begins + 10, begins - 1):
        with pytest.raises((ValueError, IndexError), match="out of bounds"):
            program(rows, wrong, *rest)
