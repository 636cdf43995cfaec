"""Says in a few bytes what a call is: kept calls are filed under it. Two calls may share it; guards tell them apart."""

from __future__ import annotations

import hashlib
import marshal
import os
import types
from collections.abc import Sequence

import torch

from framefuse.capture.recording.state import global_state
from framefuse.driver.calls.descriptions import code_digest
from framefuse.driver.programs.fingerprint import fingerprint
from framefuse.driver.programs.records import VERSION
from framefuse.ir import passes_in_force
from framefuse.ir.marks import DIMENSIONS
from framefuse.ir.values import Value
from framefuse.options import Options

WIDTH, DEPTH = 64, 4  # how much of containers counts
TENSORS = (torch.Tensor, torch.nn.Parameter)
PLAIN = (bool, str, bytes, type(None))
SETTINGS = frozenset((*PLAIN, int, float))
# What decides which devices a process finds; torch asks once.
DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def signature(function: types.FunctionType, bound: Sequence[Value], options: Options) -> str:
    """The name of the file of a call of ``function`` with the arguments ``bound``."""
    code = function.__code__
    parts = (function.__module__, code.co_qualname, code_digest(code), [_argument(each, 0) for each in bound])
    environment = [os.environ.get(name) for name in DEVICES]
    setting = (repr(options), repr(global_state()), devices(), *(passes_in_force.key() or ()))
    key = hashlib.sha256("\0".join((*fingerprint(), *setting)).encode())
    key.update(marshal.dumps((parts, environment), VERSION))
    return key.hexdigest()


def devices() -> str:
    """The devices that a process may find beside the processor."""
    try:
        return " ".join(sorted(name for name in os.listdir("/dev") if name.startswith(("nvidia", "kfd", "dri"))))
    except OSError:
        return ""


def _argument(value: Value, depth: int) -> Value:
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind in TENSORS:
        return _tensor(value)
    if kind in (list, tuple) and depth < DEPTH:
        return (kind.__name__, len(value), [_argument(each, depth + 1) for each in value[:WIDTH]])
    if kind is dict and depth < DEPTH:
        shown = list(value.items())[:WIDTH]
        return ("dict", len(value), [(_argument(key, DEPTH), _argument(held, depth + 1)) for key, held in shown])
    if kind is types.FunctionType:
        return ("function", code_digest(value.__code__))
    if kind is types.MethodType:
        return ("method", _argument(value.__func__, depth), _argument(value.__self__, depth))
    if issubclass(kind, torch.nn.Module):
        return _module(value, set())
    return (kind.__module__, kind.__qualname__)


def _tensor(value: torch.Tensor) -> Value:
    with torch._C.DisableTorchFunction():
        layout = tuple(value.stride()) if value.layout is torch.strided else str(value.layout)
        marks = repr(getattr(value, DIMENSIONS, None))
        return (str(value.dtype), tuple(value.shape), layout, str(value.device), value.requires_grad, marks)


def _module(module: Value, seen: set[int]) -> Value:
    """The classes, plain attributes and tensors of a module and those below it; no code of theirs is asked."""
    if id(module) in seen:
        return "again"
    seen.add(id(module))
    state: dict[str, Value] = object.__getattribute__(module, "__dict__")
    kind = type(module)
    plain = [(name, held) for name, held in state.items() if type(held) in SETTINGS]
    parts = [(name, _module(held, seen)) for name, held in _entries(state, "_modules") if held is not None]
    tensors = [
        (name, _tensor(held) if type(held) in TENSORS else type(held).__qualname__)
        for part in ("_parameters", "_buffers")
        for name, held in _entries(state, part)
    ]
    return (kind.__module__, kind.__qualname__, plain, parts, tensors)


def _entries(state: dict[str, Value], part: str) -> list[tuple[Value, Value]]:
    held = state.get(part)
    return list(dict.items(held)) if isinstance(held, dict) else []
