"""Small kernels written in Triton, compiled ahead for the GPU that is here and loaded by the extension itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from framefuse import _native

# For modules of tests: `pytestmark = NEEDS_GPU`.
NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
]
BLOCK, WARPS = 1024, 4

# By kernel: the types of its arguments as Triton writes them.
SIGNATURES = {
    "framefuse_test_axpy": ("*fp32", "*fp32", "*fp32", "fp32", "i32"),
    "framefuse_test_kinds": ("*fp64", "i64", "i32", "fp64", "fp32"),
}


@dataclass(frozen=True)
class Compiled:
    """A kernel that is not loaded: what :func:`framefuse._native.load_module` takes."""

    image: bytes
    name: str
    shared: int

    def load(self, shared: int | None = None, device: int = 0) -> int:
        return _native.load_module(self.image, self.name, self.shared if shared is None else shared, device)


@cache
def compiled(name: str, aligned: bool = True, architecture: int = 0) -> Compiled:
    """The kernel of that name; ``architecture`` 90 is a Hopper chip, 0 the GPU that is here."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    major, minor = divmod(architecture, 10) if architecture else torch.cuda.get_device_capability()
    function = _functions()[name]
    kinds = dict(zip(function.arg_names, (*SIGNATURES[name], "constexpr"), strict=True))
    pointers = [i for i, kind in enumerate(SIGNATURES[name]) if kind.startswith("*")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in pointers} if aligned else {}
    source = ASTSource(function, kinds, {"BLOCK": BLOCK}, attributes)
    target = GPUTarget("cuda", 10 * major + minor, 32)
    made = triton.compile(source, target=target, options={"num_warps": WARPS, "enable_fp_fusion": True})
    return Compiled(made.asm["cubin"], made.metadata.name, made.metadata.shared)


@cache
def loaded(name: str, aligned: bool = True, device: int = 0) -> tuple[int, int]:
    """The driver's handle of the kernel, and its bytes of shared memory."""
    kernel = compiled(name, aligned)
    return kernel.load(device=device), kernel.shared


@cache
def _functions() -> dict[str, Any]:
    """Triton takes half a second to import, and wants the source text of what it compiles."""
    from tests.gpu import triton_kernels

    return {name: getattr(triton_kernels, name) for name in SIGNATURES}
