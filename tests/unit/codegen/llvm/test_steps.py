"""Elements a few apart are loaded as rows: each value is eager's, and nothing behind the last element is read."""

import ctypes
import mmap

import pytest
import torch

import framefuse
from framefuse.api import compiled_function

STEPS = (2, 3, 4, 5)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.bool)
FORWARD = {step: eval(f"lambda x: x[..., ::{step}] * 1") for step in STEPS}  # the distance is a constant
BACKWARD = {step: eval(f"lambda x: x[..., ::{step}].flip(-1) * 1") for step in (1, *STEPS)}


def between_pages(x, at_the_end):
    """The same elements, in memory of which the page behind the last, or that before the first, must not be read."""
    page, size = mmap.PAGESIZE, x.untyped_storage().nbytes()
    inside = -(-size // page) * page
    area = torch.frombuffer(mmap.mmap(-1, inside + 2 * page), dtype=torch.uint8)
    for place in (0, page + inside):
        address = ctypes.c_void_p(area.data_ptr() + place)
        assert ctypes.CDLL(None).mprotect(address, ctypes.c_size_t(page), 0) == 0
    start = page + inside - size if at_the_end else page
    return area[start : start + size].view(x.dtype).view(x.shape).copy_(x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("programs", [FORWARD, BACKWARD], ids=["forward", "backward"])
def test_elements_a_few_apart(programs, dtype):
    for step, program in programs.items():
        fast = framefuse.compile(program)
        for rows, columns in ((3, 70), (3, 70), (2, 64 * step), (1, 64 * step - step + 1), (2, 515), (1, 2), (4, 1)):
            whole = torch.randint(0, 2 if dtype is torch.bool else 100, (rows, columns)).to(dtype)
            for x in (between_pages(whole, False), between_pages(whole, True)):
                mine, other = fast(x), program(whole)
                assert torch.equal(mine, other)
        assert fast.hits >= 8


@pytest.mark.parametrize("step", STEPS)
def test_inputs_that_lie_so(step):
    """A small distance of an input is part of the code; another one, and other sizes, are right too."""

    def program(x):
        return x.exp() + x.sum(0)

    fast = framefuse.compile(program)
    for columns, apart in ((40, step), (40, step), (17, step), (40, step + 1), (33, 7), (21, 9)):
        x = torch.randn(5, columns * apart)[:, ::apart]
        torch.testing.assert_close(fast(x), program(x))
    assert fast.hits >= 2
    assert len(compiled_function(fast).products) <= 3


def test_sums_across_rows_a_few_apart_run_along_them():
    def program(x):
        return x[:, :, ::2].sum(1)

    fast = framefuse.compile(program)
    for sizes in ((3, 20, 40), (3, 20, 40), (2, 70, 96), (1, 3, 5)):
        x = torch.randn(sizes, dtype=torch.float64)
        torch.testing.assert_close(fast(x), program(x))
    assert fast.hits >= 3
