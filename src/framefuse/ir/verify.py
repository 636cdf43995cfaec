"""Checks a graph against the facts of the table's rows: arity, attributes, dtypes and shapes of every node."""

from __future__ import annotations

from collections.abc import Callable

from framefuse.errors import CompilerBug
from framefuse.ir.dtypes import BOOL, INT64
from framefuse.ir.graph import Graph, Node
from framefuse.ir.numbers import Expr, product
from framefuse.ir.ops import ELEMENTWISE, REDUCE, TABLE, Op

Evaluate = Callable[[Expr], int]


def verify(graph: Graph, after: str = "lower") -> None:
    """Raises :class:`CompilerBug` naming the first node that breaks a rule, and the pass ``after`` which it does."""
    seen: set[Node] = set()
    for place, node in enumerate(graph.nodes):
        wrong = _wrong(node, seen, graph)
        if wrong:
            raise CompilerBug(f"after {after}: node {place} ({node.op}): {wrong}")
        seen.add(node)
    if not seen.issuperset(graph.kept):
        raise CompilerBug(f"after {after}: a kept node is not among the nodes")
    for output in graph.outputs:
        if output.node not in seen:
            raise CompilerBug(f"after {after}: output {output.value} is not among the nodes")
        if output.order is not None and sorted(output.order) != list(range(len(output.node.shape))):
            raise CompilerBug(f"after {after}: output {output.value} has order {output.order}")
    for write in graph.writes:
        target = graph.inputs[write.input]
        shape = write.node.shape
        fits = shape == target.shape if write.part is None else len(write.part.strides) == len(shape)
        if write.node not in seen or write.node.dtype is not target.dtype or not fits:
            raise CompilerBug(f"after {after}: the write to input {write.input} does not fit it")


def _wrong(node: Node, seen: set[Node], graph: Graph) -> str | None:
    row = TABLE.get(node.op)
    if row is None:
        return "no row of the table"
    if any(operand not in seen for operand in node.inputs):
        return "an operand comes later"
    if row.arity not in (-1, len(node.inputs)):
        return f"{len(node.inputs)} operands for {row.arity}"
    if tuple(name for name, _ in node.attrs) != row.attrs:
        return f"attributes {[name for name, _ in node.attrs]} for {list(row.attrs)}"
    places = {operand.device for operand in node.inputs} - {node.device}
    if places and row.kind != "call" and node.op != "derived":
        return f"operands on {', '.join(sorted(places))} for {node.device}"
    return _wrong_dtype(node, row) or _wrong_shape(node, row, graph)


CONDITIONS = {"where": 0, "checked": 1}  # the operand that is the condition


def _wrong_dtype(node: Node, row: Op) -> str | None:
    dtypes = [operand.dtype for operand in node.inputs]
    if row.kind in ELEMENTWISE:
        compared = [dtype for place, dtype in enumerate(dtypes) if place != CONDITIONS.get(node.op)]
        if any(dtype is not compared[0] for dtype in compared):
            return f"operands of dtypes {', '.join(map(str, dtypes))}"
        if node.op in CONDITIONS and dtypes[CONDITIONS[node.op]] is not BOOL:
            return f"condition of dtype {dtypes[CONDITIONS[node.op]]}"
        kind = compared[0]
        if (row.domain == "float" and not kind.is_float) or (row.domain == "integral" and not kind.is_integral):
            return f"operand of dtype {kind} outside the domain {row.domain}"
        if row.domain == "number" and kind is BOOL:
            return "bool operand outside the domain number"
        if kind.compute != kind.name and node.op not in ("cast", *CONDITIONS, "eq", "ne", "lt", "le", "gt", "ge"):
            return f"arithmetic on {kind}"
    expected = {
        "same": dtypes[0] if dtypes else node.dtype, "first": dtypes[0] if dtypes else node.dtype, "bool": BOOL,
        "second": dtypes[1] if len(dtypes) > 1 else node.dtype, "index": INT64, "attr": node.dtype,
    }[row.dtype]  # fmt: skip
    if node.op == "scatter_add" and (dtypes[1] is not INT64 or dtypes[2] is not dtypes[0]):
        return f"operands of dtypes {', '.join(map(str, dtypes))}"
    if node.op == "cast" and node.attr("dtype") is not node.dtype:
        return "attr dtype is not the node's"
    if node.op == "matmul" and node.dtype.name == dtypes[0].compute:
        return None  # a product may be as wide as it was added up
    return None if node.dtype is expected else f"dtype {node.dtype} for {expected}"


def _wrong_shape(node: Node, row: Op, graph: Graph) -> str | None:
    def sizes(shape: tuple[Expr, ...]) -> tuple[int, ...]:
        return tuple(size.evaluate(graph.hints) for size in shape)

    mine = sizes(node.shape)
    if node.op in ("input", "library", "result", "full"):
        return None
    given = [sizes(operand.shape) for operand in node.inputs]
    if row.kind in ELEMENTWISE:
        same = all(operand.shape == node.shape for operand in node.inputs)
        return None if same else f"operand shapes {[list(o.shape) for o in node.inputs]} for {list(node.shape)}"
    if row.kind == REDUCE:
        axes = node.attr("axes")
        left = tuple(size for axis, size in enumerate(node.inputs[0].shape) if axis not in axes)
        return None if left == node.shape and axes == tuple(sorted(set(axes))) else f"axes {axes} of {given[0]}"
    return None if SHAPES[node.op](node, given, mine) else f"shape {list(node.shape)} of operands {given}"


def _slice_fits(node: Node, given: list[tuple[int, ...]], mine: tuple[int, ...]) -> bool:
    if not len(node.attr("starts")) == len(node.attr("steps")) == len(mine) == len(given[0]):
        return False
    return all(step != 0 for step in node.attr("steps"))


def _take_fits(node: Node, given: list[tuple[int, ...]], mine: tuple[int, ...]) -> bool:
    axis = node.attr("axis")
    return mine == (*given[0][:axis], *given[1], *given[0][axis + 1 :])


def _cat_fits(node: Node, given: list[tuple[int, ...]], mine: tuple[int, ...]) -> bool:
    axis = node.attr("axis")
    rest = all((*size[:axis], *size[axis + 1 :]) == (*mine[:axis], *mine[axis + 1 :]) for size in given)
    return rest and mine[axis] == sum(size[axis] for size in given)


def _expand_fits(node: Node, given: list[tuple[int, ...]], mine: tuple[int, ...]) -> bool:
    tail = mine[len(mine) - len(given[0]) :]
    return len(given[0]) <= len(mine) and all(a in (1, b) for a, b in zip(given[0], tail, strict=True))


def _matmul_fits(node: Node, given: list[tuple[int, ...]], mine: tuple[int, ...]) -> bool:
    a, b = given
    return len(a) >= 2 and a[:-2] == b[:-2] == mine[:-2] and a[-1] == b[-2] and mine[-2:] == (a[-2], b[-1])


SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
SHAPES: dict[str, Callable[[Node, list[tuple[int, ...]], tuple[int, ...]], bool]] = {
    "iota": lambda node, given, mine: len(mine) == 1,
    **dict.fromkeys(SCANS, lambda node, given, mine: mine == given[0]),
    "detach": lambda node, given, mine: mine == given[0],
    "derived": lambda node, given, mine: mine == given[0],
    "expand": _expand_fits,
    "reshape": lambda node, given, mine: product(given[0]) is product(mine),
    "permute": lambda node, given, mine: mine == tuple(given[0][axis] for axis in node.attr("axes")),
    "diagonal": lambda node, given, mine: given[0] == (*mine, mine[-1]),
    "windows": lambda node, given, mine: (*mine[: node.attr("axis")], *mine[node.attr("axis") + 1 : -1])
    == (*given[0][: node.attr("axis")], *given[0][node.attr("axis") + 1 :]),
    "slice": _slice_fits,
    "pad": lambda node, given, mine: len(node.attr("before")) == len(mine) == len(given[0]),
    "cat": _cat_fits,
    "grown": _cat_fits,
    "take": _take_fits,
    "gather": lambda node, given, mine: mine == given[1],
    "scatter_add": lambda node, given, mine: mine == given[0] and given[1] == given[2] and len(mine) == len(given[1]),
    "matmul": _matmul_fits,
}
