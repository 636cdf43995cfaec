"""Lowers matrix products to ``matmul`` over folded dimensions, with bias as pointwise arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from framefuse.ir import costs
from framefuse.ir.builder import ONE, Shape
from framefuse.ir.dtypes import BY_NAME, DType
from framefuse.ir.graph import Arg, Node, call_attrs
from framefuse.ir.numbers import Expr, expr, product
from framefuse.ir.strides import dense_strides
from framefuse.ir.target import type_of
from framefuse.ir.values import Value
from framefuse.ir.wrapped_calls import UnderAutocast
from framefuse.lower.context import Lowering
from framefuse.lower.reductions import accumulate
from framefuse.lower.rules import Lowered, Shapes, Unsupported, rule

BLAS = ("float32", "float64")
NARROW = ("bfloat16", "float16")
FLOATS = ("float32", *NARROW)
INNER = "the inner dimension of a product"


def multiplied(lo: Lowering, device: str) -> tuple[str, ...]:
    """The dtypes that BLAS multiplies on a device: on a GPU torch's library does, where it is there."""
    if device == "cpu":
        return BLAS
    target = lo.targets(device)
    return () if target is None or target.library else (*BLAS, *NARROW)


def by_blas(lo: Lowering, *nodes: Node) -> bool:
    """Whether BLAS multiplies these; other dtypes, and products with eager's digits, stay with the library."""
    same = all(node.dtype is nodes[0].dtype and node.device == nodes[0].device for node in nodes)
    return same and nodes[0].dtype.name in multiplied(lo, nodes[0].device) and not lo.exact


def multiply(lo: Lowering, left: Node, right: Node, dtype: DType | None = None) -> Node:
    """(..., m, k) times (..., k, n), leading dimensions broadcast; a shared right operand takes all rows at once. The
    result has the type of the operands, or a wider one, which BLAS has on a GPU.
    """
    lo.same_size(left.shape[-1], right.shape[-2], INNER)
    if len(right.shape) == 2 and len(left.shape) > 2:
        rows = lo.reshape(left, (product(left.shape[:-1]), left.shape[-1]))
        return lo.reshape(lo.matmul(rows, right, dtype), (*left.shape[:-1], right.shape[-1]))
    batch = lo.broadcast(left.shape[:-2], right.shape[:-2])
    return lo.matmul(lo.expand(left, batch + left.shape[-2:]), lo.expand(right, batch + right.shape[-2:]), dtype)


def by_library(lo: Lowering, left: Node, right: Node, orders: Sequence[tuple[int, ...] | None] = (None, None)) -> Node:
    """The product of two matrices, or of a batch of them, whose memory is to lie in these orders, by torch's call."""
    operands = (left, right) if left is not right else (left,)
    multiply = torch.mm if len(left.shape) == 2 else torch.bmm
    casts = lo.casts.get(type_of(left.device), left.dtype.name) != left.dtype.name
    target = UnderAutocast(multiply, ()) if casts else multiply  # what is to be cast is cast by the graph
    args = Arg(0), Arg(len(operands) - 1)
    attrs = call_attrs(target, args, orders[: len(operands)], name=multiply.__name__)
    call = lo.opaque("library", operands, attrs, left.dtype, (), None, left.device)
    shape = (*left.shape[:-1], right.shape[-1])
    strides = dense_strides(shape, range(len(shape)))
    return lo.opaque("result", (call,), (("path", ()),), left.dtype, shape, strides, left.device)


def product_of(lo: Lowering, left: Node, right: Node) -> Node | None:
    """The product of two matrices of floats, by whatever multiplies matrices on their device; None where nothing is to
    stand in for eager's own call.
    """
    lo.same_size(left.shape[1], right.shape[0], INNER)
    if by_blas(lo, left, right):
        return lo.matmul(left, right)
    plain = left.dtype is right.dtype and left.device == right.device and left.dtype.name in (*BLAS, *NARROW)
    return by_library(lo, left, right) if plain and left.device != "cpu" and not lo.exact else None


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
    if not by_blas(lo, input, other):
        return _by_vector(lo, input, other) or Shapes((shape,))
    return lo.reshape(multiply(lo, left, right), shape)


def _by_vector(lo: Lowering, input: Node, other: Node) -> Node | None:
    """Large matrices times a vector or a single column on a GPU: each row by a kernel, which is fused with what is done
    to the result.
    """
    column = len(other.shape) > 1
    if len(input.shape) < 2 or (column and other.shape[-1] != ONE) or input.dtype is not other.dtype or lo.exact:
        return None
    if other.device == "cpu" or input.dtype.name not in FLOATS or lo.size(product(input.shape)) < costs.MATRIX_VECTOR:
        return None
    if not _lies_by_rows(input):
        return None
    wide = BY_NAME[input.dtype.compute]
    rank = len(other.shape)
    vector = lo.permute(other, (*range(rank - 2), rank - 1, rank - 2)) if column else other
    terms = lo.compute(lambda a, b: a * b, lo.cast(input, wide), lo.cast(vector, wide))
    return accumulate(lo, "sum", terms, (len(terms.shape) - 1,), column, input.dtype)


def _lies_by_rows(matrix: Node) -> bool:
    """Whether the last dimension is the innermost in memory: where columns lie together the library is as fast (float32
    of 8192 x 8192 on an H100 0.096 ms, a sum over columns 0.109).
    """
    axis = len(matrix.shape) - 1
    while matrix.op == "permute":
        matrix, axis = matrix.inputs[0], matrix.attrs[0][1][axis]
    return matrix.strides is None or matrix.strides[axis] == ONE


@rule("__rmatmul__")
def rmatmul(lo: Lowering, input: Node, other: Node) -> Lowered:
    return matmul(lo, other, input)


@rule("mm", "bmm", "mv", "dot")
def plain_product(lo: Lowering, input: Node, other: Node, *, out: Value = None) -> Lowered:
    return matmul(lo, input, other)


@rule("_int_mm")
def integer_product(lo: Lowering, input: Node, mat2: Node, *, out: Value = None) -> Shapes:
    lo.same_size(input.shape[1], mat2.shape[0], INNER)
    return Shapes(((input.shape[0], mat2.shape[1]),))


@rule("_weight_int8pack_mm")
def product_of_packed(lo: Lowering, input: Node, mat2: Node, scales: Node) -> Shapes:
    lo.same_size(input.shape[1], mat2.shape[1], INNER)
    return Shapes(((input.shape[0], mat2.shape[0]),))


@rule("linalg.multi_dot", "chain_matmul")
def multi_dot(lo: Lowering, *tensors: Value, out: Value = None) -> Lowered:
    """The product of matrices, with a vector at either end or none, in the order that takes the fewest multiplications
    (Cormen et al., Introduction to Algorithms, 15.2), as torch has it: guards hold the sizes to that order.
    """
    factors = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors
    ends = factors[0], factors[-1]
    if len(factors) < 2 or any(len(factor.shape) != 2 for factor in factors[1:-1]):
        raise Unsupported("factors")
    shape = *ends[0].shape[:-1], *ends[1].shape[1:]
    if not lo.differentiable and not by_blas(lo, *factors):  # one call of torch's is less than one for each product
        for left, right in itertools.pairwise(factors):
            lo.same_size(left.shape[-1], right.shape[0], INNER)
        return Shapes((shape,))
    matrices = [*factors]
    if len(ends[0].shape) == 1:
        matrices[0] = lo.reshape(ends[0], (ONE, *ends[0].shape))
    if len(ends[1].shape) == 1:
        matrices[-1] = lo.reshape(ends[1], (*ends[1].shape, ONE))
    sizes = [matrices[0].shape[0], *(factor.shape[1] for factor in matrices)]
    return lo.reshape(_chained(lo, matrices, _splits(lo, sizes), 0, len(matrices) - 1), shape)


def _splits(lo: Lowering, sizes: Sequence[Expr]) -> dict[tuple[int, int], int]:
    """Of the factors from one to another: behind which the last product splits them."""
    count = len(sizes) - 1
    cost = {(n, n): expr(0) for n in range(count)}
    split: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            ways = {
                at: cost[first, at] + cost[at + 1, last] + sizes[first] * sizes[at + 1] * sizes[last + 1]
                for at in range(first, last)
            }
            # Of equal ways the first, but of three factors the last.
            order = sorted(ways, reverse=count == 3)
            best = min(order, key=lambda at: lo.size(ways[at]))
            for place, at in enumerate(order):
                if at != best:
                    before = place < order.index(best)
                    lo.require("<" if before else "<=", ways[best], ways[at], "the order of a chain of products")
            cost[first, last], split[first, last] = ways[best], best
    return split


def _chained(lo: Lowering, factors: Sequence[Node], split: dict[tuple[int, int], int], first: int, last: int) -> Node:
    if first == last:
        return factors[first]
    at = split[first, last]
    left, right = _chained(lo, factors, split, first, at), _chained(lo, factors, split, at + 1, last)
    found = product_of(lo, left, right)
    if found is None:
        raise Unsupported("factors")
    return found


@rule("matrix_power", "linalg.matrix_power")
def matrix_power(lo: Lowering, A: Node, n: Value, *, out: Value = None) -> Lowered:
    """By squares, in torch's order."""
    n = lo.fixed(n, "a power")
    if not isinstance(n, int) or n < 2 or len(A.shape) < 2 or not by_blas(lo, A):
        return Shapes((A.shape,))
    lo.same_size(A.shape[-2], A.shape[-1], "A must be batches of square matrices")
    if n == 3:
        return multiply(lo, multiply(lo, A, A), A)
    power, result, left = A, None, n
    while True:
        if left % 2:
            result = power if result is None else multiply(lo, result, power)
        left //= 2
        if not left:
            assert result is not None
            return result
        power = multiply(lo, power, power)


@rule("outer", "ger")
def outer(lo: Lowering, input: Node, vec2: Node, *, out: Value = None) -> Node:
    column, line = lo.along(input, 0, 2), lo.along(vec2, 1, 2)
    if not input.dtype.is_float or input.dtype is not vec2.dtype:
        raise Unsupported("integers")
    return lo.compute(lambda a, b: a * b, column, line)


@rule("kron")
def kron(lo: Lowering, input: Node, other: Node, *, out: Value = None) -> Node:
    """Each element of one tensor times the whole other one."""
    if not input.dtype.is_float or input.dtype is not other.dtype:
        raise Unsupported("integers")
    one, two, sizes = crossed(lo, input, other)
    return lo.reshape(lo.compute(lambda a, b: a * b, one, two), sizes)


def crossed(lo: Lowering, input: Node, other: Node) -> tuple[Node, Node, Shape]:
    """Both operands of a Kronecker product, so that each element meets the whole other one; the result's sizes."""
    rank = max(len(input.shape), len(other.shape))
    left, right = lo.lead(input, rank), lo.lead(other, rank)
    one = lo.reshape(left, tuple(size for mine in left.shape for size in (mine, ONE)))
    two = lo.reshape(right, tuple(size for mine in right.shape for size in (ONE, mine)))
    return one, two, tuple(a * b for a, b in zip(left.shape, right.shape, strict=True))


@rule("linear")
def linear(lo: Lowering, input: Node, weight: Node, bias: Value = None) -> Lowered:
    if len(weight.shape) != 2 or not input.shape:
        raise Unsupported("ranks")
    shape = (*input.shape[:-1], weight.shape[0])
    lo.same_size(input.shape[-1], weight.shape[1], INNER)
    if isinstance(bias, Node):
        lo.broadcast(shape, bias.shape)
    if not by_blas(lo, input, weight, *([bias] if bias is not None else [])):
        return _single_output(lo, input, weight, bias) or Shapes((shape,))
    rows = input if len(input.shape) > 1 else lo.reshape(input, (ONE, *input.shape))
    result = lo.reshape(multiply(lo, rows, lo.permute(weight, (1, 0))), shape)
    return result if bias is None else lo.compute(lambda a, b: a + b, result, bias)


def _single_output(lo: Lowering, input: Node, weight: Node, bias: Value) -> Node | None:
    """A linear layer that gives one number for each row, on a GPU."""
    if bias is not None and bias.dtype is not input.dtype:
        return None
    result = _by_vector(lo, input, lo.permute(weight, (1, 0)))
    return result if result is None or bias is None else lo.compute(lambda a, b: a + b, result, bias)


@rule("addmm", "baddbmm", "addmv")
def addmm(
    lo: Lowering, input: Node, left: Node, right: Node, *, beta: Value = 1, alpha: Value = 1, out: Value = None
) -> Lowered:
    shape = (*left.shape[:-1], right.shape[-1]) if len(right.shape) > 1 else left.shape[:-1]
    lo.same_size(left.shape[-1], right.shape[-2 if len(right.shape) > 1 else -1], INNER)
    lo.broadcast(shape, input.shape)
    if not by_blas(lo, left, right, input) or not isinstance(beta, (int, float)):
        return Shapes((shape,))
    if beta == 0 and lo.differentiable:  # the input is not looked at, and has a gradient of zeros
        return Shapes((shape,))
    result = matmul(lo, left, right)
    if not isinstance(result, Node):
        return result
    return added(lo, input, result, beta, alpha)


def added(lo: Lowering, input: Node, result: Node, beta: float, alpha: Value) -> Node:
    """``beta * input + alpha * result``; an input times 0 is not looked at."""
    if alpha != 1:
        result = lo.compute(lambda a: a * alpha, result)
    if beta == 0:
        return result
    scaled = input if beta == 1 else lo.compute(lambda a: a * beta, input)
    return lo.compute(lambda a, b: a + b, result, scaled)
