"""Padding with a tensor's own elements: joined by kernels, with eager's gradients, twice, and eager's errors."""

import pytest
import torch
from tests.unit.autodiff.gradient_graphs import check_lowered
from tests.unit.autodiff.test_twice import check_twice
from torch.nn import functional as F

import framefuse


def rand(*shape):
    torch.manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.float64)


BORDERS = {
    "1d": ((2, 1), (3, 4, 5)),
    "one side": ((0, 3), (4, 5)),
    "2d": ((1, 2, 3, 0), (2, 3, 4, 5)),
    "3d": ((1, 0, 2, 1, 1, 1), (2, 2, 3, 4, 5)),
}


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("name", BORDERS)
def test_borders_are_kernels(mode, name):
    amounts, shape = BORDERS[name]
    backward = check_lowered(lambda x: F.pad(x * 2, amounts, mode=mode).sin(), rand(*shape))
    assert not [node for node in backward.nodes if node.op == "library"]
    check_twice(lambda x: F.pad(x * 2, amounts, mode=mode).sin(), rand(*shape))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_borders_of_other_sizes(mode):
    """One graph serves sizes of pictures; what eager refuses is eager's error."""
    fast = framefuse.compile(lambda x: F.pad(x, (3, 2, 1, 0), mode=mode) + 1)
    for high, wide in ((5, 7), (6, 9), (2, 4), (12, 4)):
        x = rand(2, high, wide)
        torch.testing.assert_close(fast(x), F.pad(x, (3, 2, 1, 0), mode=mode) + 1, rtol=0, atol=0)
    assert framefuse.explain(fast).hits >= 2 and len(framefuse.explain(fast).graphs) <= 2
    for small in (rand(2, 5, 2), rand(2, 0, 5)):
        try:
            expected = F.pad(small, (3, 2, 1, 0), mode=mode) + 1
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as raised:
                fast(small)
            assert str(raised.value) == str(error)
        else:
            torch.testing.assert_close(fast(small), expected)


def test_negative_borders_are_eagers():
    fast = framefuse.compile(lambda x: F.pad(x, (-1, 2), mode="replicate") * 2)
    for size in (5, 6, 7):
        x = rand(2, 3, size)
        torch.testing.assert_close(fast(x), F.pad(x, (-1, 2), mode="replicate") * 2)


def test_quarter_turns():
    for k in (-1, 0, 1, 2, 3, 5):
        backward = check_lowered(lambda x: torch.rot90(x * 2, k, (2, 0)).sin(), rand(3, 4, 5))  # noqa: B023
        assert not [node for node in backward.nodes if node.op == "library"]
