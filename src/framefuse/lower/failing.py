"""Finds the operations that eager would see fail and that a graph does not compute whole on its own account."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from framefuse.ir.builder import ONE, ZERO, Builder
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr
from framefuse.ir.ops import TABLE
from framefuse.ir.rewrite import reached

FAILS = {name: row.fails for name, row in TABLE.items() if row.fails}
Sizes = frozenset[Expr]


def failing(lo: Builder, computed: Iterable[Node], roots: Sequence[Node]) -> list[Node]:
    """Those that must be computed whole for their error alone, in program order.

    Eager computes every element of every operation, compiled code what somebody reads. ``computed`` are the values of
    the program's calls, ``roots`` the nodes in memory at the end and the library calls that run. A size between such
    an operation and its reader that was not zero is required to stay so.
    """
    if not any(node.op in FAILS for node in lo.nodes):
        return []
    checked = {node for node in reached(computed) if may_fail(node)}
    live = reached([*roots, *checked])
    whole: dict[Node, Sizes] = {root: frozenset() for root in roots}  # computed whole where no such size is zero
    whole_for_errors = []
    for node in reversed(lo.nodes):
        if node not in live:
            continue
        if node in checked and not (node in whole and _never_zero(lo, whole[node])):
            whole_for_errors.append(node)
            whole[node] = frozenset()
        elif node in checked or node.op in ("library", "matmul"):  # a call reads its operands, whoever needs it
            whole[node] = frozenset()
        if node in whole:
            for operand, sizes in _read_whole(lo, node):
                needed = whole[node] | sizes
                if operand not in whole or len(needed) < len(whole[operand]):
                    whole[operand] = needed
    return whole_for_errors[::-1]


def may_fail(node: Node) -> bool:
    """Whether some contents of the operands make eager raise."""
    fails = FAILS.get(node.op)
    if node.op == "take" and node.attr("wrap") is None:
        return False  # all of its positions are inside
    if fails != "divisor":
        return fails is not None
    divisor = node.inputs[1]
    known = divisor.attr("value") if divisor.op == "full" else None
    return node.dtype.is_integral and not (isinstance(known, int) and known != 0)


def _read_whole(lo: Builder, node: Node) -> Iterator[tuple[Node, Sizes]]:
    """The operands of which a node reads every element, with the sizes that must not be zero for that."""
    if node.op in ("take", "gather"):
        source, index = node.inputs
        others = [size for axis, size in enumerate(source.shape) if axis != node.attr("axis")]
        yield index, _may_be_zero(lo, others if node.op == "take" else ())
    elif node.op == "expand":
        (operand,) = node.inputs
        inner = (ONE,) * (len(node.shape) - len(operand.shape)) + operand.shape
        yield operand, _may_be_zero(lo, [size for size, own in zip(node.shape, inner, strict=True) if own is not size])
    elif node.op not in ("slice", "diagonal", "windows") or node.shape == node.inputs[0].shape:
        for operand in node.inputs:
            yield operand, frozenset()


def _may_be_zero(lo: Builder, sizes: Iterable[Expr]) -> Sizes:
    return frozenset(size for size in sizes if not lo.at_least(size, 1))


def _never_zero(lo: Builder, sizes: Sizes) -> bool:
    """Requires it, where the sizes are known before the call and were not zero."""
    if any(not lo.bound.isdisjoint(size.symbols) or lo.size(size) == 0 for size in sizes):
        return False
    for size in sizes:
        lo.require("!=", size, ZERO, "a size behind an operation that may fail")
    return True
