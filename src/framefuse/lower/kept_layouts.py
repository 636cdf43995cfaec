"""Requires of sizes and strides that a call which gave a view gives a view again, and one that copied copies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import torch

from framefuse.errors import Stop
from framefuse.ir.builder import ONE, ZERO, Builder, Shape, Unprovable
from framefuse.ir.graph import Node
from framefuse.ir.nested import numbers_in
from framefuse.ir.numbers import Expr, expr, product
from framefuse.ir.stops import reason
from framefuse.ir.strides import dense_order, dense_strides, unclear
from framefuse.ir.torch_calls import TABLE
from framefuse.ir.trace import Call, Ref, Trace, outside, refs
from framefuse.lower.values import Values

WHY = "where a tensor lies in memory"


def settle(lo: Builder, trace: Trace, values: Values) -> None:
    """Adds to the relations of ``lo`` what fixes the outcome of such calls, where somebody may see it: the result
    leaves the trace, or one of the two is written or turned in place. Raises Stop where only a run tells. Where no more
    than the order of a later result in memory shows it, it stays unfixed if strides do not tell.
    """
    written = {
        trace.metas[value].storage
        for call in trace.calls
        for value in (*call.written, *(refs(call.result) if call.reshapes else ()))
    }
    left = outside(trace.result, trace.effects)
    seen = {trace.metas[value].storage for value in left} | written
    told = _told_by_order(trace, left)
    for call in trace.calls:
        operand, result = call.args[0] if call.args else None, call.result
        try:
            if not call.written and not call.name.endswith("_"):
                _settle_given_back(lo, call, values)
                _settle_cut(lo, call, values)
            if not isinstance(operand, Ref) or not isinstance(result, Ref):
                continue
            if not (TABLE[call.name].reshapes or call.name == "contiguous") and not _names_format(call):
                continue
            storage = trace.metas[operand.value].storage
            if TABLE[call.name].refuses or trace.metas[result.value].storage in seen or storage in written:
                _settle(lo, call, values, operand.value, result.value)
            elif result.value in told and TABLE[call.name].reshapes:
                with suppress(Unprovable):
                    _settle_copy(lo, values, operand.value, result.value)
        except Unprovable as error:
            fact = f"Sizes that are known only while it runs decide whether {call.name} gives a view ({error})."
            raise Stop(reason("memory-order", fact, call.line, "Call .clone() on its operand first.")) from error


def _told_by_order(trace: Trace, left: Sequence[int]) -> set[int]:
    """The values whose place in memory decides in which order elements of those that have ``left`` lie."""
    told = {value for value in left if len(trace.metas[value].sizes) > 1}
    for call in reversed(trace.calls):
        if not TABLE[call.name].row_major and told.intersection(refs(call.result)):
            told.update(value for value in refs((call.args, call.kwargs)) if len(trace.metas[value].sizes) > 1)
    return told


def _names_format(call: Call) -> bool:
    """Whether the call asks for a memory format of which sizes decide whether a tensor has it."""
    formats = (call.kwargs.get("memory_format"), *(part for part in call.args if isinstance(part, torch.memory_format)))
    return any(part not in (None, torch.preserve_format, torch.contiguous_format) for part in formats)


def _settle_given_back(lo: Builder, call: Call, values: Values) -> None:
    """Fixes the sizes of an operand that is itself what the call gave, and the numbers that the call was given: with
    others it may compute.
    """
    if TABLE[call.name].gives_back and not _names_format(call):
        return
    given = set(refs(call.result))
    given_back = [value for value in refs((call.args, call.kwargs)) if value in given]
    for value in given_back:
        for size in values.contents[value].shape:
            _agree(lo, size, expr(lo.size(size)))
    for number in numbers_in((call.args, call.kwargs)) if given_back else ():
        if isinstance(number, Expr):
            _agree(lo, number, expr(lo.size(number)))


def _settle_cut(lo: Builder, call: Call, values: Values) -> None:
    """Fixes sizes of 0 and 1 where what the call computed from a tensor that requires grad does not: it may for others
    (``vander`` of one number).
    """
    metas, operands = values.trace.metas, list(refs((call.args, call.kwargs)))
    if not call.grad_enabled or TABLE[call.name].no_gradient or call.name.endswith("_like"):
        return
    floats = [metas[value] for value in refs(call.result) if metas[value].dtype.is_floating_point]
    if all(meta.requires_grad for meta in floats) or not any(metas[value].requires_grad for value in operands):
        return
    for value in operands:
        for size in values.contents[value].shape:
            if lo.size(size) <= 1:
                _agree(lo, size, expr(lo.size(size)))


def _settle(lo: Builder, call: Call, values: Values, operand: int, result: int) -> None:
    shape = values.contents[operand].shape
    strides = _strides(lo, values, operand)
    other = call.kwargs.get("memory_format", torch.contiguous_format) is not torch.contiguous_format
    if strides is None or other or any(isinstance(value, torch.dtype) for value in call.args):
        for size in shape:
            _agree(lo, size, expr(lo.size(size)))
    elif not stays_contiguous(lo, shape, strides) and TABLE[call.name].reshapes:
        stays_view(lo, shape, strides, values.contents[result].shape)


def _settle_copy(lo: Builder, values: Values, operand: int, result: int) -> None:
    """As :func:`_settle` where strides tell; where they are unknown, sizes stay free."""
    shape, strides = values.contents[operand].shape, _strides(lo, values, operand)
    if strides is not None and not stays_contiguous(lo, shape, strides):
        stays_view(lo, shape, strides, values.contents[result].shape)


def _strides(lo: Builder, values: Values, value: int) -> Shape | None:
    """The strides of a value in eager's memory, as far as they follow from those of the inputs."""
    family = values.sets[values.trace.metas[value].storage]
    path, meta, root = family.paths[value], values.trace.metas[family.root], values.contents[family.root]
    if path is None:
        return _of_parts(lo, values, value)
    place = values.inputs.get(family.root)
    if place is not None:
        own = next(node for node in lo.nodes if node.op == "input" and node.attr("index") == place)
        return through(lo, path, own.shape, own.strides or ())
    order = dense_order(meta.sizes, meta.strides)
    if order is None:
        return None
    for axis in unclear(meta.sizes, meta.strides):
        _agree(lo, root.shape[axis], ONE)
    return through(lo, path, root.shape, dense_strides(root.shape, order))


def _of_parts(lo: Builder, values: Values, value: int) -> Shape | None:
    """The strides of complex numbers that are seen as pairs of their parts."""
    made = next((call for call in values.trace.calls if call.result == Ref(value)), None)
    if made is None or made.name != "view_as_real" or not isinstance(made.args[0], Ref):
        return None
    behind = _strides(lo, values, made.args[0].value)
    return None if behind is None else (*(stride * 2 for stride in behind), ONE)


def through(lo: Builder, path: Sequence[Node], shape: Shape, strides: Shape) -> Shape | None:
    """The strides behind the views of ``path`` on a tensor of these sizes and strides; None where they are unknown."""
    behind: Shape | None = strides
    for step in path:
        if behind is None:
            return None
        if step.op == "permute":
            behind = tuple(behind[axis] for axis in step.attr("axes"))
        elif step.op == "slice":
            behind = tuple(stride * every for stride, every in zip(behind, step.attr("steps"), strict=True))
        elif step.op == "diagonal":
            behind = (*behind[:-2], behind[-2] + behind[-1])
        elif step.op == "expand":
            missing = len(step.shape) - len(shape)
            sizes = zip(step.shape[missing:], shape, behind, strict=True)
            behind = (ZERO,) * missing + tuple(stride if own is size else ZERO for size, own, stride in sizes)
        else:
            behind = _reshaped(lo, shape, behind, step.shape)
        shape = step.shape
    return behind


def _reshaped(lo: Builder, shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides of the view of another shape: the sizes of each follow from groups with equal products."""
    if 0 in lo.sizes(shape):
        return None
    reversed_strides: list[Expr] = []
    left = list(zip(shape, strides, strict=True))
    sizes = list(new)
    while sizes:
        inside = [sizes.pop()]
        held: list[tuple[Expr, Expr]] = []
        while left and left[-1][0] is ONE:
            left.pop()
        if left and left[-1][0] is inside[0]:  # also a size that was 1
            held.append(left.pop())
        while lo.size(product(inside)) != lo.size(product(size for size, _ in held)):
            if lo.size(product(inside)) < lo.size(product(size for size, _ in held)):
                inside.append(sizes.pop())
            else:
                held.append(left.pop())
        if not held:
            _agree(lo, inside[0], ONE)
        real = [pair for pair in held if pair[0] is not ONE]
        if _apart(real):
            real = [(size, stride) for size, stride in real if not _is_one(lo, size)]
        if _apart(real):
            return None
        stride = real[0][1] if real else ONE
        for size in inside:
            reversed_strides.append(stride)
            stride = stride * size
    return tuple(reversed(reversed_strides))


def _apart(axes: Sequence[tuple[Expr, Expr]]) -> bool:
    """Whether axes, of (size, stride) from inside out, do not follow each other in memory."""
    return any(outer is not inner * size for (size, inner), (_, outer) in pairwise(axes))


def _is_one(lo: Builder, size: Expr) -> bool:
    """Whether a size was recorded as 1; then it is to be 1 again, as its stride says nothing."""
    if lo.size(size) == 1:
        _agree(lo, size, ONE)
        return True
    return False


def stays_contiguous(lo: Builder, shape: Shape, strides: Shape) -> bool:
    """Whether the tensor is contiguous as recorded, which it is or is not at later calls too."""
    sizes = lo.sizes(shape)
    if 0 in sizes:
        lo.require("==", shape[sizes.index(0)], ZERO, WHY)
        return True
    lying: list[tuple[Expr, Expr, Expr]] = []
    expected = ONE
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if lo.size(size) != 1 and lo.size(stride) != lo.size(expected):
            _differ(lo, size, ONE)
            _differ(lo, stride, expected)
            _not_empty(lo, shape)
            return False
        lying.append((size, stride, expected))
        expected = expected * size
    for size, stride, wanted in lying:
        if stride is not wanted and size is not ONE:
            if lo.size(stride) == lo.size(wanted):
                lo.require("==", stride, wanted, WHY)
            else:
                lo.require("==", size, ONE, WHY)
    return True


def stays_view(lo: Builder, shape: Shape, strides: Shape, new: Shape) -> None:
    """Requires that a tensor can, or cannot, be seen in the shape ``new`` without a copy, as when recorded."""
    sizes = lo.sizes(shape)
    if 0 in sizes:
        lo.require("==", shape[sizes.index(0)], ZERO, WHY)
        return
    real = [axis for axis, size in enumerate(sizes) if size != 1]
    borders = []  # (outer axis, inner axis) that lie apart in memory
    for outer, inner in pairwise(real):
        if lo.size(strides[outer]) != lo.size(strides[inner] * shape[inner]):
            borders.append((outer, inner))
    heads = [product(new[:count]) for count in range(len(new) + 1)]
    for outer, inner in borders:
        head = product(shape[: outer + 1])
        if lo.size(head) not in lo.sizes(heads):  # a copy, for this border
            for axis in range(outer, inner + 1):
                (_differ if axis in (outer, inner) else _agree)(lo, shape[axis], ONE)
            _differ(lo, strides[outer], strides[inner] * shape[inner])
            for other in heads:
                _differ(lo, head, other)
            _not_empty(lo, shape)
            return
    for axis, size in enumerate(shape):
        if axis not in real:
            _agree(lo, size, ONE)
    for outer, inner in pairwise(real):
        if (outer, inner) not in borders:
            lo.require("==", strides[outer], strides[inner] * shape[inner], WHY)
            continue
        head = product(shape[: outer + 1])
        if not any(head is other for other in heads):
            lo.require("==", head, next(other for other in heads if lo.size(other) == lo.size(head)), WHY)


def _agree(lo: Builder, left: Expr, right: Expr) -> None:
    if left is not right:
        lo.require("==", left, right, WHY)


def _differ(lo: Builder, left: Expr, right: Expr) -> None:
    if (left - right).constant is None:
        lo.require("!=", left, right, WHY)


def _not_empty(lo: Builder, shape: Shape) -> None:
    for size in shape:
        if size.constant is None:
            lo.require("!=", size, ZERO, WHY)
