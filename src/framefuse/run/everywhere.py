"""Compiles what a running script calls: every module called from outside of modules, and the functions that were named.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence

import torch

from framefuse import _native
from framefuse.errors import UserError, kind_of
from framefuse.ir.values import Value
from framefuse.runtime.doors import Door

Install = Callable[[Value], Door]
LAZY = 0x20 | 0x80 | 0x200  # the code flags of generators, coroutines and asynchronous generators


class Everywhere:
    """Opens the doors of a script. ``install`` compiles one function or module in place.

    A module is compiled at its first call that comes from no other module's call, a named function at its first call.
    Further instances of a class, and further closures of the same code, wait for their second call: those that are made
    for one call, such as ``nn.ReLU()(x)``, are not worth compiling.
    """

    def __init__(self, install: Install, functions: Sequence[str] = ()) -> None:
        self.install = install
        self.names = [name.removeprefix("__main__:") for name in functions]
        self.kinds: set[Value] = set()
        self.waiting: dict[int, weakref.ref[Value]] = {}

    def start(self, code: types.CodeType) -> None:
        """Opens all doors, given the script's code; raises UserError for a function that the script does not define."""
        for name in self.names:
            module, colon, qualname = name.rpartition(":")
            if colon:
                self._in_module(module, qualname)
            else:
                self._in_script(code, qualname)
        _native.watch_calls(torch.nn.Module.__call__, self._root, True)

    def stop(self) -> None:
        """No further module is compiled."""
        _native.watch_calls(torch.nn.Module.__call__, None)

    def _root(self, function: types.FunctionType, module: Value) -> None:
        foreign = isinstance(module, torch.jit.ScriptModule) or type(module).__module__.startswith("torch._dynamo")
        if not foreign and vars(module).get("_compiled_call_impl") is None:  # else torch.compile has it
            self._open(module, type(module))

    def _named(self, function: types.FunctionType, first: Value) -> None:
        self._open(function, function.__code__)

    def _open(self, thing: Value, kind: Value) -> None:
        if kind in self.kinds and id(thing) not in self.waiting:
            self.waiting[id(thing)] = weakref.ref(thing, functools.partial(self._forget, id(thing)))
            return
        self.kinds.add(kind)
        self.waiting.pop(id(thing), None)
        self.install(thing)

    def _forget(self, key: int, _: Value) -> None:
        self.waiting.pop(key, None)

    def _in_script(self, code: types.CodeType, qualname: str) -> None:
        known = list(_functions_in(code))
        named = [other for other in known if other.co_qualname == qualname]
        if not named:
            there = ", ".join(dict.fromkeys(other.co_qualname for other in known if "<" not in other.co_name))
            raise UserError(f"the script defines no function {qualname}. It has: {there or 'none'}")
        for match in named:
            if match.co_flags & LAZY:
                raise UserError(f"{qualname} is a generator or coroutine function. Name the functions that it calls")
            _native.watch_calls(match, self._named)

    def _in_module(self, module: str, qualname: str) -> None:
        if module in sys.modules:
            self._resolve(sys.modules[module], qualname)
        else:
            sys.meta_path.insert(0, _AfterImport(module, lambda loaded: self._imported(loaded, qualname)))

    def _imported(self, module: types.ModuleType, qualname: str) -> None:
        try:
            self._resolve(module, qualname)
        except UserError as error:  # the script goes on
            print(f"framefuse run: {error}", file=sys.stderr)

    def _resolve(self, module: types.ModuleType, qualname: str) -> None:
        value: Value = module
        for name in qualname.split("."):
            if not hasattr(value, name):
                raise UserError(f"the module {module.__name__} has no {qualname}")
            value = getattr(value, name)
        value = getattr(value, "__func__", value)
        if not isinstance(value, types.FunctionType):
            raise UserError(f"{module.__name__}:{qualname} is {kind_of(value)}. Name a Python function")
        self.install(value)


def _functions_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            if constant.co_flags & 2:  # has locals of its own: no class body
                yield constant
            yield from _functions_in(constant)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls ``then`` with one module right after its own code has run."""

    def __init__(self, name: str, then: Callable[[types.ModuleType], None]) -> None:
        self.name = name
        self.then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        for finder in others:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        loader = spec.loader
        if loader is not None and hasattr(loader, "exec_module"):
            run = loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                run(module)
                self.then(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
