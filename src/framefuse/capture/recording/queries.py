"""Answers the torch calls that yield no tensor: metadata as facts or run-time numbers, values and state as stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framefuse.capture.facts.numbers import Float, Integer, bare
from framefuse.capture.recording.tensors import dense_order
from framefuse.ir import torch_calls
from framefuse.ir.torch_calls import TABLE

Answer = Callable[[Any, Any, str, tuple[Any, ...], dict[str, Any]], Any]
ANSWERING: dict[str, Answer] = {}  # what a row of the table says -> who answers


def call_name(function: Any) -> str:
    """The plain name of a torch function; attributes are ``get x`` and ``set x``, overloads lose their suffix."""
    name: str = getattr(function, "__name__", "") or type(function).__name__
    if name == "__get__":
        attribute: str = function.__self__.__name__
        return attribute if TABLE[attribute].view else f"get {attribute}"
    if name == "__set__":
        return f"set {function.__self__.__name__}"
    if "." in name:
        name = name.partition(".")[0]
    return name


def answers(answer: str) -> Callable[[Answer], Answer]:
    """Registers how functions are answered whose row says so (:attr:`TorchCall.answer`)."""

    def register(function: Answer) -> Answer:
        ANSWERING[answer] = function
        return function

    return register


@answers("metadata")
def _constant(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for value in args:
        if isinstance(value, torch.Tensor):
            recorder.number(value)
    return function(*args, **kwargs)


@answers("same_size")
def _same_size(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    recorder.relations.pin_sizes()
    return _constant(recorder, function, name, args, kwargs)


@answers("sizes")
def _sizes(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if dim is None:
        return recorder.sizes(tensor)
    dim = dim.plain() if type(dim) is Integer else dim
    function(tensor, dim)  # raises what eager raises
    return recorder.size(tensor, dim) if isinstance(dim, int) else function(tensor, dim)


@answers("elements")
def _numel(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    total: Any = 1
    for size in recorder.sizes(args[0]):
        total = total * size
    return total


@answers("length")
def _length(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    function(args[0])
    return recorder.size(args[0], 0)


@answers("offset")
def _offset(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    recorder.number(args[0])
    value = function(*args, **kwargs)
    recorder.kill("tensor-attribute", name)
    return value


@answers("strides")
def _layout(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    number = recorder.number(tensor)
    value = function(*args, **kwargs)
    if number is None:
        return value
    if name == "stride":
        recorder.fix_strides()
    natural = tensor.is_contiguous() and len(args) == 1 and not kwargs
    if not (natural and name == "is_contiguous" and number in recorder.inputs):
        recorder.relations.pin_sizes()
        if not tensor.is_contiguous() and dense_order(tuple(tensor.shape), tensor.stride()) is None:
            recorder.fix_strides()  # strides of no order may be any others at the next call, dense ones too
    return value


@answers("requires_grad")
def _requires_grad(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    recorder.number(args[0])
    recorder.guard_gradients()
    return function(*args)


@answers("new")
def _new(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The sizes of ``new`` may come as a ``torch.Size``; a tuple would be elements."""
    if len(args) == 2 and type(args[1]) is torch.Size and not kwargs:
        return recorder.run(torch.Tensor.new_empty, "new_empty", args, kwargs)
    return recorder.run(function, name, args, kwargs)


@answers("grad")
def _grad(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = function(*args)
    source = recorder.sources.source_of(args[0])
    if source is None:
        recorder.kill("tensor-attribute", "grad")
    elif recorder.alive:
        recorder.sources.read(args[0], "grad", None, value)
    return value


@answers("grad_fn")
def _grad_fn(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """None for what requires no gradient."""
    if recorder.requires_grad(args[0]) is not False:
        recorder.kill("tensor-attribute", "grad_fn")
    return function(*args)


@answers("type")
def _type(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and not kwargs:
        return _constant(recorder, function, name, args, kwargs)
    return recorder.run(function, name, args, kwargs)


@answers("iteration")
def _iterate(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if tensor.ndim == 0:
        return function(tensor)
    size = recorder.size(tensor, 0)
    if type(size) is Integer:
        size.plain()
    return iter(recorder.run(torch.unbind, "unbind", (tensor, 0), {}))


@answers("unbind")
def _unbind(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = recorder.run(function, name, args, kwargs)
    _fix_count(recorder, args[0], (args[1] if len(args) > 1 else kwargs.get("dim", 0)))
    return out


def _fix_count(recorder: Any, tensor: Any, dim: Any) -> None:
    """The number of results depends on this size."""
    if recorder.alive and isinstance(dim, int):
        size = recorder.size(tensor, bare(dim))
        if type(size) is Integer:
            size.plain()


@answers("split")
def _split(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The number of parts depends on the size that is split, unless the parts' sizes are given."""
    out = recorder.run(function, name, args, kwargs)
    given = args[1] if len(args) > 1 else kwargs.get("split_size_or_sections")
    if name != "split" or not isinstance(given, (list, tuple)):
        _fix_count(recorder, args[0], args[2] if len(args) > 2 else kwargs.get("dim", 0))
    return out


@answers("sections")
def _sections(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = recorder.run(function, name, args, kwargs)
    if name != "split_with_sizes":
        recorder.relations.pin_sizes()
    return out


@answers("dropout")
def _dropout(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    chance = kwargs.get("p", args[1] if len(args) > 1 else None)
    if type(chance) is Float:  # at both ends nothing is drawn; a comparison leaves its outcome as a fact
        chance.__le__(0.0)
        chance.__ge__(1.0)
    return recorder.run(function, name, args, kwargs)


@answers("grad_mode")
def _grad_mode(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    recorder.guard_gradients()
    return function(*args, **kwargs)


@answers("state")
def _state(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


def _stop(code: str) -> Answer:
    def stop(recorder: Any, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder.kill(code, name.removeprefix("get ").removeprefix("set "))
        return function(*args, **kwargs)

    return stop


ANSWERS: dict[str, Answer] = {
    name: _stop(row.stop) if row.stop else ANSWERING[row.answer]
    for name, row in TABLE.items()
    if row.stop or row.answer
}


def may_be_random(name: str, kwargs: dict[str, Any]) -> bool:
    """Whether a call may advance a generator, so that its state is compared."""
    return TABLE[name].draws or "generator" in kwargs


def sizes_from_data(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether sizes of the result may depend on the values of tensors."""
    return torch_calls.sizes_from_data(name, args, kwargs, _is_tensor, _is_mask)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_mask(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.bool, torch.uint8)


def sized_by_numbers(name: str) -> bool:
    """Whether sizes of the result may depend on ints among the arguments."""
    row = TABLE[name]
    return row.counts or row.sizes is not None


def own_writes(recorder: Any, tensor: torch.Tensor) -> int | None:
    """The version of a tensor that was made in this recording, in memory that no input shares: it is the same in each
    call. None for any other tensor.
    """
    found = recorder.numbers.get(id(tensor))
    if found is None or found in recorder.inputs:
        return None
    with torch._C.DisableTorchFunction():
        memory = tensor.untyped_storage()._cdata
        shared = any(recorder.tensors[number].untyped_storage()._cdata == memory for number in recorder.inputs)
        return None if shared else tensor._version
