"""Reads off eager's own autograd graph what its nodes hold for a backward pass, and what leads where."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeGuard

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from framefuse.ir.own_class import is_a
from framefuse.ir.trace import Autograd, Holder
from framefuse.ir.values import Function, Value

PREFIX = "_saved_"
SAVED = (PREFIX, f"_raw{PREFIX}")  # how the names begin that eager's nodes have for what they saved
FOREACH = "_foreach_"
SLICES = "torch::autograd::CopySlices"  # the name of torch's node for a write to a view
MADE = torch._C._autograd.CreationMeta
# What torch says of a saved tensor that was written since, and of a saved view that nobody may ask what made it.
WRITTEN = ("modified by an inplace operation", "has been modified inplace")
LEAF: type[Node] = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]


class Stale(Exception):
    """Something that autograd saved was written since: eager raises if a backward pass reads it. Or the memory of a
    view was written behind it, so that eager raises if it is asked what made the view.
    """


@dataclass(frozen=True, slots=True)
class Write:
    """What a call saved that wrote to a tensor, and the version counters of that; ``stale`` if something of what it
    wrote itself. ``kept`` is the address of the memory that it wrote, where it saved that.
    """

    saved: tuple[torch.Tensor, ...] = ()
    versions: tuple[int, ...] = ()
    stale: bool = False
    kept: int = 0

    def is_stale(self) -> bool:
        """Whether something that was saved was written since."""
        return self.stale or any(
            tensor._version != version for tensor, version in zip(self.saved, self.versions, strict=True)
        )


@dataclass(slots=True)
class Checkpoint:
    """What torch's checkpoint of a function kept: its arguments. The nodes of autograd that were made in it have the
    numbers from ``first`` up to ``last``; what they save is dropped, and nobody may look at it, since that would
    compute it again. ``read`` is the memory that its calls of torch read, by number.
    """

    first: int
    kept: tuple[torch.Tensor, ...]
    last: int = 0
    read: frozenset[int] = frozenset()


class Entrances:
    """Where a walk back ends: the inputs of a trace, as autograd knew them when they came."""

    def __init__(self) -> None:
        self.checkpoints: list[Checkpoint] = []
        self.leaves: dict[int, int] = {}  # by identity of the tensor
        self.nodes: dict[tuple[int, int], int] = {}  # by identity of the node and which of its outputs
        self.known: dict[int, Node] = {}
        self.writes: dict[int, tuple[Node, Write]] = {}  # by identity of a node of torch's for a write to a view

    def add(self, number: int, tensor: torch.Tensor) -> None:
        """Notes the input of this number."""
        if not tensor.requires_grad:
            return
        origin = _origin(tensor)
        try:
            node = origin.grad_fn
        except RuntimeError:  # a view that may not be asked: no walk goes through it
            return
        if node is None:
            self.leaves.setdefault(id(origin), number)
            return
        self.known[id(node)] = node
        self.nodes.setdefault((id(node), origin.output_nr), number)

    def wrote(
        self,
        function: Function,
        args: Sequence[Value],
        kwargs: Mapping[str, Value],
        required: bool,
        written: Sequence[torch.Tensor],
    ) -> None:
        """Notes a call in gradient mode that wrote to its first argument, or to those listed there, which ``required``
        grad before or not. Where that is a view torch keeps what the call saved where Python does not see it.
        """
        target = args[0] if args else None
        if is_a(target, (list, tuple)):
            one = getattr(torch.Tensor, getattr(function, "__name__", "").removeprefix(FOREACH), None)
            if one is not None and len(args) == 1:
                for tensor in target:
                    self.wrote(one, (tensor,), {}, required, written)
        elif is_a(target, torch.Tensor) and target._is_view() and target.requires_grad:
            base = target._base
            node = None if base is None else base.grad_fn
            if node is not None and node.name() == SLICES and any(target is tensor for tensor in written):
                self.writes[id(node)] = node, _on_stand_ins(function, args, kwargs, required)


def autograd_of(
    leaving: Mapping[int, torch.Tensor],
    inputs: Mapping[int, torch.Tensor],
    along: Sequence[torch.Tensor],
    entrances: Entrances,
    storages: Mapping[int, int],
) -> Autograd | None:
    """What eager's graph holds from the tensors ``leaving`` back to the ``inputs``, both by number.

    ``along`` are all tensors of the trace, ``storages`` gives numbers by address. None where saved-tensor hooks are
    active: to look at what was saved would call them. Raises Stale.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return None
    return _Reading(inputs, entrances, storages).graph(leaving, along)


def _by_rank(holders: Sequence[Holder]) -> tuple[Holder, ...]:
    """The holders with their order by age for an age: the same at each recording, so that a kept program is found."""
    ranks = {age: rank for rank, age in enumerate(sorted({holder.age for holder in holders}))}
    return tuple([replace(holder, age=ranks[holder.age]) for holder in holders])


class _Reading:
    def __init__(self, inputs: Mapping[int, torch.Tensor], entrances: Entrances, storages: Mapping[int, int]) -> None:
        self.entrances = entrances
        self.storages = storages
        self.given = {tensor.untyped_storage()._cdata for tensor in inputs.values()}
        self.selves = {id(tensor): number for number, tensor in inputs.items()}
        self.sizes: dict[int, int] = {}
        self.numbers: dict[int, int] = {}  # of nodes, by identity
        self.kept: list[Node] = []  # identities are theirs while they live
        self.holders: list[Holder] = []

    def graph(self, leaving: Mapping[int, torch.Tensor], along: Sequence[torch.Tensor]) -> Autograd:
        nodes, shown = {}, {}
        for number, tensor in leaving.items():
            origin = _origin(tensor)
            try:
                node = origin.grad_fn if tensor.requires_grad else None
            except RuntimeError:  # a view that nobody may ask what made it, since its memory was written behind it
                continue
            if node is not None and (id(node), origin.output_nr) not in self.entrances.nodes:
                self._reach(node)
                nodes[number] = self.numbers[id(node)]
                shown[number] = (node.name(), origin.output_nr)
        fresh = sum(size for address, size in self.sizes.items() if address not in self.given)
        return Autograd(_by_rank(self.holders), nodes, fresh, self._along(along) if self.holders else {}, shown)

    def _along(self, tensors: Sequence[torch.Tensor]) -> dict[int, int]:
        """The nodes that made tensors which are no views."""
        nodes = {}
        for number, tensor in enumerate(tensors):
            if tensor.requires_grad and not tensor._is_view():
                node = self.numbers.get(id(tensor.grad_fn))
                if node is not None:
                    nodes[number] = node
        return nodes

    def _reach(self, first: Node) -> None:
        """Reads a node after all that its gradients go to."""
        waiting = [first]
        while waiting:
            node = waiting[-1]
            if id(node) in self.numbers:
                waiting.pop()
                continue
            before = [child for child, _ in node.next_functions if self._inside(child)]
            unread = [child for child in before if id(child) not in self.numbers]
            if unread:
                waiting += unread
                continue
            waiting.pop()
            self.kept.append(node)
            self.holders.append(self._holder(node, before))
            self.numbers[id(node)] = len(self.numbers)

    def _inside(self, node: Node | None) -> TypeGuard[Node]:
        return node is not None and id(node) not in self.entrances.known and type(node) is not LEAF

    def _holder(self, node: Node, before: Iterable[Node]) -> Holder:
        ends = []
        for child, place in node.next_functions:
            number = self.entrances.nodes.get((id(child), place))
            if number is None and type(child) is LEAF:
                number = self.entrances.leaves.get(id(child.variable))  # type: ignore[attr-defined]
            if number is not None:
                ends.append(number)
        checkpoint = self._checkpoint(node)
        if checkpoint is not None:
            return self._in_checkpoint(checkpoint, before, ends)
        saved, frees = _saved(node)
        written, itself = -1, saved
        if id(node) in self.entrances.writes:
            write = self.entrances.writes[id(node)][1]
            if write.is_stale():
                raise Stale
            saved = [*saved, *write.saved]  # of its own result a node saves the memory
            itself = [tensor for tensor in saved if tensor.untyped_storage()._cdata != write.kept]
            written = self.storages.get(write.kept, -1)
        for tensor in saved:
            storage = tensor.untyped_storage()
            self.sizes[storage._cdata] = storage.nbytes()
        addresses = {tensor.untyped_storage()._cdata for tensor in saved}
        forms = [(part.untyped_storage()._cdata, tuple(part.shape), part.requires_grad) for part in saved]
        seen = [form for form in forms if form[0] in self.storages]
        return Holder(
            tuple(dict.fromkeys(self.numbers[id(child)] for child in before)),
            tuple(dict.fromkeys(ends)),
            frozenset(self.storages[address] for address in addresses if address in self.storages),
            frozenset(self.selves[id(tensor)] for tensor in itself if id(tensor) in self.selves),
            frees,
            not addresses <= self.storages.keys(),
            age=node._sequence_nr(),
            forms=tuple((self.storages[address], shape, needs) for address, shape, needs in seen),
            written=written,
        )

    def _checkpoint(self, node: Node) -> Checkpoint | None:
        """The outermost checkpoint that a node was made in."""
        if not self.entrances.checkpoints:
            return None
        number = node._sequence_nr()
        return next((each for each in self.entrances.checkpoints if each.first <= number < each.last), None)

    def _in_checkpoint(self, checkpoint: Checkpoint, before: Iterable[Node], ends: Iterable[int]) -> Holder:
        """A node whose saved values are made again, from what the checkpoint kept and what else it read."""
        addresses = set()
        for tensor in checkpoint.kept:
            storage = tensor.untyped_storage()
            self.sizes[storage._cdata] = storage.nbytes()
            addresses.add(storage._cdata)
        given = {self.storages[address] for address in self.given if address in self.storages}
        return Holder(
            tuple(dict.fromkeys(self.numbers[id(child)] for child in before)),
            tuple(dict.fromkeys(ends)),
            frozenset(self.storages[address] for address in addresses if address in self.storages),
            frozenset(self.selves[id(tensor)] for tensor in checkpoint.kept if id(tensor) in self.selves),
            True,
            again=checkpoint.read & given,
        )


def unreached_by_call(results: Iterable[torch.Tensor], operands: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """As :func:`unreached`, none where nobody may ask. Where only one operand requires grad, whatever does after the
    call leads to it.
    """
    asking = [tensor for tensor in operands if tensor.requires_grad]
    if len(asking) < 2:
        return []
    with torch._C.DisableTorchFunction():
        try:
            return unreached(results, asking)
        except Stale:
            return []


def unreached(results: Iterable[torch.Tensor], operands: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The operands of a call that require grad and to which no way leads from its results in eager's graph."""
    asking = [tensor for tensor in operands if tensor.requires_grad]
    held = [_node(tensor) for tensor in asking]  # a node has its address in Python only while somebody refers to it
    ends = {_end(tensor, node): tensor for tensor, node in zip(asking, held, strict=True)}
    missing = set(ends)
    seen: dict[int, Node] = {}
    waiting: list[Node | None] = []
    for tensor in results:
        if tensor.requires_grad:
            node = _node(tensor)
            missing.discard(_end(tensor, node))
            waiting.append(node)
    borders = {end[0] for end in ends}
    while waiting and missing:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen[id(node)] = node
        for child, number in node.next_functions:
            leaf = getattr(child, "variable", None)
            missing.discard((id(child), number) if leaf is None else (id(leaf), -1))
            if leaf is None and id(child) not in borders:
                waiting.append(child)
    return [ends[end] for end in missing]


def _end(tensor: torch.Tensor, node: Node | None) -> tuple[int, int]:
    """What a way to the tensor ends at: one output of its node, or a leaf."""
    return (id(tensor), -1) if node is None else (id(node), tensor.output_nr)


def _node(tensor: torch.Tensor) -> Node | None:
    """The node of a tensor; None also for a view that nothing has read since its memory was written."""
    if _is_outdated(tensor):
        return None
    try:
        return tensor.grad_fn
    except RuntimeError:
        raise Stale from None


def _origin(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor whose node says what made this one: a view's base where torch would make the view's node anew."""
    base = tensor._base if _is_outdated(tensor) else None
    return tensor if base is None else base


def _is_outdated(tensor: torch.Tensor) -> bool:
    """Whether a view's memory was written since torch made its node. It makes another one for whoever asks first, by
    the sizes, strides and offset that the view has at that time: the recorder must not be the one who asks, since
    ``view.data = ...`` may follow. This is told by what torch refuses for views made where gradients are off.
    """
    if not tensor.requires_grad or not tensor._is_view():
        return False
    kind = torch._C._autograd._get_creation_meta(tensor)
    if kind != MADE.DEFAULT:
        return False
    torch._C._autograd._set_creation_meta(tensor, MADE.NO_GRAD_MODE)
    try:
        tensor.grad_fn  # noqa: B018
    except RuntimeError:
        return True
    finally:
        torch._C._autograd._set_creation_meta(tensor, kind)
    return False


@lru_cache(maxsize=1024)
def _names(kind: Hashable) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith(PREFIX))


def _saved(node: Node) -> tuple[list[torch.Tensor], bool]:
    """The tensors that a node saved whose memory can be told, and whether it may be walked once only."""
    tensors: list[torch.Tensor] = []
    # Torch drops the function that a write to a view holds, which Python does not see, with the rest.
    frees = is_a(node, BackwardCFunction) or node.name() == SLICES
    for name in ("saved_tensors",) if is_a(node, BackwardCFunction) else _names(node.__class__):
        try:
            value = getattr(node, name)
        except RuntimeError as error:
            if any(text in str(error) for text in WRITTEN):
                raise Stale from None
            frees = True  # freed by a backward inside the function
            continue
        for part in value if is_a(value, (tuple, list)) else (value,):
            if is_a(part, torch.Tensor):
                frees = True
                if part.layout is torch.strided:
                    tensors.append(part)
    return tensors, frees


def _unheard() -> AbstractContextManager[object]:
    """Keeps what is saved from hooks that are active, as those of a checkpoint are, which counts it."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_itself, _itself)


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _on_stand_ins(
    function: Function, args: Sequence[Value], kwargs: Mapping[str, Value], required: bool
) -> Write:
    """What the call saves: it is made once more on tensors without memory, the first of which is no view."""
    stand_ins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def stand_in(value: Value) -> Value:
        if is_a(value, torch.Tensor):
            if id(value) not in stand_ins:
                stand_ins[id(value)] = value, torch.empty_like(value, device="meta", requires_grad=value.requires_grad)
            return stand_ins[id(value)][1]
        return type(value)(map(stand_in, value)) if type(value) in (list, tuple) else value

    target = args[0]
    try:
        stand_ins[id(target)] = target, stand_in(target).detach().requires_grad_(required).clone()
        with _unheard():
            function(*map(stand_in, args), **{name: stand_in(value) for name, value in kwargs.items()})
        node = stand_ins[id(target)][1].grad_fn
        saved = [] if node is None else _saved(node)[0]
    except Stale:
        return Write(stale=True)
    except Exception:  # a call that needs memory: what it saves is not known
        return Write()
    storage_of = {stand.untyped_storage()._cdata: tensor for tensor, stand in stand_ins.values()}
    storages = [part.untyped_storage()._cdata for part in saved]
    tensors = [storage_of[storage] for storage in storages if storage in storage_of]
    own = target.untyped_storage()._cdata
    aliased = any(tensor is not target and tensor.untyped_storage()._cdata == own for tensor in tensors)
    kept = own if any(tensor.untyped_storage()._cdata == own for tensor in tensors) else 0
    return Write(tuple(tensors), tuple(tensor._version for tensor in tensors), aliased, kept)
