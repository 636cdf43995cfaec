"""Says how the loops over rows read memory: along it or across it, once or again, by whole vectors or at odd places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from framefuse.codegen.triton.estimates import estimate
from framefuse.ir.loops import Index, Kernel, Let, Load, Loop, Store
from framefuse.ir.loops.walk import positions, statements, values_of
from framefuse.ir.numbers import Expr, Floordiv, Maximum, Minimum, Modulo, Symbol

CROSSED = 8  # points along memory from which on an operand that rows cross is read by a tile with two sides
VECTOR = 16  # bytes that a thread moves at once
TURNS = 1, 997  # two turns of a row that show where rows of unknown places begin
NARROW, WIDE = 2, 8  # bytes of an element, up to which and from which on tiles of rows are others


def are_narrow(loops: Sequence[Loop]) -> bool:
    """Whether all that the loops load has elements of so few bytes that a vector is many of them."""
    return all(value.dtype.size <= NARROW for value in values_of(loops) if isinstance(value, Load))


def are_odd(loops: Sequence[Loop], hints: Mapping[Symbol, int]) -> bool:
    """Whether rows that loops load begin at places where no vectors do."""
    loads = ((loop, value) for loop in loops for value in values_of(loop.body) if isinstance(value, Load))
    return any(is_odd(value.index - loop.axis.expr, hints) for loop, value in loads)


def is_odd(begin: Expr, hints: Mapping[Symbol, int]) -> bool:
    """Whether a row of what the program counts begins where no half a vector of the narrowest elements does."""
    unknown = begin.symbols - hints.keys()
    return any(estimate(begin, {**hints, **dict.fromkeys(unknown, turn)}) % (VECTOR // 2) for turn in TURNS)


def stores(loops: Sequence[Loop]) -> bool:
    """Whether what the loops compute is written at each point."""
    return any(isinstance(statement, Store) for statement in statements(loops))


def are_read_again(loops: Sequence[Loop]) -> bool:
    """Whether two loops read one buffer."""
    read = [{v.buffer for v in values_of(loop.body) if isinstance(v, Load)} for loop in loops]
    return any(one & other for place, one in enumerate(read) for other in read[:place])


def is_across(kernel: Kernel, parallel: Loop, loops: Sequence[Loop]) -> bool:
    """Whether most of what the vector loops read lies along the parallel axis in memory, and across theirs. What is the
    same for neighbours of the parallel axis is little, and is asked where there is nothing else.
    """
    along = steps_with(parallel)
    inner = {loop.axis for loop in loops}
    read = [v.index for v in values_of(parallel.body) if isinstance(v, Load) and v.index.symbols & inner]
    large = [index for index in read if index.symbols & along.keys()] or read
    return sum(_is_along(index, inner) - _is_along(index, along.keys()) for index in large) < 0


def crosses(parallel: Loop, loops: Sequence[Loop], hints: Mapping[Symbol, int]) -> bool:
    """Whether one loop reads an operand across its memory that lies along enough points of the parallel axis, though
    others lie along the loop: a tile with two sides reads each as it lies.
    """
    if len(loops) != 1 or lanes(parallel, hints) < CROSSED:
        return False
    along, inner = steps_with(parallel).keys(), {loops[0].axis}
    read = {v.index for v in values_of(loops) if isinstance(v, Load) and v.index.symbols & inner}
    return any(_is_along(index, along) and not _is_along(index, inner) for index in read)


def steps_with(parallel: Loop) -> dict[Symbol, Expr]:
    """The parallel axis and the positions that grow by one with it, with how often they do before they begin anew."""
    periods = {parallel.axis: parallel.extent}
    for statement in statements(parallel.body):
        if isinstance(statement, Let) and isinstance(statement.value, Index):
            terms = statement.value.index.terms
            if len(terms) == 1 and len(terms[0][0]) == 1 and terms[0][1] == 1:
                atom = terms[0][0][0]
                if isinstance(atom, Modulo) and _is_along(atom.left, periods.keys()):
                    periods[Symbol(statement.name)] = atom.right
    return periods


def lanes(parallel: Loop, hints: Mapping[Symbol, int]) -> int:
    """How many points of the parallel axis, as recorded, are neighbours in memory where it counts more than one."""
    whole, *decoded = steps_with(parallel).values()
    return max(1, *(estimate(extent, hints) for extent in decoded or [whole]))


def shows_neighbours(parallel: Loop, hints: Mapping[Symbol, int]) -> bool:
    """Whether Triton sees which points of the parallel axis are neighbours in memory where they are decoded from it."""
    _, *decoded = steps_with(parallel).values()
    return all(estimate(extent, hints) % VECTOR == 0 for extent in decoded)


def repays(parallel: Loop, loops: Sequence[Loop], hints: Mapping[Symbol, int]) -> bool:
    """Whether it repays that quotients are one number: where columns are few, so that Triton sees neighbours no other
    way (H200, argmax over the middle of 2 x 8 M x 4 float32, bfloat16 and int64 1.7, 1.9 and 1.6 times as fast), and
    where something is read for each row of a turn. A plain sum of columns is not faster: its loads are the same, and
    those of float32 and bfloat16 were ordered worse (max over the middle of 256 x 1024 x 256 0.66).
    """
    if lanes(parallel, hints) < VECTOR:
        return True
    here = steps_with(parallel).keys()
    return any(isinstance(v, Load) and not v.index.symbols & here for v in values_of(loops))


def steady_numbers(parallel: Loop, points: int, hints: Mapping[Symbol, int]) -> frozenset[Symbol]:
    """The numbers by which the parallel axis itself is divided, if all of them are multiples of ``points`` as recorded;
    none where it is not divided, or by what is no number. Sums of layer norm's gradient of its weights read the mean of
    each row once for 64 columns then, not 64 times.
    """
    axis, numbers = parallel.axis.expr, set[Symbol]()
    for index in positions((parallel,)):
        for atom in _divisions(index):
            if atom.left is axis:
                right = atom.right
                number = next(iter(right.symbols)) if len(right.symbols) == 1 else None
                if number is None or right is not number.expr or hints.get(number, 0) <= 0 or hints[number] % points:
                    return frozenset()
                numbers.add(number)
    return frozenset(numbers)


def _divisions(value: Expr) -> Iterator[Floordiv | Modulo]:
    """The divisions in an expression."""
    for atoms, _ in value.terms:
        for atom in atoms:
            if isinstance(atom, (Floordiv, Modulo)):
                yield atom
            if not isinstance(atom, Symbol):
                assert isinstance(atom, (Floordiv, Modulo, Minimum, Maximum))
                yield from _divisions(atom.left)
                yield from _divisions(atom.right)


def loads_of(loops: Sequence[Loop]) -> int:
    """How many different elements a turn loads at each point."""
    return len({(value.buffer, value.index) for value in values_of(loops) if isinstance(value, Load)})


def are_wide(loops: Sequence[Loop]) -> bool:
    """Whether all that the loops load has elements of 8 bytes."""
    return all(value.dtype.size >= WIDE for value in values_of(loops) if isinstance(value, Load))


def are_aligned(loops: Sequence[Loop]) -> bool:
    """Whether surely each turn of the loops moves every load by whole vectors. Where it does not, turns that overlap
    write single words across the banks of shared memory: eight times slower than turns that wait (128 x 4096 x 4095
    float32 over the middle, H100: 17.4 and 3.2 ms; with 4096 for 4095 both 2.8).
    """
    for loop in loops:
        for value in values_of(loop.body):
            if isinstance(value, Load):
                step = value.index.coefficient(loop.axis)
                if step is None or step.constant is None or step.constant * value.dtype.size % VECTOR:
                    return False
    return True


def _is_along(index: Expr, axes: Set[Symbol]) -> bool:
    for axis in axes & index.symbols:
        slope = index.coefficient(axis)
        if slope is not None and slope.constant == 1:
            return True
    return False
