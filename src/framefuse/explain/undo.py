"""Keeps all that a program reaches from a call, and puts it back behind each one: tensors, attributes, containers."""

from __future__ import annotations

import builtins
import functools
import operator
import random
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from framefuse import _native
from framefuse.ir.program_names import globals_of, is_library
from framefuse.ir.values import Value
from framefuse.runtime.function import compiled_function

OBJECTS = 500_000  # that are looked at; what reaches further is not kept
NONE = object()  # what a place held that did not exist
FIXED = (
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size,
    type, types.ModuleType, types.BuiltinFunctionType, types.CodeType,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _KeptTensor:
    """A leaf, or a tensor without history, with its memory, values, version, gradient and what autograd asks of it."""

    tensor: torch.Tensor
    memory: torch.Tensor  # the tensor's own
    value: torch.Tensor
    version: int
    grad: torch.Tensor | None
    wants: bool

    def put_back(self, whole: bool) -> None:
        """The gradient and the place in memory at once, the values where a write is seen or the ``whole`` is asked."""
        tensor = self.tensor
        if tensor.grad is not self.grad:
            tensor.grad = None
        if tensor.data_ptr() != self.memory.data_ptr():
            tensor.data = self.memory
        if whole or tensor._version != self.version:
            self.memory.copy_(self.value)
            torch._C._autograd._unsafe_set_version_counter((tensor,), (self.version,))
        if tensor.requires_grad is not self.wants:
            tensor.requires_grad_(self.wants)
        if tensor.grad is not self.grad:
            tensor.grad = self.grad


@dataclass(frozen=True, slots=True)
class _KeptContent:
    """A container with what it held."""

    holder: Value
    content: Value

    def put_back(self) -> None:
        holder, kept = self.holder, self.content
        if isinstance(holder, dict):
            if not _same(list(_flat(holder)), kept):
                _refill(holder, kept)
        elif isinstance(holder, set):
            if holder != kept:
                set.clear(holder)
                set.update(holder, kept)
        elif not _same(holder, kept):
            type(kept).clear(holder)
            type(kept).extend(holder, kept)


def _same(now: Sequence[Value], before: Sequence[Value]) -> bool:
    """Whether these are the very same objects."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _flat(entries: dict[Value, Value]) -> Iterator[Value]:
    """Keys and values in their order; an ``OrderedDict`` has one of its own."""
    for key in _base(entries).__iter__(entries):
        yield key
        yield dict.__getitem__(entries, key)


def _base(entries: dict[Value, Value]) -> type[dict[Value, Value]]:
    return OrderedDict if isinstance(entries, OrderedDict) else dict


def _refill(holder: dict[Value, Value], kept: Sequence[Value]) -> None:
    """The entries of old in their order; where the keys are the same only values change."""
    base, entries = _base(holder), list(zip(kept[::2], kept[1::2], strict=True))
    if not _same(list(base.__iter__(holder)), kept[::2]):
        base.clear(holder)
    for key, value in entries:
        if dict.get(holder, key, NONE) is not value:
            base.__setitem__(holder, key, value)


class Undo:
    """What is reached from some roots, as it is now; :meth:`put_back` makes it so again, any number of times.

    ``whole`` is whether everything was looked at: a program that reaches too much is not kept.
    """

    def __init__(self, roots: Iterable[Value]) -> None:
        self._seen: dict[int, Value] = {}  # by identity, held so that identities stay
        self._tensors: list[_KeptTensor] = []
        self._contents: list[_KeptContent] = []
        self._cells: list[tuple[types.CellType, Value]] = []
        self._slots: list[tuple[Value, str, Value]] = []
        self._arrays: list[tuple[Value, Value]] = []
        self._globals: dict[tuple[int, str], tuple[dict[str, Value], Value]] = {}
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []
        self._random = random.getstate()
        self.hooked = ""  # what of the user's runs when gradients come
        self.whole = self._walk(roots)

    def keeps(self, value: Value) -> bool:
        """Whether what an object holds is put back."""
        plain = isinstance(value, (torch.Tensor, dict, list, set, deque, types.CellType, types.FunctionType))
        return id(value) in self._seen and (plain or _native.instance_dict(value) is not None)

    def keep_global(self, names: dict[str, Value], name: str) -> None:
        """Keeps what a global variable holds, which may not be there yet."""
        self._globals.setdefault((id(names), name), (names, names.get(name, NONE)))

    def put_back(self, whole: bool = True) -> None:
        """Makes everything what it was; unless the ``whole`` is asked, values that no version tells of may stay."""
        for content in self._contents:
            content.put_back()
        for cell, value in self._cells:
            if value is NONE:
                with suppress(ValueError):  # it is empty
                    del cell.cell_contents
            else:
                cell.cell_contents = value
        for owner, name, value in self._slots:
            if getattr(owner, name, NONE) is not value:
                object.__setattr__(owner, name, value)
        for (_, name), (names, value) in self._globals.items():
            if value is NONE:
                names.pop(name, None)
            elif names.get(name, NONE) is not value:
                names[name] = value
        with torch.no_grad():
            for tensor in self._tensors:
                tensor.put_back(whole)
        for array, value in self._arrays:
            array[...] = value
        for generator, seed in self._generators:
            generator.set_state(seed)
        random.setstate(self._random)

    def _walk(self, roots: Iterable[Value]) -> bool:
        waiting = [*roots]
        while waiting:
            value = waiting.pop()
            if isinstance(value, FIXED) or id(value) in self._seen:
                continue
            if len(self._seen) >= OBJECTS:
                return False
            self._seen[id(value)] = value
            waiting.extend(self._parts(value))
        return True

    def _parts(self, value: Value) -> Iterator[Value]:
        """Keeps one object; gives what it leads to."""
        if isinstance(value, torch.Tensor):
            self._keep_tensor(value)
            yield value.grad if value.is_leaf else None
        elif isinstance(value, torch.Generator):
            self._generators.append((value, value.get_state()))
        elif isinstance(value, dict):
            self._contents.append(_KeptContent(value, list(_flat(value))))
            yield from dict.keys(value)
            yield from dict.values(value)
        elif isinstance(value, (list, deque, set)):
            base = next(each for each in (list, deque, set) if isinstance(value, each))
            self._contents.append(_KeptContent(value, base(value)))
            yield from value
        elif isinstance(value, (tuple, frozenset)):
            yield from value
        elif isinstance(value, types.CellType):
            held = _held(value)
            self._cells.append((value, held))
            yield held
        elif isinstance(value, types.FunctionType):
            yield from self._of_function(value)
        elif isinstance(value, types.MethodType):
            yield from (value.__self__, value.__func__)
        elif isinstance(value, functools.partial):
            yield from (value.func, value.args, value.keywords)
        elif type(value).__module__ == "numpy" and hasattr(value, "__array__") and hasattr(value, "flags"):
            if value.dtype != object and value.flags.writeable and value.shape:
                self._arrays.append((value, value.copy()))
        if callable(value) and (isinstance(value, torch.nn.Module) or type(value).__module__.startswith("framefuse")):
            state = compiled_function(value)
            yield from (state.owner, state.function) if state is not None else ()
        if not isinstance(value, (types.FunctionType, types.MethodType)) and not _is_own(value):
            yield from self._of_attributes(value)

    def _of_attributes(self, value: Value) -> Iterator[Value]:
        content = _native.instance_dict(value)
        if content is not None:
            yield content
        for kind in type(value).__mro__ if not is_library(type(value).__module__) else ():
            names = vars(kind).get("__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                if isinstance(vars(kind).get(name), types.MemberDescriptorType):
                    held = getattr(value, name, NONE)
                    if held is not NONE:
                        self._slots.append((value, name, held))
                        yield held
        if not is_library(type(value).__module__):  # a method may write what its module holds
            for kind in type(value).__mro__:
                if not is_library(kind.__module__):
                    yield from (part for part in vars(kind).values() if isinstance(part, types.FunctionType))

    def _of_function(self, function: types.FunctionType) -> Iterator[Value]:
        yield from function.__closure__ or ()
        yield function.__defaults__
        yield function.__kwdefaults__
        yield _native.instance_dict(function)
        if is_library(function.__module__):
            return
        for name in dict.fromkeys(globals_of(function.__code__)):
            if name in function.__globals__ or not hasattr(builtins, name):
                self.keep_global(function.__globals__, name)
                yield function.__globals__.get(name)

    def _keep_tensor(self, tensor: torch.Tensor) -> None:
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            self.hooked = self.hooked or "a hook of a tensor"
        if tensor.grad_fn is not None or tensor.is_inference() or tensor.layout is not torch.strided:
            return
        if tensor.numel() and 0 in tensor.stride():
            return  # its memory cannot be written
        memory = tensor.detach()
        kept = _KeptTensor(tensor, memory, memory.clone(), tensor._version, tensor.grad, tensor.requires_grad)
        self._tensors.append(kept)


def _is_own(value: Value) -> bool:
    """Whether an object is framefuse's, as the record of a compiled function, which counts its calls."""
    return type(value).__module__.partition(".")[0] == "framefuse"


def _held(cell: types.CellType) -> Value:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return NONE
