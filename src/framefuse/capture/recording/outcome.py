"""Says what a finished recording guards of its inputs, and what eager's autograd holds of its results."""

from __future__ import annotations

import copyreg
import itertools
from collections.abc import Sequence

import torch

from framefuse.capture.recording.recorder import Recorder
from framefuse.capture.recording.saved import Stale, autograd_of
from framefuse.capture.recording.tensors import dense_order
from framefuse.ir.classes import PLAIN_TENSORS
from framefuse.ir.dtypes import BY_TORCH
from framefuse.ir.facts import Input, Source, TensorSpec
from framefuse.ir.numbers import Symbol, expr
from framefuse.ir.own_class import is_a
from framefuse.ir.trace import Autograd, TensorMeta

# So many pairs of tensors are looked at one by one; more are sorted by their place in memory.
PAIRS = 24
# Elements that lie no further apart are loaded as rows (codegen/llvm/memory.py), by code for that one distance: a
# second distance at the same place is any.
NEAR = 4
# The first copy or pickle of a tensor notes the names of its slots in its class, as this does: later that would change
# the version of the class, by which every trace is guarded.
for _kind in (torch.Tensor, torch.nn.Parameter):
    copyreg._slotnames(_kind)  # type: ignore[attr-defined]


def inputs_of(recorder: Recorder) -> tuple[Input, ...]:
    """The inputs with what is guarded of each."""
    recorder.sources.guard_unused_tensors(recorder.numbers)
    _state_types(recorder)
    inputs = []
    written = {recorder.metas[number].storage for call in recorder.calls for number in call.written}
    for number, (source, keys, sizes, fixed) in recorder.inputs.items():
        meta = recorder.metas[number]
        order = None if recorder.exact_strides else dense_order(meta.sizes, meta.strides)
        strides: tuple[Symbol | int, ...] | None = None
        if order is None:
            near = min((stride for stride in meta.strides if stride), default=0)
            most = near if near <= NEAR and source not in recorder.moving else 1
            held = [fixed or recorder.exact_strides or stride <= most for stride in meta.strides]
            strides = tuple(
                stride if keep else _stride_symbol(recorder, stride)
                for stride, keep in zip(meta.strides, held, strict=True)
            )
            _keep_order(recorder, meta.strides, strides)
            if meta.storage in written:  # torch refuses to write what is expanded
                _keep_apart(recorder, source, meta, sizes, strides)
        spec = TensorSpec(
            meta.type, keys, BY_TORCH[meta.dtype], meta.device, sizes, order, strides,
            meta.requires_grad if recorder.gradients_matter else None,
        )  # fmt: skip
        inputs.append(Input(number, source, spec))
    return tuple(inputs)


def separate_tensors(recorder: Recorder) -> None:
    """Input tensors that are written, and what they may alias, must be as distinct as they were when recorded."""
    changed = {number for call in recorder.calls for number in call.written}
    storages = {recorder.metas[number].storage for number in changed}
    hit = [number for number in recorder.inputs if recorder.metas[number].storage in storages]
    if _share(recorder, hit):
        return
    sources = {number: entry.source for number, entry in recorder.inputs.items()}
    if len(hit) * len(sources) > PAIRS:
        written = set(hit)
        rest = tuple(source for number, source in sources.items() if number not in written)
        recorder.sources.fact(sources[hit[0]], "apart", (tuple(sources[number] for number in hit), rest), "")
        return
    for place, number in enumerate(hit):
        done = set(hit[: place + 1])
        for other, source in sources.items():
            if other not in done:
                recorder.sources.fact(sources[number], "disjoint", source)


def _share(recorder: Recorder, hit: Sequence[int]) -> bool:
    """Whether inputs ``hit`` by a write share memory, which ends the recording: what writes it is a step in the next
    one, if it can be.
    """
    first: dict[int, int] = {}
    pairs: dict[int, tuple[Source, Source]] = {}
    for number in hit:
        storage = recorder.metas[number].storage
        other = first.setdefault(storage, number)
        if other != number:
            pairs.setdefault(storage, (recorder.inputs[other].source, recorder.inputs[number].source))
    if not pairs:
        return False
    detail = "{} and {}".format(*next(iter(pairs.values())))
    writers = [place for storage in pairs for place in recorder.memory.writers.get(storage, ())]
    if recorder.machine is not None and recorder.machine.exits.learn_places(writers, "alias", detail):
        recorder.end("alias", detail)
    else:
        recorder.kill("alias", detail)
    return True


def versions_of(recorder: Recorder) -> dict[int, int]:
    """The version counters of all values at the end, but for those of 0."""
    with torch._C.DisableTorchFunction():
        candidates = ((number, tensor) for number, tensor in enumerate(recorder.tensors) if not tensor.is_inference())
        return {number: tensor._version for number, tensor in candidates if tensor._version}


def autograd_held(recorder: Recorder, leaving: Sequence[int]) -> Autograd | None:
    """What eager's autograd holds in this run for the gradients of the values that leave, and of inputs that were
    written.
    """
    if not recorder.gradients_matter:
        return None
    storages = {recorder.metas[number].storage for call in recorder.calls for number in call.written}
    written = [number for number in recorder.inputs if recorder.metas[number].storage in storages]
    families = {recorder.metas[number].family for number in leaving}  # a view's base may be made first, then the view
    bases = [number for number, meta in enumerate(recorder.metas) if meta.family in families and not meta.view]
    with torch._C.DisableTorchFunction():
        tensors = {number: recorder.tensors[number] for number in (*leaving, *bases, *written)}
        inputs = {number: recorder.tensors[number] for number in recorder.inputs}
        try:
            return autograd_of(tensors, inputs, recorder.tensors, recorder.entrances, recorder.storages)
        except Stale:
            recorder.kill("gradient", "A tensor that is needed for a gradient is written afterwards")
            return None


def _state_types(recorder: Recorder) -> None:
    """What was looked up on a type, or was not found there, decided something."""
    for kind in recorder.looked_up:
        recorder.sources.guard_version(kind)
    if recorder.calls:  # operators on tensors look there too
        for kind in {torch.Tensor, *PLAIN_TENSORS} & {torch.Tensor, *[meta.type for meta in recorder.metas]}:
            recorder.sources.guard_version(kind)


def _keep_order(recorder: Recorder, recorded: tuple[int, ...], strides: tuple[Symbol | int, ...]) -> None:
    """Free strides keep the order of their sizes: torch lays results out by it."""
    order = sorted(range(len(recorded)), key=lambda dim: -recorded[dim])
    for outer, inner in itertools.pairwise(order):
        small, large = (
            expr(stride) if is_a(stride, int) else stride.expr for stride in (strides[inner], strides[outer])
        )
        recorder.relations.relate("<" if recorded[inner] < recorded[outer] else "==", small, large)


def _keep_apart(
    recorder: Recorder,
    source: Source,
    meta: TensorMeta,
    sizes: tuple[Symbol | int, ...],
    strides: tuple[Symbol | int, ...],
) -> None:
    """No two elements of what is written are one place in memory: a step along a dimension leads behind all that the
    smaller steps reach.
    """
    reached, behind = 0, expr(0)
    for dim in sorted(range(len(strides)), key=lambda dim: meta.strides[dim]):
        size, stride = expr(sizes[dim]), expr(strides[dim])
        recorder.relations.relate("<", expr(0), stride)
        if meta.sizes[dim] == 1:
            recorder.relations.relate("==", size, expr(1))
            continue
        if meta.strides[dim] <= reached:
            recorder.kill("memory-order", f"Elements of {source} share memory, and it is written.")
            return
        recorder.relations.relate("<", behind, stride)
        reached += (meta.sizes[dim] - 1) * meta.strides[dim]
        behind = behind + (size - 1) * stride


def _stride_symbol(recorder: Recorder, value: int) -> Symbol:
    symbol = recorder.relations.symbol("t")
    recorder.relations.hints[symbol] = value
    return symbol
