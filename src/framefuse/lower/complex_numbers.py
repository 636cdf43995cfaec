"""Lowers calls on complex numbers to arithmetic on their parts, by the rules registered here for the real rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from framefuse.ir.dtypes import BY_TORCH, DType
from framefuse.ir.graph import Node
from framefuse.ir.pairs import joined, parts, real_of
from framefuse.ir.strides import ambiguous, dense_order
from framefuse.ir.trace import TensorMeta
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.gradients import REPLACED
from framefuse.lower.promotion import is_number
from framefuse.lower.rules import Rule, Unsupported, find


@dataclass(frozen=True, slots=True)
class Complex:
    """A complex operand or result: its parts are nodes, or numbers for a number of Python's; ``node`` is the operand
    that they belong to.
    """

    real: Value
    imag: Value
    node: Node | None = None


class Context:
    """What a rule of complex numbers works with: ``kind`` is the dtype of the parts that it computes."""

    def __init__(self, lo: Lowering, kind: DType) -> None:
        self.lo = lo
        self.kind = kind

    def of(self, value: Value) -> Complex:
        """Any operand as complex numbers, with parts in ``kind``."""
        if isinstance(value, Complex):
            real, imag = (
                self.lo.cast(part, self.kind) if isinstance(part, Node) else part for part in (value.real, value.imag)
            )
            return Complex(real, imag, value.node)
        if isinstance(value, Node):
            real = self.lo.cast(value, self.kind)
            return Complex(real, self.lo.full(0, self.kind, value.shape, value.device))
        if is_number(value):
            return Complex(value, 0)
        raise Unsupported(f"operand of type {type(value).__name__}")

    def compute(self, formula: Callable[..., Value], *operands: Value) -> Node:
        """A formula over parts, broadcast."""
        return self.lo.compute(formula, *operands, dtype=self.kind)


ComplexRule = Callable[..., Value]
R = TypeVar("R", bound=ComplexRule)
RULES: dict[Rule, ComplexRule] = {}


def for_complex(*targets: Callable[..., Value]) -> Callable[[R], R]:
    """Makes a function, of a context and the call's arguments, what the rules of these torch functions (or these rules
    themselves) do with complex numbers.
    """

    def keep(function: R) -> R:
        for target in targets:
            RULES[find(target) or target] = function
        return function

    return keep


@dataclass(frozen=True, slots=True)
class Parts:
    """Lowers one call on complex numbers whose results are those of ``metas``; ``carries`` tells nodes with a
    gradient.
    """

    lo: Lowering
    metas: Sequence[TensorMeta]
    carries: Callable[[Node], bool]

    def lowered(self, rule: Rule, args: Value, kwargs: dict[str, Value]) -> Value:
        """What the rule gives; raises Unsupported."""
        function = RULES.get(rule)
        if function is None:
            raise Unsupported("a rule about real numbers")
        operands = [node for node in _nodes((args, kwargs)) if node.dtype.kind == "complex"]
        made = next((meta.dtype for meta in self.metas if meta.dtype.is_complex), None)
        if made not in (None, torch.complex64, torch.complex128):
            raise Unsupported("a dtype that kernels do not know")
        kind = real_of(operands[0].dtype) if made is None else BY_TORCH[made.to_real()]
        named = {name: value for name, value in _split(self.lo, kwargs).items() if name != "out" or value is not None}
        result = _joined(self.lo, function(Context(self.lo, kind), *_split(self.lo, args), **named), self.metas)
        return self._reaching(result, operands)

    def _reaching(self, result: Value, operands: Sequence[Node]) -> Value:
        """A real result that rests on that part of its operand which has no gradient: eager's leads to the whole
        operand, by zeros.
        """
        if not isinstance(result, Node) or not result.dtype.is_float or not self.metas[0].requires_grad:
            return result
        if not self.carries(result):
            for node in operands:
                part = next((part for part in parts(self.lo, node) if self.carries(part)), None)
                if part is not None:
                    return self.lo.derived(result, REPLACED, (result, part))
        return result


def _nodes(value: Value) -> list[Node]:
    if isinstance(value, Node):
        return [value]
    if isinstance(value, (tuple, list)):
        return [node for part in value for node in _nodes(part)]
    return [node for part in value.values() for node in _nodes(part)] if isinstance(value, dict) else []


def _split(lo: Lowering, value: Value) -> Value:
    """Arguments with complex nodes and numbers as their parts."""
    if isinstance(value, Node):
        return Complex(*parts(lo, value), value) if value.dtype.kind == "complex" else value
    if type(value) is complex:
        return Complex(value.real, value.imag)
    kind = type(value)
    if kind is tuple or kind is list:
        return kind(_split(lo, part) for part in value)
    if kind is dict:
        return {name: _split(lo, part) for name, part in value.items()}
    return value


def _joined(lo: Lowering, value: Value, metas: Sequence[TensorMeta]) -> Value:
    """Results with parts joined in eager's memory order."""
    if isinstance(value, (tuple, list)):
        if len(value) != len(metas):
            raise Unsupported("parts of a result")
        return tuple(_joined(lo, part, [meta]) for part, meta in zip(value, metas, strict=True))
    if not isinstance(value, Complex):
        return value
    if value.node is not None and parts(lo, value.node) == (value.real, value.imag):
        return value.node  # the operand itself, or all of it
    meta = metas[0]
    order = dense_order(meta.sizes, meta.strides) or tuple(range(len(meta.sizes)))
    node = joined(lo, (value.real, value.imag), order)
    lo.lying[node.inputs[0]] = tuple(value.real.shape[axis] for axis in ambiguous(meta))
    return node
