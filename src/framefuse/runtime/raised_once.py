"""Runs the program once more behind a compiled call in which an operator of the program's raised, without that call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.overrides import TorchFunctionMode

from framefuse import _native
from framefuse.ir.values import Arguments, Function, Keywords, Value


class RaisedOnce(TorchFunctionMode):
    """While it is active the program makes the calls of its own operators that compiled code has made, in their order,
    up to the one that raised ``error``: that one raises again what it has raised, and what was called for its effect
    alone is not called again. ``calls`` are (function, whether it gave something).
    """

    def __init__(self, calls: Sequence[tuple[Value, bool]], error: BaseException) -> None:
        super().__init__()
        self.calls = [(_name(function), gives) for function, gives in calls]
        self.error = error

    def __enter__(self) -> RaisedOnce:
        self.before = _native.bypass(True)
        super().__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        _native.bypass(self.before)

    def __torch_function__(
        self, func: Function, types: object, args: Arguments = (), kwargs: Keywords | None = None
    ) -> Value:
        name = _name(func)
        if name is None or not self.calls:
            return func(*args, **(kwargs or {}))
        (expected, gives), *rest = self.calls
        self.calls = rest if name == expected else []  # the program goes another way
        if name == expected and not rest:
            raise self.error
        return func(*args, **(kwargs or {})) if gives or name != expected else None


def _name(function: Value) -> str | None:
    """The name of an operator, also inside what library calls are wrapped into."""
    while not isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        if not hasattr(function, "target"):
            return None
        function = function.target
    name: str = (
        function._schema.name if isinstance(function, torch._ops.OpOverload) else function._qualified_op_name
    )
    return name if not name.startswith("aten::") else None
