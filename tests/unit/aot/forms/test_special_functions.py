"""Functions by series, in exported programs: eager's values from the least numbers to the largest, in three dtypes."""

import shutil

import pytest
import torch
from torch.special import entr, erfcx, i0e, i1, i1e, log_ndtr

import framefuse

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler")


def by_series(x):
    wide = x.dtype is not torch.bfloat16  # else eager has few of them
    return [f(x) for f in ((torch.i0, i0e, i1, i1e, erfcx, log_ndtr, entr) if wide else (torch.i0, i0e, entr))]


def in_parts(x):
    mantissa, exponent = torch.frexp(x)
    return [mantissa, exponent, torch.ldexp(mantissa, exponent // 2), torch.frexp(x.double().abs()).exponent]


SPECIAL = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 8.0, -8.0, 0.5, 1.0, -1.0, 1e-40, 3e38])


def numbers(dtype, count):
    spread = torch.logspace(-30, 3, count, dtype=torch.float64)
    return torch.cat([spread, -spread, torch.linspace(-30, 30, 3 * count, dtype=torch.float64), SPECIAL]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("f", [by_series, in_parts])
def test_values_are_eagers(f, dtype, tmp_path):
    if f is in_parts and dtype is torch.bfloat16:
        pytest.skip("eager has no frexp of it")
    path = tmp_path / "program.so"
    framefuse.export(f, (numbers(dtype, 8),), path, dynamic=True)
    program = framefuse.load(path)
    for count in (8, 300):
        x = numbers(dtype, count)
        for place, (result, wanted) in enumerate(zip(program(x), f(x), strict=True)):
            assert result.dtype is wanted.dtype
            if f is in_parts:
                assert torch.equal(result.nan_to_num(7), wanted.nan_to_num(7)), place
            else:
                eps = torch.finfo(dtype).eps
                torch.testing.assert_close(result, wanted, rtol=64 * eps, atol=eps / 8, equal_nan=True)


def padded(a, b):
    pad = torch.nn.utils.rnn.pad_sequence
    return pad([a, b]), pad([b, a, b], batch_first=True, padding_value=-1.0, padding_side="left")


def at_places(x, index, terms, place):
    y = x.clone()
    y.index_reduce_(0, index, terms, "amin", include_self=False)
    reduced = [x.index_reduce(0, index, terms, kind) for kind in ("amax", "amin", "mean")]
    values = terms.reshape(-1)[: place.shape[0]]
    return [y, *reduced, x.put(place, values, accumulate=True), torch.Tensor.put_(x.clone(), place, values)]


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_sequences_and_writes_at_places(tmp_path):
    cases = [
        (padded, [(torch.randn(6, 3), torch.randn(4, 3)), (torch.randn(9, 3), torch.randn(2, 3))]),
        (at_places, [(torch.randn(n, 3), torch.tensor([0, 2, 2, n - 1]), torch.randn(4, 3), torch.tensor([1, -2, 7]))
                     for n in (5, 9)]),
    ]  # fmt: skip
    for f, inputs in cases:
        path = tmp_path / f"{f.__name__}.so"
        framefuse.export(f, inputs[0], path, dynamic=True)
        program = framefuse.load(path)
        for given in inputs:
            for result, wanted in zip(program(*given), f(*given), strict=True):
                torch.testing.assert_close(result, wanted)
