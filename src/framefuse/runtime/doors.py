"""Opens and closes doors: calls of a function or module itself, from wherever they come, reach its compiled code."""

from __future__ import annotations

import types
from typing import Any

import torch

from framefuse import _native
from framefuse.errors import UserError
from framefuse.runtime.function import CompiledFunction, compiled_function


class Door:
    """A function or module that is compiled in place, until :meth:`remove` or the end of a ``with`` block.

    The object keeps its compiled code, and this handle need not be kept: an installed object that nobody uses any more
    dies with its code, when the garbage collector finds it.
    """

    def __init__(self, target: Any, state: CompiledFunction) -> None:
        """Opens the door of ``target``: a Python function, which ``state`` compiles, or a module that it owns."""
        close(target)
        self.target = target
        self.state: CompiledFunction | None = state
        state.dispatch.__framefuse__ = state
        if isinstance(target, types.FunctionType):
            _native.open_door(state.dispatch)
            target.__dict__["__framefuse__"] = state
        else:
            if target.__dict__.get("_compiled_call_impl") is not None:
                raise UserError("the module was compiled in place by torch. Install a module that was not")
            # As torch's Module.compile() does: Module.__call__ calls this attribute, copies and pickles leave it out.
            object.__setattr__(target, "_compiled_call_impl", state.dispatch)

    def remove(self) -> None:
        """Undoes it: the next call runs eagerly. Does nothing if another installation has taken its place."""
        if self.state is not None and compiled_function(self.target) is self.state:
            close(self.target)
        self.state = None

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def close(target: Any) -> None:
    """Closes the door of a function or module, if it has one."""
    state = compiled_function(target)
    if state is None:
        return
    if isinstance(target, types.FunctionType):
        _native.close_door(state.dispatch)
        del target.__dict__["__framefuse__"]
    elif isinstance(target, torch.nn.Module) and target.__dict__.get("_compiled_call_impl") is state.dispatch:
        object.__delattr__(target, "_compiled_call_impl")
