"""Gives the part of a distributed tensor that lies on this process as a value of traces."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import MutableMapping

import torch

from framefuse.capture.recording.recorder import Recorder
from framefuse.ir.facts import Source
from framefuse.ir.values import Value

# By the identities of the outer tensor and of the one inside. A part keeps the outer tensor alive, to which its
# gradients go, and traces keep the part.
_PARTS: MutableMapping[tuple[int, int], torch.Tensor] = weakref.WeakValueDictionary()


def local_part(recorder: Recorder, outer: Value) -> torch.Tensor:
    """The part on this process of a known distributed tensor, which facts hold to its identity. The gradient of the
    part becomes one of the whole by torch's own node, which may be walked any number of times, as it keeps no tensor.
    """
    sources = recorder.sources
    source = sources.known_source(outer)
    with recorder.unseen(), torch._C.DisableTorchFunction():
        inner, trains = outer._local_tensor, outer.requires_grad
        part = _PARTS.get((id(outer), id(inner)))
        if part is None or part.requires_grad is not trains:
            with torch.inference_mode(False), torch.set_grad_enabled(trains):
                part = _PARTS[id(outer), id(inner)] = _to_local().apply(outer, None)
    sources.fact(source, "is", outer, id(outer))
    sources.fact(Source("getattr", source, "_local_tensor"), "is", inner, id(inner))
    sources.guard_value(Source("getattr", source, "requires_grad"), trains)
    sources.root(part)
    sources.tie()
    return part


@functools.cache
def _to_local() -> Value:
    """Torch's own function of ``to_local``, with another version for what it gives: writes to a distributed tensor
    raise its own version, not that of the tensor inside, and what eager saves for backward is the distributed tensor.
    """
    base: Value = sys.modules["torch.distributed.tensor._api"]._ToTorchTensor

    class LocalPart(base):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Value, outer: Value, placements: Value) -> torch.Tensor:
            inner: torch.Tensor = base.forward(ctx, outer, placements)
            if outer.is_inference():
                return inner
            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Python)):
                part: torch.Tensor = outer.detach()  # a plain tensor without memory, which has the version of the outer
            part.data = inner
            return part

    return LocalPart
