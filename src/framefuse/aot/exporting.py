"""Turns one recorded call into a shared library that runs without Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from framefuse.aot.aten_functions import as_function
from framefuse.aot.cpu_code import cpu_code
from framefuse.aot.exported_program import DLPACK, Given, Program
from framefuse.aot.gpu_code import gpu_code
from framefuse.aot.inputs import Inputs, inputs_of
from framefuse.aot.recording import Recorded, checks, pinned, recorded, sources, taken, told
from framefuse.aot.results import structure
from framefuse.aot.shared_library import build
from framefuse.aot.torchscript import as_python, is_script
from framefuse.errors import UserError, demand_folder, writing

DEVICES = ("cpu", "cuda")
Dynamic = bool | None | Mapping[int | str, Mapping[int, str]]


@dataclass(frozen=True, slots=True)
class Exported:
    """What :func:`export` wrote: the names of its ``inputs`` and ``weights``, how many tensors it gives, and what it
    ``assumed``: Python values that the program read and that stay what they were, sizes of inputs among them.
    ``libtorch`` are the operators that it calls in torch's library; without any it needs none.
    """

    path: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: int
    assumed: tuple[str, ...]
    libtorch: tuple[str, ...]


def export(
    f: Callable[..., Any],
    example_inputs: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Dynamic = None,
    weights: str = "inside",
    libtorch: bool = False,
) -> Exported:
    """What :func:`framefuse.export` does, which says what these are and what is raised."""
    beside = _beside(Path(path), weights)
    demand_folder(path)
    function, named = _python(f, example_inputs, kwargs or {})
    given = inputs_of(function, example_inputs, kwargs or {})
    examples = _examples(given.tensors)
    dynamic = _by_number(dynamic, given)
    call, fixed_for = _call(given.called, examples, dynamic, libtorch)
    called = tuple(dict.fromkeys(map(str, call.torch_calls.values())))
    read, places = sources(call, examples, named)
    result, results, read = structure(call, examples, read)
    kept, fixed = checks(call, examples)
    code = (gpu_code if call.gpu else cpu_code)(call, results)
    inputs = tuple(_given(place, tensor, dynamic) for place, tensor in enumerate(examples))
    sizes = pinned(call, examples)
    for each in sizes:
        if isinstance(dynamic, Mapping) and each.dim in dynamic.get(each.place, {}):
            raise UserError(f"dynamic names a size that the program has one of: {each}. Leave it out")
    asked = (str(each) for each in sizes if each.line is not None or each.size == 1)  # 1 is a batch, others of weights
    assumed = (*told(call), *asked, *fixed_for)
    description = {
        "name": call.stages.plan.name,
        "arguments": given.described(),
        "inputs": [_described(each.name, examples[place]) for place, each in enumerate(inputs)],
        "weights": [_described(weight.name, weight.tensor) for weight in read],
        "result": result,
        "assumed": assumed,
        "device": "cuda" if call.gpu else "cpu",
        "libtorch": called,
    }
    made = (code.kernels, code.written, code.tails, results, description)
    shared = (call.stages.plan, inputs, read, places, kept, fixed)
    program = Program(*shared, *made, gpu=code.gpu, torch_calls=call.torch_calls)
    with writing(path):
        build(program, code.files, Path(path), beside)
    names = tuple(weight.name for weight in read)
    return Exported(os.fspath(path), tuple(each.name for each in inputs), names, len(results), assumed, called)


def _beside(path: Path, weights: str) -> Path | None:
    """The file that holds the weights, if the library at ``path`` does not."""
    if weights not in ("inside", "beside"):
        raise UserError(f"weights is {weights!r:.40}. Choose 'inside' (the library) or 'beside' (it, in a file)")
    beside = path.with_suffix(".safetensors")
    if weights == "beside" and beside == path:
        raise UserError(f"{path.name} is the name of the weights' file. Give the library another suffix, as .so")
    return beside if weights == "beside" else None


def _call(
    f: Callable[..., Any], examples: tuple[torch.Tensor, ...], dynamic: Dynamic, libtorch: bool
) -> tuple[Recorded, tuple[str, ...]]:
    """The call that is exported: with the sizes of the examples alone, which is then told, where nobody asked for
    others and it cannot be exported for them.
    """
    if dynamic is False:
        return _fit(f, examples, False, libtorch), ()
    try:
        return _fit(f, examples, True, libtorch), ()
    except UserError as error:
        if dynamic is not None:
            raise
        try:
            why = " ".join(str(error).split())
            return _fit(f, examples, False, libtorch), (f"all sizes are those of the examples, for others: {why}",)
        except UserError:
            raise error from None


def _fit(f: Callable[..., Any], examples: tuple[torch.Tensor, ...], dynamic: bool, libtorch: bool) -> Recorded:
    return taken(recorded(f, examples, dynamic, libtorch), libtorch)


def _examples(given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    for place, tensor in enumerate(given):
        if tensor.device.type not in DEVICES or tensor.dtype not in DLPACK:
            raise UserError(f"input {place} is {tensor.dtype} on {tensor.device}. Export is for the CPU and for CUDA")
        if tensor.device != given[0].device:
            raise UserError(f"inputs lie on {given[0].device} and on {tensor.device}. Give all of them on one device")
    if len({id(tensor) for tensor in given}) < len(given):
        raise UserError("one tensor is given twice. Give a clone: which is which must be known")
    return tuple(given)


def _by_number(dynamic: Dynamic, given: Inputs) -> Dynamic:
    """The dimensions that are named, by the numbers of the inputs. Raises UserError for what the examples have not."""
    if dynamic is None or isinstance(dynamic, bool):
        return dynamic
    advice = "Choose None, True, False or {input: {dimension: name}}"
    if not isinstance(dynamic, Mapping):
        raise UserError(f"dynamic is {dynamic!r:.60}. {advice}")
    found: dict[int | str, Mapping[int, str]] = {}
    for place, named in dynamic.items():
        number = given.number(place)
        if number is None or not isinstance(named, Mapping) or not all(
            isinstance(d, int) and 0 <= d < given.tensors[number].ndim and isinstance(name, str)
            for d, name in named.items()
        ):
            raise UserError(f"dynamic has {place!r:.40}: {named!r:.60}, which the examples have not. {advice}")
        found[number] = named
    return found


def _given(place: int, tensor: torch.Tensor, dynamic: Dynamic) -> Given:
    sizes: tuple[int | str | None, ...] = (None,) * tensor.ndim
    if isinstance(dynamic, Mapping):
        named = dynamic.get(place, {})
        sizes = tuple(named.get(d, size) for d, size in enumerate(tensor.shape))
    return Given(f"input {place}", tensor.dtype, sizes)


def _python(f: Any, given: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[int, str]]:
    """What is recorded, as Python code, and the names of its weights by their ids."""
    if is_script(f):
        written, weights = as_python(f, len(given), kwargs)
        return written, {id(tensor): name for name, tensor in weights.items()}
    if type(f).__name__ == "ExportedProgram" and type(f).__module__.startswith("torch."):
        f = _called_as_functions(f.module())
    return f, _names(f)


def _called_as_functions(module: Any) -> Any:
    """The module of an ExportedProgram, with functions of torch where it calls operators."""
    for node in module.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            node.target = as_function(node.target)
    module.recompile()
    return module


def _names(f: Callable[..., Any]) -> dict[int, str]:
    """The names of the parameters and buffers of a module, or of the one whose method ``f`` is, by their ids."""
    owner = f if isinstance(f, torch.nn.Module) else getattr(f, "__self__", None)
    if not isinstance(owner, torch.nn.Module):
        return {}
    return {id(tensor): name for name, tensor in (*owner.named_buffers(), *owner.named_parameters())}


def _described(name: str, tensor: torch.Tensor) -> dict[str, object]:
    return {"name": name, "dtype": str(tensor.dtype).removeprefix("torch."), "sizes": list(tensor.shape)}
