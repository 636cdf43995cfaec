"""Sorts torch's calls by what a compiler must know of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from framefuse.ir.torch_calls import sizes_from_data
from framefuse.ir.trace import Call, Ref, TensorMeta
from framefuse.ir.values import Value

TORCH_NAMES = ("torch", "torch.nn.functional", "torch._tensor", "torch.functional", "torch._C._nn")


def of_torch(target: Value) -> bool:
    """Whether the callable is torch's own, so that its results' sizes follow from sizes alone (but for those
    that :func:`sized_by_data` decides).
    """
    module = getattr(target, "__module__", None)
    if module is not None:
        return str(module) in TORCH_NAMES or str(module).startswith(("torch.special", "torch.linalg", "torch.fft"))
    kind = type(target).__name__
    if kind == "builtin_function_or_method":
        return str(type(getattr(target, "__self__", None)).__module__) in ("builtins", "torch", "torch._C")
    return kind in ("method_descriptor", "wrapper_descriptor", "method-wrapper", "getset_descriptor")


def sized_by_data(call: Call, metas: Sequence[TensorMeta] | Mapping[int, TensorMeta]) -> bool:
    """Whether values of tensors decide sizes of what the call gives; ``metas`` are the tensors of its trace."""

    def is_mask(value: Ref) -> bool:
        return metas[value.value].dtype in (torch.bool, torch.uint8)

    return sizes_from_data(call.name, call.args, call.kwargs, _is_tensor, is_mask)


def sized_by_shapes(target: Value) -> bool:
    """Whether sizes of what an operator of torch gives follow from the sizes and numbers that it is given."""
    told = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    return not any(tag in target.tags for tag in told)


def _is_tensor(value: Value) -> bool:
    return isinstance(value, Ref)
