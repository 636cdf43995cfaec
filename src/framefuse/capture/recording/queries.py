"""Answers the torch calls that yield no tensor: metadata as facts or run-time numbers, values and state as stops."""

from __future__ import annotations

from collections.abc import Callable

import torch

from framefuse.capture.facts.nested_numbers import pin_nested
from framefuse.capture.facts.numbers import Float, Integer, bare, form_of
from framefuse.capture.recording.recorder import Recorder
from framefuse.capture.recording.tensors import dense_order, lacks_sizes
from framefuse.ir.native_warnings import Hearing
from framefuse.ir.numbers import expr
from framefuse.ir.own_class import is_a
from framefuse.ir.torch_calls import TABLE
from framefuse.ir.trace import Ref, refs
from framefuse.ir.values import Arguments, Function, Keywords, Value

Answer = Callable[[Recorder, Function, str, Arguments, Keywords], Value]
ANSWERING: dict[str, Answer] = {}  # what a row of the table says -> who answers


def answers(answer: str) -> Callable[[Answer], Answer]:
    """Registers how functions are answered whose row says so (:attr:`TorchCall.answer`)."""

    def register(function: Answer) -> Answer:
        ANSWERING[answer] = function
        return function

    return register


def _decide(args: Arguments, kwargs: Keywords) -> None:
    """The answer is that for these very numbers."""
    pin_nested(args)
    pin_nested(kwargs)


def _told(recorder: Recorder, function: Function, tensor: torch.Tensor, *args: Value) -> Value:
    """What eager answers. That it raises is a fact about the tensor, as the program may go on."""
    try:
        return function(tensor, *args)
    except Exception:
        recorder.number(tensor)
        raise


@answers("metadata")
def _constant(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    _decide(args, kwargs)
    for value in args:
        if is_a(value, torch.Tensor):
            recorder.number(value)
    return function(*args, **kwargs)


@answers("same_size")
def _same_size(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    recorder.relations.pin_sizes()
    return _constant(recorder, function, name, args, kwargs)


@answers("sizes")
def _sizes(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    tensor = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if dim is None:
        _told(recorder, function, tensor)
        return recorder.sizes.of(tensor)
    dim = dim.plain() if type(dim) is Integer else dim
    value = _told(recorder, function, tensor, dim)
    return recorder.sizes.at(tensor, dim) if is_a(dim, int) else value


@answers("elements")
def _numel(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    if lacks_sizes(args[0]):
        return _constant(recorder, function, name, args, kwargs)
    total: Value = 1
    for size in recorder.sizes.of(args[0]):
        total = total * size
    return total


@answers("bytes")
def _nbytes(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    value = _told(recorder, function, args[0])
    total = _numel(recorder, torch.Tensor.numel, "numel", args, kwargs)
    return value if lacks_sizes(args[0]) else total * args[0].itemsize


@answers("length")
def _length(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    _told(recorder, function, args[0])
    return recorder.sizes.at(args[0], 0)


@answers("offset")
def _offset(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    _decide(args, kwargs)
    number = recorder.number(args[0])
    value = function(*args, **kwargs)
    if number is None:
        return value
    memory = recorder.metas[number].storage
    if recorder.relations.data_symbols or any(recorder.metas[given].storage == memory for given in recorder.inputs):
        recorder.kill("tensor-attribute", name)  # no guard looks at where inputs begin
        return value
    recorder.relations.pin_sizes()
    recorder.fix_strides()  # which decide whether memory is an input's
    return value


@answers("strides")
def _layout(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    _decide(args, kwargs)
    tensor = args[0]
    number = recorder.number(tensor)
    value = function(*args, **kwargs)
    if number is None:
        return value
    natural = tensor.is_contiguous() and len(args) == 1 and not kwargs
    if natural and name == "is_contiguous" and number in recorder.inputs:
        return value
    dense = _dense_strides(recorder, tensor) if number not in recorder.sizes.from_data else None
    if dense is not None:
        return value if name == "is_contiguous" else _asked(dense, value, args, kwargs)
    recorder.relations.pin_sizes()
    if name == "stride" or dense_order(tuple(tensor.shape), tensor.stride()) is None:
        recorder.fix_strides()  # strides of no order may be any others at the next call, dense ones too
    return value


def _dense_strides(recorder: Recorder, tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The strides as run-time numbers, where memory has no gaps and lies as an input's, and each size is two or more,
    which becomes a fact: then sizes and the order of dimensions, which guards hold, say them all.
    """
    shape = tuple(tensor.shape)
    order = dense_order(shape, tensor.stride())
    if order is None or not recorder.symbolic or any(size < 2 for size in shape):
        return None
    model = _laid_out_by(recorder, tensor)
    if model is None:
        return None
    for size in recorder.sizes.of(model):
        if type(size) is Integer:
            recorder.relations.relate("<", expr(1), form_of(size))
    sizes = recorder.sizes.of(tensor)
    strides, step = [1] * len(shape), 1
    for axis in reversed(order):
        strides[axis], step = step, step * sizes[axis]
    return tuple(strides)


def _laid_out_by(recorder: Recorder, tensor: torch.Tensor) -> torch.Tensor | None:
    """The input whose order in memory is that of the tensor, but for turned dimensions, whatever the sizes are; None
    where sizes may decide it, as they decide whether ``reshape`` gives a view.
    """
    number = recorder.number(tensor)
    for call in reversed(recorder.calls):
        if number is None or number in recorder.inputs:
            break
        operands = set(refs((call.args, call.kwargs)))
        if number not in refs(call.result) or number in operands:
            continue
        named = TABLE[call.name].keeps_order and "memory_format" not in call.kwargs
        if not named or len(operands) != 1 or call.result != Ref(number):
            return None
        number = operands.pop()
    return recorder.tensors[number] if number is not None and number in recorder.inputs else None


def _asked(strides: tuple[int, ...], value: Value, args: Arguments, kwargs: Keywords) -> Value:
    """The strides, or that of the dimension that was asked for."""
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    return strides if is_a(value, tuple) else strides[bare(dim)]


@answers("requires_grad")
def _requires_grad(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    recorder.number(args[0])
    recorder.guard_gradients()
    value = function(*args)
    if recorder.reentrant and value and args[0].grad_fn is not None:
        given = any(args[0] is each for each in recorder.entrances.checkpoints[-1].kept)
        recorder.asked_reentrant |= not given
        return given
    return value


@answers("new")
def _new(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    """The sizes of ``new`` may come as a ``torch.Size``; a tuple would be elements."""
    if len(args) == 2 and type(args[1]) is torch.Size and not kwargs:
        return recorder.run(torch.Tensor.new_empty, "new_empty", args, kwargs)
    return recorder.run(function, name, args, kwargs)


@answers("grad")
def _grad(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    """Torch warns of what is no leaf."""
    with Hearing(recorder.tell):
        value = function(*args)
    source = recorder.sources.source_of(args[0])
    if source is None:
        recorder.kill("tensor-attribute", "grad")
    elif recorder.alive:
        recorder.sources.read(args[0], "grad", None, value)
    return value


@answers("grad_fn")
def _grad_fn(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    """None for what requires no gradient."""
    if recorder.requires_grad(args[0]) is not False:
        recorder.kill("tensor-attribute", "grad_fn")
    return function(*args)


@answers("is_leaf")
def _is_leaf(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    """What requires no gradient is a leaf."""
    if recorder.requires_grad(args[0]) is not False:
        recorder.kill("tensor-attribute", "is_leaf")
    return function(*args)


@answers("type")
def _type(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    if len(args) == 1 and not kwargs:
        return _constant(recorder, function, name, args, kwargs)
    return recorder.run(function, name, args, kwargs)


@answers("iteration")
def _iterate(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    tensor = args[0]
    if tensor.ndim == 0:
        return _told(recorder, function, tensor)
    size = recorder.sizes.at(tensor, 0)
    if type(size) is Integer:
        size.plain()
    return iter(recorder.run(torch.unbind, "unbind", (tensor, 0), {}))


@answers("unbind")
def _unbind(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    out = recorder.run(function, name, args, kwargs)
    _fix_count(recorder, args[0], (args[1] if len(args) > 1 else kwargs.get("dim", 0)))
    return out


def _fix_count(recorder: Recorder, tensor: torch.Tensor, dim: Value) -> None:
    """The number of results depends on this size."""
    if recorder.alive and is_a(dim, int):
        size = recorder.sizes.at(tensor, bare(dim))
        if type(size) is Integer:
            size.plain()


@answers("split")
def _split(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    """The number of parts depends on the size that is split, unless the parts' sizes are given."""
    out = recorder.run(function, name, args, kwargs)
    word = "chunks" if name == "chunk" else "split_size" if "split_size" in kwargs else "split_size_or_sections"
    given = args[1] if len(args) > 1 else kwargs.get(word)
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    if name != "split" or not is_a(given, (list, tuple)):
        if name == "tensor_split" or not is_a(given, int) or not is_a(dim, int):
            _fix_count(recorder, args[0], dim)
        elif recorder.alive:
            _keep_count(recorder.sizes.at(args[0], bare(dim)), given, name == "chunk", len(out))
    return out


def _keep_count(size: Value, given: Value, chunks: bool, count: int) -> None:
    """Leaves as facts that a size is cut into so many pieces, of ``given`` elements or for so many ``chunks``, of which
    the last has what is left; a size of 0 is one piece of its own kind.
    """
    if type(size) is not Integer:
        return
    if bare(size) == 0:
        size.plain()
        return
    if chunks:
        number = bare(given) if type(given) is not Integer else given.plain()
        piece = (size + (number - 1)) // number
    else:
        piece = given
    last = size - piece * (count - 1)
    last.__gt__(0)
    last.__le__(piece)


@answers("sections")
def _sections(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    out = recorder.run(function, name, args, kwargs)
    if name != "split_with_sizes":
        recorder.relations.pin_sizes()
    return out


@answers("dropout")
def _dropout(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    chance = kwargs.get("p", args[1] if len(args) > 1 else None)
    if type(chance) is Float:  # at both ends nothing is drawn; a comparison leaves its outcome as a fact
        chance.__le__(0.0)
        chance.__ge__(1.0)
    return recorder.run(function, name, args, kwargs)


@answers("grad_mode")
def _grad_mode(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    _decide(args, kwargs)
    recorder.guard_gradients()
    return function(*args, **kwargs)


@answers("state")
def _state(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    _decide(args, kwargs)
    return function(*args, **kwargs)


def _stop(code: str) -> Answer:
    def stop(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
        recorder.kill(code, name.removeprefix("get ").removeprefix("set "))
        return function(*args, **kwargs)

    return stop


ANSWERS: dict[str, Answer] = {
    name: _stop(row.stop) if row.stop else ANSWERING[row.answer]
    for name, row in TABLE.items()
    if row.stop or row.answer
}


def own_writes(recorder: Recorder, tensor: torch.Tensor) -> int | None:
    """The version of a tensor that was made in this recording, in memory that no input shares: it is the same in each
    call. None for any other tensor.
    """
    value = recorder.numbers.get(id(tensor))
    if value is None or value in recorder.inputs:
        return None
    with torch._C.DisableTorchFunction():
        memory = tensor.untyped_storage()._cdata
        shared = any(recorder.tensors[number].untyped_storage()._cdata == memory for number in recorder.inputs)
        return None if shared else tensor._version
