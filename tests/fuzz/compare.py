"""Walks two object graphs side by side: structure, values, identity, shared memory and versions must correspond."""

from __future__ import annotations

import types
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

import torch

ATOMS = (int, str, bool, type(None), bytes, complex, slice, range, torch.dtype, torch.device, torch.Size, type(...))
QUICK = frozenset((int, str, bool, type(None)))
ROUNDING = {torch.float32: 2e-5, torch.float64: 2e-5, torch.complex64: 2e-5, torch.complex128: 2e-5,
            torch.bfloat16: 4e-2, torch.float16: 5e-3}  # fmt: skip
LEAVES = ((True, True), (False, True))  # that require grad or not
Versions = dict[int, tuple[torch.Tensor, int]]
CONTAINERS = (list, tuple, deque, dict, set, frozenset)
PLAIN = frozenset((list, dict, set, OrderedDict))  # empty ones are false, and no program gives one attributes
FUNCTIONS = (
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
)


class Comparison:
    """One comparison of everything that a program sees after a call.

    Two objects correspond when each was first met at the same place; met again, they must be met together. ``versions``
    map the identities of tensors that existed before the call to them and their version counters, and are brought up to
    date.
    """

    def __init__(self, eager_versions: Versions, compiled_versions: Versions) -> None:
        self.versions = eager_versions, compiled_versions
        self.partners: tuple[dict[int, int], dict[int, int]] = {}, {}
        self.storages: tuple[dict[int, int], dict[int, int]] = {}, {}
        self.tensors: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        self.kept: list[Any] = []  # what the walk made stays alive, so that identities stay unique

    def compare(self, compiled: Any, eager: Any) -> str:
        """Where and how the graphs differ; empty when they do not."""
        return self._walk(compiled, eager, "") or self._memory() or self._versions()

    def _walk(self, a: Any, e: Any, path: str) -> str:
        kind = type(e)
        if kind in QUICK and type(a) is kind and a == e:
            return ""
        if type(a).__name__ != kind.__name__:
            return f"{path}: a {type(a).__name__}, eager a {type(e).__name__}"
        if kind not in PLAIN and isinstance(e, float):
            return "" if repr(a) == repr(e) or _close(a, e) else f"{path}: {a!r}, eager {e!r}"
        if kind not in PLAIN and isinstance(e, ATOMS):
            return "" if a == e else f"{path}: {a!r}, eager {e!r}"
        constant = kind is tuple and all(isinstance(part, (*ATOMS, float)) for part in e)
        if constant:  # equal ones may be one object
            return "" if repr(a) == repr(e) else f"{path}: {a!r:.80}, eager {e!r:.80}"
        met, partner = self.partners[0].get(id(a)), self.partners[1].get(id(e))
        if met is not None or partner is not None:
            return (
                "" if met == id(e) and partner == id(a) else f"{path}: is the same object elsewhere in one world only"
            )
        self.partners[0][id(a)], self.partners[1][id(e)] = id(e), id(a)
        self.kept += [a, e]
        if kind in PLAIN:
            return self._container(a, e, path) if a or e else ""
        if isinstance(e, torch.Tensor):
            return self._tensor(a, e, path)
        if isinstance(e, types.FunctionType):
            return self._function(a, e, path)
        if isinstance(e, types.MethodType):
            return self._walk(a.__self__, e.__self__, f"{path}.__self__") or self._walk(a.__func__, e.__func__, path)
        if isinstance(e, FUNCTIONS):
            return "" if a.__qualname__ == e.__qualname__ else f"{path}: {a}, eager {e}"
        if isinstance(e, CONTAINERS):
            own = [getattr(value, "__dict__", None) for value in (a, e)]
            return self._container(a, e, path) or self._walk(own[0], own[1], path)
        if isinstance(e, BaseException):
            return "" if str(a) == str(e) else f"{path}: {a!r}, eager {e!r}"
        if isinstance(e, type):
            own = [{k: v for k, v in vars(kind).items() if not k.startswith("__")} for kind in (a, e)]
            return self._walk(own[0], own[1], path)
        state = getattr(e, "__dict__", None)
        if type(state) is dict:
            return self._walk(a.__dict__, state, path)
        return ""

    def _container(self, a: Any, e: Any, path: str) -> str:
        """The elements of a container, whatever its own methods say of them."""
        base = next(kind for kind in CONTAINERS if isinstance(e, kind))
        parts: list[list[Any]] = [list(base.items(c) if base is dict else base.__iter__(c)) for c in (a, e)]
        if len(parts[0]) != len(parts[1]):
            return f"{path}: length {len(parts[0])}, eager {len(parts[1])}"
        if base in (set, frozenset):  # objects are in an order of no meaning
            plain = all(isinstance(part, (*ATOMS, float)) for part in parts[1])
            return f"{path}: {parts[0]}, eager {parts[1]}" if plain and set(parts[0]) != set(parts[1]) else ""
        if base is not dict:
            return self._first(zip(*parts, range(len(parts[1]))), path)
        keys = [[key for key, _ in pairs] for pairs in parts]
        if {type(key) for row in keys for key in row} == {str} and keys[0] == keys[1]:
            return self._first(((one, other, key) for (_, one), (key, other) in zip(*parts)), path)
        if not all(isinstance(key, (*ATOMS, float, tuple)) for key in keys[1]):
            return self._first(zip(*parts, range(len(parts[1]))), path)
        if list(map(repr, keys[0])) != list(map(repr, keys[1])):
            return f"{path}: keys {keys[0]}, eager {keys[1]}"
        return self._first(((one, other, key) for (_, one), (key, other) in zip(*parts)), path)

    def _first(self, parts: Iterable[tuple[Any, Any, Any]], path: str) -> str:
        for one, other, key in parts:
            if type(other) in QUICK and type(one) is type(other) and one == other:
                continue
            text = self._walk(one, other, f"{path}[{key!r}]")
            if text:
                return text
        return ""

    def _function(self, a: Any, e: Any, path: str) -> str:
        if a.__qualname__ != e.__qualname__:
            return f"{path}: {a.__qualname__}, eager {e.__qualname__}"
        cells = [[_content(cell) for cell in f.__closure__ or ()] for f in (a, e)]
        return self._walk(cells[0], cells[1], f"{path} cells") or self._walk(a.__defaults__, e.__defaults__, path)

    def _tensor(self, a: torch.Tensor, e: torch.Tensor, path: str) -> str:
        self.tensors.append((path, a, e))
        if type(a) is not type(e):
            return f"{path}: a {type(a).__name__}, eager a {type(e).__name__}"
        facts = [(t.dtype, tuple(t.shape), t.is_inference(), _autograd(t)) for t in (a, e)]
        if facts[0] != facts[1]:
            return f"{path}: {facts[0]}, eager {facts[1]}"
        # Of an empty tensor, and of a dimension of size 1, eager's strides depend on the operation.
        if e.numel() and any(s != t for s, t, size in zip(a.stride(), e.stride(), e.shape) if size > 1):
            return f"{path}: strides {a.stride()}, eager {e.stride()} of {tuple(e.shape)}"
        with torch.no_grad():
            rounding = ROUNDING.get(e.dtype)
            same = torch.equal(a, e) or (
                rounding is not None and torch.allclose(a, e, rounding, rounding, equal_nan=True)
            )
        if not same:
            return f"{path}: {a.tolist()}, eager {e.tolist()}"
        held = [t.__dict__ for t in (a, e)]
        if held[0].keys() != held[1].keys():
            return f"{path}: attributes {list(held[0])}, eager {list(held[1])}"
        grads = [t.grad if fact[3] in LEAVES else None for t, fact in zip((a, e), facts)]
        return self._walk(grads[0], grads[1], f"{path}.grad")

    def _memory(self) -> str:
        """Tensors share memory in one world as in the other; where shared, at the same place."""
        users: dict[int, int] = {}
        for _, _, e in self.tensors:
            users[_storage(e)] = users.get(_storage(e), 0) + 1
        for path, a, e in self.tensors:
            one, other = _storage(a), _storage(e)
            if not one or not other:
                continue
            if self.storages[0].setdefault(one, other) != other or self.storages[1].setdefault(other, one) != one:
                return f"{path}: shares memory in one world only"
            if users[other] > 1 and a.storage_offset() != e.storage_offset():
                return f"{path}: offset {a.storage_offset()}, eager {e.storage_offset()}"
            if a._is_view() != e._is_view() and not path.endswith(".grad"):
                return f"{path}: a view: {a._is_view()}, eager {e._is_view()}"
        return ""

    def _versions(self) -> str:
        for path, a, e in self.tensors:
            if path.endswith(".grad"):  # how gradients are added up is nobody's business
                continue
            before = self.versions[1].get(id(a)), self.versions[0].get(id(e))
            if before[0] is None or before[1] is None:  # made during the call
                if _count(a) != _count(e):
                    return f"{path}: version {_count(a)}, eager {_count(e)}"
                continue
            moved = _count(a) - before[0][1], _count(e) - before[1][1]
            if moved[0] != moved[1]:
                return f"{path}: version moved by {moved[0]}, eager {moved[1]}"
        for versions, place in zip(self.versions, (2, 1)):
            versions.clear()
            versions.update({id(row[place]): (row[place], _count(row[place])) for row in self.tensors})
        return ""


def _count(tensor: torch.Tensor) -> int:
    """The version counter; inference tensors have none, nor have tensors that took the data of one."""
    try:
        return -1 if tensor.is_inference() else tensor._version
    except RuntimeError:
        return -1


def _autograd(tensor: torch.Tensor) -> Any:
    """What autograd says of a tensor; it refuses to look at a view whose memory was written under another mode."""
    try:
        return tensor.requires_grad, tensor.is_leaf
    except RuntimeError as error:
        return str(error)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def _close(a: float, e: float) -> bool:
    return (a != a and e != e) or (a == a and e == e and abs(a - e) <= 2e-5 * max(1.0, abs(e)) and (a or e) != 0)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.untyped_storage().nbytes() else 0
