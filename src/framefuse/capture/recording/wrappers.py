"""Tells tensors that wrap others: classes whose ``__torch_dispatch__`` says in Python what operators do with them. They
are objects of the program rather than values of the trace, which has the tensors inside them.
"""

from __future__ import annotations

import torch

from framefuse.capture.facts.sources import Sources
from framefuse.ir.values import Value

# What torch keeps of the outer tensor, which never changes for one object.
METADATA = frozenset(("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_cpu"))
Made = dict[int, tuple[torch.Tensor, Value]]


def wraps_others(kind: type) -> bool:
    """Whether instances of a class hold their elements in other tensors, which it names."""
    own = getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__
    return own and issubclass(kind, torch.Tensor) and hasattr(kind, "__tensor_flatten__")


def outer(sources: Sources, made: tuple[torch.Tensor, Value] | None, wrapper: torch.Tensor, name: str) -> Value:
    """What torch says of the outer tensor, which stays for one object; the class is not asked. ``made`` is what is
    known of one that the program made.
    """
    if made is not None and name == "shape":
        return torch.Size(made[1])
    source = sources.source_of(wrapper)
    if source is not None:
        sources.fact(source, "is", wrapper, id(wrapper))
    with torch._C.DisableTorchFunction():
        return getattr(wrapper, name)
