"""Lowers matrix products to ``matmul`` over folded dimensions, with bias as pointwise arithmetic."""

from __future__ import annotations

from framefuse.ir.builder import ONE, Shape
from framefuse.ir.graph import Node
from framefuse.ir.numbers import product
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.rules import Lowered, Shapes, Unsupported, rule

BLAS = ("float32", "float64")
INNER = "the inner dimension of a product"


def _blas(lo: Lowering, *nodes: Node) -> bool:
    """Whether BLAS multiplies these; other dtypes, and products with eager's digits, stay with the library."""
    same = all(node.dtype is nodes[0].dtype and node.device == "cpu" for node in nodes)
    return same and nodes[0].dtype.name in BLAS and not lo.exact


def multiply(lo: Lowering, left: Node, right: Node) -> Node:
    """(..., m, k) times (..., k, n), leading dimensions broadcast; a shared right operand takes all rows at once."""
    lo.same_size(left.shape[-1], right.shape[-2], INNER)
    if len(right.shape) == 2 and len(left.shape) > 2:
        rows = lo.reshape(left, (product(left.shape[:-1]), left.shape[-1]))
        return lo.reshape(lo.matmul(rows, right), (*left.shape[:-1], right.shape[-1]))
    batch = lo.broadcast(left.shape[:-2], right.shape[:-2])
    return lo.matmul(lo.expand(left, batch + left.shape[-2:]), lo.expand(right, batch + right.shape[-2:]))


@rule("matmul", "__matmul__", "linalg.matmul")
def matmul(lo: Lowering, input: Node, other: Node, *, out: Value = None) -> Lowered:
    if not input.shape or not other.shape:
        raise Unsupported("a scalar")
    left = input if len(input.shape) > 1 else lo.reshape(input, (ONE, *input.shape))
    right = other if len(other.shape) > 1 else lo.reshape(other, (*other.shape, ONE))
    batch = lo.broadcast(left.shape[:-2], right.shape[:-2])
    lo.same_size(left.shape[-1], right.shape[-2], INNER)
    shape: Shape = batch
    if len(input.shape) > 1:
        shape = (*shape, left.shape[-2])
    if len(other.shape) > 1:
        shape = (*shape, right.shape[-1])
    if not _blas(lo, input, other):
        return Shapes((shape,))
    return lo.reshape(multiply(lo, left, right), shape)


@rule("__rmatmul__")
def rmatmul(lo: Lowering, input: Node, other: Node) -> Lowered:
    return matmul(lo, other, input)


@rule("mm", "bmm", "mv", "dot")
def plain_product(lo: Lowering, input: Node, other: Node, *, out: Value = None) -> Lowered:
    return matmul(lo, input, other)


@rule("outer", "ger")
def outer(lo: Lowering, input: Node, vec2: Node, *, out: Value = None) -> Node:
    column, line = lo.along(input, 0, 2), lo.along(vec2, 1, 2)
    if not input.dtype.is_float or input.dtype is not vec2.dtype:
        raise Unsupported("integers")
    return lo.compute(lambda a, b: a * b, column, line)


@rule("linear")
def linear(lo: Lowering, input: Node, weight: Node, bias: Value = None) -> Lowered:
    if len(weight.shape) != 2 or not input.shape:
        raise Unsupported("ranks")
    shape = (*input.shape[:-1], weight.shape[0])
    lo.same_size(input.shape[-1], weight.shape[1], INNER)
    if isinstance(bias, Node):
        lo.broadcast(shape, bias.shape)
    if not _blas(lo, input, weight, *([bias] if bias is not None else [])):
        return Shapes((shape,))
    rows = input if len(input.shape) > 1 else lo.reshape(input, (ONE, *input.shape))
    result = lo.reshape(multiply(lo, rows, lo.permute(weight, (1, 0))), shape)
    return result if bias is None else lo.compute(lambda a, b: a + b, result, bias)


@rule("addmm", "baddbmm", "addmv")
def addmm(
    lo: Lowering, input: Node, left: Node, right: Node, *, beta: Value = 1, alpha: Value = 1, out: Value = None
) -> Lowered:
    shape = (*left.shape[:-1], right.shape[-1]) if len(right.shape) > 1 else left.shape[:-1]
    lo.same_size(left.shape[-1], right.shape[-2 if len(right.shape) > 1 else -1], INNER)
    lo.broadcast(shape, input.shape)
    if not _blas(lo, left, right, input) or not isinstance(beta, (int, float)):
        return Shapes((shape,))
    result = matmul(lo, left, right)
    if not isinstance(result, Node):
        return result
    if alpha != 1:
        result = lo.compute(lambda a: a * alpha, result)
    if beta == 0:
        return result
    scaled = input if beta == 1 else lo.compute(lambda a: a * beta, input)
    return lo.compute(lambda a, b: a + b, result, scaled)


@rule("einsum")
def einsum(lo: Lowering, equation: Value, *operands: Value) -> Lowered:
    """Two operands, each letter once in each: letters are batch, row, column or summed."""
    nodes = operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands
    text = equation.replace(" ", "")
    if len(nodes) != 2 or "->" not in text or "." in text:
        raise Unsupported("equation")
    inputs, _, result = text.partition("->")
    first, second = inputs.split(",")
    if not _blas(lo, *nodes):
        sizes = dict(zip(second, nodes[1].shape, strict=True)) | dict(zip(first, nodes[0].shape, strict=True))
        return Shapes((tuple(sizes[letter] for letter in result),))
    if any(len(set(word)) != len(word) for word in (first, second, result)) or set(result) - set(first + second):
        raise Unsupported("a letter twice")
    batch = [letter for letter in first if letter in second and letter in result]
    summed = [letter for letter in first if letter in second and letter not in result]
    rows = [letter for letter in first if letter not in second]
    columns = [letter for letter in second if letter not in first]
    if not summed or any(letter not in result for letter in rows + columns):
        raise Unsupported("a sum over one operand")
    sizes = dict(zip(second, nodes[1].shape, strict=True)) | dict(zip(first, nodes[0].shape, strict=True))
    for letter, size in zip(second, nodes[1].shape, strict=True):
        lo.require("==", sizes[letter], size, "einsum")

    def folded(node: Node, word: str, *groups: list[str]) -> Node:
        order = [word.index(letter) for letter in batch + groups[0] + groups[1]]
        shape = [sizes[letter] for letter in batch] + [product(sizes[x] for x in group) for group in groups]
        return lo.reshape(lo.permute(node, order), tuple(shape))

    out = lo.matmul(folded(nodes[0], first, rows, summed), folded(nodes[1], second, summed, columns))
    letters = batch + rows + columns
    apart = lo.reshape(out, tuple(sizes[letter] for letter in letters))
    return lo.permute(apart, [letters.index(letter) for letter in result])
