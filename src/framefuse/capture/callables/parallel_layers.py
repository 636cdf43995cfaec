"""Makes of the call of a linear layer that torch's tensor parallelism has split over processes what this process does
for it: a product with its own part of the weight, and what the processes exchange.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as modules

from framefuse.capture.interp.machine import Machine
from framefuse.capture.program.frame import Pending, enter
from framefuse.capture.recording.local_parts import local_part
from framefuse.ir.classes import PLAIN_TENSORS
from framefuse.ir.collectives import Entering, Leaving, Sharing
from framefuse.ir.values import Arguments, Keywords, Value

STYLES = "torch.distributed.tensor.parallel.style"
PLACE = ("torch.distributed.tensor._api", "distribute_module.<locals>.<lambda>")
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
EMPTY = (
    "_backward_hooks", "_backward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)  # fmt: skip
GLOBAL = (
    "_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks", "_global_forward_pre_hooks",
    "_global_forward_hooks_always_called",
)  # fmt: skip
INNER: types.FunctionType = vars(nn.Module)["_call_impl"]
METHODS = ("_compiled_call_impl", "_call_impl", "forward")


class Split(NamedTuple):
    """How a layer is split: over the processes of ``group``, by rows of its weight or else by columns."""

    by_rows: bool
    group: str
    processes: int


def by_columns(x: torch.Tensor, weight: torch.Tensor, bias: Value, group: str, processes: int) -> Value:
    """Each process has some of the layer's results: of what goes in, which all have, gradients are summed."""
    return nn.functional.linear(Entering.apply(x, group), weight, bias)


def by_rows(x: torch.Tensor, weight: torch.Tensor, bias: Value, group: str, processes: int) -> Value:
    """Each process has some of what goes in, and a term of the results."""
    share = None if bias is None else Sharing.apply(bias, processes)
    return Leaving.apply(nn.functional.linear(x, weight, share), group)


def enter_parallel(machine: Machine, args: Arguments, kwargs: Keywords, continuation: Pending | None) -> bool:
    """Pushes the frame of what a split layer does on this process; False where the call is none of such a layer."""
    if sys.modules.get(STYLES) is None or kwargs or len(args) != 2 or type(args[0]) is not nn.Linear:
        return False
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:  # as a checkpoint's, which compare all
        return False
    recorder, (layer, x) = machine.recorder, args
    if not recorder.sources.knows(layer) or recorder.reentrant or recorder.transformed is not None:
        return False
    with torch._C.DisableTorchFunction():
        split = _split(layer, x)
    if split is None:
        return False
    _state(machine, layer)
    frame = machine.frames[-1]
    whole = [machine.attributes.attribute_now(frame, layer, name) for name in ("weight", "bias")]
    if not recorder.alive:
        return False
    parts = [None if each is None else local_part(recorder, each) for each in whole]
    function: Value = by_rows if split.by_rows else by_columns
    recorder.functions.enter(function)
    entered = enter(function, (x, *parts, split.group, split.processes), {})
    entered.continuation = continuation
    machine.push(entered)
    return True


def _state(machine: Machine, layer: nn.Linear) -> None:
    """The facts of what decides how the layer is called."""
    sources, contents, state = machine.recorder.sources, machine.recorder.contents, layer.__dict__
    sources.guard_version(nn.Linear)
    sources.guard_type(layer)
    sources.guard_absent_names(layer, METHODS)
    for name in GLOBAL:
        value = machine.recorder.functions.read_global(INNER, name, getattr(modules, name), 0)
        machine.operations.truth(value)
    for name in EMPTY:
        machine.operations.truth(sources.read(layer, "attr", name, state[name]))
    for name in HOOKS:
        hooks = sources.read(layer, "attr", name, state[name])
        contents.guard_shallow_contents(hooks)
        for hook in hooks.values():
            machine.recorder.functions.guard(hook)


# ---- how a layer is split -------------------------------------------------------------------------------------------


def _split(layer: nn.Linear, x: Value) -> Split | None:
    """How torch's own hooks split a layer that takes a plain tensor and gives one; None for any other."""
    state = layer.__dict__
    if not state.keys().isdisjoint(METHODS) or any(state.get(name) for name in EMPTY):
        return None
    if any(getattr(modules, name) for name in GLOBAL):
        return None
    before, behind = (_hook(state[name]) for name in HOOKS)
    if before is None or behind is None or before[1] != behind[1]:
        return None
    (prepare, mesh), (finish, _) = before, behind
    styles: Value = sys.modules[STYLES]
    for style in (styles.ColwiseParallel, styles.RowwiseParallel):
        if (prepare.func, finish.func) == (style._prepare_input_fn, style._prepare_output_fn):
            rows = style is styles.RowwiseParallel
            fits = _is_usual(rows, prepare.args, finish.args, x) and _fits(layer, x, mesh, rows)
            return Split(rows, mesh.get_group().group_name, mesh.size()) if fits else None
    return None


def _hook(hooks: Value) -> tuple[functools.partial[Value], Value] | None:
    """What the one hook of torch's calls, and its mesh of processes."""
    if len(hooks) != 1:
        return None
    (hook,) = hooks.values()
    if type(hook) is not types.FunctionType or (hook.__globals__.get("__name__"), hook.__qualname__) != PLACE:
        return None
    named = zip(hook.__code__.co_freevars, hook.__closure__ or (), strict=True)
    cells = {name: cell.cell_contents for name, cell in named}
    function = cells.get("input_fn", cells.get("output_fn"))
    if type(function) is not functools.partial or function.keywords or "device_mesh" not in cells:
        return None
    return function, cells["device_mesh"]


def _is_usual(rows: bool, prepare: Arguments, finish: Arguments, x: Value) -> bool:
    """Whether what goes in and comes out lies as such a layer has it without another exchange."""
    if len(prepare) != 2 or len(finish) != 2 or finish[1] is not True or type(x) not in PLAIN_TENSORS:
        return False
    given, wanted, made = prepare[0], prepare[1], finish[0]
    if any(type(each) is not tuple or len(each) != 1 for each in (given, wanted, made)):
        return False
    last = (-1, x.ndim - 1)
    if rows:
        return _shards(given[0], last) and _shards(wanted[0], last) and made[0].is_replicate()
    return bool(given[0].is_replicate() and wanted[0].is_replicate() and _shards(made[0], last))


def _shards(placement: Value, dims: tuple[int, ...]) -> bool:
    return type(placement).__name__ == "Shard" and placement.dim in dims


def _fits(layer: nn.Linear, x: torch.Tensor, mesh: Value, rows: bool) -> bool:
    """Whether each process has an equal part of the weight, and the operands belong together."""
    weight: Value = layer.weight
    bias: Value = layer.bias
    if mesh.ndim != 1 or mesh.get_coordinate() is None or not _lies(weight, mesh, (int(rows),)):
        return False
    if bias is not None and not _lies(bias, mesh, () if rows else (0,)):
        return False
    part, size = weight._local_tensor, mesh.size()
    if weight.shape[int(rows)] % size or part.shape[int(rows)] * size != weight.shape[int(rows)]:
        return False
    if x.ndim < 2 or x.shape[-1] != part.shape[1] or x.device != part.device or x.device.type != mesh.device_type:
        return False
    tensors = (x, part) if bias is None else (x, part, bias._local_tensor)
    same = len({tensor.dtype for tensor in tensors}) == 1 or torch.is_autocast_enabled(x.device.type)
    return same and all(tensor.is_floating_point() and type(tensor) in PLAIN_TENSORS for tensor in tensors)


def _lies(tensor: Value, mesh: Value, dims: tuple[int, ...]) -> bool:
    """Whether a distributed tensor is split over these processes along one of the dimensions; whole without any."""
    kind: Value = sys.modules["torch.distributed.tensor"]
    if type(tensor) is not kind.DTensor or tensor.device_mesh != mesh or len(tensor.placements) != 1:
        return False
    placement = tensor.placements[0]
    return _shards(placement, dims) if dims else bool(placement.is_replicate())
