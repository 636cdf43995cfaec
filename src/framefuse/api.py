"""The public functions: compile a model or function, and manage what was compiled."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from framefuse import _native, logs
from framefuse.alone import calling, is_of_torch
from framefuse.backends import registry
from framefuse.errors import UserError, kind_of, writing
from framefuse.ir.marks import WHOLE
from framefuse.native import abi
from framefuse.options import FLOATS, Options, disabled, resolve
from framefuse.runtime.doors import Door, OwnedCall
from framefuse.runtime.function import CompiledFunction, Compiler, compiled_function, live_functions
from framefuse.runtime.module import compiled_module, step_methods

Backend = str | Callable[..., Any]

_native.switch_off(disabled())
logs.follow_environment()
abi.initialise()  # before anything can be compiled: what native code knows of this torch


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Backend = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """The compiled form of a function, method, callable object or ``nn.Module``; same results, faster.

    Nothing happens until the first call, which runs as eager does while it is recorded. As a decorator it is written
    ``@framefuse.compile`` or ``@framefuse.compile(dynamic=False)``.

    Args:
        model: what to compile. A module gives a module of the same class that shares all state with the original.
        fullgraph: raise instead of leaving a call eager when it cannot be captured whole.
        dynamic: None or True, one compilation serves all sizes (with None, a column has one of its own first); False,
            sizes are constants and each size compiles once.
        backend: ``"native"``, or one that leaves out stages, so that a fault has a place: ``"python"`` (Python runs the
            kernels, element by element), ``"aot_eager"`` (torch runs the lowered and differentiated graphs),
            ``"eager"`` (torch runs the captured graph). Or torch.compile's contract, a callable ``(gm:
            torch.fx.GraphModule, example_inputs: list) -> callable``, or its name in :func:`list_backends`: it gets a
            graph for each size unless ``dynamic=True``, and tensors for floats that change; in training what it gives
            takes part in torch's autograd, as what torch's ``aot_autograd(fw_compiler=..., bw_compiler=...)`` gives.
        mode: one of torch.compile's modes. ``"max-autotune"`` and ``"max-autotune-no-cudagraphs"`` measure several
            codes of each kernel on the GPU and keep the fastest, in the user's cache folder too; ``explain`` tells
            what that took. ``"reduce-overhead"`` and ``"max-autotune"`` capture what a trace launches on a CUDA device
            as a graph and replay it where that is cheaper; results stay what they are, and ``explain`` tells the
            memory and time of it, or why there is none. On the CPU all are the default mode.
        options: settings by name, see :data:`framefuse.options.TABLE`.
        disable: return ``model`` itself.

    Raises:
        UserError: an unknown backend, mode or option, or something that is not callable; the text names the choices.
    """
    settings = _settings(fullgraph, dynamic, backend, mode, options)
    compiler = registry.compiler_of(backend, soon=settings.patience is not None)
    if model is None:
        return functools.partial(
            compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable
        )
    if not callable(model):
        raise UserError(f"{kind_of(model)} is not callable. Give a function, a method or an nn.Module")
    if disable or isinstance(model, type):
        return model
    recompile = functools.partial(_recompile, fullgraph, dynamic, backend, mode, options)
    if type(model) is functools.partial:
        return _partial_of(recompile(model.func), model)
    if is_of_torch(model):
        model = calling(model)
    if not _has_bytecode(model):
        return model
    return _compile(model, settings, compiler, recompile)


def install(
    target: Any,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Backend = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Door:
    """Compiles a Python function or ``nn.Module`` in place: whoever calls it, from Python or C, reaches compiled code.

    For what you do not call yourself: the ``key`` of a sort, the ``collate_fn`` of a loader, a method that a library's
    loop calls. The object stays what it was, so no reference to it has to change; copies and pickles of a module are
    not compiled. Installing again replaces the settings.

    On CPython 3.11 every call between Python functions costs about 14 ns more while anything is installed, in the whole
    process; on later versions nothing else pays.

    Args:
        target: a Python function (of a class too, such as ``Model.forward``) or a module; the rest is as in
            :func:`compile`.

    Returns:
        A handle: ``handle.remove()``, or the end of ``with framefuse.install(f):``, makes it eager again.

    Raises:
        UserError: wrong settings, or something else than a function or module.
    """
    settings = _settings(fullgraph, dynamic, backend, mode, options)
    compiler = registry.compiler_of(backend, soon=settings.patience is not None)
    state = compiled_function(target)
    if state is not None:
        target = state.owner if isinstance(state.owner, torch.nn.Module) else state.function
    if isinstance(target, torch.nn.Module) and _has_bytecode(target):
        return Door(target, OwnedCall(type(target).__call__, target, settings, compiler))
    if not isinstance(target, types.FunctionType):
        raise UserError(f"{kind_of(target)} cannot be installed. Give a Python function or an nn.Module")
    if _is_lazy(target):
        raise UserError(f"{target.__qualname__} is a generator or coroutine. Install the functions that it calls")
    return Door(target, CompiledFunction(target, None, settings, compiler))


def kernel(function: Callable[..., Any]) -> Any:
    """Says that ``function``, pointwise code and reductions along rows, must be one kernel; a decorator.

    By itself the function is compiled, as by ``compile(fullgraph=True)``. Inside compiled code its call is part of one
    kernel, which may compute what stands around it as well. Its gradient is compiled too, to as many kernels as it
    takes.

    Args:
        function: a Python function of tensors and numbers.

    Raises:
        UserError: not a Python function. From a call that is compiled, also that of a function which calls it: what
            cannot be part of one kernel, with its line.
    """
    if not isinstance(function, types.FunctionType) or _is_lazy(function):
        raise UserError(f"{kind_of(function)} cannot be one kernel. Give a Python function that returns its result")
    WHOLE[function.__code__] = function.__code__.co_qualname
    return compile(function, fullgraph=True)


def _settings(
    fullgraph: bool, dynamic: bool | None, backend: Backend, mode: str | None, options: Mapping[str, Any] | None
) -> Options:
    """What a compiled function goes by. A backend that specialises on its examples gets a graph for each size."""
    settings = resolve(options, dynamic=dynamic, fullgraph=fullgraph, mode=mode)
    fixed = registry.specialises(backend) if dynamic is None else dynamic and registry.holds_sizes(backend)
    return replace(settings, dynamic=FLOATS) if fixed else settings


def _recompile(
    fullgraph: bool,
    dynamic: bool | None,
    backend: Backend,
    mode: str | None,
    options: Mapping[str, Any] | None,
    model: Any,
) -> Any:
    """How a copy or pickle of a compiled module or function is made compiled again."""
    return compile(model, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options)


def _partial_of(function: Any, model: functools.partial[Any]) -> functools.partial[Any]:
    """The partial with ``function`` in the place of its own; later changes of its keywords reach both."""
    if function is model.func:
        return model
    partial = functools.partial(function)
    partial.__setstate__((function, model.args, model.keywords, vars(model)))  # type: ignore[attr-defined]
    return partial


def _compile(model: Any, settings: Options, compiler: Compiler, recompile: Callable[[Any], Any]) -> Any:
    state = compiled_function(model)
    if state is not None:  # compiled again, perhaps with other settings: from the original
        model = state.owner if isinstance(state.owner, torch.nn.Module) else state.function
    if isinstance(model, torch.nn.Module):
        record = CompiledFunction(type(model).__call__, model, settings, compiler, of_class=True)
        record.dispatch.__framefuse__ = record  # it is what the module's __call__ gives
        methods = step_methods(type(model))
        steps = {name: _compile(methods[name], settings, compiler, recompile) for name in methods}
        record.methods = tuple(steps)
        return compiled_module(model, record.dispatch, recompile, record, steps)
    if isinstance(model, types.MethodType):
        record = CompiledFunction(model.__func__, model.__self__, settings, compiler)
    elif isinstance(model, types.FunctionType):
        record = CompiledFunction(model, None, settings, compiler)
    else:
        record = CompiledFunction(type(model).__call__, model, settings, compiler, of_class=True)
    record.dispatch.__framefuse__, record.recompile = record, recompile
    if _is_lazy(record.function):
        record.dispatch.enabled = False
    return record.dispatch


def _has_bytecode(model: Any) -> bool:
    """Whether there is Python code to record: builtins and TorchScript have none and stay what they are."""
    if isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return False
    if compiled_function(model) is not None:
        return True
    function = model.__func__ if isinstance(model, types.MethodType) else model
    if not isinstance(function, types.FunctionType):
        function = type(model).__call__
    return isinstance(function, types.FunctionType)


def _is_lazy(function: Callable[..., Any]) -> bool:
    """Generator and coroutine functions do nothing when called; they run eagerly."""
    return (
        inspect.isgeneratorfunction(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
    )


def reset() -> None:
    """Drops the compiled code of every function; each compiles anew at its next call."""
    for function in live_functions():
        function.reset()


def refresh(model: torch.nn.Module | None = None) -> None:
    """Has what ``options={"freeze": True}`` keeps derived anew from the parameters and buffers of a model, of all where
    none is given, at the next calls; until then it takes no memory.

    Only what no version counts needs it: writes through ``.data`` or by code that goes past torch.

    Raises:
        UserError: ``model`` is no module.
    """
    if model is not None and not isinstance(model, torch.nn.Module):
        raise UserError(f"{kind_of(model)} has no parameters. Give a module, or nothing for all of them")
    tensors = None if model is None else (*model.parameters(), *model.buffers())
    importlib.import_module("framefuse.runtime.kept_values").refresh(tensors)


def save_cache(path: str | os.PathLike[str], *, key: str | bytes | None = None, whole: bool = False) -> int:
    """Writes what the cache on disk keeps into one file, for :func:`load_cache` on machines of the same kind.

    Args:
        path: the file. It is replaced whole, and only this user can read it.
        key: what others do not know: a file that was altered on its way is refused where the same key is given.
        whole: write all that the user's folders hold; by default what this process has read or written there.

    Returns:
        How many entries there are: calls, programs, and machine code of kernels.

    Raises:
        UserError: there is nothing to write. An OSError too: the file cannot be written.
    """
    with writing(path):
        saved: int = importlib.import_module("framefuse.driver.archive").save(path, key, whole)
    return saved


def load_cache(path: str | os.PathLike[str], *, key: str | bytes | None = None) -> int:
    """Takes what :func:`save_cache` has written into the user's cache, before the first call of what is compiled.

    What the file holds is machine code that will run: load one that you trust as much as a program. With the ``key`` of
    :func:`save_cache` a file that anybody has altered is refused. Without a key a damaged file is refused, one of
    another user, and one that other users can write.

    Returns:
        How many entries there are. A program finds them where its own files have the same paths.

    Raises:
        UserError: the file is refused, or comes from another torch, Python, processor or framefuse; the text says
            which. OSError: there is no such file.
    """
    loaded: int = importlib.import_module("framefuse.driver.archive").load(path, key)
    return loaded


# True in code that is being recorded, except torch's own, False elsewhere: torch's function; the recorder answers it.
is_compiling = torch.compiler.is_compiling
list_backends = registry.list_backends
register_backend = registry.register_backend
