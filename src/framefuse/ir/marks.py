"""What the user says of tensors and calls by marks: where a mark stands, and the call that ends a graph."""

from __future__ import annotations

from types import CodeType

# The code of functions that must be one kernel, with their names.
WHOLE: dict[CodeType, str] = {}

# Attribute of a tensor that the user marked: dimension -> True where its size varies, False where it is a constant.
DIMENSIONS = "_framefuse_dimensions"


def graph_break() -> None:
    """Ends the graph here and begins another one; does nothing in code that is not compiled."""
