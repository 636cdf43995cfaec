"""Makes the compiled form of a module: another object of a subclass with the same attribute dict, whose call is
compiled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import nn

from framefuse.ir.values import Function, Value
from framefuse.runtime.function import CompiledFunction

Recompile = Callable[[nn.Module], nn.Module]


def compiled_module(module: nn.Module, dispatch: Function, recompile: Recompile, state: CompiledFunction) -> nn.Module:
    """A module that *is* ``module`` in all but its call.

    It shares ``module``'s ``__dict__``, so parameters, buffers, hooks, submodules, ``training`` and every later
    assignment are one and the same, and its class is a subclass of the module's class with the same name. Copies and
    pickles hold the module and are compiled anew by ``recompile``, which must be picklable.
    """
    cls = type(module)

    def reduce(self: nn.Module, protocol: int) -> tuple[Recompile, tuple[nn.Module]]:
        return (recompile, (module,))

    def deep(self: nn.Module, memo: dict[int, Value]) -> nn.Module:
        return recompile(copy.deepcopy(module, memo))

    body: dict[str, Value] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__call__": staticmethod(dispatch),  # the owner is bound inside the dispatch
        "__reduce_ex__": reduce,
        "__deepcopy__": deep,
        "__framefuse__": state,
    }
    if not hasattr(cls, "_repr_html_"):
        body["_repr_html_"] = staticmethod(state._repr_html_)
    metaclass: Value = type(cls)
    subclass = metaclass(cls.__name__, (cls,), body)
    compiled: nn.Module = object.__new__(subclass)
    object.__setattr__(compiled, "__dict__", module.__dict__)
    return compiled
