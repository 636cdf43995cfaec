"""Turns kernels that differ in nothing but sizes into one kernel with these sizes as numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from framefuse.fuse.memory.draft import Draft
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.loops import Accumulator, Kernel, Loop, LoopKind, Number, Scratch
from framefuse.ir.loops.key import Key, key_of, with_lines
from framefuse.ir.loops.rewrite import with_positions
from framefuse.ir.loops.walk import positions, statements
from framefuse.ir.numbers import BUILD, Atom, Binary, Expr, Floordiv, Maximum, Minimum, Modulo, Symbol, expr
from framefuse.ir.schedule import Item, RunKernel


@dataclass(frozen=True, slots=True)
class Rule:
    """Which kernels of a device become one: at least ``many`` that differ in sizes from ``least`` on, in at most
    ``numbers`` of these. Where loops are ``tiles``, how those of a reduction are cut depends on what is known of its
    sizes; elsewhere divisors, rows in memory of their own and short loops ask for constants.
    """

    many: int
    least: int
    numbers: int
    tiles: bool


TILES = Rule(costs.SHARED_SIZES, costs.SHARED_SIZE, costs.ANY_NUMBERS, tiles=True)
LOOPS = Rule(costs.SHARED_LOOPS, costs.SHARED_EXTENT, costs.SHARED_NUMBERS, tiles=False)


def with_shared_kernels(draft: Draft, setting: Setting) -> Draft:
    """The draft whose kernels take sizes as further numbers where that leaves fewer of them to compile."""
    items = tuple(share(draft.items, lambda device: TILES if setting.target(device).tiles else LOOPS))
    return replace(draft, items=items) if any(a is not b for a, b in zip(items, draft.items, strict=True)) else draft


def share(items: Sequence[Item], rule_of: Callable[[str], Rule] = lambda device: LOOPS) -> list[Item]:
    """The items, some of them general."""
    return _of_any_sizes(_of_any_length(items), rule_of)


# ---- kernels that differ in the length of their one loop


def _of_any_length(items: Sequence[Item]) -> list[Item]:
    general: dict[int, RunKernel] = {}
    lengths: dict[Key, set[object]] = {}
    general_form: dict[Key, Kernel | None] = {}
    same: dict[Key, Kernel] = {}  # equal keys that are one object are compared at once
    for place, item in enumerate(items):
        if not isinstance(item, RunKernel):
            continue
        key = key_of(item.kernel)
        if key not in general_form:
            generic = _general(item.kernel)
            general_form[key] = None if generic is None else same.setdefault(key_of(generic), generic)
        kernel = general_form[key]
        if kernel is not None:
            length = item.kernel.extent
            kernel = with_lines(kernel, item.kernel.lines)
            general[place] = replace(item, kernel=kernel, numbers=(*item.numbers, length))
            lengths.setdefault(key_of(kernel), set()).add(length)
    return [
        general[place] if place in general and len(lengths[key_of(general[place].kernel)]) > 1 else item
        for place, item in enumerate(items)
    ]


def _general(kernel: Kernel) -> Kernel | None:
    """The kernel with its loop's length as its last number, if it is one loop of a known length."""
    if len(kernel.body) != 1 or not isinstance(kernel.body[0], Loop):
        return None
    loop = kernel.body[0]
    if loop.kind is not LoopKind.PARALLEL_VECTOR or loop.extent.constant is None:
        return None
    if len(loop.body) > costs.SHARED_STATEMENTS:
        return None
    if any(isinstance(statement, Loop) for statement in loop.body) or kernel.extent is not loop.extent:
        return None
    length = Symbol(f"n{len(kernel.numbers)}")
    body = (replace(loop, extent=length.expr),)
    numbers = (*kernel.numbers, Number(length))
    return replace(kernel, numbers=numbers, body=body, extent=length.expr)


# ---- kernels that differ in any sizes: of channels, say, in a net that adds some with each layer


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The constants of a kernel that may be numbers, in the order in which they stand in its distinct index
    expressions, and what is equal for all kernels of its form.
    """

    form: Hashable
    sizes: tuple[int, ...]


def _of_any_sizes(items: Sequence[Item], rule_of: Callable[[str], Rule]) -> list[Item]:
    """Kernels of one form take the constants in which they differ as numbers, where there are many of them."""
    alike: dict[tuple[Rule, Hashable], dict[Key, Kernel]] = {}
    for item in items:
        if isinstance(item, RunKernel) and item.kernel.product is None:
            kernel = item.kernel
            outside = kernel.buffers, kernel.numbers, kernel.exact, len(kernel.body)
            alike.setdefault((rule_of(item.device), outside), {}).setdefault(key_of(kernel), kernel)
    general: Joined = {}
    for (rule, _), found in alike.items():
        if len(found) >= rule.many:
            general |= _of_one_rule(found, rule)
    made: list[Item] = []
    for item in items:
        known = general.get(key_of(item.kernel)) if isinstance(item, RunKernel) else None
        if known is not None and isinstance(item, RunKernel):
            kernel = with_lines(known[0], item.kernel.lines)
            item = replace(item, kernel=kernel, numbers=(*item.numbers, *known[1]))
        made.append(item)
    return made


Joined = dict[Key, tuple[Kernel, tuple[Expr, ...]]]  # by a kernel's key the general one, and its further numbers


def _of_one_rule(kernels: Mapping[Key, Kernel], rule: Rule) -> Joined:
    """Kernels alike from outside, those of one form joined where there are many."""
    forms: dict[Hashable, dict[Key, tuple[int, ...]]] = {}
    for key, kernel in kernels.items():
        read = _sizes_of(kernel, rule)
        if read is not None:
            forms.setdefault(read.form, {})[key] = read.sizes
    general: Joined = {}
    for sizes in forms.values():
        if len(sizes) >= rule.many:
            general |= _joined(kernels, sizes, rule)
    return general


def _joined(kernels: Mapping[Key, Kernel], sizes: Mapping[Key, tuple[int, ...]], rule: Rule) -> Joined:
    """Kernels of one form, which have ``sizes``, as the general one with numbers for those that differ."""
    columns = list(zip(*sizes.values(), strict=True))
    numbers: dict[tuple[int, ...], int] = {}  # what has equal values in every kernel is one number
    for column in columns:
        if len(set(column)) > 1:
            numbers.setdefault(column, len(numbers))
    if len(numbers) > rule.numbers:
        return {}
    found: Joined = {}
    whole: Kernel | None = None
    for place, key in enumerate(sizes):
        kernel = kernels[key]
        symbols = [Symbol(f"n{len(kernel.numbers) + number}") for number in range(len(numbers))]
        chosen = [symbols[numbers[column]] if column in numbers else None for column in columns]
        made = _with_numbers(kernel, chosen, symbols, rule)
        whole = whole or made
        if key_of(made) == key_of(whole):
            found[key] = whole, tuple(expr(column[place]) for column in numbers)
    return found if len(found) > 1 else {}


def _with_numbers(
    kernel: Kernel, chosen: Sequence[Symbol | None], symbols: Sequence[Symbol], rule: Rule
) -> Kernel:
    """The kernel with numbers for some of its sizes."""
    waiting = iter(chosen)
    known = _Rewriting(kernel, lambda size: next(waiting), rule).all()
    body = with_positions(kernel.body, known)
    numbers = (*kernel.numbers, *map(Number, symbols))
    return replace(kernel, numbers=numbers, body=body, extent=known[kernel.extent])


def _sizes_of(kernel: Kernel, rule: Rule) -> _Sizes | None:
    """None where no size may be a number."""
    if rule.tiles and any(isinstance(statement, Accumulator) for statement in statements(kernel.body)):
        return None
    sizes: list[int] = []
    blank = Symbol("@size")

    def take(size: int) -> Symbol:
        sizes.append(size)
        return blank

    known = _Rewriting(kernel, take, rule).all()
    if not sizes:
        return None
    body = with_positions(kernel.body, known)
    places = {index: place for place, index in enumerate(known)}
    equal = tuple(places[index] for index in (kernel.extent, *positions(kernel.body)))
    return _Sizes((key_of(replace(kernel, body=body, extent=known[kernel.extent])), equal), tuple(sizes))


Take = Callable[[int], Symbol | None]


class _Rewriting:
    """Index expressions of ``kernel`` with what ``take`` gives for their sizes; None leaves one as it is."""

    def __init__(self, kernel: Kernel, take: Take, rule: Rule) -> None:
        self.kernel, self.take, self.rule = kernel, take, rule
        loops = [statement for statement in statements(kernel.body) if isinstance(statement, Loop)]
        self.sides = {loop.extent for loop in loops if loop.kind is LoopKind.VECTOR}
        self.fixed: set[Expr] = set()
        # What a turn of the outermost loop divides may as well be divided by a number: it is carried on, or done once.
        self.outer = {number.symbol for number in kernel.numbers} | {loop.axis for loop in loops if loop.kind.parallel}
        if not rule.tiles:
            self.fixed |= {each.size for each in statements(kernel.body) if isinstance(each, Scratch)}
            self.fixed |= {loop.extent for loop in loops if _decides(loop)}

    def all(self) -> dict[Expr, Expr]:
        """Each index expression of the kernel with its other form."""
        found = dict.fromkeys((self.kernel.extent, *positions(self.kernel.body)))
        return {index: index if index in self.fixed else self.one(index, index in self.sides) for index in found}

    def one(self, value: Expr, side: bool) -> Expr:
        """The expression with numbers for summands, factors and divisors. The bound of a ``side`` of a tile, or of
        part of a vector loop, stays, since it decides the code.
        """
        if side and value.constant is not None and self.rule.tiles:
            return value
        total = expr(0)
        for atoms, factor in value.terms:
            term = self._size(factor)
            for atom in atoms:
                term = term * self._inner(atom, side)
            total = total + term
        return total

    def _size(self, count: int) -> Expr:
        symbol = self.take(abs(count)) if abs(count) >= self.rule.least else None
        if symbol is None:
            return expr(count)
        return symbol.expr if count > 0 else -symbol.expr

    def _inner(self, atom: Atom, side: bool) -> Expr:
        if isinstance(atom, Symbol):
            return atom.expr
        assert isinstance(atom, Binary)
        if side and isinstance(atom, (Minimum, Maximum)):
            parts = (part if part.constant is not None else self.one(part, True) for part in (atom.left, atom.right))
            return BUILD[type(atom)](*parts)
        fixed = not self.rule.tiles and isinstance(atom, (Floordiv, Modulo)) and not atom.left.symbols <= self.outer
        return BUILD[type(atom)](self.one(atom.left, False), atom.right if fixed else self.one(atom.right, False))


def _decides(loop: Loop) -> bool:
    """Whether a constant length makes other code of a loop of the CPU: a sum of few terms is added in order, and whole
    vectors leave no rest.
    """
    count = loop.extent.constant
    if count is None or loop.kind.parallel:
        return False
    return count <= costs.IN_ORDER or (loop.kind.vector and (count <= costs.FEW_VECTORS or count % costs.WHOLE == 0))
