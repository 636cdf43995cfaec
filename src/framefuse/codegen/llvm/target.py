"""Names the machine that kernels are compiled for: its LLVM target and what its vector unit can do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import llvmlite
import llvmlite.binding as llvm


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU: LLVM ``triple``, ``cpu`` and ``features``, ``vector_bytes`` of its registers.

    ``masked_bytes`` is the smallest element that masked loads and stores handle (0: none, tails are scalar loops).
    ``scalef`` is true where ``2**n`` is one vector instruction, ``bfloats`` where rounding to bfloat16 is one (which
    makes zeros of denormals). ``stores_masked`` is false where a masked store takes as long as many others. ``sleef``
    says that vectors may call SLEEF's functions, which libtorch brings: without them each lane calls the C library.
    ``supported`` is false where float arithmetic would call library functions; kernels are then not compiled.
    """

    triple: str
    cpu: str
    features: str
    vector_bytes: int
    masked_bytes: int
    scalef: bool
    supported: bool = True
    bfloats: bool = False
    sleef: bool = True
    stores_masked: bool = True

    @property
    def key(self) -> str:
        """What distinguishes object code made for this target."""
        return f"{self.triple} {self.cpu} {self.features} llvmlite {llvmlite.__version__}"


@lru_cache(maxsize=1)
def host() -> Target:
    """This machine's CPU."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    flags = dict(llvm.get_host_cpu_features())
    # Older llvmlite accepts the name of a feature that newer LLVM has dropped, and warns on stderr.
    flags.pop("evex512", None)
    features = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(flags.items()))
    triple, cpu = llvm.get_process_triple(), llvm.get_host_cpu_name()

    def has(*names: str) -> bool:
        return all(flags.get(name, False) for name in names)

    if has("avx512f", "avx512vl", "avx512bw", "avx512dq"):
        bfloats = has("avx512bf16")
        return Target(triple, cpu, features, vector_bytes=64, masked_bytes=1, scalef=True, bfloats=bfloats)
    if has("avx2", "fma", "f16c"):
        return Target(triple, cpu, features, vector_bytes=32, masked_bytes=4, scalef=False, stores_masked=False)
    arm = triple.startswith(("aarch64", "arm64"))
    return Target(triple, cpu, features, vector_bytes=16, masked_bytes=0, scalef=False, supported=arm)


# A fixed machine for golden files, whatever machine runs the tests.
REFERENCE = Target("x86_64-unknown-linux-gnu", "x86-64-v4", "", vector_bytes=64, masked_bytes=1, scalef=True)
