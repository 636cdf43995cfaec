"""Answers programs and libraries that ask whether a compiler is at work."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import NAMED_EQUIVALENTS, special
from framefuse.capture.program.equivalents import mark_static_address_
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.leaves import is_installed
from framefuse.capture.program.markers import Outcome
from framefuse.ir.values import Arguments, Keywords

# The functions of transformers that ask for a compiler and then for values, to make no mask that would hide nothing.
MASKS_LEFT_OUT = frozenset(
    ("transformers.masking_utils", name)
    for name in (
        "_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa", "_can_skip_bidirectional_mask_xpu",
        "create_recurrent_attention_mask", "find_packed_sequence_indices",
    )
)

# Those that ask whether to mark a cache for other compilers: no value depends on it, and each mark is a break.
MARKS_LEFT_OUT = frozenset(
    ("transformers.cache_utils", name) for name in ("lazy_initialization", "lazy_initialization_indexer")
)


@special(torch.compiler.is_compiling)
def _is_compiling(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """The program itself is told. What is installed goes eager's way, since the other may be another result: optimizers
    compute step sizes in tensors, which round otherwise than floats, encoders leave out masks that what follows reads.
    It is told where no break may be, and where it asks before it looks at a mask's values only to save work or marks
    tensors for other compilers. What the user keeps from compilers is told of none.
    """
    own = frame.globals.get("__name__", "").startswith("torch.")
    kept = any(getattr(each.function, "_torchdynamo_disable", False) for each in machine.frames)
    told = machine.exits.points is None or not is_installed(frame.code.code) or _spares_work(machine.frames)
    frame.stack.append(told and not own and not kept)
    return None


def _spares_work(frames: Sequence[Frame]) -> bool:
    """Whether a library asks before it marks tensors, or whether it may look at the values of a mask: where all are
    true it makes none. Where what reads the mask sees more without one than with it (as Gemma inside PaliGemma does),
    the result is another; where there is no mask, it looks at none.
    """
    asking = {(each.globals.get("__name__"), each.code.code.co_name) for each in frames[-4:]}
    if asking & MARKS_LEFT_OUT:
        return True
    return bool(asking & MASKS_LEFT_OUT) and not any(
        (name == "config" and getattr(value, "__dict__", {}).get("use_bidirectional_attention"))
        or (name == "tensor" and value is None and each.code.code.co_name == "is_tracing")
        for each in frames
        for name, value in zip(each.code.local_names, each.locals, strict=False)
    )


# ``torch._dynamo.is_compiling``, in a module that nothing here imports.
NAMED_EQUIVALENTS["torch._dynamo.external_utils", "is_compiling"] = (
    lambda args, kwargs: not args and not kwargs, torch.compiler.is_compiling
)  # fmt: skip
# A mark for another compiler, which caches of libraries give their tensors.
NAMED_EQUIVALENTS["torch._dynamo.decorators", "mark_static_address"] = (lambda args, kwargs: True, mark_static_address_)
