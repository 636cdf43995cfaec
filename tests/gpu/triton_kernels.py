"""The kernels themselves, in a file that imports Triton."""

import triton
import triton.language as tl


@triton.jit
def framefuse_test_axpy(x, y, out, scale, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    left = tl.load(x + at, mask=inside)
    right = tl.load(y + at, mask=inside)
    tl.store(out + at, left * scale + right, mask=inside)


@triton.jit
def framefuse_test_kinds(out, wide, narrow, double, single, BLOCK: tl.constexpr):
    tl.store(out, wide.to(tl.float64))
    tl.store(out + 1, narrow.to(tl.float64))
    tl.store(out + 2, double)
    tl.store(out + 3, single.to(tl.float64))
