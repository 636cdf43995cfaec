"""Batches of products too small for the library to begin are eager's, in every order of their operands."""

import pytest
import torch

import framefuse


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("m, k, n", [(3, 3, 3), (1, 8, 7), (4, 8, 4), (5, 1, 5), (2, 9, 2), (6, 4, 6)])
def test_tiny_products_are_eagers(m, k, n, dtype):
    def f(x, y, z):
        turned = x.transpose(1, 2).contiguous().transpose(1, 2), y.transpose(1, 2).contiguous().transpose(1, 2)
        return x @ y, turned[0] @ y, x @ turned[1], turned[0] @ turned[1], torch.baddbmm(z, x, y), (x @ y).mT @ x

    compiled = framefuse.compile(f)
    for batch in (7, 7, 12, 2, 1):
        given = (torch.randn(batch, m, k), torch.randn(batch, k, n), torch.randn(batch, m, n))
        given = tuple(each.to(dtype) for each in given)
        for result, expected in zip(compiled(*given), f(*given), strict=True):
            torch.testing.assert_close(result, expected)
            assert result.stride() == expected.stride()
