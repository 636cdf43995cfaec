"""Turns sizes that are no products of symbols into symbols of their own, so that index arithmetic sees what cancels.

After a convolution of stride 2 a side is ``(s - 1) // 2 + 1``. The strides of a tensor with two such sides have many
terms, and that a reshape of it moves nothing cannot be seen in them; in a symbol for the side they have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from framefuse.ir.graph import Graph
from framefuse.ir.numbers import BUILD, Atom, Binary, Expr, Symbol, expr
from framefuse.ir.rename import renamed


def with_named_sizes(graph: Graph) -> Graph:
    """The graph with a symbol for each size that is a division's result, but for a factor and something to add. Sizes
    that only a library call tells stay as they are.
    """
    names = _Names(graph.hints, {symbol for symbol, _, _ in graph.bound})
    for node in graph.nodes:
        names.name(node.shape)
    if not names.definitions:
        return graph
    return replace(renamed(graph, names.rewritten), hints=names.hints, sizes=(*graph.sizes, *names.definitions))


class _Names:
    """The symbols made so far, by the division that each stands for."""

    def __init__(self, hints: Mapping[Symbol, int], late: set[Symbol]) -> None:
        self.hints = dict(hints)
        self.late = late
        self.atoms: dict[Atom, Expr] = {}
        self.definitions: list[tuple[Symbol, tuple[Expr, ...]]] = []
        self.known: dict[Expr, Expr] = {}

    def name(self, shape: Iterable[Expr]) -> None:
        """Names what divides in the sizes of one shape."""
        for size in shape:
            if size.constant is not None or size.symbols & self.late:
                continue
            short = self.rewritten(size)
            divided = [(atoms, factor) for atoms, factor in short.terms if any(isinstance(a, Binary) for a in atoms)]
            if len(divided) != 1 or len(divided[0][0]) != 1:
                continue
            (((atom,), factor),) = divided
            rest = short - atom_expr(atom) * factor
            if factor < 1 or rest.constant is None or rest.constant % factor:
                continue
            more = rest.constant // factor
            symbol = Symbol(f"size{len(self.definitions)}")
            self.definitions.append((symbol, (size // factor,)))
            self.hints[symbol] = size.evaluate(self.hints) // factor
            self.atoms[atom] = symbol.expr - more
            self.known.clear()

    def rewritten(self, value: Any) -> Any:
        """The value over the new symbols; what is no integer expression stays."""
        if not isinstance(value, Expr) or not self.atoms or value.constant is not None:
            return value
        found = self.known.get(value)
        if found is None:
            found = expr(0)
            for atoms, factor in value.terms:
                product = expr(factor)
                for atom in atoms:
                    product = product * self._atom(atom)
                found = found + product
            self.known[value] = found
        return found

    def _atom(self, atom: Atom) -> Expr:
        if not isinstance(atom, Binary):
            return atom_expr(atom)
        left, right = self.rewritten(atom.left), self.rewritten(atom.right)
        whole = BUILD[type(atom)](left, right)
        total = expr(0)
        for atoms, factor in whole.terms:
            product = expr(factor)
            for part in atoms:
                product = product * self.atoms.get(part, atom_expr(part))
            total = total + product
        return total


def atom_expr(atom: Atom) -> Expr:
    """An atom as an expression."""
    return Expr((((atom,), 1),))
