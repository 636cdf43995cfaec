"""Gives the result shapes of what the library computes of matrices: solutions, factors, eigenvalues, singular values.

The library refuses matrices that are not square where they must be: their shapes are not compared here.
"""

from __future__ import annotations

from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.rules import Shapes, Unsupported, rule


@rule("linalg.inv", "inverse", "cholesky", "linalg.cholesky", "cholesky_inverse", "linalg.matrix_exp")
def like_it(lo: Lowering, input: Node, *args: Value, **kwargs: Value) -> Shapes:
    return Shapes((input.shape,))


@rule("linalg.det", "det", "logdet")
def number(lo: Lowering, A: Node) -> Shapes:
    return Shapes((A.shape[:-2],))


@rule("linalg.slogdet", "slogdet")
def two_numbers(lo: Lowering, A: Node) -> Shapes:
    return Shapes((A.shape[:-2],) * 2)


@rule("linalg.solve")
def solve(lo: Lowering, A: Node, B: Node, *, left: bool = True, out: Value = None) -> Shapes:
    batch, size = A.shape[:-2], A.shape[-1]
    if len(B.shape) == 1:
        return Shapes(((*batch, size),))
    if len(B.shape) == len(A.shape) - 1:
        raise Unsupported("vectors that might be one matrix")
    return Shapes(((*lo.broadcast(batch, B.shape[:-2]), *B.shape[-2:]),))


@rule("linalg.solve_triangular")
def solve_triangular(
    lo: Lowering, A: Node, B: Node, *, upper: bool, left: bool = True, unitriangular: bool = False, out: Value = None
) -> Shapes:
    return Shapes(((*lo.broadcast(A.shape[:-2], B.shape[:-2]), *B.shape[-2:]),))


@rule("cholesky_solve")
def cholesky_solve(lo: Lowering, B: Node, L: Node, upper: bool = False, *, out: Value = None) -> Shapes:
    return Shapes(((*lo.broadcast(B.shape[:-2], L.shape[:-2]), *B.shape[-2:]),))


@rule("linalg.qr")
def qr(lo: Lowering, A: Node, mode: str = "reduced", *, out: Value = None) -> Shapes:
    *batch, m, n = A.shape
    if mode == "r":
        raise Unsupported("a factor alone")
    between = m if mode == "complete" else _less(lo, m, n)
    return Shapes(((*batch, m, between), (*batch, between, n)))


@rule("linalg.lu_factor")
def lu_factor(lo: Lowering, A: Node, *, pivot: bool = True, out: Value = None) -> Shapes:
    return Shapes((A.shape, (*A.shape[:-2], _less(lo, *A.shape[-2:]))))


@rule("linalg.lu_factor_ex")
def lu_factor_ex(
    lo: Lowering, A: Node, *, pivot: bool = True, check_errors: bool = False, out: Value = None
) -> Shapes:
    return Shapes((A.shape, (*A.shape[:-2], _less(lo, *A.shape[-2:])), A.shape[:-2]))


@rule("linalg.lu")
def lu(lo: Lowering, A: Node, *, pivot: bool = True, out: Value = None) -> Shapes:
    *batch, m, n = A.shape
    if not pivot:
        raise Unsupported("no permutation")
    between = _less(lo, m, n)
    return Shapes(((*batch, m, m), (*batch, m, between), (*batch, between, n)))


@rule("linalg.lu_solve")
def lu_solve(
    lo: Lowering, LU: Node, pivots: Node, B: Node, *, left: bool = True, adjoint: bool = False, out: Value = None
) -> Shapes:
    return Shapes(((*lo.broadcast(LU.shape[:-2], B.shape[:-2]), *B.shape[-2:]),))


@rule("linalg.eigh", "linalg.eig")
def eigenvectors(lo: Lowering, A: Node, UPLO: str = "L", *, out: Value = None) -> Shapes:
    return Shapes((A.shape[:-1], A.shape))


@rule("linalg.eigvalsh", "linalg.eigvals")
def eigenvalues(lo: Lowering, A: Node, UPLO: str = "L", *, out: Value = None) -> Shapes:
    return Shapes((A.shape[:-1],))


@rule("linalg.svd")
def svd(lo: Lowering, A: Node, full_matrices: bool = True, *, driver: Value = None, out: Value = None) -> Shapes:
    *batch, m, n = A.shape
    least = _less(lo, m, n)
    left, right = (m, n) if full_matrices else (least, least)
    return Shapes(((*batch, m, left), (*batch, least), (*batch, right, n)))


@rule("linalg.svdvals")
def svdvals(lo: Lowering, A: Node, *, driver: Value = None, out: Value = None) -> Shapes:
    *batch, m, n = A.shape
    return Shapes(((*batch, _less(lo, m, n)),))


@rule("linalg.pinv", "pinverse")
def pinv(lo: Lowering, A: Node, *args: Value, **kwargs: Value) -> Shapes:
    *batch, m, n = A.shape
    return Shapes(((*batch, n, m),))


def _less(lo: Lowering, m: Expr, n: Expr) -> Expr:
    """The smaller one of two sizes, as it was recorded."""
    less, most = (m, n) if lo.size(m) <= lo.size(n) else (n, m)
    lo.require("<=", less, most, "the smaller size of a matrix")
    return less
