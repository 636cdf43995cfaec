"""Gives large gradients that only repeat what came as eager gives them: as views of it, which nobody writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from framefuse.autodiff.library import row_major
from framefuse.ir.builder import ONE, ZERO, Shape
from framefuse.ir.graph import Arg, Node, call_attrs
from framefuse.ir.numbers import Symbol

# Elements from which on a view is worth a call of torch's, 2 us: to write 256 K float32 takes 15. A smaller gradient is
# a tensor of its own, which a leaf takes over as its ``grad`` where it would copy a view.
WORTH = 1 << 16
EXACT = ("float32", "float64")  # what comes back from these is what it was


def as_views(
    made: Mapping[Node, Node], results: Sequence[Node], came: Collection[Node], hints: Mapping[Symbol, int]
) -> dict[Node, Node]:
    """For gradients among ``made`` that repeat a gradient that ``came`` the view that takes their place."""
    found: dict[Node, Node] = {}
    for gradient in results:
        node = made[gradient]
        if node.op != "expand" or node.device != "cpu" or _count(node.shape, hints) < WORTH:
            continue
        inner = node.inputs[0]
        source = inner
        while source.op == "reshape" or (source.op == "cast" and (source is inner or source.dtype.name in EXACT)):
            source = source.inputs[0]
        strides = _strides(source, inner.shape, node.shape)
        if source not in came or source.dtype is not node.dtype or strides is None:
            continue
        attrs = call_attrs(torch.as_strided, (Arg(0), node.shape, strides), (None,))
        call = Node("library", (source,), attrs, node.dtype, (), None, node.line, node.device)
        lies = row_major(node.shape)
        found[gradient] = Node("result", (call,), (("path", ()),), node.dtype, node.shape, lies, node.line, "cpu")
    return found


def _count(shape: Shape, hints: Mapping[Symbol, int]) -> int:
    count = 1
    for size in shape:
        count *= size.evaluate(hints)
    return count


def _strides(source: Node, inner: Shape, shape: Shape) -> Shape | None:
    """The strides of ``source``, seen as of sizes ``inner`` and repeated to ``shape``; None where other dimensions than
    those of one element were added.
    """
    assert source.strides is not None or source.op != "input"
    left = [(size, stride) for size, stride in zip(source.shape, source.strides or (), strict=False) if size is not ONE]
    found = [ZERO] * (len(shape) - len(inner))
    for size in inner:
        if size is ONE:
            found.append(ZERO)
        elif left and left[0][0] is size:
            found.append(left.pop(0)[1])
        else:
            return None
    return None if left else tuple(found)
