"""Pads matrices of 16 bits on a GPU whose rows begin at odd places, of which the library multiplies but slowly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from framefuse.fuse.addressing.layout import dense_strides, estimate, shown_order
from framefuse.fuse.addressing.ranges import ZERO
from framefuse.fuse.graph.product_calls import ProductCall, product_call
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.builder import Builder, builder_for
from framefuse.ir.graph import Graph, Node
from framefuse.ir.numbers import Expr, ceildiv, product
from framefuse.ir.rewrite import replaced

DTYPES = ("float16", "bfloat16")  # whether products of float32 care depends on settings that may change
Axes = frozenset[str]  # of a product of (m, k) and (k, n): "m", "k" and "n"


def with_aligned_products(graph: Graph, setting: Setting) -> Graph:
    """The graph in which large products have operands with zeros behind their rows, and their results are parts of
    what the library gives: zeros add nothing, and what they are multiplied with is zeros, too.
    """
    if setting.exact:
        return graph
    found = {node: matrices for node in graph.nodes if (matrices := _matrices(graph, node, setting)) is not None}
    if not found:
        return graph

    def change(node: Node, operands: tuple[Node, ...], build: Builder, now: Mapping[Node, Node]) -> Node | None:
        if node in found:
            return _padded_call(build, node, operands, found[node])
        if node.op == "result" and node.inputs[0] in found:
            return _part(build, node, operands[0], found[node.inputs[0]])
        return None

    changed = replaced(graph, change)
    outputs = []
    for before, output in zip(graph.outputs, changed.outputs, strict=True):
        order = shown_order(before, graph.hints) if output.node is not before.node else None
        outputs.append(output if order is None else replace(output, order=order))
    return replace(changed, outputs=tuple(outputs))


@dataclass(frozen=True, slots=True)
class _Matrices:
    """The operands of a product, and which of its sizes are to be made multiples."""

    call: ProductCall
    axes: Axes

    def places(self, number: int, rank: int) -> dict[str, int]:
        """The dimensions of an operand, or of the result for -1, that are sizes of the product."""
        letters = {-1: "mn"}.get(number, "n")
        if number == self.call.left:
            letters = "mk" if self.call.layout[0] == "n" else "km"
        elif number == self.call.right:
            letters = "kn" if self.call.layout[1] == "n" else "nk"
        return {letter: rank - len(letters) + place for place, letter in enumerate(letters)}

    def more(self, number: int, shape: tuple[Expr, ...]) -> list[Expr]:
        """How many zeros come behind each dimension."""
        more = [ZERO] * len(shape)
        for letter, axis in self.places(number, len(shape)).items():
            if letter in self.axes:
                more[axis] = ceildiv(shape[axis], costs.ALIGNED_ROW) * costs.ALIGNED_ROW - shape[axis]
        return more


def _matrices(graph: Graph, node: Node, setting: Setting) -> _Matrices | None:
    target = setting.targets(node.device) if node.op == "library" else None
    call = product_call(node) if target is not None and target.tiles else None
    results = [each for each in graph.nodes if each.op == "result" and each.inputs[0] is node] if call else []
    if target is None or call is None or len(results) != 1 or call.left == call.right:
        return None
    (result,) = results
    operands = [node.inputs[number] for number in (call.left, call.right)]
    if any(each.dtype is not result.dtype for each in node.inputs) or result.dtype.name not in DTYPES:
        return None
    if any(len(each.shape) < 2 for each in (*operands, result)) or any(held is result for _, held, _ in graph.bound):
        return None
    if result.strides != dense_strides(result.shape, tuple(range(len(result.shape)))):
        return None
    axes = _odd_axes(graph, node, call, result)
    matrices = _Matrices(call, axes)
    return matrices if axes and _pays(graph, node, result, matrices) else None


def _odd_axes(graph: Graph, node: Node, call: ProductCall, result: Node) -> Axes:
    """The sizes along which matrices lie whose rows begin anywhere; none where what lies how is not known."""
    whole = _Matrices(call, frozenset())
    odd: set[str] = set()
    sizes: dict[str, Expr] = {}
    for number in (call.left, call.right):
        operand, order = node.inputs[number], node.attr("orders")[number]
        rank = len(operand.shape)
        if order is None or set(order[-2:]) != {rank - 2, rank - 1}:
            return frozenset()
        for letter, axis in whole.places(number, rank).items():
            known = sizes.setdefault(letter, operand.shape[axis])
            if not builder_for(graph).known_equal(known, operand.shape[axis]):
                return frozenset()  # with zeros behind them the library would not see that they differ
            if axis == order[-1]:
                odd.add(letter)
    odd.add("n")
    if call.bias is not None:
        shape = node.inputs[call.bias].shape
        if len(shape) != 1 or not builder_for(graph).known_equal(shape[0], sizes["n"]):
            return frozenset()
    return frozenset(letter for letter in odd if estimate(sizes[letter], graph.hints) % costs.ALIGNED_ROW)


def _pays(graph: Graph, node: Node, result: Node, matrices: _Matrices) -> bool:
    """Whether the time that the library saves is more than that of the copies. A kernel that reads the result reads a
    part as well as the whole.
    """
    hints = graph.hints
    left = node.inputs[matrices.call.left]
    sizes = {letter: left.shape[axis] for letter, axis in matrices.places(matrices.call.left, len(left.shape)).items()}
    sizes["n"] = result.shape[-1]
    count = 2.0 * estimate(product((*result.shape, sizes["k"])), hints)
    copied = any(output.node is result for output in graph.outputs)
    copied = copied or any(result in each.inputs for each in graph.nodes if each.op == "library")
    moved, more = 0.0, 0.0
    for number, operand in (*enumerate(node.inputs), (-1, result)):
        size = estimate(product(operand.shape), hints) * result.dtype.size
        moved += size
        if any(extra is not ZERO for extra in matrices.more(number, operand.shape)) and (number >= 0 or copied):
            more += 2 * size * costs.GPU_BYTE + costs.COPY_CALL
    odd = min(size & -size for size in (estimate(sizes[letter], hints) for letter in matrices.axes))
    slow = count * costs.ODD_PRODUCT[odd > 1] + moved * costs.GPU_BYTE
    fast = max(count * costs.ALIGNED_PRODUCT, moved * costs.GPU_BYTE)
    return slow > costs.PADDED_GAIN * (fast + more) + costs.LAYOUT_GAIN[True]


def _padded_call(build: Builder, node: Node, operands: tuple[Node, ...], matrices: _Matrices) -> Node:
    padded = []
    for number, operand in enumerate(operands):
        more = matrices.more(number, operand.shape)
        padded.append(build.pad(operand, [ZERO] * len(more), more, 0.0))
    views = tuple(view for view in node.attr("views") if padded[view[0]] is operands[view[0]])
    attrs = tuple((name, views if name == "views" else value) for name, value in node.attrs)
    return build.opaque("library", tuple(padded), attrs, node.dtype, node.shape, node.strides, node.device)


def _part(build: Builder, result: Node, call: Node, matrices: _Matrices) -> Node:
    more = matrices.more(-1, result.shape)
    shape = tuple(size + extra for size, extra in zip(result.shape, more, strict=True))
    strides = dense_strides(shape, tuple(range(len(shape))))
    whole = build.opaque("result", (call,), result.attrs, result.dtype, shape, strides, result.device)
    return build.slice(whole, [ZERO] * len(shape), [1] * len(shape), result.shape)
