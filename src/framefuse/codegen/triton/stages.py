"""Runs Triton's compiler on one function: its stages in order, without its caches, which hash all of Triton first."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from framefuse.codegen.triton.target import Machine
from framefuse.codegen.unsupported import Unsupported

OPTIONS = {
    "sanitize_overflow": False,
    "enable_fp_fusion": False,  # eager's operations are rounded one by one
    "enable_reflect_ftz": False,  # and its functions keep denormals
}
# Operations of MLIR's dialect of functions that become instructions on NVIDIA's GPUs in float32.
INSTRUCTIONS = frozenset(("absf", "absi", "exp", "fma"))
# What LLVM's instructions promise of the lanes of vectors of integers, as `shl nuw nsw <2 x i32>` does.
PROMISES = re.compile(r"(?<== )([a-z]+) (?:(?:nuw|nsw|nneg|exact|disjoint|samesign) )+(?=[^,\n]*<\d+ x i\d+>)")
# CPython counts how deep a syntax tree is for all threads together: two that parse at once raise SystemError.
PARSING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Binary:
    """The code of a function, the bytes of shared memory that a program of it takes, and the text of each stage."""

    code: bytes
    shared: int
    texts: Mapping[str, str]


class Job(NamedTuple):
    """What another process needs to compile the function ``name`` of the file ``path``: the arguments of
    :func:`compiled`, and the parts of a Machine.
    """

    path: str
    name: str
    types: dict[str, str]
    constants: dict[str, int]
    aligned: bool
    warps: int
    checks: bool
    on: tuple[str, int | str, int]
    overlap: int | None


def run(job: Job) -> Binary:
    """The function of a job. Raises Unsupported where Triton refuses it."""
    path, name, types, constants, aligned, warps, checks, on, overlap = job
    return compiled(module_at(Path(path)), name, types, constants, aligned, warps, checks, Machine(*on), overlap)


def module_at(path: Path) -> ModuleType:
    """Runs a generated file; Triton reads the source of its functions from there again."""
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


def compiled(
    module: ModuleType,
    name: str,
    types: Mapping[str, str],
    constants: Mapping[str, int],
    aligned: bool,
    warps: int,
    checks: bool,
    on: Machine,
    overlap: int | None = None,
) -> Binary:
    """The function ``name`` of a generated module, for parameters of these ``types`` (as Triton names them) and
    ``constants``; ``aligned``: every pointer is a multiple of 16; ``overlap``: the stages of loops around products.
    Raises Unsupported where Triton refuses it.
    """
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, make_backend
    from triton.errors import TritonError

    attributes = {
        (place,): [["tt.divisibility", 16]] for place, kind in enumerate(types.values()) if aligned and kind[0] == "*"
    }
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(getattr(module, name), signature, dict(constants), attributes)
    target = GPUTarget(on.backend, on.arch, on.warp)
    backend = make_backend(target)
    stages_wanted = {} if overlap is None else {"num_stages": overlap}
    options = backend.parse_options({**OPTIONS, **stages_wanted, "num_warps": warps, "debug": checks})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    metadata: dict[str, Any] = {"target": target, **options.__dict__}
    texts: dict[str, str] = {}
    try:
        with PARSING:
            result = source.make_ir(
                target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
            )
        for step, run in stages.items():
            if step == "llir" and checks and on.backend == "cuda" and calls_nothing(str(result)):
                object.__setattr__(options, "extern_libs", ())
            result = run(result, metadata)
            if step == "llir" and isinstance(result, str):
                result = without_promises(result)
            if not isinstance(result, bytes):
                texts[step] = result if isinstance(result, str) else ""
    except TritonError as error:
        raise Unsupported(f"Triton refuses {name}: {error}") from error
    if metadata.get("global_scratch_size"):
        raise Unsupported(f"{name} needs memory of its own")
    return Binary(bytes(result), int(metadata["shared"]), texts)


def without_promises(text: str) -> str:
    """LLVM's code of a kernel without what it promises of vectors of integers, which is the same code. LLVM packs two
    numbers of 32 bits that are computed alike, shifts a lane that nothing reads past what was promised of it, and the
    code for NVIDIA's GPUs that Triton 3.6 writes takes both lanes for one number of 64 bits: the lane that is read gets
    bits of the other. The gradients of a batch norm, channels-last, so met a misaligned address on an H100.
    """
    return PROMISES.sub(r"\1 ", text)


def calls_nothing(text: str) -> bool:
    """Whether a kernel, given as MLIR, has no call of libdevice: Triton links that to whatever calls something, and the
    driver's function for a check that failed is enough.
    """
    functions = re.findall(r"\bmath\.(\w+)", text)
    wide = re.search(r"\bmath\.exp\b[^\n]*f64", text)
    return INSTRUCTIONS.issuperset(functions) and not wide and not re.search(r"extern_elementwise|tt\.mulhiui", text)
