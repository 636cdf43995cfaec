"""Exported programs whose results have sizes that depend on values: those are eager's on values other than recorded."""

import shutil

import pytest
import torch

import framefuse

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler")


def by_masks(x, m, c):
    few = x[m]
    kept = few[few[:, 0] > 0]
    return [
        few.relu().sum(1), kept.sum(0), kept @ torch.ones(3, 2), x[m, 1], x[m, :2], x[:, c], x[..., c].exp(), x[0, c],
        x[None, :, c], x.masked_select(c), m.nonzero(), *torch.where(x > 0), torch.argwhere(x),
    ]  # fmt: skip


def by_counts(x, n, w):
    values, runs, counts = torch.unique(n, return_inverse=True, return_counts=True)
    consecutive, often = torch.unique_consecutive(n, return_counts=True)
    return [
        values * 2, runs, counts, consecutive, often, torch.repeat_interleave(x, n, 0), x.T.repeat_interleave(n, 1) + 1,
        torch.repeat_interleave(n), torch.cat([x[:, :1] * k for k in range(40)], -1), torch.bincount(n),
        n.bincount(w, minlength=7), torch.bincount(n, minlength=2),
    ]  # fmt: skip


def masked(rows, seed):
    torch.manual_seed(seed)
    return torch.randn(rows, 3), torch.rand(rows) > 0.5, torch.rand(3) > 0.5


def counted(rows, seed):
    torch.manual_seed(seed)
    return torch.randn(rows, 3), torch.randint(0, 4, (rows,)), torch.rand(rows)


@pytest.mark.parametrize(("f", "drawn"), [(by_masks, masked), (by_counts, counted)])
def test_sizes_that_depend_on_values_are_eagers(f, drawn, tmp_path):
    path = tmp_path / "found.so"
    framefuse.export(f, drawn(6, 0), path, dynamic=True)
    program = framefuse.load(path)
    for rows, seed in ((6, 1), (9, 2), (6, 1), (30, 3)):
        given = drawn(rows, seed)
        for result, wanted in zip(program(*given), f(*given), strict=True):
            torch.testing.assert_close(result, wanted)
    if f is by_masks:
        x, m, c = masked(6, 1)
        for result, wanted in zip(program(x, m & False, c), f(x, m & False, c), strict=True):
            torch.testing.assert_close(result, wanted)
    else:
        x, n, w = counted(6, 1)
        with pytest.raises(ValueError, match="negative"):
            program(x, n - 4, w)


def test_as_many_repeats_as_rows(tmp_path):
    path = tmp_path / "repeated.so"
    framefuse.export(lambda x, n: x.repeat_interleave(n, 0), counted(6, 0)[:2], path, dynamic=True)
    program, (x, n, _) = framefuse.load(path), counted(7, 1)
    torch.testing.assert_close(program(x, n), x.repeat_interleave(n, 0))
    with pytest.raises(ValueError, match="do not fit together: 3 is to be == 7"):
        program(x, n[:3])


def test_places_that_nothing_is_read_of(tmp_path):
    """As masks of packed sequences do, whose positions only some masks ask for."""
    def f(x, at):
        places = x[at[:, None], at[None]]
        return torch.where(torch.ones_like(places, dtype=torch.bool), 1, 2) * x.sum()

    path = tmp_path / "unread.so"
    at = torch.tensor([2, 0, 1])
    framefuse.export(f, (torch.randn(4, 4), at), path)
    x = torch.randn(4, 4)
    torch.testing.assert_close(framefuse.load(path)(x, at.flip(0)), f(x, at))
