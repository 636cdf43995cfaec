"""Turns the ``derivative`` strings of pointwise rows, and of formulas like them, into nodes of a builder."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache

import torch

from framefuse.autodiff.library import call
from framefuse.ir.builder import Builder
from framefuse.ir.dtypes import FLOAT16
from framefuse.ir.graph import Node, Scalar
from framefuse.ir.numbers import Expr, Real
from framefuse.ir.values import Value

ANEW = "anew"  # the name of ``derived`` nodes: their operand as backward computes it, not as forward left it
NAMED_ANEW = (("name", ANEW), ("parameters", ()))
Operand = Node | Scalar
Program = Callable[["Formula"], Operand]


# What eager computes for these exponents: of -inf and -0.0 it is another value than that of pow.
ROOTS: dict[float | None, str] = {0.5: "sqrt", -0.5: "rsqrt"}
FOLDS: dict[str, Callable[..., float]] = {
    "neg": operator.neg, "add": operator.add, "sub": operator.sub, "mul": operator.mul,
}  # fmt: skip


class Formula:
    """What a formula reads: nodes of one shape and numbers by letter. ``zero`` is made when it is asked for, in the
    dtype of ``g``. A number beside nodes takes the dtype of the first of them.
    """

    def __init__(self, builder: Builder, letters: Mapping[str, Operand]) -> None:
        self.builder = builder
        self.letters = letters

    def letter(self, name: str) -> Operand:
        if name == "zero":
            model = self.letters["g"]
            assert isinstance(model, Node)
            return self.full(0, model)
        return self.letters[name]

    def full(self, value: Scalar, model: Node) -> Node:
        """A number in every element of the shape of ``model``."""
        return self.builder.full(value, model.dtype, model.shape, model.device)

    def apply(self, op: str, operands: list[Operand]) -> Operand:
        """The primitive on operands, without what changes nothing: a factor 1, two changes of sign. Of known numbers
        it is the number.
        """
        first = next((part for part in operands[op == "where" :] if isinstance(part, Node)), None)
        if first is None:
            fold = FOLDS.get(op)
            if fold is not None and not any(isinstance(part, (Expr, Real)) for part in operands):
                return fold(*operands)
            given = self.letters["g"]
            assert isinstance(given, Node)
            first = given
        nodes = [part if isinstance(part, Node) else self.full(part, first) for part in operands]
        if op == "mul":
            for one, other in (nodes, reversed(nodes)):
                if one.op == "full" and type(one.attrs[0][1]) is float and one.attrs[0][1] == 1.0:
                    return other
        numbers = [_number(node) for node in nodes]
        if op == "sub" and None not in numbers:  # an exponent less 1, which eager computes as a double
            return self.full(operator.sub(*numbers), nodes[0])
        if op == "pow" and numbers[1] in ROOTS and nodes[0].dtype is not FLOAT16:
            return self.builder.pointwise(ROOTS[numbers[1]], nodes[0])
        if op == "pow" and numbers[1] in (0.0, 1.0, 2.0):
            return self._small_power(nodes[0], numbers[1])
        if op == "neg" and nodes[0].op == "neg":
            return nodes[0].inputs[0]
        if op == "beside":  # the first operand; the others get zeros for a gradient, as from eager's own kernels
            return self.builder.derived(nodes[0], "replaced", nodes)
        if op == "unmoved":  # nothing, from such as take no part
            return self.builder.derived(nodes[0], "unmoved", nodes)
        if op == "fixed":  # of which the slope is nothing, where rounding would make it next to nothing
            return self.builder.detach(nodes[0])
        if op == "anew":  # what eager does not save: it computes it once more from the operands
            return self.builder.make("derived", (nodes[0], nodes[0]), NAMED_ANEW, nodes[0].dtype, nodes[0].shape)
        if op == "trigamma":  # no kernel has it
            return call(self.builder, torch.special.polygamma, (1, nodes[0]), like=nodes[0])
        value = self.builder.pointwise(op, *nodes)
        if op in ("sign", "trunc") and self.builder.differentiable:  # eager's sgn, and a division that is rounded
            return self.builder.derived(value, "faint", nodes)
        return value

    def _small_power(self, base: Node, exponent: float) -> Node:
        """The power without a call of pow. Where it is differentiated again, eager's gradient leads to the base down to
        the exponent 0, though that has no slope.
        """
        if exponent == 0:
            return self.builder.derived(self.full(1.0, base), "nothing", (base,))
        value = base if exponent == 1 else self.builder.pointwise("mul", base, base)
        return self.builder.derived(value, "power", (base,), exponent, exponent - 1)


def _number(node: Node) -> float | None:
    """The known number in every element; None where it is not one."""
    value = node.attrs[0][1] if node.op == "full" else None
    return value if type(value) is float else None


def run(builder: Builder, text: str, letters: Mapping[str, Operand]) -> Node | None:
    """The node of formula ``text``; None for ``zero`` alone."""
    if text == "zero":
        return None
    formula = Formula(builder, letters)
    result = _program(text)(formula)
    return result if isinstance(result, Node) else formula.full(result, formula.letter("g"))  # type: ignore[arg-type]


@cache
def _program(text: str) -> Program:
    return _compiled(ast.parse(text, mode="eval").body)


def _compiled(tree: ast.expr) -> Program:
    if isinstance(tree, ast.Constant):
        value: Value = tree.value
        return lambda formula: value
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        number = -ast.literal_eval(tree.operand)
        return lambda formula: number
    if isinstance(tree, ast.Name):
        name = tree.id
        return lambda formula: formula.letter(name)
    assert isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name), ast.dump(tree)
    op, parts = tree.func.id, [_compiled(part) for part in tree.args]
    return lambda formula: formula.apply(op, [part(formula) for part in parts])
