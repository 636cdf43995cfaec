"""Records collectives of torch.distributed as calls that keep their place in the trace, with what they write."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from framefuse.capture.facts.nested_numbers import strip
from framefuse.capture.facts.numbers import TRACKED
from framefuse.capture.recording.recorder import Recorder
from framefuse.ir.collectives import Committing, Finishing
from framefuse.ir.own_class import is_a
from framefuse.ir.trace import Ref
from framefuse.ir.values import Arguments, Function, Keywords, Value

# Name -> the parameters whose tensors it writes, and those whose tensors it reads.
ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "all_reduce": (("tensor",), ()),
    "broadcast": (("tensor",), ()),
    "reduce": (("tensor",), ()),
    "all_gather": (("tensor_list",), ("tensor",)),
    "all_gather_single": (("output_tensor",), ("input_tensor",)),
    "all_gather_into_tensor": (("output_tensor",), ("input_tensor",)),
    "reduce_scatter": (("output",), ("input_list",)),
    "reduce_scatter_single": (("output",), ("input",)),
    "reduce_scatter_tensor": (("output",), ("input",)),
    "all_to_all_single": (("output",), ("input",)),
    "barrier": ((), ()),
}
AVAILABLE = dist.is_available()
COLLECTIVES: dict[int, Function] = {
    id(function): function for name in ROLES if AVAILABLE and (function := getattr(dist, name, None)) is not None
}
# Functions that only tell how torch was built.
SILENT = frozenset(
    ("is_available", "is_nccl_available", "is_gloo_available", "is_mpi_available", "is_ucc_available",
     "is_xccl_available")
)  # fmt: skip
HANDLE = "_framefuse_work"  # the attribute by which a tensor holds what fills it


@dataclass(frozen=True, slots=True)
class Operand:
    """Stands for a tensor among a collective's arguments."""

    index: int


@dataclass(frozen=True, slots=True)
class Collective(Committing):
    """A collective as a call of its tensors, one after the other, and its group; the first ``written`` are those that
    it writes.

    ``arguments`` are (name, value) pairs with :class:`Operand` for tensors. ``counts`` is how often eager counts a
    version for the write. Where ``starts``, it returns before the others took part, and :class:`Wait` ends it.
    """

    function: Function
    arguments: tuple[tuple[str, object], ...]
    written: int
    counts: int
    starts: bool

    def __call__(self, *tensors: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
        arguments = {name: _filled(value, tensors) for name, value in self.arguments}
        work = self.function(**arguments, group=group)
        if self.starts:
            tensors[0].__dict__[HANDLE] = work

    @property
    def __name__(self) -> str:
        return self.function.__name__


@dataclass(frozen=True, slots=True)
class Wait(Finishing):
    """Waits until the tensors that a :class:`Collective` started to fill are there; gives them."""

    counts: int = 0

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensors[0].__dict__.pop(HANDLE).wait()
        return tensors

    @property
    def __name__(self) -> str:
        return "wait"


def _filled(value: object, tensors: tuple[torch.Tensor, ...]) -> object:
    if type(value) is Operand:
        return tensors[value.index]
    return [_filled(part, tensors) for part in value] if type(value) is tuple else value


# ---- what may be recorded --------------------------------------------------------------------------------------------


def may_record(recorder: Recorder, target: Function, args: Arguments, kwargs: Keywords) -> bool:
    """Whether a call of a function of torch.distributed can be a call of the trace; else it is an opaque step."""
    if id(target) not in COLLECTIVES:
        return target.__name__ in SILENT
    with torch._C.DisableTorchFunction():
        return _may_record(recorder, target, args, kwargs)


def _may_record(recorder: Recorder, target: Function, args: Arguments, kwargs: Keywords) -> bool:
    try:
        arguments = _bound(target, args, kwargs)
    except TypeError:
        return False
    group = arguments.get("group")
    if group is not None and recorder.sources.source_of(group) is None and group is not dist.group.WORLD:
        return False
    world: Value = dist.distributed_c10d
    if not dist.is_initialized() or world._rank_not_in_group(group) or world._world.pg_coalesce_state:
        return False
    writes, reads = ROLES[target.__name__]
    written, read = (list(_tensors([arguments[name] for name in names])) for names in (writes, reads))
    tensors = [*written, *read]
    if len({tensor.untyped_storage().data_ptr() for tensor in written}) != len(written):
        return False
    differentiable = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if differentiable or any(tensor.is_complex() for tensor in tensors) or (writes and not written):
        return False
    kept = [value for name, value in arguments.items() if name not in (*writes, *reads, "group")]
    return all(_is_plain(value) for value in kept)


def is_wait(recorder: Recorder, target: Function, args: Arguments, kwargs: Keywords) -> bool:
    """Whether this is the plain ``wait()`` of a collective that the recording saw start."""
    return len(args) == 1 and not kwargs and id(args[0]) in recorder.waits.works and target.__name__ == "wait"


def _bound(target: Function, args: Arguments, kwargs: Keywords) -> dict[str, Value]:
    bound = inspect.signature(target).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _tensors(value: Value) -> Iterator[torch.Tensor]:
    if is_a(value, torch.Tensor):
        yield value
    elif is_a(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def _is_plain(value: Value) -> bool:
    plain = (bool, int, float, str, type(None), dist.ReduceOp.RedOpType)
    return type(value) in plain or type(value) in TRACKED or (type(value) is list and all(map(_is_plain, value)))


# ---- recording -------------------------------------------------------------------------------------------------------


def call(recorder: Recorder, target: Function, args: Arguments, kwargs: Keywords) -> Value:
    """Runs a collective for real and records it."""
    with torch._C.DisableTorchFunction():
        return _call(recorder, target, args, kwargs)


def _call(recorder: Recorder, target: Function, args: Arguments, kwargs: Keywords) -> Value:
    arguments = _bound(target, args, kwargs)
    writes, reads = ROLES[target.__name__]
    operands: list[torch.Tensor] = []
    places: dict[str, object] = {}
    for name in (*writes, *reads):
        places[name] = _placed(recorder, arguments[name], operands)
    written = sum(1 for name in writes for _ in _tensors([arguments[name]]))
    refs = tuple([ref for ref in map(recorder.arguments.of, operands) if is_a(ref, Ref)])
    group = arguments.pop("group", None)
    source = None if group is None or group is dist.group.WORLD else recorder.sources.source_of(group)
    given = tuple((name, places.get(name, _frozen(strip(value)))) for name, value in arguments.items())
    before = [tensor._version for tensor in operands[:written]]
    try:
        value = target(*strip(args), **strip(kwargs))
    except Exception as error:
        recorder.kill("raises", type(error).__name__)
        raise
    if not recorder.alive:
        return value
    counts = {tensor._version - version for tensor, version in zip(operands, before, strict=False)} or {0}
    if len(counts) != 1:
        recorder.kill("native-call", target.__name__)
        return value
    numbers = tuple(ref.value for ref in refs[:written])
    starts = is_a(value, dist.Work)
    collective = Collective(target, given, written, counts.pop(), starts)
    named = {"group": source} if source is not None else {}
    recorder.waits.filling(collective, target.__name__, refs, named, numbers)
    if starts:
        recorder.waits.start(value, refs[:written])
    return value


def wait(recorder: Recorder, target: Function, work: dist.Work) -> Value:
    """Waits for real, and records it."""
    value = target(work)
    recorder.waits.finish(work, Wait())
    return value


def _placed(recorder: Recorder, value: Value, operands: list[torch.Tensor]) -> object:
    if is_a(value, torch.Tensor):
        operands.append(value)
        return Operand(len(operands) - 1)
    return tuple([_placed(recorder, part, operands) for part in recorder.arguments.parts(value)])


def _frozen(value: object) -> object:
    return tuple(map(_frozen, value)) if is_a(value, list) else value
