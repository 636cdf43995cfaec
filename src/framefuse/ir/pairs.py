"""Holds complex numbers as pairs of reals: kernels compute with the parts, and a library call joins them where a tensor
of complex numbers has to be in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.ir.builder import ONE, ZERO, Builder
from framefuse.ir.dtypes import BY_TORCH, DType
from framefuse.ir.graph import Arg, Node, call_attrs
from framefuse.ir.strides import dense_order, dense_strides

Pair = tuple[Node, Node]  # the real and the imaginary parts
JOIN, SPLIT = "complex", "reals"  # the names of the library calls


def reals(numbers: torch.Tensor) -> torch.Tensor:
    """The memory of complex numbers as reals; a lazy conjugate is computed first, as gradients may be one."""
    if numbers.is_conj() or numbers.is_neg():
        once = tuple(slice(None) if step else slice(0, 1) for step in numbers.stride())
        numbers = numbers[once].resolve_conj().resolve_neg().expand(numbers.shape)
    return torch.view_as_real(numbers)


def real_of(dtype: DType) -> DType:
    """The dtype of the parts."""
    return BY_TORCH[dtype.torch.to_real()]


def joined(builder: Builder, pair: Pair, order: Sequence[int] | None = None) -> Node:
    """The complex numbers with these parts, whose dimensions lie in ``order``: a call that does not run while only
    parts of its result are read.
    """
    real = pair[0]
    lies = tuple(range(len(real.shape)) if order is None else order)
    operands = pair if pair[0] is not pair[1] else (real,)
    args = (Arg(0), Arg(len(operands) - 1))
    attrs = call_attrs(torch.complex, args, (lies,) * len(operands), name=JOIN)
    dtype = BY_TORCH[real.dtype.torch.to_complex()]
    call = builder.opaque("library", operands, attrs, dtype, (), None, real.device)
    strides = dense_strides(real.shape, lies)
    return builder.opaque("result", (call,), (("path", ()),), dtype, real.shape, strides, real.device)


def parts(builder: Builder, node: Node) -> Pair:
    """The parts of a node of complex numbers."""
    if node.op == "detach":
        real, imaginary = parts(builder, node.inputs[0])
        return builder.detach(real), builder.detach(imaginary)
    if is_joined(node) and node not in builder.whole:
        call = node.inputs[0]
        return call.inputs[0], call.inputs[-1]
    both = in_memory(builder, node)
    zeros, steps, shape = [ZERO] * len(node.shape), [1] * len(both.shape), (*node.shape, ONE)
    first, second = (builder.slice(both, (*zeros, place), steps, shape) for place in (0, 1))
    return builder.reshape(first, node.shape), builder.reshape(second, node.shape)


def is_joined(node: Node) -> bool:
    """Whether the node was made of two parts of its own shape."""
    return node.op == "result" and is_join(node.inputs[0]) and node.inputs[0].inputs[0].shape == node.shape


def is_join(call: Node) -> bool:
    """Whether the library call makes complex numbers of two parts of one shape."""
    if call.attr("target") is not torch.complex or len(call.attr("args")) != 2 or call.attr("kwargs"):
        return False
    return all(part.shape == call.inputs[0].shape for part in call.inputs)


def split_of(node: Node) -> Node | None:
    """The complex numbers whose memory the node shows as reals, itself, if any."""
    if node.op != "result" or node.inputs[0].attr("target") is not reals:
        return None
    return node.inputs[0].inputs[0]


def in_memory(builder: Builder, node: Node) -> Node:
    """The memory of complex numbers as reals, with one more dimension of size 2."""
    shape = (*node.shape, ONE + ONE)
    attrs = call_attrs(reals, (Arg(0),), (None,), name=SPLIT)
    call = builder.call((node,), attrs)
    if call is not None:
        return builder.results(call)[()]
    real, rows = real_of(node.dtype), tuple(range(len(node.shape)))
    order = dense_order(builder.sizes(node.shape), builder.sizes(node.strides)) if node.strides is not None else None
    strides = dense_strides(shape, (*(order or rows), len(rows)))
    if order is None and node.op == "input" and node.strides is not None:
        strides = (*(step * 2 for step in node.strides), ONE)  # with gaps, or expanded: a view, too
    call = builder.opaque("library", (node,), attrs, real, (), None, node.device)
    return builder.opaque("result", (call,), (("path", ()),), real, shape, strides, node.device)
