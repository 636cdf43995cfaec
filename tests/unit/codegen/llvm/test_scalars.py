"""Elements of 16 bits that a serial loop reads one by one do not wait for the sum that they are added to."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.codegen.llvm.emitter import emit
from framefuse.codegen.llvm.jit import assembly
from framefuse.codegen.llvm.target import REFERENCE
from framefuse.ir.schedule import RunKernel


@pytest.mark.parametrize("turned", [False, True])
def test_terms_of_a_scan_come_by_registers_of_integers(turned):
    """x86's insertion into a vector register would take the one that the sum grows in."""
    fast = framefuse.compile(lambda x: x.cumsum(1))
    for rows in (30, 30, 17, 1):
        x = torch.randn(rows, 20).half()
        x = x.t().contiguous().t() if turned else x
        torch.testing.assert_close(fast(x), x.cumsum(1), rtol=0, atol=0)
    products = compiled_function(fast).products
    (kernel,) = (item.kernel for item in products[-1].stages.code.schedule.items if isinstance(item, RunKernel))
    written = assembly(emit(kernel, REFERENCE).text, REFERENCE)
    assert "vcvtph2ps" in written and "vpinsrw" not in written
