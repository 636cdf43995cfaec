"""The opcode handlers, one family a file; importing this package fills the table of handlers."""

from __future__ import annotations

from framefuse.capture.opcodes import (
    attributes,
    branches,
    build,
    calls,
    exceptions,
    functions,
    generators,
    generics,
    iteration,
    names,
    operators,
    stack,
)

__all__ = [
    "attributes", "branches", "build", "calls", "exceptions", "functions", "generators", "generics", "iteration",
    "names", "operators", "stack",
]  # fmt: skip
