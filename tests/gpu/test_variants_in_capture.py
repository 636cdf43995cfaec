"""A kernel that is loaded while a graph is captured does not spoil the capture."""

from __future__ import annotations

import torch
from tests.gpu.kernels import BLOCK, NEEDS_GPU, WARPS, compiled, loaded
from tests.gpu.test_launch import GpuWriter

pytestmark = NEEDS_GPU


def test_capture_may_load_a_kernel() -> None:
    """The variant for other pointers is loaded when it is first needed, which may be then."""
    w = GpuWriter()
    size = w.const(512)
    x = w.input(0, (size,))
    out = w.fresh((size,))
    function, shared = loaded("framefuse_test_axpy")
    other = compiled("framefuse_test_axpy", False)
    arguments = [("pointer", x), ("pointer", x), ("pointer", out), ("real32", w.real(2.0)), ("int32", size)]
    shape = {"blocks": BLOCK, "threads": 32 * WARPS, "shared": shared}
    w.launch(function, arguments, size, lambda aligned: (other.load(), other.shared), **shape)
    program = w.program(("tensor", out))
    x_given = torch.randn(513, device="cuda")[1:]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = program.run((x_given,), ())
    x_given.normal_()
    graph.replay()
    assert torch.equal(result, 3 * x_given)
