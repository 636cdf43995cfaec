"""Opens and closes doors: calls of a function or module itself, from wherever they come, reach its compiled code."""

from __future__ import annotations

import types
import weakref

import torch

from framefuse import _native
from framefuse.ir.values import Value
from framefuse.runtime.function import CompiledFunction, compiled_function

KEPT = "_framefuse_installed"


class OwnedCall(CompiledFunction):
    """The compiled calls of one installed module, which is the first argument of each."""

    def native(self) -> _native.Dispatch:
        """A Dispatch without an owner, since the module's own call passes the module."""
        return _native.Dispatch(self.function, self.miss)


class Kept:
    """Holds a module's compiled code in the module's own ``__dict__``, so that both die together; None in its copies
    and pickles.
    """

    def __init__(self, state: CompiledFunction) -> None:
        self.state = state

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()


class Door:
    """A function or module that is compiled in place, until :meth:`remove` or the end of a ``with`` block.

    This handle need not be kept. The function or module keeps its compiled code; both die when the garbage collector
    finds them.
    """

    def __init__(self, target: Value, state: CompiledFunction) -> None:
        """Opens the door of ``target``: a Python function that ``state`` compiles, or a module that owns its call."""
        close(target)
        self.target: Value = weakref.ref(target)
        self.state = weakref.ref(state)
        state.dispatch.__framefuse__ = state
        if isinstance(target, types.FunctionType):
            _native.open_door(state.dispatch)
            target.__dict__["__framefuse__"] = state
        else:
            _native.open_door(state.dispatch, target)
            target.__dict__[KEPT] = Kept(state)
            weakref.finalize(target, _native.forget_first, state.function, id(target)).atexit = False

    def remove(self) -> None:
        """Undoes it: the next call runs eagerly. Does nothing if another installation has taken its place."""
        target, state = self.target(), self.state()
        if state is not None and compiled_function(target) is state:
            close(target)

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def close(target: Value) -> None:
    """Closes the door of a function or module, if it has one."""
    state = compiled_function(target)
    if state is None:
        return
    _native.close_door(state.dispatch)
    if isinstance(target, types.FunctionType):
        del target.__dict__["__framefuse__"]
    elif isinstance(target, torch.nn.Module):
        target.__dict__.pop(KEPT, None)
