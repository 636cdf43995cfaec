"""Chooses how a loop nest becomes tiles: which loops are their dimensions, the points of each, and the warps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from framefuse.codegen.specialisation import Choice
from framefuse.codegen.triton.estimates import estimate, power, upper
from framefuse.codegen.triton.row_reads import (
    VECTOR,
    are_aligned,
    are_narrow,
    are_odd,
    are_read_again,
    are_wide,
    crosses,
    is_across,
    lanes,
    loads_of,
    repays,
    shows_neighbours,
    steady_numbers,
    steps_with,
    stores,
)
from framefuse.codegen.triton.side_by_side import runs_of
from framefuse.codegen.triton.target import first_of_equals
from framefuse.ir.loops import Accumulator, Apply, Kernel, Load, Loop, LoopKind, Statement
from framefuse.ir.loops.once import once
from framefuse.ir.loops.walk import statements, values_of
from framefuse.ir.numbers import Expr, Symbol
from framefuse.ir.ops import TABLE

WARP = 32
# Programs from which on a GPU is busy, and the elements that one takes when there are enough.
BUSY, TILE = 512, 2048
# A row up to this many elements is held as one tile (at 16 warps: 32 registers a value), a longer one goes in turns of
# so many, by so many warps: of 1024 rows of 65,535 elements (H200, eager's time over ours) sums of float32, bfloat16
# and int64 take 1.01, 0.90 and 1.01, by 8 warps 0.89, 0.72 and 0.89, with turns of 8192 by 16 1.01, 0.69 and 0.71.
ROW, TURN = 16384, (4096, 16)
# The same of turns that look for a position (1.09, 1.31 and 1.08; by 16 warps 1.08, 1.10 and 1.04), and of squared
# distances from the mean (float32 and bfloat16 1.09 and 1.25, with turns of 4096 1.02 and 1.12).
TURN_PLACED, TURN_SQUARES = (4096, 8), (2048, 8)
# Elements of a row that one turn of a scan takes, 8 for each thread, and 16 of one row where rows do not begin where
# whole vectors do (H200, cumsum of 1024 rows of 65,535 float32: 0.31 ms by turns of 2048 and 16 warps, 0.17 by these;
# of 65,535 rows of 1023 bfloat16 0.17 by two rows a program, 0.10).
SCANNED = 1024
# Points along memory and elements of a turn of a scan across it, 16 for each thread, where neighbours show and where
# not (H200, cumsum over the first axis of 1024 x 65,536 float32: 0.28 ms by 64 points of 32 rows and 8 warps, 0.14 by
# these; over the middle of 255 x 1023 x 257 float32 and bfloat16 0.54 and 0.48, 0.24 and 0.16).
SCANNED_ACROSS, SCANNED_APART = (32, 1024), (128, 2048)
# Points along memory, and turns' rows, where a reduction runs across it; the stages in which its turns overlap, and the
# bytes of shared memory that the elements under way may take.
ACROSS = 64, 32
# Rows of a turn where turns do not overlap and columns are few, or not seen to be neighbours (H100, float32 over the
# middle: 255 x 1023 x 257 0.100 ms, with 32 rows by four warps 0.102, with 16 of 128 columns 0.197; 16 x 4096 x 4095
# 0.407, 0.418 and 0.566), and the elements of a thread where columns fill a tile: 32 rows by 8 warps (H200, over the
# first axis of 1024 x 256 x 256, eager's time over ours: float32 1.16, 64 rows by 8 warps 0.95, bfloat16 1.33 and
# 1.08; over the middle of 255 x 1023 x 257, where that is not seen, 0.89 and 1.0).
ACROSS_APART, ALONE_APART = 64, 8
# Columns so short that are read more than once are held as one tile (H100, 32 x 64 x 256 x 256 float32 by the norm of
# its channels: 0.37 ms, in turns of 32 rows 0.40; 134 M elements, softmax of 128 rows 0.39 and 0.53, layer norm of 128
# channels 0.38 and 0.54), and the warps of the longer ones.
ACROSS_HELD, HELD_FROM, HELD_WARPS = 128, 64, 8
# Columns of a program whose threads hold a column each, and rows and long operations (LONG) up to which they do: no sum
# passes threads then (H100, 134 M elements; before and by these: softmax of 32 rows 0.66 and 0.39 ms, of 64 in bfloat16
# 0.38 and 0.22, logsumexp of 32 0.66 and 0.22, of 64 behind tanh 0.36 and 0.27; but 64 rows of gelu by their norm,
# which are written, 0.39 and 0.47, a softmax of 64 behind three activations 0.85 and 2.0, of 128 0.53 and 5.0).
BY_COLUMN, SHORT_COLUMN, COLUMN_WORK = 128, (32, 64), 0.4
# Points where so many columns are not seen to be neighbours, and one operand of 4 bytes is read (H100, sum over the
# middle of 32 x 4096 x 4095 float32: 0.74 ms, by 64 columns 0.81, by 128 0.77; eager 0.78 to 0.81).
ACROSS_LONG, LONG_FROM = 256, 2048
# The same of elements of 8 bytes in columns that fill a tile (H100, sums of int64 over the first axis of
# 1024 x 256 x 256 and over the middle of 256 x 1024 x 256: 0.187 and 0.189 ms, with 64 columns in turns of 32 0.210).
ACROSS_WIDE = 32, 64
# Points, rows of a turn, warps and stages where a reduction across memory reads one operand by whole vectors at the
# recorded sizes, without and with positions (H100, 256 x 256 x 256 over the first axis: sum of float32 0.0378 ms by
# ACROSS and 8 warps, 0.0356 by these; largest elements with their positions, float32 and int64, 0.0463 and 0.0673,
# 0.0368 and 0.0578; any 0.0168, 0.0158; over the middle of 264 x 248 x 248 0.0424, 0.0475 and 0.0172, then 0.0379,
# 0.0380 and 0.0157).
ACROSS_PLAIN, ACROSS_PLACED = (64, 32, 4, 3), (128, 16, 4, 3)
# Turns and warps of a row that is only reduced, of narrow elements or to positions, where rows do not begin where
# vectors do (H100, 256 rows of 65,535 in chunks: sum of bfloat16 0.0261 ms, with a chunk as one tile, 0.0213 by these,
# any 0.0188 and 0.0157, positions of float32 and bfloat16 0.0395 and 0.0310, 0.0379 and 0.0245; but any and var of
# bfloat16 of 8192 x 8192 0.0396 and 0.0627 by these, 0.0341 and 0.0569).
REDUCED_NARROW = 1024, 4
# Elements of a thread in a row that is only reduced, from so many on (H200, sums of 67 M elements in rows of 8192 by 8
# and by 16 warps: bfloat16 0.88 and 0.79 of eager's speed, float32 1.11 and 1.09), and that looks for a position.
REDUCED, REDUCED_FROM = 16, (8192, 4096)
# Turns and warps of a row that is only reduced, by long code: as many elements a thread as registers hold (H100, the
# Kullback-Leibler divergence of two softmaxes of 8192 x 8192 float32, in chunks of 8192: 0.24 ms, with all of a chunk
# as one tile 0.44).
REDUCED_LONG, REDUCED_WORK = (1024, 4), 0.3
# A row in turns that is read more than once: all threads of a multiprocessor, so that few rows are under way and stay
# in the second-level cache (4096 rows of 65,535 float32 by their norm, H100: 1.03 ms, by 16 warps 1.38, with turns of
# 16384 1.23).
AGAIN = 8192, 32
# The same of 16-bit rows that do not begin where whole vectors do, while all that are under way fit that cache so too,
# four to a multiprocessor (H100, log_softmax of 256 x 65,535 bfloat16: 0.047 ms by AGAIN, 0.036 by these; of 512 x
# 50,257 0.072 and 0.062).
AGAIN_NARROW, UNDER_WAY_NARROW, ROWS_NARROW = (4096, 16), 56 << 20, 4 * 132
# The same, and the stages in which turns overlap, of rows that leave that cache and do not begin where whole vectors do
# (H100, softmax of 1024 rows of 131,073 float32: 0.60 ms, by turns of 8192 and 32 warps 0.80; of 4096 rows of 393,216
# these are as fast).
AGAIN_APART, APART_FROM = (2048, 8, 3), 1 << 17
STAGES, UNDER_WAY = 3, 48 << 10
PAIRS = frozenset(("argmax", "argmin", "squares"))  # accumulators of two values
# Such rows of short code are faster with fewer warps than elements would fill, since less is said between warps.
FEW, FEW_FROM, FEW_TO = 4, 2048, 4096
# Elements of a thread by the long operations on one (nanoseconds of a CPU, the table's costs, from LONG on): code is
# written out for each, so that many of them compile slowly and spill registers.
LONG = 0.2
# Functions whose reduction of large angles is long code, and the bytes of the floats for which it counts.
ANGLES = {"sin": (8,), "cos": (8,), "tan": (4, 8)}
# From so many loads with masks of their own on, a thread takes so few elements, and so few of a tile with two sides: it
# has seven registers for masks, and max_pool3d(3, 2, 1) with 27 masks of eight elements each took 120 instructions for
# each load on an H100. max_pool2d(3, 2, 1) with its gradient takes 1.5 times as long with 2 as with 4 (H200).
MASKED = 8, 2, 4
A_THREAD = ((1.5, 8), (4.0, 4), (1e9, 2))


@dataclass(frozen=True, slots=True)
class Dimension:
    """How one loop is a dimension of the tile: its place among them, points at once, whether that is surely all."""

    place: int
    block: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Blocks:
    """``points`` of the parallel axis that one program takes, the dimensions of the ``rank``-dimensional tile by the
    loop (its identity) that they stand for, and ``warps``. A parallel loop that is no dimension has no entry.
    ``simple`` work is bound by memory, and its code is short. ``held`` are the vector loops of unknown extent that one
    turn of their block is enough for at the recorded sizes; turns overlap in ``stages``. ``form`` says which of the
    ways to cut a nest this is, and ``longest`` the recorded length of a vector loop. The points of a program are in one
    turn of each of the ``steady`` numbers, by which the parallel axis is divided, where these are multiples of them, as
    recorded: quotients are one number then, and rests are neighbours. ``by_column``: a thread holds all of a column.
    """

    points: int
    rank: int
    loops: Mapping[int, Dimension]
    warps: int
    shape: tuple[int, ...]
    simple: bool = True
    held: tuple[Loop, ...] = ()
    stages: int = 1
    form: str = "scalar"  # "points", "rows", "across" (rows whose elements lie apart) or "tile"
    longest: int = 0
    steady: frozenset[Symbol] = frozenset()
    by_column: bool = False

    @property
    def choice(self) -> Choice:
        """What was chosen, to be chosen again."""
        width = math.prod(self.shape) // self.points if self.form in ("rows", "across") else 0
        return Choice(self.points, width, self.warps, self.stages)

    @property
    def may_shrink(self) -> bool:
        """Whether the tile is only that of loops that are held, and they could have more turns."""
        return self.rank == 1 and len(self.loops) == len(self.held) > 0 and self.shape[0] >= 4 * WARP * self.warps

    @property
    def holding(self) -> Blocks:
        """The same where one turn is enough for the loops ``held``."""
        whole = {id(loop): replace(self.loops[id(loop)], whole=True) for loop in self.held}
        return replace(self, loops={**self.loops, **whole}, held=())


def choose(
    kernel: Kernel, hints: Mapping[Symbol, int], choice: Choice | None = None, fitted: bool = False
) -> Blocks:
    """Blocks that are right for any size and good for the recorded ones; ``hints`` gives the numbers' values. A
    ``choice`` that was measured is taken as it is. ``fitted`` code runs for sizes like the recorded ones alone.
    """
    share = per_thread(kernel)
    simple = share == A_THREAD[0][1] and not _takes_angles(kernel)
    blocks = replace(_choose(kernel, hints, share, choice), simple=simple)
    if choice is not None:
        blocks = replace(blocks, warps=choice.warps, stages=choice.stages)
    numbers = {number.symbol for number in kernel.numbers}
    loops = [loop for loop in _vector_loops(kernel.body) if id(loop) in blocks.loops]
    if blocks.form == "across" and not fitted and not are_aligned(loops):
        blocks = replace(blocks, stages=1)
    held = [loop for loop in loops if not blocks.loops[id(loop)].whole and _is_product(loop.extent, numbers)]
    fits = (loop for loop in held if 0 < estimate(loop.extent, hints) <= blocks.loops[id(loop)].block)
    return replace(blocks, held=tuple(fits))


@once
def _takes_angles(kernel: Kernel) -> bool:
    return any(isinstance(value, Apply) and value.op in ANGLES for value in values_of(kernel.body))


def _is_product(extent: Expr, numbers: set[Symbol]) -> bool:
    return all(isinstance(atom, Symbol) and atom in numbers for atoms, _ in extent.terms for atom in atoms)


def _choose(kernel: Kernel, hints: Mapping[Symbol, int], share: int, choice: Choice | None) -> Blocks:
    parallel = next((s for s in kernel.body if isinstance(s, Loop) and s.kind.parallel), None)
    vectors = list(_vectors(parallel.body if parallel is not None else kernel.body))
    if any(depth == 2 for _, depth in vectors):
        return _two_dimensional(vectors, hints, min(per_thread(kernel, MASKED[2]), _run_share(kernel)))
    rows = Rows(kernel, parallel, tuple(loop for loop, _ in vectors), hints, share)
    if not rows.loops:
        return _one_dimensional(kernel, parallel, rows.count, share, choice)
    tile = _chosen_tile(rows, choice) if choice is not None else _row_tile(rows)
    points = min(tile.points, power(rows.count))
    return _blocks_of_rows(rows, points, tile) if points > 1 else _blocks_of_a_row(rows, tile.width)


@dataclass(frozen=True)
class Rows:
    """A nest in which each point of the ``parallel`` axis, if there is one, has the vector ``loops``: a row of memory,
    or what lies across it. A thread should hold ``share`` elements of each value.
    """

    kernel: Kernel
    parallel: Loop | None
    loops: tuple[Loop, ...]
    hints: Mapping[Symbol, int]
    share: int

    @cached_property
    def count(self) -> int:
        """How many there are, as recorded."""
        return max(1, estimate(self.kernel.extent, self.hints)) if self.parallel is not None else 1

    @cached_property
    def longest(self) -> int:
        """The elements of the longest loop, as recorded."""
        return max(max(1, estimate(loop.extent, self.hints)) for loop in self.loops)

    @cached_property
    def bound(self) -> int | None:
        """Elements that no loop has more of, if they surely fit a tile."""
        most = [upper(loop.extent) for loop in self.loops]
        bounds = [bound for bound in most if bound is not None and bound <= ROW]
        return max(bound or 1 for bound in bounds) if len(bounds) == len(most) else None

    @cached_property
    def whole(self) -> bool:
        """Whether one tile holds all elements of a row."""
        if self.bound is None and self.pairs and self.longest > TURN_SQUARES[0] and self._is_one_of_several():
            return False
        return self.bound is not None or self.longest <= ROW * self.share // 8

    def _is_one_of_several(self) -> bool:
        """Whether rows go one behind the other in a loop, through which accumulators of as many elements would be kept:
        squared distances of groups of 8 channels of 126 x 126 took 3.1 ms as tiles of 16384, for 0.5 GB (H100).
        """
        body = self.parallel.body if self.parallel is not None else self.kernel.body
        around = (s for s in statements(body) if isinstance(s, Loop) and s.kind is not LoopKind.VECTOR)
        return any(_vector_loops(loop.body) for loop in around)

    @cached_property
    def accumulators(self) -> tuple[Accumulator, ...]:
        """What the loops feed."""
        body = self.parallel.body if self.parallel is not None else self.kernel.body
        return tuple(s for s in statements(body) if isinstance(s, Accumulator))

    @cached_property
    def pairs(self) -> set[str]:
        """The operations of accumulators that are two values."""
        return {s.op for s in statements(self.kernel.body) if isinstance(s, Accumulator)} & PAIRS

    @property
    def placed(self) -> bool:
        """Whether a position is looked for."""
        return bool(self.pairs - {"squares"})

    @property
    def held(self) -> int:
        """Elements of a thread: accumulators of two values leave registers for half as many."""
        return self.share // 2 if self.pairs else self.share

    @cached_property
    def scans(self) -> bool:
        """Whether results so far are written."""
        return any(each.running for each in self.accumulators)

    @cached_property
    def again(self) -> bool:
        """Whether two loops read the same."""
        return len(self.loops) > 1 and are_read_again(self.loops)

    @cached_property
    def apart(self) -> bool:
        """Whether rows that are read again leave the second-level cache and begin where no vector does."""
        return self.again and not self.pairs and self.longest >= APART_FROM and self.longest % VECTOR != 0

    @property
    def many_at_once(self) -> bool:
        """Whether rows of 16 bits at odd places that are read again stay in the second-level cache, many at a time."""
        under_way = min(self.count, ROWS_NARROW) * self.longest * 2
        narrow = not self.pairs and are_narrow(self.loops) and are_odd(self.loops, self.hints)
        return narrow and not self.across and under_way <= UNDER_WAY_NARROW

    @cached_property
    def turn(self) -> tuple[int, int]:
        """The elements of a turn of a row that no tile holds, and its warps."""
        if self.apart:
            turn, turners = AGAIN_APART[:2]
        elif self.again:
            turn, turners = AGAIN_NARROW if self.many_at_once else AGAIN
        else:
            turn, turners = TURN_PLACED if self.placed else TURN_SQUARES if self.pairs else TURN
        return max(1, turn * self.share // 8), turners

    @cached_property
    def row(self) -> int:
        """The elements of a tile that holds a row, or a turn of it."""
        return power(self.bound if self.bound is not None else self.longest) if self.whole else self.turn[0]

    @property
    def width(self) -> int:
        """The same, of which scans take fewer at once."""
        return min(self.row, SCANNED) if self.scans else self.row

    @cached_property
    def across(self) -> bool:
        """Whether the loops go across memory."""
        parallel, loops = self.parallel, self.loops
        return parallel is not None and (
            is_across(self.kernel, parallel, loops) or crosses(parallel, loops, self.hints)
        )

    @cached_property
    def reduced(self) -> tuple[int, int] | None:
        """The elements of a turn and the warps of a row that is only reduced, by long code, or at odd places."""
        if len(self.loops) != 1 or self.across or stores(self.loops):
            return None
        if self.width > REDUCED_LONG[0] and _long_work(self.kernel) >= REDUCED_WORK:
            return REDUCED_LONG
        small = self.placed or are_narrow(self.loops)
        return REDUCED_NARROW if self.width > REDUCED_NARROW[0] and small and are_odd(self.loops, self.hints) else None


class RowTile(NamedTuple):
    """Points of the parallel axis, elements of a row, and those of a thread; ``plain`` is ACROSS_PLAIN's or
    ACROSS_PLACED's; ``by_column`` as in Blocks.
    """

    points: int
    width: int
    held: int
    plain: bool = False
    by_column: bool = False


def _chosen_tile(rows: Rows, choice: Choice) -> RowTile:
    alone = choice.points == WARP * choice.warps and choice.width >= rows.longest
    return RowTile(choice.points, choice.width, rows.held, by_column=rows.across and alone and _is_short_column(rows))


def _row_tile(rows: Rows) -> RowTile:
    if rows.reduced is not None:
        return RowTile(1, rows.reduced[0], rows.held)
    parallel, width, points = rows.parallel, rows.width, 1
    if parallel is not None and rows.across:
        return _tile_across(rows, parallel)
    if parallel is not None and not (rows.scans and width == SCANNED and rows.longest % VECTOR):
        while points * 2 * width <= TILE * rows.share // 8 and -(-rows.count // (points * 2)) >= BUSY and points < 64:
            points *= 2
    return RowTile(points, width, rows.held)


def _tile_across(rows: Rows, parallel: Loop) -> RowTile:
    """Neighbours of the parallel axis by turns of what lies across memory."""
    loops, hints, beside = rows.loops, rows.hints, lanes(parallel, rows.hints)
    full = power(beside) >= ACROSS[0] and shows_neighbours(parallel, hints)
    wide = full and not rows.pairs and are_wide(loops)
    plain = not rows.scans and (rows.placed or not wide) and _is_plain(parallel, loops, hints)
    columns, deep = ACROSS_WIDE if wide else ACROSS
    turn = rows.turn[0]
    if rows.scans:
        columns, turn = SCANNED_ACROSS if full else SCANNED_APART
    if plain:
        columns, deep = (ACROSS_PLACED if rows.placed else ACROSS_PLAIN)[:2]
    by_column = _by_column(rows, beside)
    if by_column:
        return RowTile(by_column, power(rows.longest), rows.held, by_column=True)
    alone = not (rows.scans or rows.pairs or plain or are_aligned(loops)) and loads_of(loops) == 1
    if alone and not full and beside >= LONG_FROM:
        sizes = {value.dtype.size for value in values_of(loops) if isinstance(value, Load)}
        columns = ACROSS_LONG if sizes == {4} else columns
    points = min(columns, power(beside))
    while points > 8 and -(-rows.count // points) < BUSY // 4:
        points //= 2
    if rows.scans:
        return RowTile(points, min(rows.row, max(1, turn * rows.share // 8 // points)), rows.share)
    high = ACROSS_APART if alone and not full else deep
    if rows.again and power(rows.longest) <= (ACROSS_HELD if rows.share == A_THREAD[0][1] else HELD_FROM):
        high = max(HELD_FROM, power(rows.longest))
    width = min(rows.width, high * max(1, ACROSS[0] // max(8, power(beside))))
    held = ALONE_APART * rows.share // 16 if alone and full and not wide else rows.held
    return RowTile(points, width, held, plain)


def _by_column(rows: Rows, beside: int) -> int:
    """The columns of a program whose threads hold one each; 0 where they do not."""
    if not _is_short_column(rows) or beside < WARP:
        return 0
    points = BY_COLUMN
    while points > WARP and -(-rows.count // points) < BUSY // 4:
        points //= 2
    return points if -(-rows.count // points) >= BUSY // 4 else 0


def _is_short_column(rows: Rows) -> bool:
    """Whether a thread has registers for a column that is read more than once."""
    height = power(rows.longest)
    if not rows.again or rows.scans or rows.placed or rows.share < A_THREAD[0][1] or height > SHORT_COLUMN[1]:
        return False
    return height <= SHORT_COLUMN[0] or not stores(rows.loops) or _long_work(rows.kernel) <= COLUMN_WORK


def _blocks_of_rows(rows: Rows, points: int, tile: RowTile) -> Blocks:
    """Tiles of several points of the parallel axis."""
    parallel, loops, hints, width = rows.parallel, rows.loops, rows.hints, tile.width
    assert parallel is not None
    count = warps(points * width, 2 * tile.held if rows.across else rows.share)
    overlap = rows.across and rows.longest > width and are_aligned(loops)
    stages = _stages(loops, points * width) if overlap else 1
    if tile.plain and points * width == ACROSS_PLAIN[0] * ACROSS_PLAIN[1] and rows.longest > width:
        count, stages = ACROSS_PLAIN[2:]
    if tile.by_column:
        count = points // WARP
    elif rows.across and rows.again and HELD_FROM < rows.longest <= width <= ACROSS_HELD:
        count = min(count, HELD_WARPS)
    # Tiles lie as memory does. But where Triton 3.6 cannot see which elements are neighbours, neighbouring threads go
    # along the first dimension: 16 x 4096 x 4095 float32 over the middle takes 0.42 ms with the columns first, 0.52
    # with them last (H100).
    steady = steady_numbers(parallel, points, hints) if rows.across and repays(parallel, loops, hints) else frozenset()
    shown = not tile.by_column and (bool(steady) or shows_neighbours(parallel, hints))
    last = rows.across and (overlap or shown or not first_of_equals())
    # One block for all loops: an accumulator that one of them feeds is a tile like any other.
    dimensions = {id(loop): Dimension(int(not last), width, _fits(loop, width)) for loop in loops}
    dimensions[id(parallel)] = Dimension(int(last), points, False)
    form = "across" if rows.across else "rows"
    shape = (width, points) if last else (points, width)
    return Blocks(
        points, 2, dimensions, count, shape, form=form, longest=rows.longest, stages=stages, steady=steady,
        by_column=tile.by_column,
    )  # fmt: skip


def _blocks_of_a_row(rows: Rows, width: int) -> Blocks:
    """Tiles of one point of the parallel axis, or of all there is."""
    loops, longest, share = rows.loops, rows.longest, rows.share
    if width >= REDUCED_FROM[rows.placed] and len(loops) == 1 and not stores(loops):
        share = REDUCED * share // 8
    count = FEW if FEW_FROM <= width <= FEW_TO and share == A_THREAD[0][1] else warps(width, share)
    if rows.scans:
        count = warps(width, 2 * share if longest % VECTOR and longest <= width else share)
    elif rows.reduced is not None:
        count = rows.reduced[1]
    elif not rows.whole:
        count = rows.turn[1]
    stages = AGAIN_APART[2] if rows.apart and not rows.whole else 1
    dimensions = {id(loop): Dimension(0, width, _fits(loop, width)) for loop in loops}
    form = "across" if rows.across else "rows"
    return Blocks(1, 1, dimensions, count, (width,), form=form, longest=longest, stages=stages)


def _is_plain(parallel: Loop, loops: Sequence[Loop], hints: Mapping[Symbol, int]) -> bool:
    """Whether one loop reduces one operand, which it reads along the parallel axis, in full tiles of it, by at least
    half a vector at the recorded sizes.
    """
    if len(loops) != 1 or stores(loops) or loads_of(loops) != 1 or power(lanes(parallel, hints)) < ACROSS[0]:
        return False
    _, *decoded = steps_with(parallel).values()
    (load,) = {(v.dtype.size, v.index) for v in values_of(loops) if isinstance(v, Load)}
    size, step = load[0], load[1].coefficient(loops[0].axis)
    lengths = [estimate(extent, hints) for extent in (*decoded, *(() if step is None else (step,)))]
    return step is not None and all(length * size % max(VECTOR // 2, 2 * size) == 0 for length in lengths)


def _stages(loops: Sequence[Loop], elements: int) -> int:
    """The stages in which turns of so many elements overlap: each but the last holds what it loaded."""
    loads = {(v.buffer, v.index): v.dtype.size for v in values_of(loops) if isinstance(v, Load)}
    return STAGES if sum(loads.values()) * elements * (STAGES - 1) <= UNDER_WAY else 1


def _fits(loop: Loop, block: int) -> bool:
    bound = upper(loop.extent)
    return bound is not None and bound <= block


def _one_dimensional(
    kernel: Kernel, parallel: Loop | None, rows: int, share: int, choice: Choice | None
) -> Blocks:
    if parallel is None:
        return Blocks(1, 0, {}, 1, ())
    widest = max((buffer.dtype.size for buffer in kernel.buffers), default=4)
    narrow = 2 if widest <= 2 else 1  # 16 bytes are more of the narrow elements
    points = min(1024 * narrow if widest <= 4 else 512, 4 * WARP * share * narrow)
    if any(isinstance(s, Loop) for s in statements(parallel.body)):
        points = 128
    while points > 128 and -(-rows // points) < BUSY:
        points //= 2
    points = min(points if choice is None else choice.points, max(WARP, power(rows)))
    count = max(1, min(4, points // (2 * WARP)))
    return Blocks(points, 1, {id(parallel): Dimension(0, points, False)}, count, (points,), form="points")


def _two_dimensional(vectors: Sequence[tuple[Loop, int]], hints: Mapping[Symbol, int], share: int) -> Blocks:
    """Two nested vector loops are the tile, and each point of the parallel axis is one tile of the whole."""
    places = [(loop, 1 if depth == 2 or not _inner(loop) else 0) for loop, depth in vectors]
    shape = [1, 1]
    for loop, place in places:
        bound = upper(loop.extent)
        size = power(max(1, bound if bound is not None else estimate(loop.extent, hints)))
        shape[place] = max(shape[place], min(size, TURN[0]))
    dimensions = {id(loop): Dimension(place, shape[place], _fits(loop, shape[place])) for loop, place in places}
    return Blocks(1, 2, dimensions, warps(shape[0] * shape[1], share), tuple(shape), form="tile")


def _run_share(kernel: Kernel) -> int:
    """The points of a thread that move a vector of neighbours together: with as many, what is taken apart in registers
    lies where the code wants it (Triton 3.6 passes others through shared memory).
    """
    runs = runs_of(kernel)
    sizes = [buffer.dtype.size for buffer in kernel.buffers if any(buffer.name == name for name, _ in runs.loads)]
    sizes += [stores[0].value.dtype.size for _, stores in runs.stores.values()]
    return max(1, VECTOR // (max(sizes, default=1) * runs.widest)) if sizes else WARP


def _inner(loop: Loop) -> bool:
    return bool(_vector_loops(loop.body))


def _vector_loops(body: Sequence[Statement]) -> list[Loop]:
    return [s for s in statements(body) if isinstance(s, Loop) and s.kind is LoopKind.VECTOR]


def _vectors(body: Sequence[Statement], depth: int = 1) -> Iterator[tuple[Loop, int]]:
    """The vector loops, with the number of them that are open there."""
    for statement in body:
        if isinstance(statement, Loop):
            if statement.kind is LoopKind.VECTOR:
                yield statement, depth
            yield from _vectors(statement.body, depth + (statement.kind is LoopKind.VECTOR))


def per_thread(kernel: Kernel, masked: int = MASKED[1]) -> int:
    """The elements of each value that a thread should hold at most, of ``masked`` ones so many."""
    work = _long_work(kernel)
    share = next(share for most, share in A_THREAD if work <= most)
    return min(share, masked) if _masked(kernel) >= MASKED[0] else share


@once
def _masked(kernel: Kernel) -> int:
    inner = _vector_loops(kernel.body) or kernel.body
    return sum(isinstance(value, Load) and value.mask is not None for value in values_of(inner))


@once
def _long_work(kernel: Kernel) -> float:
    """What the long operations on an element cost."""
    steps = [value for value in values_of(_vector_loops(kernel.body) or kernel.body) if isinstance(value, Apply)]
    costs = [1.0 if value.dtype.size in ANGLES.get(value.op, ()) else TABLE[value.op].cost for value in steps]
    return sum(cost for cost in costs if cost >= LONG)


def warps(elements: int, share: int = 8) -> int:
    """At most ``share`` elements a thread with up to 8 warps, twice as many with 16."""
    wanted = elements // (share * WARP)
    return max(1, min(8, wanted)) if wanted <= 16 else 16


