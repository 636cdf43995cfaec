"""Reads off eager's own autograd graph what its nodes hold for a backward pass, and what leads where."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from framefuse.ir.trace import Autograd, Holder

PREFIX = "_saved_"
LEAF: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]


class Stale(Exception):
    """Something that autograd saved was written since: eager raises if a backward pass reads it. Or the memory of a
    view was written behind it, so that eager raises if it is asked what made the view.
    """


class Entrances:
    """Where a walk back ends: the inputs of a trace, as autograd knew them when they came."""

    def __init__(self) -> None:
        self.leaves: dict[int, int] = {}  # by identity of the tensor
        self.nodes: dict[tuple[int, int], int] = {}  # by identity of the node and which of its outputs
        self.known: dict[int, Any] = {}  # the nodes

    def add(self, number: int, tensor: Any) -> None:
        """Notes the input of this number."""
        if not tensor.requires_grad:
            return
        if tensor.is_leaf:
            self.leaves[id(tensor)] = number
            return
        try:
            node = tensor.grad_fn
        except RuntimeError:  # a view that may not be asked: no walk goes through it
            return
        self.known[id(node)] = node
        self.nodes.setdefault((id(node), tensor.output_nr), number)


def autograd_of(
    leaving: Mapping[int, Any], inputs: Mapping[int, Any], entrances: Entrances, storages: Mapping[int, int]
) -> Autograd | None:
    """What eager's graph holds from the tensors ``leaving`` back to the ``inputs``, both by number.

    ``storages`` gives numbers by address. None where saved-tensor hooks are active: to look at what was saved would
    call them. Raises Stale.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return None
    return _Reading(inputs, entrances, storages).graph(leaving)


class _Reading:
    def __init__(self, inputs: Mapping[int, Any], entrances: Entrances, storages: Mapping[int, int]) -> None:
        self.entrances = entrances
        self.storages = storages
        self.given = {tensor.untyped_storage()._cdata for tensor in inputs.values()}
        self.selves = {id(tensor): number for number, tensor in inputs.items()}
        self.sizes: dict[int, int] = {}
        self.numbers: dict[int, int] = {}  # of nodes, by identity
        self.kept: list[Any] = []  # the nodes: identities are theirs while they live
        self.holders: list[Holder] = []

    def graph(self, leaving: Mapping[int, Any]) -> Autograd:
        made = {}
        for number, tensor in leaving.items():
            node = _node(tensor) if tensor.requires_grad else None
            if node is not None and (id(node), tensor.output_nr) not in self.entrances.nodes:
                self._reach(node)
                made[number] = self.numbers[id(node)]
        fresh = sum(size for address, size in self.sizes.items() if address not in self.given)
        return Autograd(tuple(self.holders), made, fresh)

    def _reach(self, first: Any) -> None:
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

    def _inside(self, node: Any) -> bool:
        return node is not None and id(node) not in self.entrances.known and type(node) is not LEAF

    def _holder(self, node: Any, before: Iterable[Any]) -> Holder:
        ends = []
        for child, place in node.next_functions:
            number = self.entrances.nodes.get((id(child), place))
            if number is None and type(child) is LEAF:
                number = self.entrances.leaves.get(id(child.variable))
            if number is not None:
                ends.append(number)
        saved, frees = _saved(node)
        for tensor in saved:
            storage = tensor.untyped_storage()
            self.sizes[storage._cdata] = storage.nbytes()
        addresses = {tensor.untyped_storage()._cdata for tensor in saved}
        return Holder(
            tuple(dict.fromkeys(self.numbers[id(child)] for child in before)),
            tuple(dict.fromkeys(ends)),
            frozenset(self.storages[address] for address in addresses if address in self.storages),
            frozenset(self.selves[id(tensor)] for tensor in saved if id(tensor) in self.selves),
            frees,
        )


def _node(tensor: Any) -> Any:
    try:
        return tensor.grad_fn
    except RuntimeError:
        raise Stale from None


@lru_cache(maxsize=1024)
def _names(kind: Hashable) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith(PREFIX))


def _saved(node: Any) -> tuple[list[torch.Tensor], bool]:
    """The tensors that a node saved whose memory can be told, and whether it may be walked once only."""
    found: list[torch.Tensor] = []
    # Torch drops the function that a write to a view holds, which Python does not see, with the rest.
    frees = isinstance(node, BackwardCFunction) or node.name() == "CopySlices"
    for name in _names(node.__class__):
        try:
            value = getattr(node, name)
        except RuntimeError as error:
            if "modified by an inplace operation" in str(error):
                raise Stale from None
            frees = True  # freed by a backward inside the function
            continue
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, torch.Tensor):
                frees = True
                if part.layout is torch.strided:
                    found.append(part)
    return found, frees
