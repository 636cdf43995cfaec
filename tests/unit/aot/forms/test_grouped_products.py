"""Exported products of groups of rows, each by a matrix of its own: results are eager's for any division of rows."""

import shutil

import pytest
import torch
import torch.nn.functional as F

import framefuse

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler"),
    pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="torch has no products of groups"),
]


def ends(rows, groups):
    return torch.cat([torch.randint(0, rows + 1, (groups - 1,)).sort().values, torch.tensor([rows])]).to(torch.int32)


def by_loop(x, weight, offs):
    """What torch computes, for dtypes and alignments that it does not take."""
    parts = torch.tensor_split(x, offs[:-1].tolist())
    return torch.cat([part @ matrix for part, matrix in zip(parts, weight, strict=True)])


@pytest.mark.parametrize("function", [F.grouped_mm, torch._grouped_mm])
def test_each_group_is_multiplied_by_its_matrix(function, tmp_path):
    torch.manual_seed(0)
    weight = torch.randn(5, 16, 8)

    def f(x, offs):
        return function(x, weight, offs=offs) + 1

    path = tmp_path / "groups.so"
    framefuse.export(f, (torch.randn(12, 16), ends(12, 5)), path)
    program = framefuse.load(path)
    for rows in (12, 31, 3, 1):
        x, offs = torch.randn(rows, 16), ends(rows, 5)
        torch.testing.assert_close(program(x, offs), by_loop(x, weight, offs) + 1, rtol=1e-4, atol=1e-5)
