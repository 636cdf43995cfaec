"""Exported programs that write where a mask says so, and into empty tensors: results are eager's at other sizes."""

import shutil

import pytest
import torch

import framefuse

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler")


def written(x):
    scaled, rows, part, row, sorted_, number = (x.clone() for _ in range(6))
    scaled[scaled < 0] *= 0.1
    rows[x[:, 0] > 0] = x[x[:, 0] > 0] * 2
    part[:, 1:][x[:, 1:] > 0] += 1
    row[x[:, 0] > 0] = torch.arange(3.0).unsqueeze(0)
    sorted_[x > 0] = x[x > 0].sort().values
    number[(x > 0) & (x < 1), ...] = torch.tensor(2)
    return scaled, rows, part, row, sorted_, number


def exported(f, given, path):
    framefuse.export(f, given, path, dynamic=True)
    return framefuse.load(path)


def test_tensors_are_written_where_a_mask_is_true(tmp_path):
    torch.manual_seed(0)
    program = exported(written, (torch.randn(4, 3),), tmp_path / "masks.so")
    for x in (torch.randn(4, 3), torch.randn(9, 3), torch.randn(1, 3), torch.ones(2, 3), -torch.ones(2, 3)):
        torch.testing.assert_close(program(x), written(x))


def test_as_many_as_there_are_places(tmp_path):
    def f(x):
        y = x.clone()
        y[x > 0] = torch.arange(3.0)
        return y

    program = exported(f, (torch.tensor([1.0, -1.0, 2.0, -1.0, 3.0]),), tmp_path / "counted.so")
    x = torch.tensor([-1.0, 1.0, 2.0, 5.0])
    assert torch.equal(program(x), f(x))
    for x in (torch.ones(4), -torch.ones(4)):
        with pytest.raises(RuntimeError, match="shape mismatch"):
            f(x)
        with pytest.raises(ValueError, match="the program raises"):
            program(x)


def test_empty_tensors_that_are_filled_at_positions(tmp_path):
    def f(p):
        like, new, sized = torch.empty_like(p), p.new_empty(p.shape), torch.empty(p.shape[0], dtype=torch.int32)
        for each in (like, new, sized):
            each[p] = torch.arange(p.shape[0], dtype=each.dtype)
        return like, new, sized

    program = exported(f, (torch.randperm(7),), tmp_path / "inverse.so")
    for count in (7, 12, 1):
        p = torch.randperm(count)
        torch.testing.assert_close(program(p), f(p))
