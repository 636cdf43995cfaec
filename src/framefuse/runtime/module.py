"""Makes the compiled form of a module: another object of a subclass with the same attribute dict, whose call is
compiled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import FunctionType

from torch import nn

from framefuse.ir.values import Function, Value
from framefuse.runtime.function import CompiledFunction

Recompile = Callable[[nn.Module], nn.Module]
LIGHTNING = ("lightning", "pytorch_lightning")
LIGHTNING_STEPS = ("training_step", "validation_step", "test_step", "predict_step")


def step_methods(cls: type) -> dict[str, Function]:
    """The methods that a training library calls on a module of this class in place of its own call: those that the
    user wrote for Lightning's loop. The library is not imported for that.
    """
    for base in cls.__mro__:
        if base.__name__ == "LightningModule" and base.__module__.partition(".")[0] in LIGHTNING:
            methods = {name: getattr(cls, name, None) for name in LIGHTNING_STEPS}
            own = {name: method for name, method in methods.items() if method is not getattr(base, name, None)}
            return {name: method for name, method in own.items() if isinstance(method, FunctionType)}
    return {}


def compiled_module(
    module: nn.Module,
    dispatch: Function,
    recompile: Recompile,
    state: CompiledFunction,
    steps: Mapping[str, Function],
) -> nn.Module:
    """A module that *is* ``module`` in all but its call, and but for its ``steps``: compiled methods by name.

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
        **steps,
    }
    if not hasattr(cls, "_repr_html_"):
        body["_repr_html_"] = staticmethod(state._repr_html_)
    metaclass: Value = type(cls)
    subclass = metaclass(cls.__name__, (cls,), body)
    compiled: nn.Module = object.__new__(subclass)
    object.__setattr__(compiled, "__dict__", module.__dict__)
    return compiled
