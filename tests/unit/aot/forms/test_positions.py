"""Exported programs that read and write at positions beside numbers and slices: results are eager's at other sizes."""

import shutil

import pytest
import torch

import framefuse

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler")


def read(x, i, j):
    """Positions with a slice between them come first, those with a number between them where they stand."""
    return [
        x[i, :, j], x[:, i, j], x[:, i, 1, j], x[i, 1:, None, j], x[:, i[:, None], ..., j], x[..., i, j - 2],
        x[i, :, j, 1:3], x[1, :, i, j], x.movedim(0, 2)[:, i, j] * 2,
    ]  # fmt: skip


def written(x, i, j):
    y, z = x.clone(), x.clone()
    y[:, i, 1, j] = x[:, 0, 0, : i.shape[0]]
    z[i, :, j] = x[0, :, 0]
    return y, z


def drawn(size, count):
    draw = torch.Generator().manual_seed(count)
    x = torch.randn(size, size + 1, size, size + 2, generator=draw)
    return x, torch.randperm(size, generator=draw)[:count], torch.randperm(size, generator=draw)[:count].to(torch.int32)


@pytest.mark.parametrize("f", [read, written])
def test_positions_beside_slices_are_eagers(f, tmp_path):
    path = tmp_path / "program.so"
    framefuse.export(f, drawn(4, 3), path, dynamic=True)
    program = framefuse.load(path)
    for size, count in ((4, 3), (5, 2), (7, 6)):
        x, i, j = drawn(size, count)
        i = torch.where(i > 1, i - size, i)
        for result, wanted in zip(program(x, i, j), f(x, i, j), strict=True):
            torch.testing.assert_close(result, wanted)
    x, i, j = drawn(4, 3)
    with pytest.raises(ValueError, match="out of bounds"):
        program(x, i + 3, j)
