"""Records launches of the user's Triton kernels as calls that write the tensors which the kernel stores to."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from framefuse.capture.facts.numbers import TRACKED, plain_number
from framefuse.capture.program.kernel_stores import stored_to
from framefuse.capture.recording.call_arguments import PLAIN_ARGUMENTS
from framefuse.capture.recording.recorder import Recorder
from framefuse.ir.classes import PLAIN_TENSORS
from framefuse.ir.own_class import is_a
from framefuse.ir.strides import ambiguous, dense_order
from framefuse.ir.values import Value

Meta = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch as a call of its tensors, each once, then ``numbers`` and ``grids``.

    ``arguments`` are the names of what the kernel gets: of tensors with their place, of numbers with -1; ``constants``
    are (name, value) pairs beside them. ``lies`` says for each tensor how it lay in eager's memory, by the order of its
    dimensions, outermost first, or by its strides where these have gaps (a list). ``written`` are the places of those
    that the kernel writes. The grid is that one of ``grids`` whose ``choices`` an autotuner made.
    """

    kernel: Value
    name: str
    arguments: tuple[tuple[str, int], ...]
    constants: tuple[tuple[str, Value], ...]
    lies: tuple[tuple[int, ...] | tuple[str, tuple[int, ...]], ...]
    written: tuple[int, ...]
    choices: tuple[tuple[tuple[str, Value], ...], ...]
    counts: int = 0  # no version is counted where a kernel writes

    def __call__(self, *operands: Value) -> None:
        *given, numbers, grids = operands
        tensors = [_as_it_lay(tensor, lies) for tensor, lies in zip(given, self.lies, strict=True)]
        words = iter(numbers)
        arguments = {name: next(words) if place < 0 else tensors[place] for name, place in self.arguments}
        grid = tuple(grids[0]) if len(grids) == 1 else self._chosen(grids)
        with torch.no_grad():
            self.kernel.run(**arguments, **dict(self.constants), grid=grid, warmup=False)
            for place in self.written:
                if tensors[place] is not given[place]:
                    _write(given[place], tensors[place])

    def _chosen(self, grids: tuple[tuple[int, ...], ...]) -> Value:
        """The grid as a function of what an autotuner chose."""

        def grid(meta: Meta) -> tuple[int, ...]:
            for choice, sizes in zip(self.choices, grids, strict=True):
                if all(meta.get(name) == value for name, value in choice):
                    return tuple(sizes)
            raise KeyError(f"a choice of {self.name}'s autotuner that was not there when it was recorded")

        return grid

    @property
    def __name__(self) -> str:
        return self.name


def _as_it_lay(tensor: torch.Tensor, lies: Value) -> torch.Tensor:
    """The tensor, or a copy of it where its dimensions lie otherwise than eager's do: a kernel goes by addresses."""
    if lies and lies[0] == "strides":
        strides = lies[1]
    else:
        strides, step = [0] * tensor.ndim, 1
        for axis in reversed(lies):
            strides[axis] = step
            step *= max(tensor.shape[axis], 1)
    sizes = tensor.shape
    if all(size <= 1 or mine == wanted for size, mine, wanted in zip(sizes, tensor.stride(), strides, strict=True)):
        return tensor
    lying = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)
    return lying.copy_(tensor.detach())


def _write(tensor: torch.Tensor, contents: torch.Tensor) -> None:
    """Puts contents in a tensor; that counts no version, as the kernel's own writes do not."""
    tensor.data.copy_(contents)


def may_record(recorder: Recorder, kernel: Value, given: Meta) -> bool:
    """Whether a launch can be a call of the trace; raises Unread where nothing tells what the kernel writes."""
    if recorder.transformed is not None or not recorder.sources.holds(kernel):
        return False
    for name, value in given.items():
        kind = type(value)
        if is_a(value, torch.Tensor):
            if kind not in PLAIN_TENSORS or value.is_inference() is not torch.is_inference_mode_enabled():
                return False
        elif not (kind in PLAIN_ARGUMENTS or kind in TRACKED or _is_constant(recorder, value)):
            return False
        assert is_a(name, str)
    return True


def _is_constant(recorder: Recorder, value: Value) -> bool:
    """Whether an object is the same at each call: one of Triton's own, as a dtype or a function of the device."""
    return type(value).__module__.startswith("triton.") and recorder.sources.holds(value)


def record(
    recorder: Recorder,
    kernel: Value,
    function: types.FunctionType,
    given: Meta,
    grids: tuple[Value, ...],
    choices: tuple[tuple[tuple[str, Value], ...], ...],
) -> None:
    """Runs a launch for real and records it; ``function`` is the kernel's Python."""
    writes = stored_to(function)
    tensors: list[torch.Tensor] = []
    arguments, numbers, constants, written = [], [], [], []
    for name, value in given.items():
        if is_a(value, torch.Tensor):
            place = next((place for place, tensor in enumerate(tensors) if tensor is value), len(tensors))
            tensors += [value] if place == len(tensors) else []
            arguments.append((name, place))
            written += [place] if name in writes else []
        elif type(value) in PLAIN_ARGUMENTS or type(value) in TRACKED:
            arguments.append((name, -1))
            numbers.append(value)
        else:
            constants.append((name, value))
    lies = tuple([_lies(recorder, tensor) for tensor in tensors])
    places = tuple(dict.fromkeys(written))
    name = f"triton::{function.__name__}"
    launch = Launch(kernel, name, tuple(arguments), tuple(constants), lies, places, choices)
    with torch._C.DisableTorchFunction(), torch.no_grad():
        recorder.run(launch, name, (*tensors, tuple(numbers), grids), {})


def _lies(recorder: Recorder, tensor: torch.Tensor) -> Value:
    """How a tensor lies in memory; sizes that would tell more at other values become facts."""
    number = recorder.number(tensor)
    with torch._C.DisableTorchFunction():
        order = dense_order(tuple(tensor.shape), tensor.stride())
        if order is None:
            recorder.fix_strides()
            recorder.relations.pin_sizes()
            return ("strides", tensor.stride())
    if number is not None:
        for axis in ambiguous(recorder.metas[number]):
            plain_number(recorder.sizes.at(tensor, axis))
    return order
