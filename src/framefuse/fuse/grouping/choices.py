"""What else could compute a product of the library and what is done with it: a kernel of ours, or one call."""

from __future__ import annotations

from dataclasses import dataclass

from framefuse.fuse.addressing.strided import View
from framefuse.fuse.grouping.cells import Cell, Group
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr

Line = tuple[Expr, Expr, Expr]  # the offset of a matrix, the steps between its rows and between its columns


@dataclass(frozen=True, slots=True)
class Factors:
    """``left`` times ``right``, plus ``bias`` if there is one: the memory that holds each, and how it lies there. The
    result has as many ``rows`` and ``columns``, each a sum of so many ``terms``.
    """

    left: tuple[Node, Line]
    right: tuple[Node, Line]
    bias: tuple[Node, Line] | None
    rows: Expr
    columns: Expr
    terms: Expr
    layout: str = "nn"  # n: as it is multiplied; t: transposed
    whole: tuple[bool, bool] = (False, False)  # whether an operand is all of that memory, in its order


@dataclass(frozen=True, slots=True)
class FusedProduct:
    """The product ``node`` of the library whose only reader is the kernel ``group``; ``cell`` is its result there.
    With ``kept`` the result itself is wanted too: it is saved for a backward pass. ``before`` are kernels that make an
    operand for this product alone, by the number of the operand (0 or 1): then it is computed where it is multiplied.
    """

    node: Node
    group: Group
    cell: Cell
    factors: Factors
    kept: bool = False
    before: tuple[tuple[int, Group], ...] = ()

    @property
    def groups(self) -> frozenset[int]:
        """The numbers of the groups that become this one kernel."""
        return frozenset((self.group.number, *(group.number for _, group in self.before)))


@dataclass(frozen=True, slots=True)
class Activated:
    """The call ``node`` on ``operands`` that does the work of ``product`` and of its kernel; ``flat``, its result, is
    the kernel's root as a matrix.
    """

    product: FusedProduct
    node: Node
    operands: tuple[View, ...]
    flat: Node

    @property
    def group(self) -> Group:
        """The kernel that is not needed."""
        return self.product.group

    @property
    def root(self) -> Node:
        """What the kernel would leave in memory."""
        (root,) = self.group.roots
        return root
