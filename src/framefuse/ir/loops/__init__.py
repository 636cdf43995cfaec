"""The loop nest: what one kernel does. Its nodes are here; walks, keys, text and rules stand in modules beside them."""

from framefuse.ir.kernel import Buffer, Kernel, Number
from framefuse.ir.loops.nodes import (
    Accumulate,
    Accumulator,
    Apply,
    AtomicAdd,
    Check,
    Const,
    Index,
    Let,
    Load,
    Local,
    Loop,
    LoopKind,
    Product,
    Scalar,
    Scratch,
    Statement,
    Store,
    Value,
)

__all__ = [
    "Accumulate", "Accumulator", "Apply", "AtomicAdd", "Buffer", "Check", "Const", "Index", "Kernel", "Let", "Load",
    "Local", "Loop", "LoopKind", "Number", "Product", "Scalar", "Scratch", "Statement", "Store", "Value",
]  # fmt: skip
