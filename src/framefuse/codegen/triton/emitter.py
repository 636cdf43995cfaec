"""Turns a Kernel into the text of one Triton module with one function."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from framefuse.codegen.optimise import Optimised, optimised
from framefuse.codegen.specialisation import Specialisation
from framefuse.codegen.triton.blocks import Blocks, choose
from framefuse.codegen.triton.builder import Builder, Tile
from framefuse.codegen.triton.divisors import known_divisors
from framefuse.codegen.triton.full_tiles import STEP, End, end_of
from framefuse.codegen.triton.loops import Loops
from framefuse.codegen.triton.odd_rows import odd_rows
from framefuse.codegen.triton.side_by_side import NONE, Runs, runs_of
from framefuse.codegen.triton.values import Values
from framefuse.codegen.triton.widths import Width, width
from framefuse.codegen.triton.window_places import known_sizes, windows_of
from framefuse.ir.code import Fit
from framefuse.ir.dtypes import FLOAT64, INT64
from framefuse.ir.loops import Index, Kernel, Let, Load, Loop, LoopKind
from framefuse.ir.loops.once import once
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.loops.walk import statements, values_of
from framefuse.ir.numbers import Expr, Floordiv, Maximum, Minimum, Symbol, expr

UNEVEN = 8  # elements between those that neighbours read, up to which they share what memory moves at once
WINDOW = 3  # places of one buffer from which they are a window
TURNS = 4  # of a loop over a row of unknown length where the row fits one turn
IMPORTS = """import triton
import triton.language as tl
from triton.language.extra import libdevice

from framefuse.codegen.triton import device, maths
"""


@dataclass(frozen=True, slots=True)
class Module:
    """The text of a module without its heading, the function's ``name``, how it is cut into blocks, and ``constants``,
    the values of the parameters of the function that are known when it is compiled. ``programs``, over the kernel's
    numbers, is the grid where it is not that of one axis; ``stages`` overlap loads with products. It is right for
    numbers that pass all of ``fits``. ``single`` code moves single elements, whatever memory could move at once.
    """

    text: str
    name: str
    blocks: Blocks
    width: Width
    parameters: tuple[str, ...]
    constants: tuple[tuple[str, int], ...]
    checks: bool
    programs: Expr | None = None
    stages: int | None = None
    fits: tuple[Fit, ...] = ()
    single: bool = False

    def heading(self, kernel: Kernel) -> str:
        """The user's lines and the loop nest that this is the code of, as comments."""
        return "".join(f"# {line}".rstrip() + "\n" for line in kernel_text(kernel).splitlines()) + "\n"


def emit(kernel: Kernel, special: Specialisation) -> Module:
    """The module of ``kernel``: a function of its buffers, then its numbers in order, for a grid of
    ``ceil(extent / points)`` programs.

    What is bound by memory is written twice where sizes are numbers: for sizes like the recorded ones (multiples of 2,
    4, 8 or 16, so that memory is seen to move by vectors; rows that fit a tile), and for any. Fitted code is for the
    former only, so that less is to be compiled. Raises Unsupported.
    """
    hints, fitted, nest = special.hints, special.fitted, optimised(kernel)
    kernel = nest.kernel
    blocks, integers = choose(kernel, hints, special.choice, fitted), width(kernel, hints, special.guarded)
    if not blocks.simple and not fitted:
        blocks = replace(blocks, held=())  # long code, which arithmetic bounds, is not written twice
    steady = blocks.steady if fitted else frozenset()
    tile = blocks.form == "tile"
    single = slides(kernel, hints, runs_of(kernel) if tile else NONE) or (tile and _divides(kernel))
    rows = odd_rows(kernel, blocks, hints) if special.aligned and not single else {}
    work, name = _body(nest, blocks, integers, steady, rows), function_name(kernel.title)
    constants = tuple((f"BLOCK{place}", size) for place, size in enumerate(blocks.shape))
    numbers = {n.symbol: _step(hints.get(n.symbol, 0)) for n in kernel.numbers if n.symbol in integers.numbers}
    steps = special.aligned and not single and (blocks.simple or fitted)
    whole = {n: step for n, step in numbers.items() if step > 1 and steps and work.reads(work.names[n])}
    whole |= {number: max(blocks.points, whole.get(number, 1)) for number in sorted(steady, key=lambda n: n.name)}
    known = {number: blocks.points for number in steady if hints[number] == blocks.points}
    if fitted:
        known |= {**known_divisors(kernel, blocks, hints), **known_sizes(kernel, blocks, hints)}
    fits: tuple[Fit, ...] = ()
    end = None
    if special.aligned and not single and blocks.simple and not blocks.held:
        end = end_of(kernel, blocks, work.names, work.words, integers.integer, hints)
    if not whole and not known and not blocks.held:
        functions = [work.function(name, constants)]
        if end is not None:
            likely = _Likely(work, blocks, {end.number: STEP}, None, end=end)
            functions = [work.function("work", constants), work.function(name, constants, likely.first("work"))]
    else:
        row = _body(nest, blocks.holding, integers, steady) if blocks.held else work
        likely = _Likely(work, blocks, whole, work.filled(blocks, hints), known, end)
        functions = [work.function("work", constants)] if row is work or not fitted else []
        if row is not work:
            functions.insert(0, row.function("row", constants))
        if fitted:
            fits, lines = likely.fits(), likely.only("work" if row is work else "row")
        else:
            lines = likely.first("work" if row is work else "row")
        functions.append(work.function(name, constants, lines))
    text = "\n\n".join([IMPORTS, *functions])
    checks = "tl.device_assert(" in text
    return Module(text, name, blocks, integers, tuple(work.parameters), constants, checks, fits=fits, single=single)


@dataclass(frozen=True, slots=True)
class _Likely:
    """What numbers like the recorded ones are: multiples of what ``whole`` says, and the vector loops that are held fit
    their blocks. One of them that is ``filled`` (its number and the constant of its block) is known: rows are one whole
    tile, without a mask. Others are ``known`` as well, those by which each element divides among them. Where all of a
    program's elements lie before an ``end``, it is taken for a multiple as well.
    """

    work: _Body
    blocks: Blocks
    whole: Mapping[Symbol, int]
    filled: tuple[Symbol, str] | None
    known: Mapping[Symbol, int] = field(default_factory=dict)
    end: End | None = None

    def fits(self) -> tuple[Fit, ...]:
        """What a launch of code for such numbers alone must check."""
        known = {number: Fit(number.expr, low=value, high=value) for number, value in self.known.items()}
        if self.filled is not None:
            number, constant = self.filled
            size = self.blocks.shape[int(constant.removeprefix("BLOCK"))]
            known[number] = Fit(number.expr, low=size, high=size)
        fits = [*known.values(), *(Fit(n.expr, step) for n, step in self.whole.items() if n not in known)]
        if self.filled is None:
            fits += (Fit(loop.extent, high=self.blocks.loops[id(loop)].block) for loop in self.blocks.held)
        return tuple(dict.fromkeys(fits))

    def only(self, function: str) -> list[str]:
        """Calls the ``function`` for such numbers."""
        return [f"    {function}({', '.join(self._arguments(full=True, stepped=True))})"]

    def first(self, function: str) -> list[str]:
        """Calls the ``function`` for such numbers where they are, else ``work``."""
        names = self.work.names
        tests = [self._is_multiple(number, step) for number, step in self.whole.items()]
        tests += self.work.fits(self.blocks)
        lines = []
        if self.filled is not None:
            number, constant = self.filled
            lines += [
                f"    if {names[number]} == {constant}:",
                f"        row({', '.join(self._arguments(full=True, stepped=False))})",
            ]
        call = self._arguments(full=False, stepped=False)
        if self.blocks.may_shrink:  # turns move single elements: fewer of them need fewer registers
            call[-1] = f"{call[-1]} // {TURNS}"
        return [
            *lines,
            f"    {'elif' if lines else 'if'} {' & '.join(tests)}:",
            f"        {function}({', '.join(self._arguments(full=False, stepped=True))})",
            "    else:",
            f"        work({', '.join(call)})",
        ]

    def _is_multiple(self, number: Symbol, step: int) -> str:
        test = f"({self.work.names[number]} % {step} == 0)"
        return f"({test} | {self.end.test})" if self.end is not None and self.end.number is number else test

    def _arguments(self, full: bool, stepped: bool) -> list[str]:
        """The arguments of a function for any numbers (neither), for rows that are one whole tile, for multiples."""
        names = self.work.names
        known = {names[n]: f"{names[n]} // {step} * {step}" for n, step in self.whole.items()} if stepped else {}
        for number, value in self.known.items() if stepped else ():
            known[names[number]] = f"{names[number]} * 0 + {value}"
        if full and self.filled is not None:
            name = self.work.names[self.filled[0]]
            known[name] = f"{name} * 0 + {self.filled[1]}"  # of the number's type
        constants = (f"BLOCK{place}" for place in range(len(self.blocks.shape)))
        return [*(known.get(part, part) for part in self.work.parameters), *constants]


@dataclass(frozen=True, slots=True)
class _Body:
    """The lines of a function, its parameters in order, and what the kernel's numbers are called in it."""

    parameters: Sequence[str]
    names: Mapping[Symbol, str]
    lines: Sequence[str]
    words: Counter[str]  # of the lines

    def fits(self, blocks: Blocks) -> list[str]:
        """What says that one turn is enough for the loops that may be held."""
        names = {number: Symbol(name).expr for number, name in self.names.items()}
        tests = (f"({loop.extent.substitute(names)} <= {blocks.loops[id(loop)].block})" for loop in blocks.held)
        return list(dict.fromkeys(tests))

    def filled(self, blocks: Blocks, hints: Mapping[Symbol, int]) -> tuple[Symbol, str] | None:
        """The number that is the length of every loop that may be held, and the constant of the block that it fills at
        the recorded sizes.
        """
        lengths = {loop.extent for loop in blocks.held}
        places = {blocks.loops[id(loop)].place for loop in blocks.held}
        if len(lengths) != 1 or len(places) != 1:
            return None
        (length,), (place,) = lengths, places
        number = next((symbol for symbol in self.names if symbol.expr is length), None)
        if number is None or hints.get(number) != blocks.shape[place]:
            return None
        return number, f"BLOCK{place}"

    def reads(self, name: str) -> bool:
        return name in self.words

    def function(self, name: str, constants: Sequence[tuple[str, int]], lines: Sequence[str] | None = None) -> str:
        signature = ", ".join([*self.parameters, *(f"{constant}: tl.constexpr" for constant, _ in constants)])
        body = "\n".join((self.lines if lines is None else lines) or ["    pass"])
        return f"@triton.jit\ndef {name}({signature}):\n{body}\n"


def _body(
    nest: Optimised, blocks: Blocks, integers: Width, steady: frozenset[Symbol], rows: Mapping[int, Expr] | None = None
) -> _Body:
    """The body of a kernel in these blocks, made once: other sizes change the steps of its numbers."""
    kernel, rows = nest.kernel, rows or {}
    shape = blocks.rank, blocks.shape, blocks.form, blocks.stages, tuple(blocks.loops.items())
    key = shape, integers.integer, integers.clamped, steady, tuple(rows.items())
    made: dict[Hashable, _Body] = kernel.known.setdefault("triton bodies", {})
    if key not in made:
        made[key] = _written(nest, blocks, integers, steady, rows)
    return made[key]


def _written(
    nest: Optimised, blocks: Blocks, integers: Width, steady: frozenset[Symbol], rows: Mapping[int, Expr]
) -> _Body:
    kernel = nest.kernel
    b = Builder()
    b.taken |= {"row", "work", *(f"BLOCK{place}" for place in range(blocks.rank))}
    values = Values(b, nest, integers.integer, blocks.rank, blocks.shape)
    values.windows, values.clamped = windows_of(kernel), integers.clamped
    values.runs = runs_of(kernel) if blocks.form == "tile" else NONE
    for buffer in kernel.buffers:
        values.buffers[buffer.name] = b.fresh(buffer.name)
    for number in kernel.numbers:
        dtype = FLOAT64 if number.real else INT64
        values.indices.symbols[number.symbol] = Tile(b.fresh(number.symbol.name), dtype)
    names = {number.symbol: values.indices.symbols[number.symbol].text for number in kernel.numbers}
    Loops(b, values, blocks, nest, steady, rows).statements(kernel.body)
    words = Counter(re.findall(r"\w+", "\n".join(b.lines)))
    return _Body([*values.buffers.values(), *names.values()], names, b.lines, words)


def slides(kernel: Kernel, hints: Mapping[Symbol, int], runs: Runs = NONE) -> bool:
    """Whether a buffer is read at neighbouring places, as a window over it is, or by the points of a tile at every
    second to eighth place, backwards, or at places that turn. Triton gives all of a program's accesses the layout of
    the widest one, in which those that are not aligned read every fourth element. ``runs`` are moved whole. What does
    not vary along the other side of a tile, as the weights of channels, is few elements.
    """
    if _looks_up(kernel):
        return True
    known = {number.symbol: hints.get(number.symbol, 0) for number in kernel.numbers if not number.real}
    lanes = {loop.axis for loop in statements(kernel.body) if isinstance(loop, Loop) and _is_innermost(loop)}
    whole = _other_sides(kernel)
    distances: dict[tuple[str, Expr], set[int]] = {}
    for value in values_of(kernel.body):
        if isinstance(value, Load) and whole <= value.index.symbols and (value.buffer, value.index) not in runs.loads:
            if any(_is_uneven(value.index, lane) for lane in lanes & value.index.symbols):
                return True
            fixed = expr(0)
            for term in value.index.terms:
                fixed = fixed + Expr((term,)) if Expr((term,)).symbols <= known.keys() else fixed
            moving = value.buffer, value.index - fixed
            distances.setdefault(moving, set()).add(fixed.evaluate(known) * value.dtype.size)
    return any(len(places) >= WINDOW and len({at % STEP for at in places}) > 1 for places in distances.values())


@once
def _looks_up(kernel: Kernel) -> bool:
    """Whether many elements of a buffer are read at places that are computed along a lane, as interpolation reads."""
    inner = [s for loop in statements(kernel.body) if isinstance(loop, Loop) and _is_innermost(loop) for s in loop.body]
    places = {Symbol(s.name) for s in inner if isinstance(s, Let) and not isinstance(s.value, (Index, Load))}
    loads = {value for value in values_of(inner) if isinstance(value, Load) and places & value.index.symbols}
    return max(Counter(load.buffer for load in loads).values(), default=0) >= WINDOW


@once
def _other_sides(kernel: Kernel) -> set[Symbol]:
    """The axes around the innermost loops of a tile; none where positions are found from them first."""
    sides = {
        loop.axis
        for loop in statements(kernel.body)
        if isinstance(loop, Loop) and loop.kind is LoopKind.VECTOR and not _is_innermost(loop)
    }
    found = (s.value.index for s in statements(kernel.body) if isinstance(s, Let) and isinstance(s.value, Index))
    return set() if any(sides & index.symbols for index in found) else sides


@once
def _divides(kernel: Kernel) -> bool:
    """Whether the points of a tile find what they read by a division for each."""
    inner = [s for loop in statements(kernel.body) if isinstance(loop, Loop) and _is_innermost(loop) for s in loop.body]
    found = (s.value.index for s in inner if isinstance(s, Let) and isinstance(s.value, Index))
    return any(isinstance(atom, Floordiv) for index in found for atoms, _ in index.terms for atom in atoms)


def _is_innermost(loop: Loop) -> bool:
    return loop.kind is LoopKind.VECTOR and not any(isinstance(inner, Loop) for inner in loop.body)


def _is_uneven(index: Expr, lane: Symbol) -> bool:
    """Whether what is read along a lane is near, and not one after the other."""
    step = index.coefficient(lane)
    if step is None:
        atoms = [atom for atoms, _ in index.terms for atom in atoms if lane in atom.symbols]
        return any(isinstance(atom, (Minimum, Maximum)) for atom in atoms)
    return step.constant is not None and (1 < step.constant <= UNEVEN or -UNEVEN <= step.constant < 0)


def _step(size: int) -> int:
    """The power of two that divides a recorded size, as far as a vector of any dtype needs it."""
    return math.gcd(size, STEP) if size > 0 else 1


def function_name(title: str) -> str:
    """What a profiler shows."""
    return "framefuse_" + re.sub(r"\W+", "_", title)
