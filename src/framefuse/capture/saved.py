"""Reads off eager's own autograd graph which memory it keeps for a backward pass."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import torch

PREFIX = "_saved_"


class Stale(Exception):
    """Something that autograd saved was written since: eager raises if a backward pass reads it. Or the memory of a
    view was written behind it, so that eager raises if it is asked what made the view.
    """


def saved_by_autograd(
    tensors: Iterable[Any], inputs: Collection[int], storages: Mapping[int, int]
) -> tuple[frozenset[int], int] | None:
    """The numbers of the storages that autograd saved for the gradients of ``tensors``, and the bytes of all saved
    memory that is none of the inputs'.

    ``inputs`` are identities of tensors at which the walk ends, ``storages`` gives numbers by address. None where
    saved-tensor hooks are active: to look at what was saved would call them. Raises Stale.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return None
    known = list(tensors)
    ends = [_node(tensor) for tensor in known if id(tensor) in inputs]
    given = {tensor.untyped_storage()._cdata for tensor in known if id(tensor) in inputs}
    seen = {id(node): node for node in ends if node is not None}
    waiting = [_node(tensor) for tensor in known if id(tensor) not in inputs and tensor.requires_grad]
    sizes: dict[int, int] = {}
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen[id(node)] = node
        waiting += [child for child, _ in node.next_functions]
        for tensor in _saved(node):
            storage = tensor.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
    fresh = sum(size for address, size in sizes.items() if address not in given)
    return frozenset(storages[address] for address in sizes if address in storages), fresh


def _node(tensor: Any) -> Any:
    try:
        return tensor.grad_fn
    except RuntimeError:
        raise Stale from None


@lru_cache(maxsize=1024)
def _names(kind: Hashable) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith(PREFIX))


def _saved(node: Any) -> Iterable[Any]:
    for name in _names(node.__class__):
        try:
            found = getattr(node, name)
        except RuntimeError as error:
            if "modified by an inplace operation" in str(error):
                raise Stale from None
            continue  # freed by a backward inside the function
        for value in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                yield value
