"""Turns requests for primitives into interned graph nodes with symbolic shapes, and collects what sizes must be."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from framefuse.ir.comparisons import Relation
from framefuse.ir.dtypes import BOOL, BY_NAME, INT64, DType
from framefuse.ir.graph import Attribute, Attributes, Graph, Node, Path, Scalar
from framefuse.ir.numbers import Atom, Expr, Floordiv, Maximum, Minimum, Symbol, cancelled, expr, product
from framefuse.ir.ops import TABLE
from framefuse.ir.source import Line

Shape = tuple[Expr, ...]
Size = Expr | int

# How a pointwise row's result dtype follows from its operands, as one lookup.
RESULT = {name: row.dtype for name, row in TABLE.items()}
ZERO, ONE = expr(0), expr(1)


class Unprovable(Exception):
    """A rule would need a fact about sizes that is known only while the graph runs, or a primitive over devices."""


class Builder:
    """Makes nodes. Equal pure nodes are the same object; views fold into their operand where the fold is exact. The
    operands of one primitive lie on one device, so that its result does.

    ``hints`` are the recorded values of symbols: decisions about sizes are taken on them and left in ``relations``.
    ``bound`` are the symbols that are set only at run time; no relation may speak of them. ``extents`` are the symbols
    that are sizes of tensors, so never negative. ``differentiable`` says that gradients will be asked for.
    """

    def __init__(self, hints: Mapping[Symbol, int]) -> None:
        self.hints = dict(hints)
        self.nodes: list[Node] = []
        self.relations: dict[Relation, None] = {}
        self.bound: set[Symbol] = set()
        self.extents: set[Atom] = set()
        self.line: Line | None = None
        self.differentiable = False
        self.whole: set[Node] = set()  # complex numbers whose parts are read from their memory
        self._table: dict[Hashable, Node] = {}
        self._results: dict[Node, dict[Path, Node]] = {}
        self._calls: dict[tuple[Node, ...], list[Node]] = {}
        self._sizes: dict[Expr, int] = {}
        self._lengths: set[Expr] = set()  # known to be sizes
        self._counts: dict[Shape, Expr] = {}

    # ---- sizes -------------------------------------------------------------------------------------------------------

    def size(self, value: Expr) -> int:
        """The recorded value of a size."""
        known = self._sizes.get(value)
        if known is None:
            known = self._sizes[value] = value.evaluate(self.hints)
        return known

    def sizes(self, shape: Iterable[Expr]) -> tuple[int, ...]:
        """The recorded values of a shape."""
        return tuple(self.size(value) for value in shape)

    def count(self, shape: Shape) -> Expr:
        """The number of elements."""
        known = self._counts.get(shape)
        if known is None:
            known = self._counts[shape] = product(shape)
        return known

    def require(self, op: str, left: Expr, right: Expr, why: str) -> None:
        """Records that ``left <op> right`` was used; raises Unprovable when it was false or run-time sizes decide."""
        if left is right and op in ("==", "<="):
            return
        relation = Relation(op, left, right, why)
        known = relation.constant
        if known is True or (op in ("<=", "<") and self.at_least(right - left, 0 if op == "<=" else 1)):
            return
        if op == "!=" and right is ZERO and known is None and self._nonzero(left, why):
            return
        if known is False or not self.bound.isdisjoint(left.symbols | right.symbols) or not relation.holds(self.hints):
            raise Unprovable(str(relation))
        self.relations[relation] = None

    def cancelled(self, *values: Expr) -> tuple[Expr, ...]:
        """The values without the run-time sizes that they are multiples of: what is left can be a fact of sizes that
        guards know.
        """
        return cancelled(values, self.bound)

    def exists(self, shape: Shape) -> None:
        """Requires that the sizes are those of a tensor: eager raises where one is negative."""
        for size in shape:
            if size not in self._lengths:
                self.require("<=", ZERO, size, "a size")
                self._lengths.add(size)

    def at_least(self, value: Expr, bound: int) -> bool:
        """Whether the expression is at least ``bound`` by its form: sizes are never negative."""
        least = 0
        for atoms, factor in value.terms:
            if not atoms:
                least = factor
            elif factor < 0 or not all(self._is_size(atom) for atom in atoms):
                return False
        return least >= bound

    def _is_size(self, atom: Atom) -> bool:
        if isinstance(atom, Floordiv):
            divisor = atom.right.constant
            return divisor is not None and divisor > 0 and self.at_least(atom.left, 0)
        if isinstance(atom, (Minimum, Maximum)):
            return self.at_least(atom.left, 0) and self.at_least(atom.right, 0)
        return atom in self.extents

    def _nonzero(self, value: Expr, why: str) -> bool:
        """Asks for each factor of a product alone, so that equal demands meet."""
        if self.at_least(value, 1):
            return True
        if len(value.terms) != 1 or (len(value.terms[0][0]) < 2 and value.terms[0][1] == 1):
            return False
        for atom in value.terms[0][0]:
            self.require("!=", Expr((((atom,), 1),)), ZERO, why)
        return True

    def _nonzero_sizes(self, symbols: frozenset[Symbol]) -> set[Symbol]:
        """Those of the symbols that were required not to be zero."""
        known = {relation.left for relation in self.relations if relation.op == "!=" and relation.right is ZERO}
        return {symbol for symbol in symbols if symbol.expr in known}

    def known_equal(self, left: Expr, right: Expr) -> bool:
        """Whether two sizes are equal by their form, or because it was required before."""
        if left is right:
            return True
        return any(
            relation.op == "==" and {relation.left, relation.right} == {left, right} for relation in self.relations
        )

    def same_size(self, left: Expr, right: Expr, why: str) -> Expr:
        """The common size of two dimensions that must be equal; the simpler expression."""
        if left is right:
            return left
        self.require("==", left, right, why)
        return right if right.constant is not None else left

    def broadcast(self, *shapes: Shape) -> Shape:
        """The shape to which all broadcast, as eager decided it on the recorded sizes."""
        first = shapes[0]
        if all(shape is first or shape == first for shape in shapes[1:]):
            return first
        rank = max(len(shape) for shape in shapes)
        result = []
        for place in range(-rank, 0):
            size = ONE
            for shape in shapes:
                if -place <= len(shape):
                    size = self._broadcast_pair(size, shape[place])
            result.append(size)
        return tuple(result)

    def _broadcast_pair(self, left: Expr, right: Expr) -> Expr:
        if left is right or right is ONE:
            return left
        if left is ONE:
            return right
        if self.size(left) == 1 and self.size(right) != 1:
            self.require("==", left, ONE, "broadcasting")
            return right
        if self.size(right) == 1 and self.size(left) != 1:
            self.require("==", right, ONE, "broadcasting")
            return left
        return self.same_size(left, right, "sizes that broadcast")

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def make(
        self,
        op: str,
        inputs: tuple[Node, ...],
        attrs: Attributes,
        dtype: DType,
        shape: Shape,
        *,
        device: str | None = None,
    ) -> Node:
        """The pure node with these parts."""
        place = inputs[0].device if inputs else device or "cpu"
        if len(inputs) > 1 and op != "derived" and any(other.device != place for other in inputs):
            raise Unprovable(f"{op} of tensors on several devices")
        identity = (op, inputs, attributes_key(op, attrs), dtype.name, shape, place)
        node = self._table.get(identity)
        if node is None:
            node = self._table[identity] = Node(op, inputs, attrs, dtype, shape, None, self.line, place)
            self.nodes.append(node)
        return node

    def adopt(self, nodes: Iterable[Node], apart: Collection[Node] = ()) -> None:
        """Takes nodes made elsewhere, in program order: a pure one is given again where its parts are asked for, but
        for those ``apart``.
        """
        for node in nodes:
            self.nodes.append(node)
            if node.op == "result":
                self._results.setdefault(node.inputs[0], {})[node.attr("path")] = node
            elif node in apart:
                continue
            elif node.op == "library":
                self._calls.setdefault(node.inputs, []).append(node)
            elif node.op != "input":
                key = attributes_key(node.op, node.attrs)
                identity = (node.op, node.inputs, key, node.dtype.name, node.shape, node.device)
                self._table.setdefault(identity, node)

    def opaque(
        self,
        op: str,
        inputs: tuple[Node, ...],
        attrs: Attributes,
        dtype: DType,
        shape: Shape,
        strides: Shape | None,
        device: str,
    ) -> Node:
        """A node that equals no other: inputs, library calls and their results."""
        node = Node(op, inputs, attrs, dtype, shape, strides, self.line, device)
        self.nodes.append(node)
        if op == "result":
            self._results.setdefault(inputs[0], {})[node.attr("path")] = node
        elif op == "library":
            self._calls.setdefault(inputs, []).append(node)
        return node

    def call(self, inputs: tuple[Node, ...], attrs: Attributes) -> Node | None:
        """The library call with these parts, if there is one: for calls of which one does for several."""
        for node in self._calls.get(inputs, ()):
            if node.attrs == attrs and repr(node.attrs) == repr(attrs):  # the text tells 1 from 1.0 from True
                return node
        return None

    def results(self, call: Node) -> Mapping[Path, Node]:
        """The results of a library call by their paths."""
        return self._results.get(call, {})

    def full(self, value: Scalar, dtype: DType, shape: Shape, device: str | None = None) -> Node:
        """A constant or run-time number in every element."""
        if isinstance(value, Expr) and value.constant is not None:
            value = value.constant
        if isinstance(value, (bool, int, float)):
            value = bool(value) if dtype is BOOL else int(value) if dtype.is_integral else float(value)
        return self.make("full", (), (("value", value),), dtype, shape, device=device)

    def iota(self, start: Scalar, step: Scalar, dtype: DType, length: Expr, device: str | None = None) -> Node:
        """``start + step * position``, shape ``(length,)``."""
        attrs = (("start", start), ("step", step))
        return self.make("iota", (), attrs, dtype, (length,), device=device)

    def pointwise(self, op: str, *inputs: Node) -> Node:
        """A pointwise row on operands of one shape."""
        rule = RESULT[op]
        dtype = inputs[0].dtype if rule in ("same", "first") else BOOL if rule == "bool" else inputs[1].dtype
        if op == "where" and inputs[1] is inputs[2]:
            return inputs[1]
        return self.make(op, inputs, (), dtype, inputs[0].shape)

    def cast(self, node: Node, dtype: DType, loose: bool = False) -> Node:
        """The values converted as eager converts them; ``loose`` as the row of the table says."""
        if node.dtype is dtype:
            return node
        if node.op == "full" and dtype.compute == dtype.name:
            value = node.attrs[0][1]
            if _survives(value, node.dtype, dtype):
                return self.full(value, dtype, node.shape, node.device)
        if node.op == "expand":
            return self.expand(self.cast(node.inputs[0], dtype, loose), node.shape)
        if node.op == "slice" and node.shape == node.inputs[0].shape:  # turned: what is turned may be in memory
            starts, steps = node.attrs[0][1], node.attrs[1][1]
            return self.slice(self.cast(node.inputs[0], dtype, loose), starts, steps, node.shape)
        return self.make("cast", (node,), (("dtype", dtype), ("loose", loose)), dtype, node.shape)

    def detach(self, node: Node) -> Node:
        """The node itself, to which no gradient flows."""
        if node.op in ("detach", "full", "iota"):
            return node
        return self.make("detach", (node,), (), node.dtype, node.shape)

    def derived(self, node: Node, name: str, operands: Sequence[Node], *parameters: Scalar | str | None) -> Node:
        """The node itself; its gradient goes to ``operands`` by the rule ``name`` with ``parameters``, where gradients
        are asked for.
        """
        if not self.differentiable or not node.dtype.is_float:
            return node
        attrs = (("name", name), ("parameters", parameters))
        return self.make("derived", (node, *operands), attrs, node.dtype, node.shape)

    # ---- views -------------------------------------------------------------------------------------------------------

    def expand(self, node: Node, shape: Shape) -> Node:
        """Numpy broadcasting to ``shape``; the sizes were compared before."""
        if node.shape == shape:
            return node
        if node.op == "full":
            return self.full(node.attrs[0][1], node.dtype, shape, node.device)
        if node.op == "expand":
            node = node.inputs[0]
        return self.make("expand", (node,), (), node.dtype, shape)

    def reshape(self, node: Node, shape: Shape) -> Node:
        """The same elements in row-major order; requires equal element counts."""
        if node.shape == shape:
            return node
        before, after = self.cancelled(self.count(node.shape), self.count(shape))
        if before is not after:  # in what is left is seen that one size is a multiple of another
            before, after = cancelled((before, after), self._nonzero_sizes(before.symbols & after.symbols))
        self.require("==", before, after, "sizes of a reshape")
        if node.op == "reshape":
            node = node.inputs[0]
            if node.shape == shape:
                return node
        return self.make("reshape", (node,), (), node.dtype, shape)

    def resized(self, node: Node, shape: Shape) -> Node:
        """The node with its sizes under other names; the caller knows that they are equal one by one."""
        if node.shape == shape:
            return node
        source = node.inputs[0] if node.op == "reshape" else node
        return source if source.shape == shape else self.make("reshape", (source,), (), node.dtype, shape)

    def permute(self, node: Node, axes: Sequence[int]) -> Node:
        """Result axis ``i`` is operand axis ``axes[i]``."""
        order = tuple(axes)
        if node.op == "permute":
            inner = node.attrs[0][1]
            order, node = tuple(inner[axis] for axis in order), node.inputs[0]
        if order == tuple(range(len(order))):
            return node
        shape = tuple(node.shape[axis] for axis in order)
        return self.make("permute", (node,), (("axes", order),), node.dtype, shape)

    def diagonal(self, node: Node) -> Node:
        """The elements at equal places of the last two dimensions, which are of one size."""
        shape = node.shape[:-1]
        return self.make("diagonal", (node,), (), node.dtype, shape)

    def windows(self, node: Node, axis: int, places: Expr, size: int, step: int) -> Node:
        """Windows of ``size`` elements along an axis, at so many places; the caller proved them in bounds."""
        shape = (*node.shape[:axis], places, *node.shape[axis + 1 :], expr(size))
        return self.make("windows", (node,), (("axis", axis), ("step", step)), node.dtype, shape)

    def slice(self, node: Node, starts: Sequence[Size], steps: Sequence[int], shape: Sequence[Size]) -> Node:
        """``shape[i]`` elements of axis ``i`` from ``starts[i]`` on, every ``steps[i]``-th; the caller proved them in
        bounds.
        """
        first, sizes, strides = tuple(map(expr, starts)), tuple(map(expr, shape)), tuple(steps)
        if sizes == node.shape and all(step == 1 for step in strides) and all(start is ZERO for start in first):
            return node
        if node.op == "slice":
            before, inner = node.attrs[0][1], node.attrs[1][1]
            first = tuple(a + b * step for a, b, step in zip(before, first, inner, strict=True))
            strides = tuple(a * b for a, b in zip(inner, strides, strict=True))
            node = node.inputs[0]
        return self.make("slice", (node,), (("starts", first), ("steps", strides)), node.dtype, sizes)

    def narrow(self, node: Node, axis: int, start: Size, length: Size) -> Node:
        """``length`` elements of one axis from ``start`` on."""
        starts: list[Size] = [ZERO] * len(node.shape)
        shape: list[Size] = list(node.shape)
        starts[axis], shape[axis] = start, length
        return self.slice(node, starts, [1] * len(shape), shape)

    def pad(self, node: Node, before: Sequence[Size], after: Sequence[Size], value: Scalar) -> Node:
        """Constant padding by non-negative amounts."""
        first = tuple(map(expr, before))
        shape = tuple(size + a + b for size, a, b in zip(node.shape, first, after, strict=True))
        if shape == node.shape:
            return node
        attrs = (("before", first), ("value", value))
        return self.make("pad", (node,), attrs, node.dtype, shape)

    def cat(self, nodes: Sequence[Node], axis: int) -> Node:
        """The operands one after the other along ``axis``; their other sizes are equal."""
        if len(nodes) == 1:
            return nodes[0]
        total = ZERO
        for node in nodes:
            total = total + node.shape[axis]
        shape = (*nodes[0].shape[:axis], total, *nodes[0].shape[axis + 1 :])
        return self.make("cat", tuple(nodes), (("axis", axis),), nodes[0].dtype, shape)

    # ---- reads at positions, reductions, products --------------------------------------------------------------------

    def take(self, node: Node, index: Node, axis: int, wrap: bool | None) -> Node:
        """Rows of ``axis`` at integer positions; ``wrap`` lets negative ones count from the end, and None says that all
        are surely inside, so that nothing checks them.
        """
        shape = (*node.shape[:axis], *index.shape, *node.shape[axis + 1 :])
        return self.make("take", (node, index), (("axis", axis), ("wrap", wrap)), node.dtype, shape)

    def gather(self, node: Node, index: Node, axis: int) -> Node:
        """torch.gather."""
        return self.make("gather", (node, index), (("axis", axis),), node.dtype, index.shape)

    def scatter_add(self, node: Node, index: Node, source: Node, axis: int) -> Node:
        """torch.scatter_add, of a source of the index's shape."""
        return self.make("scatter_add", (node, index, source), (("axis", axis),), node.dtype, node.shape)

    def reduce(self, op: str, node: Node, axes: Sequence[int], keep: bool = False) -> Node:
        """A reduction over ``axes``; ``keep`` leaves them with size 1."""
        rule = RESULT[op]
        dtype = BOOL if rule == "bool" else INT64 if rule == "index" else node.dtype
        order = tuple(sorted(axes))
        shape = tuple(size for axis, size in enumerate(node.shape) if axis not in order)
        if not order and dtype is node.dtype:
            return node
        result = self.make(op, (node,), (("axes", order),), dtype, shape)
        if not keep:
            return result
        return self.reshape(result, tuple(ONE if axis in order else size for axis, size in enumerate(node.shape)))

    def scan(self, op: str, node: Node, axis: int) -> Node:
        """Of each element: the reduction of those up to it along ``axis``."""
        return self.make(op, (node,), (("axis", axis),), node.dtype, node.shape)

    def matmul(self, left: Node, right: Node, dtype: DType | None = None) -> Node:
        """(..., m, k) times (..., k, n) with equal leading dimensions and equal k, in their type or a wider one."""
        return self.make("matmul", (left, right), (), dtype or left.dtype, (*left.shape[:-1], right.shape[-1]))


def builder_for(graph: Graph) -> Builder:
    """A builder that knows of the graph's sizes, and has none of its nodes."""
    builder = Builder(graph.hints)
    builder.bound = {symbol for symbol, _, _ in graph.bound}
    builder.extents = {atom for node in graph.nodes for size in node.shape for atom in size.symbols}
    builder.relations = dict.fromkeys(graph.relations)
    return builder


def builder_over(graph: Graph, apart: Collection[Node] = ()) -> Builder:
    """A builder that goes on where ``graph`` ends: what the graph computes already is found again, but for what is
    ``apart``.
    """
    builder = builder_for(graph)
    builder.adopt(graph.nodes, apart)
    return builder


def attributes_key(op: str, attrs: Attributes) -> Hashable:
    """What tells the attributes of equal nodes apart: numbers by type and digits, dtypes by name."""
    if op == "cast":
        return attrs[0][1].name, attrs[1][1]
    return tuple(_number_key(value) for _, value in attrs) if op in ("full", "iota", "pad", "derived") else attrs


def _number_key(value: Attribute) -> Hashable:
    """A key that tells 1 from 1.0 from True, 0.0 from -0.0, and NaN from nothing else."""
    if isinstance(value, tuple):
        return tuple(map(_number_key, value))
    return value if isinstance(value, Expr) else (type(value).__name__, repr(value))


def _survives(value: Attribute, old: DType, new: DType) -> bool:
    """Whether a constant converts to ``new`` without a change, so that the cast may be folded."""
    if not isinstance(value, (bool, int, float)) or value != value or abs(value) > 2**24:
        return False
    if old.is_float and old.name != "float64" and not float(value).is_integer():
        return False  # the constant is rounded to its own dtype first
    return new.is_float or (float(value).is_integer() and (value >= 0 or new.kind == "int") and abs(value) <= 127)


def compute_dtype(dtype: DType) -> DType:
    """The dtype in which kernels do this dtype's arithmetic."""
    return BY_NAME[dtype.compute]
