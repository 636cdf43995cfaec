"""Says with which of torch's kernels of attention a recorded call runs: those that the program allowed there."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from framefuse.capture.facts.questions import Question
from framefuse.capture.facts.sources import Sources
from framefuse.capture.recording.state import Kernels
from framefuse.ir.facts import Source
from framefuse.ir.repeated_calls import Repeated
from framefuse.ir.values import Function, Value
from framefuse.ir.wrapped_calls import WithKernels, kernel_allowed

# Calls that look at the choice.
CHOOSING = frozenset((
    "scaled_dot_product_attention", "multi_head_attention_forward", "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
))  # fmt: skip
KERNELS = {
    name: Question(getattr(torch._C, f"_get_{name}_sdp_enabled"))
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
    if hasattr(torch._C, f"_get_{name}_sdp_enabled")
}


FLASH = Repeated(torch._C._get_flash_sdp_enabled, (), {})  # which another process finds, too


def order_now() -> tuple[int, ...]:
    """The order in which torch tries its kernels of attention."""
    return tuple(torch._C._get_sdp_priority_order())


ORDER = Question(lambda: str(order_now()))  # an atom, which facts hold by value


def carried(
    kernels: Kernels, sources: Sources, function: Function, name: str, operands: Iterable[Value]
) -> Function:
    """What a trace calls for a function of torch that runs now."""
    if name not in CHOOSING:
        return function
    if "flash" not in kernels.allowed and any(part.requires_grad for part in operands):
        source = Source("getattr", sources.root(FLASH), "value")  # which gradient is that of the call
        sources.guard_value(source, FLASH.value)
    allowed, order = changed(kernels)
    return function if not allowed and order is None else WithKernels(function, allowed, order)


def changed(kernels: Kernels) -> tuple[tuple[tuple[str, bool], ...], tuple[int, ...] | None]:
    """What of the choice is another now than it was found: whether each kernel is allowed, and the order."""
    now = [(name, kernel_allowed(name)) for name in kernels.allowed]
    order = None if kernels.order is None or kernels.order == order_now() else order_now()
    return tuple([(name, may) for name, may in now if kernels.allowed[name] is not may]), order
