"""Names the classes whose objects are kept on disk: no file makes an object of another."""

from __future__ import annotations

import importlib

# Dataclasses, written as the fields that their makers take, by module, which is imported when the first object is made
# or written. Equal ones may become one object but those of IDENTITY.
CLASSES: dict[str, tuple[str, ...]] = {
    "framefuse.ir.numbers": ("Floordiv", "Modulo", "Minimum", "Maximum", "Real", "Whole"),
    "framefuse.ir.comparisons": ("Relation", "RealRelation"),
    "framefuse.ir.source": ("Line",),
    "framefuse.ir.facts": ("TensorSpec", "GlobalState", "Fact", "Input", "Assumptions"),
    "framefuse.ir.trace": ("Ref", "TensorMeta", "Call", "Build", "Effect", "Holder", "Autograd", "Trace"),
    "framefuse.ir.graph": ("Node", "Arg", "Output", "Part", "Write", "Late", "Graph"),
    "framefuse.ir.derivative": ("Saved", "Holder", "Hold", "Given", "Piece", "Halves", "Backward"),
    "framefuse.ir.schedule": (
        "Memory", "RunKernel", "RunMatmul", "RunCall", "Positions", "Allocate", "Release", "Commit", "Offer",
        "Schedule",
    ),
    "framefuse.ir.kernel": ("Buffer", "Number", "Kernel"),
    "framefuse.ir.loops.nodes": (
        "Load", "Const", "Scalar", "Index", "Apply", "Local", "Let", "Accumulator", "Accumulate", "Store", "AtomicAdd",
        "Scratch", "Check", "LoopKind", "Loop", "Product",
    ),
    "framefuse.ir.native_warnings": ("WarningPlace", "Telling"),
    "framefuse.ir.taped_calls": ("Adjoint", "ByRow", "Hole", "Others", "Replay", "Taped", "Vjp"),
    "framefuse.ir.wrapped_calls": (
        "BeforeWrite", "Draw", "InInference", "Named", "OnCopies", "Parts", "Plainly", "Silent", "ThroughView",
        "Turned", "UnderAutocast", "WithKernels",
    ),
    "framefuse.ir.derivations": ("Derived", "Packed"),
    "framefuse.ir.dropout_masks": ("DropoutMask", "Dropped"),
}  # fmt: skip
IDENTITY: frozenset[str] = frozenset(("Node", "Kernel"))  # that compare by identity, or are changed


def class_of(module: str, name: str) -> type:
    """A class of ``CLASSES``."""
    found: type = getattr(importlib.import_module(module), name)
    return found
