"""Gives lowering rules their vocabulary: promotion, broadcasting and eager's rounding around a formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from framefuse.ir.builder import ONE, Builder, Shape
from framefuse.ir.dtypes import BOOL, BY_NAME, DType
from framefuse.ir.graph import Arg, Node, Scalar, call_attrs
from framefuse.ir.numbers import Expr, Symbol, expr
from framefuse.ir.strides import ambiguous, dense_order, order_like, tied
from framefuse.ir.target import Targets, on_cpu
from framefuse.ir.trace import TensorMeta
from framefuse.ir.values import Value
from framefuse.ir.wrapped_calls import element_on
from framefuse.lower.element import Element
from framefuse.lower.promotion import is_number, result_dtype, to_float
from framefuse.lower.rules import Unsupported

# Of which a GPU adds numbers in memory by one instruction.
ADDED = frozenset(("float16", "float32", "float64", "int32", "int64"))


def rounded(number: float, dtype: DType) -> float:
    """A number as a tensor of a 16-bit float dtype holds it; another dtype leaves it as it is."""
    if dtype.compute == dtype.name:
        return number
    return float(torch.tensor(number, dtype=dtype.torch))


class Lowering(Builder):
    """The builder as rules see it; ``default`` is torch's default dtype while recording. ``exact`` asks for eager's
    digits: 16-bit floats are rounded after each operation, in kernels as well. ``targets`` says what kernels on a
    device can do; where sums are to be ``ordered``, terms are not added in any order.
    """

    def __init__(
        self,
        hints: Mapping[Symbol, int],
        default: DType,
        exact: bool = False,
        targets: Targets = on_cpu,
        ordered: bool = False,
    ) -> None:
        super().__init__(hints)
        self.default = default
        self.exact = exact
        self.memory: dict[Node, TensorMeta] = {}  # eager's tensors behind the operands of the call at hand
        self.lying: dict[Node, tuple[Expr, ...]] = {}  # by library call: sizes of 1 that leave open how its results lie
        self.held: set[Node] = set()  # what eager's call keeps for backward beside its operands and results
        self.writes = False  # whether the call at hand is in place
        self.drawn: list[Node] = []  # random calls that the rule at hand made
        self.there: dict[tuple[Node, str], Node] = {}  # elements of the CPU on other devices
        self.sorted: dict[Node, Node] = {}  # rows whose quantiles are asked for, and their elements in order
        self.place = "cpu"  # where the first result of the call at hand lies
        self.targets, self.ordered = targets, ordered
        self.casts: dict[str, str] = {}  # by device type: the dtype that autocast around the function casts to

    # ---- arguments ---------------------------------------------------------------------------------------------------

    def axis(self, dim: Value, rank: int) -> int:
        """A dimension number made non-negative; 0-d tensors have one axis as far as dimension numbers go."""
        dim = self.fixed(dim, "a dimension")
        if not isinstance(dim, int):
            raise Unsupported("a dimension that is no number")
        limit = max(rank, 1)
        if not -limit <= dim < limit:
            raise Unsupported("a dimension out of range")
        return dim % limit

    def fixed(self, value: Value, why: str) -> Value:
        """The recorded value of a run-time int, which guards hold from now on: one that says which operation it is,
        as a dimension does, and not how much of it. Anything else is itself.
        """
        if not isinstance(value, Expr):
            return value
        known = self.size(value)
        self.require("==", value, expr(known), why)
        return known

    def axes(self, dims: Value, rank: int) -> tuple[int, ...]:
        """One or several dimension numbers as sorted axes; None or an empty tuple means all."""
        if dims is None or (isinstance(dims, (tuple, list)) and not dims):
            return tuple(range(rank))
        if isinstance(dims, (tuple, list)):
            return tuple(sorted({self.axis(dim, rank) for dim in dims})) if rank else ()
        return (self.axis(dims, rank),) if rank else ()

    def shape_of(self, *sizes: Value) -> Shape:
        """Sizes given as separate numbers or as one sequence."""
        if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
            sizes = tuple(sizes[0])
        if not all(isinstance(size, (int, Expr)) for size in sizes):
            raise Unsupported("sizes that are no integers")
        return tuple(expr(size) for size in sizes)

    # ---- formulas ----------------------------------------------------------------------------------------------------

    def compute(
        self,
        formula: Callable[..., Element],
        *operands: Node | Scalar,
        dtype: DType | None = None,
        floating: bool = False,
        narrow: bool = False,
        wide: bool = False,
    ) -> Node:
        """One eager operation: operands are promoted (to a float dtype where ``floating``), broadcast, computed in
        the dtype in which eager computes, and rounded back once. A bool result of the formula stays bool.

        Tensors are first rounded to the promoted dtype, but for the last one where it is ``wide``; numbers are where
        they are ``narrow``.
        """
        for operand in operands:
            if not isinstance(operand, Node) and not is_number(operand):
                raise Unsupported(f"operand of type {type(operand).__name__}")
        kind = dtype or result_dtype(operands, self.default)
        if floating:
            kind = to_float(kind, self.default)
        arithmetic = kind.compute
        inner = kind if arithmetic == kind.name else self.row(arithmetic)
        tensors = [operand for operand in operands if isinstance(operand, Node)]
        shape = tensors[0].shape if len(tensors) == 1 else self.broadcast(*(node.shape for node in tensors))
        device = next((node.device for node in tensors if node.device != "cpu"), "cpu")
        narrow &= device == "cpu"  # other devices keep the digits of numbers
        elements = []
        for operand in operands:
            if isinstance(operand, Node):
                foreign = operand.device != device
                exact = foreign or operand.dtype.size == 1 or (wide and operand is operands[-1])
                if foreign:
                    operand = self.moved(operand, device)
                if inner is not kind and not exact:
                    operand = self.cast(operand, kind)  # bytes and bools are exact in any
                node = self.expand(self.cast(operand, inner, inner is not kind and not self.exact), shape)
            else:
                node = self._number(operand, kind if narrow else inner, inner, shape, device)
            elements.append(Element(self, node))
        result = formula(*elements).node
        if result.dtype is BOOL and kind is not BOOL:
            return result
        return self.cast(result, kind, inner is not kind and not self.exact)

    def moved(self, node: Node, device: str) -> Node:
        """An element in the CPU's memory as a tensor of another device, where eager's kernels take it as a number."""
        if node.shape or node.device != "cpu":
            raise Unsupported(f"tensors on {node.device} and {device}")
        if (node, device) in self.there:
            return self.there[node, device]
        meta = self.memory.get(node)
        target = torch.Tensor.to if self.differentiable or meta is None or meta.requires_grad else element_on
        attrs = call_attrs(target, (Arg(0), device), ((),))
        call = self.opaque("library", (node,), attrs, node.dtype, (), None, device)
        element = self.there[node, device] = self.opaque("result", (call,), (("path", ()),), node.dtype, (), (), device)
        return element

    def _number(self, number: Scalar, digits: DType, dtype: DType, shape: Shape, device: str) -> Node:
        """A number in ``dtype``, with the digits that it has in another one."""
        if isinstance(number, (int, float)):
            return self.full(rounded(number, digits), dtype, shape, device)
        return self.cast(self.full(number, digits, shape, device), dtype)

    def row(self, name: str) -> DType:
        """The dtype of that name."""
        return BY_NAME[name]

    def element(self, node: Node) -> Element:
        """The node as an operand of a formula."""
        return Element(self, node)

    def settled(self, node: Node) -> Node:
        """The result of an operation with no more digits than its dtype has, in kernels as well."""
        return self.cast(node.inputs[0], node.dtype) if node.op == "cast" else node

    def widen(self, node: Node) -> Node:
        """The node in the dtype in which eager computes with it."""
        return self.cast(node, self.row(node.dtype.compute))

    def adds(self, node: Node) -> bool:
        """Whether kernels may add to elements of such a tensor in any order, as eager's then do."""
        target = self.targets(node.device)
        return node.dtype.name in ADDED and not self.ordered and target is not None and target.atomics

    def sums_squares(self, node: Node) -> bool:
        """Whether kernels sum up squared distances from the mean in the pass that finds the mean."""
        target = self.targets(node.device)
        return target is not None and target.tiles

    def scans_logarithms(self, node: Node) -> bool:
        """Whether kernels scan logarithms of sums."""
        return self.sums_squares(node)

    def settle_ties(self, meta: TensorMeta, shape: Shape) -> None:
        """Requires that the sizes of axes with one stride compare as they do here: eager lays out by them."""
        for one, other in tied(meta.sizes, meta.strides):
            if meta.sizes[other] <= meta.sizes[one]:
                self.require("<=", shape[other], shape[one], "the order of dimensions in memory")
            else:
                self.require("<", shape[one], shape[other], "the order of dimensions in memory")

    # ---- random numbers ----------------------------------------------------------------------------------------------

    def order_like(self, node: Node) -> tuple[int, ...]:
        """The order of dimensions in which eager's ``empty_like`` of an operand lies in memory; row-major for what the
        call itself computes. Sizes of 1 that leave it open are required to be 1.
        """
        meta = self.memory.get(node)
        if meta is None:
            return tuple(range(len(node.shape)))
        for axis in ambiguous(meta):
            self.require("==", node.shape[axis], ONE, "the order of dimensions in memory")
        return order_like(meta)

    def is_dense(self, node: Node) -> bool:
        """Whether eager's operand fills its memory without gaps."""
        meta = self.memory[node]
        return dense_order(meta.sizes, meta.strides) is not None

    def draw(
        self, target: Value, args: tuple[Value, ...], dtype: DType, shape: Shape, strides: Shape, device: str
    ) -> Node:
        """The result of a library call that advances a generator: made once, in program order, read or not."""
        attrs = call_attrs(target, args, (), random=True)
        call = self.opaque("library", (), attrs, dtype, (), None, device)
        self.drawn.append(call)
        return self.opaque("result", (call,), (("path", ()),), dtype, shape, strides, device)

    # ---- shapes ------------------------------------------------------------------------------------------------------

    def keep(self, shape: Shape, axes: Sequence[int]) -> Shape:
        """``shape`` with size 1 at ``axes``."""
        return tuple(ONE if axis in axes else size for axis, size in enumerate(shape))

    def lead(self, node: Node, rank: int) -> Node:
        """The node with size-1 dimensions put in front until it has ``rank`` of them."""
        missing = rank - len(node.shape)
        return self.reshape(node, (ONE,) * missing + node.shape) if missing > 0 else node

    def along(self, node: Node, axis: int, rank: int) -> Node:
        """A one-dimensional node laid along ``axis`` of a tensor with ``rank`` dimensions."""
        shape = [ONE] * rank
        shape[axis] = node.shape[0]
        return self.reshape(node, tuple(shape))

    def total(self, shape: Shape, axes: Sequence[int]) -> Expr:
        """The number of elements that a reduction over ``axes`` reads for each result."""
        return self.count(tuple(shape[axis] for axis in axes))


def in_memory(node: Node) -> bool:
    """Whether no kernel computes the value, so that nothing is saved by computing it along."""
    while node.op in ("detach", "derived", "reshape", "permute", "expand"):
        node = node.inputs[0]
    return node.op in ("input", "result")
