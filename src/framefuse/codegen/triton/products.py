"""Turns a Kernel that is a matrix product into the text of a Triton module: tiles of the total, then what is done with
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from framefuse.codegen.optimise import Optimised, optimised
from framefuse.codegen.specialisation import Choice, Specialisation
from framefuse.codegen.triton.blocks import Blocks
from framefuse.codegen.triton.builder import TYPES, Builder, Tile
from framefuse.codegen.triton.emitter import IMPORTS, Module, function_name
from framefuse.codegen.triton.estimates import estimate, power
from framefuse.codegen.triton.full_tiles import STEP
from framefuse.codegen.triton.loops import Loops
from framefuse.codegen.triton.values import Values
from framefuse.codegen.triton.widths import Width, width
from framefuse.codegen.unsupported import Unsupported
from framefuse.ir.dtypes import BOOL, FLOAT32, FLOAT64, INT64
from framefuse.ir.loops import (
    Accumulate,
    Accumulator,
    Apply,
    Index,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Statement,
    Store,
    Value,
)
from framefuse.ir.loops.walk import values_of
from framefuse.ir.numbers import Symbol, ceildiv

GROUP = 8  # rows of tiles that are computed together, so that their operands are still in the cache
LEAST = 16  # rows, columns and terms that a product instruction takes
FEW, MANY = 96, 2500  # tiles below which a GPU is not busy, and above which larger ones are better
OPERANDS = ("float16", "bfloat16", "float32")
# Rows, columns and terms of a tile, warps, stages: what is tried, the first one that is not too large unmeasured.
TILES = (
    Choice(128, 256, 8, 3, 64),
    Choice(128, 128, 8, 3, 64),
    Choice(256, 128, 8, 3, 64),
    Choice(128, 128, 4, 4, 64),
    Choice(128, 256, 8, 4, 64),
    Choice(256, 128, 8, 4, 64),
    Choice(64, 128, 4, 4, 64),
    Choice(128, 64, 4, 4, 64),
    Choice(64, 64, 4, 4, 64),
    Choice(32, 64, 4, 5, 128),
    Choice(64, 32, 4, 5, 64),
    Choice(16, 64, 4, 5, 128),
    Choice(32, 32, 4, 4, 64),
    Choice(16, 16, 2, 3, 32),
)


@dataclass(frozen=True, slots=True)
class Parts:
    """The nest of a product taken apart: its loops, what names positions before the total, the two operands with the
    values that they are computed from, and what is done with the total.
    """

    row: Loop
    column: Loop
    inner: Loop
    names: Sequence[Statement]
    lets: Sequence[Let]
    left: Value
    right: Value
    rest: Sequence[Statement]


def parts_of(kernel: Kernel) -> Parts:
    """Takes the kernel apart; raises Unsupported for one that is not as :class:`framefuse.ir.loops.Product` says."""
    product = kernel.product
    assert product is not None
    (row,) = kernel.body
    assert isinstance(row, Loop) and row.axis is product.row
    *names, column = row.body
    assert isinstance(column, Loop) and column.axis is product.column
    place = next(n for n, s in enumerate(column.body) if isinstance(s, Accumulator) and s.name == product.total)
    inner = column.body[place + 1]
    assert isinstance(inner, Loop) and inner.axis is product.inner
    *lets, added = inner.body
    match added:
        case Accumulate(_, Apply("mul", (first, second), _), None):
            left, right = _operand(first), _operand(second)
        case _:
            raise Unsupported("a product of other terms")
    if left.dtype is not right.dtype or left.dtype.name not in OPERANDS:
        raise Unsupported(f"a product of {left.dtype.name} and {right.dtype.name}")
    known = [statement for statement in lets if isinstance(statement, Let)]
    if len(known) < len(lets):
        raise Unsupported("a product with more than values in its loop")
    return Parts(row, column, inner, (*names, *column.body[:place]), known, left, right, column.body[place + 2 :])


def _operand(value: Value) -> Value:
    """The value that is multiplied, before it is widened for the sum."""
    match value:
        case Apply("cast", (narrow,), _) if narrow.dtype.is_float and narrow.dtype.size == 2:
            return narrow
    return value


def _needed(value: Value, lets: Sequence[Let]) -> list[Let]:
    """The statements that name what a value is computed from, in order."""
    wanted, needed = _names(value), list[Let]()
    for let in reversed(lets):
        if let.name in wanted:
            wanted |= _names(let.value)
            needed.insert(0, let)
    return needed


def _names(value: Value) -> set[str]:
    names: set[str] = set()
    for part in values_of((Let("", value),)):
        match part:
            case Local(name, _):
                names.add(name)
            case Load(_, index, _, _) | Index(index, _):
                names |= {symbol.name for symbol in index.symbols}
    return names


def choices(kernel: Kernel, hints: Mapping[Symbol, int]) -> tuple[Choice, ...]:
    """The tiles that are worth measuring, the likeliest first."""
    parts = parts_of(kernel)
    sizes = [max(LEAST, power(estimate(loop.extent, hints))) for loop in (parts.row, parts.column, parts.inner)]
    whole = 4 // parts.left.dtype.size
    tiles = [
        choice
        for choice in TILES
        if choice.points <= 2 * sizes[0] and choice.width <= 2 * sizes[1] and choice.inner <= 2 * sizes[2]
        and (whole > 1 or choice.stages * choice.inner * (choice.points + choice.width) <= 48 * 1024)
    ]  # fmt: skip
    tiles = [choice for choice in tiles if _tiles(choice, sizes) <= MANY] or tiles
    busy = [choice for choice in tiles if _tiles(choice, sizes) >= FEW] or tiles[-1:]
    return tuple(dict.fromkeys([*busy[:1], *tiles]))


def _tiles(choice: Choice, sizes: Sequence[int]) -> int:
    return -(-sizes[0] // choice.points) * -(-sizes[1] // choice.width)


def emit_product(kernel: Kernel, special: Specialisation) -> Module:
    """The module of a product, as :func:`framefuse.codegen.triton.emitter.emit` makes that of other kernels."""
    hints, nest = special.hints, optimised(kernel)
    kernel = nest.kernel
    parts, integers = parts_of(kernel), width(kernel, hints, special.guarded)
    choice = special.choice or choices(kernel, hints)[0]
    sizes = (choice.points, choice.width, choice.inner)
    blocks = Blocks(1, 2, {}, choice.warps, sizes, stages=choice.stages, form="product")
    name = function_name(kernel.title)
    constants = (*((f"BLOCK{place}", size) for place, size in enumerate(sizes)), ("GROUP", GROUP))
    terms = parts.inner.extent
    even = estimate(terms, hints) % choice.inner == 0
    strides = _strides(kernel, parts)
    steps = [n.symbol for n in kernel.numbers if n.symbol in strides and hints.get(n.symbol, 0) % STEP == 0]
    steps = [symbol for symbol in steps if hints.get(symbol, 0) > 0] if special.aligned else []
    # Sizes that were not recorded are multiplied without overlap: that half of the code is seldom run, and short.
    general = _Body(nest, parts, blocks, integers, terms.constant is not None and even, overlap=not steps)
    if not steps:
        functions = [general.function(name, constants)]
    else:
        fast = _Body(nest, parts, blocks, integers, even)
        names = fast.names
        tests = [f"({names[symbol]} % {STEP} == 0)" for symbol in steps]
        if even and terms.constant is None:
            whole = terms.substitute({symbol: Symbol(text).expr for symbol, text in names.items()})
            tests.append(f"(({whole}) % BLOCK2 == 0)")
        call = [*fast.parameters, *(constant for constant, _ in constants)]
        whole_names = {names[symbol] for symbol in steps}
        seen = [f"{part} // {STEP} * {STEP}" if part in whole_names else part for part in call]
        lines = [
            f"    if {' & '.join(tests)}:",
            f"        even({', '.join(seen)})",
            "    else:",
            f"        work({', '.join(call)})",
        ]
        functions = [
            fast.function("even", constants), general.function("work", constants),
            general.function(name, constants, lines),
        ]  # fmt: skip
    text = "\n\n".join([IMPORTS, *functions])
    programs = ceildiv(parts.row.extent, sizes[0]) * ceildiv(parts.column.extent, sizes[1])
    checks = "tl.device_assert(" in text
    return Module(
        text, name, blocks, integers, tuple(general.parameters), constants, checks, programs, choice.stages
    )


def _strides(kernel: Kernel, parts: Parts) -> set[Symbol]:
    """The numbers that decide where lines of memory begin and how long they are: all but those of the rows alone."""
    symbols = {*parts.column.extent.symbols, *parts.inner.extent.symbols}
    for value in values_of(kernel.body):
        if isinstance(value, (Load, Index)):
            symbols |= value.index.symbols
    for statement in parts.rest:
        if isinstance(statement, Store):
            symbols |= statement.index.symbols
    return symbols


class _Body:
    """The lines of one function; ``even``: a turn of the inner loop is always whole; ``overlap``: turns load what later
    ones multiply.
    """

    def __init__(
        self, nest: Optimised, parts: Parts, blocks: Blocks, integers: Width, even: bool, overlap: bool = True
    ) -> None:
        kernel = nest.kernel
        self.nest, self.parts, self.blocks = nest, parts, blocks
        self.even, self.integer, self.overlap = even, integers.integer, overlap
        b = self.b = Builder()
        b.taken |= {"even", "work", "BLOCK0", "BLOCK1", "BLOCK2", "GROUP"}
        values = self.values = Values(b, nest, integers.integer, 2, blocks.shape)
        for buffer in kernel.buffers:
            values.buffers[buffer.name] = b.fresh(buffer.name)
        symbols = values.indices.symbols
        for number in kernel.numbers:
            symbols[number.symbol] = Tile(b.fresh(number.symbol.name), FLOAT64 if number.real else INT64)
        self.names = {number.symbol: symbols[number.symbol].text for number in kernel.numbers}
        self.parameters = [*values.buffers.values(), *self.names.values()]
        self._place(blocks)
        loops = Loops(b, values, blocks)
        loops.open = frozenset((0, 1))
        for statement in parts.names:
            loops.statement(statement)
        assert kernel.product is not None
        total = self._multiply(kernel.product.total)
        values.locals[kernel.product.total] = Tile(total, FLOAT32, frozenset((0, 1)))
        for statement in parts.rest:
            loops.statement(statement)

    def function(
        self, name: str, constants: Sequence[tuple[str, int]], lines: Sequence[str] | None = None
    ) -> str:
        signature = ", ".join([*self.parameters, *(f"{constant}: tl.constexpr" for constant, _ in constants)])
        return f"@triton.jit\ndef {name}({signature}):\n" + "\n".join(self.b.lines if lines is None else lines) + "\n"

    def _place(self, blocks: Blocks) -> None:
        """The rows and columns of this program's tile, by groups of tiles that lie under each other."""
        b, indices = self.b, self.values.indices
        wide = "" if self.integer == "tl.int32" else f".to({self.integer})"
        rows, columns = (indices.index(loop.extent).text for loop in (self.parts.row, self.parts.column))
        program = b.named(f"tl.program_id(0){wide}", "program")
        high = b.named(f"({rows} + BLOCK0 - 1) // BLOCK0", "high")
        across = b.named(f"({columns} + BLOCK1 - 1) // BLOCK1", "across")
        first = b.named(f"{program} // (GROUP * {across}) * GROUP", "first")
        lines = b.named(f"tl.minimum({high} - {first}, GROUP)", "lines")
        rest = b.named(f"{program} % (GROUP * {across})", "rest")
        places = f"{first} + {rest} % {lines}", f"{rest} // {lines}"
        for place, (loop, end) in enumerate(((self.parts.row, rows), (self.parts.column, columns))):
            side = "[:, None]" if place == 0 else "[None, :]"
            name = b.named(f"({places[place]}) * BLOCK{place} + tl.arange(0, BLOCK{place}){side}", "xy"[place])
            indices.symbols[loop.axis] = Tile(name, INT64, frozenset((place,)))
            constant = loop.extent.constant
            if constant is None or constant % blocks.shape[place]:
                mask = b.named(f"{name} < {end}", "inside")
                self.values.masks[place] = Tile(mask, BOOL, frozenset((place,)))

    def _multiply(self, wanted: str) -> str:
        """The loop over the terms; the name of the total."""
        b, parts = self.b, self.parts
        total, end = b.fresh(wanted), self.values.indices.index(parts.inner.extent).text
        b.line(f"{total} = tl.full((BLOCK0, BLOCK1), 0.0, tl.float32)")
        start = b.fresh("start")
        turns = f"range(0, {end}, BLOCK2)" if self.overlap else f"tl.range(0, {end}, BLOCK2, num_stages=1)"
        with b.loop(f"for {start} in {turns}:"):
            left = self._operand(parts.left, start, end, 1)
            right = self._operand(parts.right, start, end, 0)
            exact = ', input_precision="ieee"' if parts.left.dtype is FLOAT32 else ""
            b.line(f"{total} = tl.dot({left}, {right}, {total}{exact})")
        return total

    def _operand(self, value: Value, start: str, end: str, place: int) -> str:
        """A tile of one operand, whose dimension ``place`` is that of the terms; 0 beyond their end."""
        b = self.b
        side = Values(b, self.nest, self.integer, 2, self.values.shape)
        side.sides[place] = "BLOCK2"
        side.buffers, side.locals = self.values.buffers, dict(self.values.locals)
        side.positions, side.indices.symbols = set(self.values.positions), dict(self.values.indices.symbols)
        terms = f"{start} + tl.arange(0, BLOCK2){'[:, None]' if place == 0 else '[None, :]'}"
        name = b.named(terms if self.integer == "tl.int32" else f"({terms}).to({self.integer})", "t")
        side.indices.symbols[self.parts.inner.axis] = Tile(name, INT64, frozenset((place,)))
        side.masks = {at: mask for at, mask in self.values.masks.items() if at != place}
        if not self.even:
            side.masks[place] = Tile(b.named(f"{name} < {end}", "inside"), BOOL, frozenset((place,)))
        loops = Loops(b, side, self.blocks)
        for let in _needed(value, self.parts.lets):
            loops.statement(let)
        tile = side.value(value, "a" if place == 1 else "c")
        text = tile.typed
        if tile.axes != frozenset((0, 1)):
            text = b.named(f"tl.broadcast_to({text}, {', '.join(side.sides)})", "w0")
        if not self.even and not isinstance(value, Load):
            zero = f"tl.full((), 0.0, {TYPES[tile.dtype.name]})"
            text = b.named(f"tl.where({side.masks[place].text}, {text}, {zero})", "w0")
        return text
