"""Turns nodes and their gradients into the gradients of the nodes they were computed from, by a sweep backwards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from framefuse.autodiff import rules  # noqa: F401  (fills the registry)
from framefuse.autodiff.accumulate import total
from framefuse.autodiff.formulas import run
from framefuse.autodiff.library import call
from framefuse.autodiff.registry import (
    CALLS,
    DERIVED,
    FAINT,
    ROWS,
    ZERO,
    CallVjp,
    Given,
    Gradient,
    Onto,
    Vjp,
    Zero,
    has_rules,
)
from framefuse.autodiff.tapes import call_again, read_tape
from framefuse.errors import Stop
from framefuse.ir.backward_calls import zeros
from framefuse.ir.builder import Builder, Unprovable
from framefuse.ir.dtypes import DType
from framefuse.ir.graph import Node
from framefuse.ir.ops import ELEMENTWISE, TABLE
from framefuse.ir.stops import reason
from framefuse.ir.taped_calls import Taped


def gradients(
    builder: Builder, seeds: Sequence[tuple[Node, Node]], wanted: Sequence[Node], again: bool = False
) -> dict[Node, Node | None]:
    """For each wanted node the gradient of ``sum((node * gradient).sum() for node, gradient in seeds)``.

    A gradient has its node's shape and dtype. None means that no path leads from the node to a seed, as eager's None;
    a path on which every slope is zero gives zeros. Nodes are made only on paths from wanted nodes to seeds. ``again``
    says that the gradients will be differentiated: then no tape is read. Raises :class:`Stop` (code ``gradient``)
    where a node on a path has no derivative.
    """
    wanted_set = set(wanted)
    # The program's order, as eager's engine keeps it: what a gradient is made of is then read soon after it is there.
    order = active(builder.nodes, [node for node, _ in seeds], wanted_set)
    sweep = _Sweep(builder, set(order), again)
    for node, gradient in seeds:
        sweep.give(node, gradient)
        sweep.came = gradient
    by_node: dict[Node, Node | None] = {}
    for node in reversed(order):
        builder.line = node.line
        whole = sweep.take(node)
        if node in wanted_set:
            by_node[node] = builder.full(0, node.dtype, node.shape, node.device) if isinstance(whole, Zero) else whole
        sweep.step(node, whole)
    builder.line = None
    return {node: by_node.get(node) for node in wanted}


def differentiable(dtype: DType) -> bool:
    """Whether values of this dtype have gradients."""
    return dtype.is_float or dtype.kind == "complex"


def flows(node: Node, number: int) -> bool:
    """Whether a gradient of ``node`` reaches its operand ``number`` at all, structural zeros included."""
    operand = node.inputs[number]
    if node.op in ("library", "result"):
        return node.op == "result" or differentiable(operand.dtype) or operand.op == "library"
    if not differentiable(node.dtype) or not differentiable(operand.dtype) or node.op == "detach":
        return False
    if node.op == "derived":
        return number > 0
    column = TABLE[node.op].derivative
    return column is None or column[number if TABLE[node.op].arity >= 0 else 0] is not None


def active(nodes: Sequence[Node], roots: Iterable[Node], wanted: set[Node]) -> list[Node]:
    """The nodes on a path from ``wanted`` to ``roots``, in program order as ``nodes``."""
    onto: dict[Node, list[Node]] = {}  # of each node that rests on a wanted one: the operands that do
    for node in nodes:
        operands = [operand for number, operand in enumerate(node.inputs) if operand in onto and flows(node, number)]
        if operands or node in wanted:
            onto[node] = operands
    reached = set(roots)
    on_path = []
    for node in reversed(nodes):
        if node in reached and node in onto:
            on_path.append(node)
            reached.update(onto[node])
    return on_path[::-1]


class _Sweep:
    """Gradients given to nodes that were not visited yet."""

    def __init__(self, builder: Builder, active: set[Node], again: bool) -> None:
        self.builder = builder
        self.again = again
        self.active = active
        self.given: dict[Node, list[Node]] = {}
        self.zero: set[Node] = set()
        self.faint: set[Node] = set()
        self.came: Node | None = None  # one of the gradients that all are computed from
        self.calls: dict[Node, Given] = {}
        self.zeros: dict[Node, list[Node]] = {}  # by call: its results whose gradients are zeros as a whole

    def give(self, node: Node, gradient: Gradient) -> None:
        if isinstance(gradient, Onto):
            node, gradient = gradient.node, gradient.gradient
        if node not in self.active or gradient is None:
            return
        if isinstance(gradient, Zero):
            (self.faint if gradient is FAINT else self.zero).add(node)
        else:
            assert gradient.dtype is node.dtype, (node, gradient)
            self.given.setdefault(node, []).append(self.builder.resized(gradient, node.shape))

    def take(self, node: Node) -> Node | Zero | None:
        """The whole gradient of a node whose users were all visited."""
        parts = self.given.pop(node, None)
        if parts is not None:
            return total(self.builder, parts)
        if node not in self.zero and node not in self.faint:
            return None
        if self.again and node.dtype.is_float and node.op != "library":  # eager's zeros are tensors, which lead on
            return self.builder.full(0, node.dtype, node.shape, node.device)
        return ZERO if node in self.zero else FAINT

    def step(self, node: Node, gradient: Node | Zero | None) -> None:
        """Gives a node's operands their part of its gradient."""
        need = [flows(node, number) and operand in self.active for number, operand in enumerate(node.inputs)]
        if not any(need):
            return
        if node.op == "library":
            self._call(node, need)
        elif node.op == "result":
            if isinstance(gradient, Node):
                self.calls.setdefault(node.inputs[0], {})[node.attr("path")] = gradient
            elif isinstance(gradient, Zero):
                self.zeros.setdefault(node.inputs[0], []).append(node)
        elif isinstance(gradient, Zero) and (gradient is FAINT or _keeps_zeros(node)):
            for operand, wanted in zip(node.inputs, need, strict=True):
                if wanted:
                    self.give(operand, gradient)
        elif gradient is not None:
            if isinstance(gradient, Zero):  # eager multiplies it by slopes: where one is not finite that is NaN
                gradient = self.builder.full(0, node.dtype, node.shape, node.device)
            try:
                parts = self._rule(node)(self.builder, node, gradient, need)
            except Unprovable as error:
                text = f"the gradient of {node.op} depends on sizes known only at run time ({error})"
                raise Stop(reason("gradient", text, node.line)) from error
            for operand, part, wanted in zip(node.inputs, parts, need, strict=True):
                if wanted:
                    self.give(operand, ZERO if isinstance(part, Node) and _is(part, 0) else part)

    def _rule(self, node: Node) -> Vjp:
        if TABLE[node.op].kind in ELEMENTWISE and node.op not in ROWS:
            return _pointwise
        rule = DERIVED.get(node.attr("name")) if node.op == "derived" else ROWS.get(node.op)
        if rule is None:
            name = node.attr("name") if node.op == "derived" else node.op
            raise Stop(reason("gradient", f"{name} has no derivative", node.line))
        return rule

    def _call_rule(self, node: Node) -> CallVjp:
        if isinstance(node.attr("target"), Taped):
            return call_again if self.again else read_tape
        return CALLS.get(node.attr("name"), call_again) if has_rules(node) else call_again

    def _full_of_zeros(self, node: Node) -> Node:
        """Zeros that there are when a gradient has come, so that the call is not asked before."""
        assert self.came is not None, "something was given"
        return call(self.builder, zeros, (self.came, node.shape, node.dtype.torch), like=node)

    def _call(self, node: Node, need: Sequence[bool]) -> None:
        given, zeros = self.calls.pop(node, None), self.zeros.pop(node, ())
        if given is None and zeros and self._call_rule(node) in (call_again, read_tape):  # it may refuse, or give NaN
            given = {part.attr("path"): self._full_of_zeros(part) for part in zeros}
        if given is None:
            parts: Sequence[Gradient] = [ZERO if zeros else None] * len(need)
        else:
            before, gradients_by_rule = dict(self.builder.relations), None
            try:
                gradients_by_rule = self._call_rule(node)(self.builder, node, given, need)
            except Unprovable:
                self.builder.relations = before
            parts = gradients_by_rule if gradients_by_rule is not None else call_again(self.builder, node, given, need)
            if not any(need[len(parts) :]):  # tensors that hold numbers, such as a size, stand behind the others
                parts = [*parts, *(None for _ in need[len(parts) :])]
        for operand, part, wanted in zip(node.inputs, parts, need, strict=True):
            if wanted:
                self.give(operand, part)


def _keeps_zeros(node: Node) -> bool:
    """Whether a gradient of zeros stays one whatever the operands hold: no slope is computed from them."""
    if node.op == "derived":
        return False
    if TABLE[node.op].kind not in ELEMENTWISE or node.op in ROWS:
        return True
    if node.op == "mul" and any(_finite(part) for part in node.inputs):
        return True
    if node.op == "div" and _finite(node.inputs[1]) and not _is(node.inputs[1], 0):
        return True
    return all(text in (None, "g", "neg(g)", "zero") for text in TABLE[node.op].derivative or ())


def _finite(node: Node) -> bool:
    value = node.attrs[0][1] if node.op == "full" else None
    return isinstance(value, (int, float)) and math.isfinite(value)


def _is(node: Node, number: int) -> bool:
    return _finite(node) and node.attrs[0][1] == number


def _pointwise(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """The derivative column of the row."""
    column = TABLE[node.op].derivative
    assert column is not None
    letters = {**dict(zip("abc", node.inputs, strict=False)), "r": node, "g": g}
    parts: list[Gradient] = []
    for text, wanted in zip(column, need, strict=True):
        parts.append((run(builder, text, letters) or ZERO) if wanted and text is not None else None)
    return parts
