"""Turns kernels that differ in nothing but sizes into one kernel with these sizes as numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from framefuse.fuse import costs
from framefuse.fuse.memory.draft import Draft
from framefuse.fuse.setting import Setting
from framefuse.ir.loops import Accumulator, Kernel, Loop, LoopKind, Number
from framefuse.ir.loops.key import Key, key_of, with_lines
from framefuse.ir.loops.rewrite import with_positions
from framefuse.ir.loops.walk import positions, statements
from framefuse.ir.numbers import BUILD, Atom, Binary, Expr, Maximum, Minimum, Symbol, expr
from framefuse.ir.schedule import Item, RunKernel


def with_shared_kernels(draft: Draft, setting: Setting) -> Draft:
    """The draft whose kernels take sizes as further numbers where that leaves fewer of them to compile."""
    items = tuple(share(draft.items, lambda device: setting.target(device).tiles))
    return replace(draft, items=items) if any(a is not b for a, b in zip(items, draft.items, strict=True)) else draft


def share(items: Sequence[Item], slow: Callable[[str], bool] = lambda device: False) -> list[Item]:
    """The items, some of them general; ``slow`` says for which devices compiling takes long."""
    found = _of_any_length(items)
    if any(isinstance(item, RunKernel) and slow(item.device) for item in found):
        return _of_any_sizes(found, slow)
    return found


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


def _of_any_sizes(items: Sequence[Item], slow: Callable[[str], bool]) -> list[Item]:
    """Kernels of one form take the constants in which they differ as numbers, where there are many of them."""
    forms: dict[Hashable, dict[Key, tuple[int, ...]]] = {}
    form_of: dict[Key, Hashable] = {}
    for item in items:
        if isinstance(item, RunKernel) and slow(item.device) and item.kernel.product is None:
            key = key_of(item.kernel)
            if key not in form_of:
                read = _sizes_of(item.kernel)
                form_of[key] = None if read is None else read.form
                if read is not None:
                    forms.setdefault(read.form, {})[key] = read.sizes
    general: dict[Key, tuple[Kernel, tuple[Expr, ...]]] = {}
    for kernels in forms.values():
        if len(kernels) >= costs.SHARED_SIZES:
            general |= _joined(kernels, items)
    made: list[Item] = []
    for item in items:
        known = general.get(key_of(item.kernel)) if isinstance(item, RunKernel) else None
        if known is not None and isinstance(item, RunKernel):
            kernel = with_lines(known[0], item.kernel.lines)
            item = replace(item, kernel=kernel, numbers=(*item.numbers, *known[1]))
        made.append(item)
    return made


def _joined(
    kernels: Mapping[Key, tuple[int, ...]], items: Sequence[Item]
) -> dict[Key, tuple[Kernel, tuple[Expr, ...]]]:
    """By the key of each of some kernels of one form the general one, and the values of its further numbers."""
    first_of = {key_of(item.kernel): item.kernel for item in reversed(items) if isinstance(item, RunKernel)}
    columns = list(zip(*kernels.values(), strict=True))
    numbers: dict[tuple[int, ...], int] = {}  # what has equal values in every kernel is one number
    for column in columns:
        if len(set(column)) > 1:
            numbers.setdefault(column, len(numbers))
    found: dict[Key, tuple[Kernel, tuple[Expr, ...]]] = {}
    whole: Kernel | None = None
    for place, key in enumerate(kernels):
        kernel = first_of[key]
        symbols = [Symbol(f"n{len(kernel.numbers) + number}") for number in range(len(numbers))]
        chosen = [symbols[numbers[column]] if column in numbers else None for column in columns]
        made = _with_numbers(kernel, chosen, symbols)
        whole = whole or made
        if key_of(made) == key_of(whole):
            found[key] = whole, tuple(expr(column[place]) for column in numbers)
    return found if len(found) > 1 else {}


def _with_numbers(kernel: Kernel, chosen: Sequence[Symbol | None], symbols: Sequence[Symbol]) -> Kernel:
    """The kernel with numbers for some of its sizes."""
    waiting = iter(chosen)
    known: dict[Expr, Expr] = {}
    for index, side in _distinct(kernel):
        known[index] = _rewritten(index, lambda size: next(waiting), side)
    body = with_positions(kernel.body, known)
    numbers = (*kernel.numbers, *map(Number, symbols))
    return replace(kernel, numbers=numbers, body=body, extent=known[kernel.extent])


def _sizes_of(kernel: Kernel) -> _Sizes | None:
    """None where a kernel reduces: how its tiles are cut depends on what is known of its sizes."""
    if any(isinstance(statement, Accumulator) for statement in statements(kernel.body)):
        return None
    sizes: list[int] = []
    blank = Symbol("@size")

    def take(size: int) -> Symbol:
        sizes.append(size)
        return blank

    known = {index: _rewritten(index, take, side) for index, side in _distinct(kernel)}
    if not sizes:
        return None
    body = with_positions(kernel.body, known)
    places = {index: place for place, index in enumerate(known)}
    equal = tuple(places[index] for index in (kernel.extent, *positions(kernel.body)))
    return _Sizes((key_of(replace(kernel, body=body, extent=known[kernel.extent])), equal), tuple(sizes))


def _distinct(kernel: Kernel) -> Iterator[tuple[Expr, bool]]:
    """Each index expression once, and whether it is the length of a side of a tile."""
    sides = {
        statement.extent
        for statement in statements(kernel.body)
        if isinstance(statement, Loop) and statement.kind is LoopKind.VECTOR
    }
    for index in dict.fromkeys((kernel.extent, *positions(kernel.body))):
        yield index, index in sides


def _rewritten(value: Expr, take: Callable[[int], Symbol | None], side: bool) -> Expr:
    """The expression with what ``take`` gives for its sizes: summands, factors and divisors; None leaves one as it is.
    The bound of a ``side`` of a tile stays, since it decides the code.
    """
    if side and value.constant is not None:
        return value

    def size(count: int) -> Expr:
        symbol = take(abs(count)) if abs(count) >= costs.SHARED_SIZE else None
        if symbol is None:
            return expr(count)
        return symbol.expr if count > 0 else -symbol.expr

    def inner(atom: Atom) -> Expr:
        if isinstance(atom, Binary):
            bound = side and isinstance(atom, (Minimum, Maximum))
            return BUILD[type(atom)](*(_rewritten(part, take, bound) for part in (atom.left, atom.right)))
        assert isinstance(atom, Symbol)
        return atom.expr

    total = expr(0)
    for atoms, factor in value.terms:
        term = size(factor)
        for atom in atoms:
            term = term * inner(atom)
        total = total + term
    return total
