"""Turns sizes that are no products of symbols into symbols of their own, so that index arithmetic sees what cancels.

After a convolution of stride 2 a side is ``(s - 1) // 2 + 1``, after one without padding ``s - 2``. The strides of a
tensor with two such sides have many terms, and that a reshape of it moves nothing cannot be seen in them; in a symbol
for the side they have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from framefuse.ir.comparisons import Relation
from framefuse.ir.graph import Graph
from framefuse.ir.numbers import BUILD, Atom, Binary, Expr, Floordiv, Symbol, expr
from framefuse.ir.rename import renamed
from framefuse.ir.values import Value


def with_named_sizes(graph: Graph) -> Graph:
    """The graph with a symbol for each size that is a division's result, but for a factor and something to add, and for
    each size of inputs and of results of library calls that is a sum. Sizes that only a library call gives stay as they
    are, and so do other sums: what a kernel slices or pads is known by their terms. A size that relations hold to a
    number, as what a reshape infers, is that number, and one held to another size goes by its symbol. One that is held
    to twice its half, as where every second element is written, is twice a symbol.
    """
    names = _Names(graph.hints, {symbol for symbol, _, _ in graph.bound}, (*graph.relations, *graph.held))
    for node in graph.nodes:
        names.name(node.shape)
        if node.op in ("input", "result"):
            names.name_sums(node.shape)
    if not names.atoms and not names.definitions and not names.multiples:
        return graph
    return replace(renamed(graph, names.rewritten), hints=names.hints, sizes=(*graph.sizes, *names.definitions))


def _equal(relations: Iterable[Relation]) -> dict[Expr, list[Expr]]:
    """By size the numbers and other sizes that it is held to, numbers first."""
    equal: dict[Expr, list[Expr]] = {}
    for relation in relations:
        if relation.op == "==":
            for size, other in ((relation.left, relation.right), (relation.right, relation.left)):
                known = equal.setdefault(size, [])
                known.insert(0 if other.constant is not None else len(known), other)
    return equal


def _multiple(size: Expr, others: Iterable[Expr]) -> tuple[Symbol, int] | None:
    """The symbol that a size is, and the largest number that it is held to be a multiple of."""
    ((atoms, factor), *more) = size.terms or (((), 1),)
    if more or factor != 1 or len(atoms) != 1 or not isinstance(atoms[0], Symbol):
        return None
    divided = [other.terms[0] for other in others if len(other.terms) == 1 and other.symbols == size.symbols]
    factors = [count for parts, count in divided if len(parts) == 1 and isinstance(parts[0], Floordiv) and count > 1]
    largest = max(factors, default=1)
    return (atoms[0], largest) if largest > 1 and all(largest % count == 0 for count in factors) else None


def _alone(size: Expr, factor: int = 1) -> Symbol | None:
    """The symbol of which a size is so many times."""
    ((atoms, count), *more) = size.terms or (((), 0),)
    alone = not more and count == factor and len(atoms) == 1 and isinstance(atoms[0], Symbol)
    return atoms[0] if alone else None  # type: ignore[return-value]


class _Names:
    """The symbols made so far, by the division that each stands for; ``sums`` are symbols of the graph with what they
    are in terms of a size that is a sum.
    """

    def __init__(self, hints: Mapping[Symbol, int], late: set[Symbol], relations: Iterable[Relation]) -> None:
        self.hints = dict(hints)
        self.late = late
        self.equal = _equal(relations)
        self.atoms: dict[Atom, Expr] = {}
        self.sums: list[tuple[Symbol, Expr]] = []
        self.definitions: list[tuple[Symbol, tuple[Expr, ...]]] = []
        self.known: dict[Expr, Expr] = {}
        self.named: dict[Expr, Expr] = {}  # sizes that are atoms, as they were
        self.multiples: dict[Symbol, Expr] = {}
        multiples = [(*found, size) for size, others in self.equal.items() if (found := _multiple(size, others))]
        for symbol, factor, size in multiples:
            if symbol not in late:
                self.multiples[symbol] = self._symbol(size // factor) * factor
        for size, others in self.equal.items():
            self._name_doubles(size, others)

    def _name_doubles(self, size: Expr, others: Iterable[Expr]) -> None:
        """Names a size that is held to twice another, or more times, by the other, and further such ones by it."""
        whole = _alone(size)
        if whole is None or whole in self.late:
            return
        for other in others:
            factor = other.terms[0][1] if other.terms else 0
            part = _alone(other, factor) if factor > 1 else None
            if part is None or part is whole or part in self.late or part in self.multiples:
                continue
            known = self.multiples.setdefault(whole, part.expr * factor)
            if known is not other and known.terms[0][1] == factor:
                self.multiples[part] = known // factor

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
            self.atoms[atom] = self._whole(size, factor) - rest.constant // factor
            self.known.clear()

    def _whole(self, size: Expr, factor: int) -> Expr:
        """What stands for a size over a factor: where relations hold it to a number or to a size with a name, that."""
        if factor > 1:
            return self._symbol(size // factor)
        for other in self.equal.get(size, ()):
            short: Expr = self.rewritten(other)
            if short.constant is not None or other in self.named:
                self.named[size] = short
                return short
        self.named[size] = whole = self._symbol(size)
        return whole

    def name_sums(self, shape: Iterable[Expr]) -> None:
        """Names the sums among the sizes of one shape. One of the symbols in a sum is what is left of it."""
        for size in shape:
            short = self.rewritten(size)
            if len(short.terms) < 2 or size.symbols & self.late:
                continue
            alone = (atoms[0] for atoms, factor in short.terms if len(atoms) == 1 and factor == 1)
            symbols = (atom for atom in alone if isinstance(atom, Symbol) and atom in size.symbols)
            first = next((atom for atom in symbols if len(short.without(atom).terms) == len(short.terms) - 1), None)
            rest = short.without(first) if first is not None else None
            if first is not None and rest is not None and first not in rest.symbols:
                self.sums.append((first, self._symbol(size) - rest))

    def _symbol(self, size: Expr) -> Expr:
        """A new symbol that stands for a size."""
        symbol = Symbol(f"size{len(self.definitions)}")
        self.definitions.append((symbol, (size,)))
        self.hints[symbol] = size.evaluate(self.hints)
        self.known.clear()
        return symbol.expr

    def rewritten(self, value: Value) -> Value:
        """The value over the new symbols; what is no integer expression stays."""
        if not isinstance(value, Expr) or value.constant is not None:
            return value
        renamed = self.known.get(value)
        if renamed is None:
            renamed = expr(0)
            for atoms, factor in value.terms:
                product = expr(factor)
                for atom in atoms:
                    product = product * self._atom(atom)
                renamed = renamed + product
            self.known[value] = renamed = self._summed(renamed)
        return renamed

    def _summed(self, value: Expr) -> Expr:
        """The value in terms of sizes that are sums, where that leaves fewer terms."""
        for symbol, whole in self.sums:
            if len(value.terms) > 1 and symbol in value.symbols:
                trial = value.substitute({symbol: whole})
                value = trial if len(trial.terms) < len(value.terms) else value
        return value

    def _atom(self, atom: Atom) -> Expr:
        if not isinstance(atom, Binary):
            multiple = self.multiples.get(atom) if isinstance(atom, Symbol) else None
            return atom_expr(atom) if multiple is None else multiple
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
