"""Names of a program: which global variables code reads or writes, and which modules are libraries."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator

LIBRARIES = ("torch", "torchvision", "transformers", "timm", "numpy", "framefuse")  # functions that hold no state


def globals_of(code: types.CodeType) -> Iterator[str]:
    """The global variables that code reads or writes, in its order; ``co_names`` has the names of attributes too."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"):
            yield instruction.argval
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from globals_of(inner)


def is_library(name: str | None) -> bool:
    """Whether a module is of Python or of libraries, whose objects hold nothing that a program is to be asked for."""
    return name is None or name.partition(".")[0] in ("builtins", *LIBRARIES)
