"""Says whether computing a value again wherever a kernel needs it beats keeping it in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from framefuse.fuse.addressing.one_source import has_one_source
from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.grouping.cells import Cell, Group
from framefuse.fuse.grouping.coordinates import divided, loops_in_memory, loops_of
from framefuse.fuse.grouping.small_tables import is_table
from framefuse.fuse.grouping.work import NUMBER, Weight, op_time, points
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Symbol
from framefuse.ir.ops import ELEMENTWISE, TABLE


@dataclass(frozen=True)
class Repeats:
    """What it costs to compute values again; ``users`` are the kernels that need a value, with the cells that do."""

    setting: Setting
    weights: Mapping[Node, Weight]
    hints: Mapping[Symbol, int]
    strides_of: Callable[[Node], Strides]

    def pays(self, node: Node, users: dict[Group, list[Cell]]) -> bool:
        """Whether computing ``node`` wherever it is used beats keeping it in memory."""
        weight = self.weights[node]
        if node.op in ("full", "iota") or self._widens_memory(node):
            return True
        cells = [(group, cell) for group, uses in users.items() for cell in uses]
        if len(cells) == 1 and not any(symbol.name.startswith("@t") for p in cells[0][1].index for symbol in p.symbols):
            group, cell = cells[0]
            once = points(node, self.hints)
            repeated = self._visits(group, cell) - once
            if self._is_small(node, group, cell):
                return False
            again = group.tiles and repeated <= once and weight.loads <= costs.TWICE_LOADS[0]
            most = costs.GPU_TWICE if again else 0.0 if not group.tiles and _is_slow(node) else costs.REPEATED
            return repeated <= 0 or weight.time <= most or weight.time * repeated < costs.REPEATED_WORK
        if weight.loads == 0 and weight.time < costs.ANYWHERE:
            return True
        if len(users) == 1 and (self._slides(node, cells) or self._is_passed_on(node, cells)):
            return True
        if self._saves_memory(node, users) and (len(cells) == len(users) or self._is_light(node, cells)):
            return True
        loads = costs.TWICE_LOADS
        if len(users) == 1 and len(cells) <= costs.TWICE_CELLS:
            if weight.loads <= loads[0] and weight.time <= costs.TWICE_IN_ONE:
                return True
        if len(users) == 2 and len(cells) == 2:
            if (weight.loads <= loads[1] and weight.time <= costs.TWICE_IN_TWO) or self._widens(node):
                return True
        repeated = sum(self._visits(group, cell) for group, cell in cells[1:])
        return weight.loads <= loads[1] and weight.time * repeated < costs.REPEATED_WORK

    def _is_small(self, node: Node, group: Group, cell: Cell) -> bool:
        """Whether a GPU would compute a small value at each element of a tile that it reduces, as the root of a group's
        variance beside a softmax of channels: it is read as soon as what it is computed from.
        """
        slow = TABLE[node.op].kind == "pointwise" and op_time(node) >= costs.GPU_SMALL[0]
        if not slow or not group.tiles or not group.reduces or not self.weights[node].loads:
            return False
        inner = frozenset(group.axes.keys() - (group.rows or ()))
        own = {symbol for position in cell.index for symbol in position.symbols} & inner
        few = group.size_hint(inner - own) < costs.GPU_JOINED_BELOW  # else one number for each turn of a loop
        elements = group.size_hint(frozenset(group.axes))
        many = elements >= max(costs.GPU_SMALL[1] * points(node, self.hints), costs.GPU_SMALL[2])
        return bool(own) and few and many

    def is_wide_window(self, node: Node, users: Iterable[Group]) -> bool:
        """Whether a GPU computes a value from so many elements that the loops of a reduction, or a kernel that has much
        to do already, would be slow with it.
        """
        target = self.setting.targets(node.device)
        if target is None or not target.tiles or TABLE[node.op].kind not in ELEMENTWISE:
            return False
        wide = self.weights[node].loads >= costs.GPU_WIDE_WINDOW
        return wide and any(group.reduces or len(group.cells) > costs.GPU_WIDE_WINDOW_CELLS for group in users)

    def divides(self, node: Node, users: dict[Group, list[Cell]]) -> bool:
        """Whether finding where the value is needed costs a CPU more than keeping it in memory."""
        target = self.setting.targets(node.device)
        if target is None or target.tiles or self.weights[node] is NUMBER or TABLE[node.op].kind == "reduce":
            return False
        spent = sum(divided(group, cell, self.strides_of) for group, cells in users.items() for cell in cells)
        return spent > costs.REPEATED_WORK + costs.KEPT_ELEMENT * points(node, self.hints)

    def is_table(self, node: Node, users: dict[Group, list[Cell]]) -> bool:
        """Whether a CPU reads the value from memory as a table of few short rows."""
        target, weight = self.setting.targets(node.device), self.weights[node]
        if target is None or target.tiles or weight is NUMBER or weight.loads:
            return False
        visits = (self._visits(group, cell) for group, cells in users.items() for cell in cells)
        return is_table(node, visits, self.hints)

    def _widens_memory(self, node: Node) -> bool:
        """Whether a value is a narrower one in more bytes: a GPU keeps the narrower one, if either has to be kept."""
        target = self.setting.targets(node.device)
        if node.op != "cast" or target is None or not target.tiles:
            return False
        narrow = node.inputs[0].dtype
        return narrow.is_float and node.dtype.is_float and narrow.size < node.dtype.size

    def _widens(self, node: Node) -> bool:
        """Whether a large value is computed from narrower elements at little cost, of no more bytes than its own."""
        target, weight = self.setting.targets(node.device), self.weights[node]
        if target is None or target.tiles or weight.time > costs.WIDENED[1]:
            return False
        narrow = weight.loads * node.dtype.size > weight.bytes and weight.bytes <= node.dtype.size
        return narrow and points(node, self.hints) * node.dtype.size >= costs.WIDENED[0]

    def _saves_memory(self, node: Node, users: Iterable[Group]) -> bool:
        """Whether a GPU computes a large value again, in each kernel that reads it, from no more bytes than its own:
        then it is not written. More is computed again from fewer bytes where a reader does nothing with rows, and so
        waits for memory.
        """
        target, weight = self.setting.targets(node.device), self.weights[node]
        if target is None or not target.tiles or not weight.loads:
            return False
        size = node.dtype.size
        waits = weight.bytes < size and any(not group.reduces and group.rows is None for group in users)
        cheap = weight.time <= (costs.GPU_AGAIN_WAITING if waits else costs.GPU_AGAIN_TIME)
        return cheap and weight.bytes <= size and points(node, self.hints) * size >= costs.GPU_AGAIN

    def _is_light(self, node: Node, cells: Sequence[tuple[Group, Cell]]) -> bool:
        """Whether a value is cheap enough to be computed at several places of each kernel: a bias that a window adds to
        each of its elements, beside a norm of them all.
        """
        most, time = costs.GPU_WINDOW
        return len(cells) <= most and self.weights[node].time <= time

    def _slides(self, node: Node, cells: Sequence[tuple[Group, Cell]]) -> bool:
        """Whether one kernel reads a cheap value at places with constant distances, as the elements of a window: the
        caches hold what it is computed from.
        """
        target, weight = self.setting.targets(node.device), self.weights[node]
        most = costs.GPU_WINDOW if target is not None and target.tiles else costs.CPU_WINDOW
        cheap = node.op == "pad" or (weight.time <= most[1] and weight.loads <= costs.TWICE_LOADS[0])
        cheap = cheap or (node.op == "cat" and cells[0][0].tiles and has_one_source(node))
        if len(cells) > most[0] or not cheap:
            return False
        first = cells[0][1].index
        pairs = (pair for _, cell in cells[1:] for pair in zip(cell.index, first, strict=True))
        return all((here - there).constant is not None for here, there in pairs)

    def _is_passed_on(self, node: Node, cells: Sequence[tuple[Group, Cell]]) -> bool:
        """Whether one kernel of a GPU reads rows at positions at several places, as interpolation does: it would load
        what was kept as often as it loads what lies there.
        """
        target, weight = self.setting.targets(node.device), self.weights[node]
        if node.op != "take" or target is None or not target.tiles or len(cells) > costs.GPU_WINDOW[0]:
            return False
        return weight.loads <= 1 and weight.time <= costs.GPU_PASSED_ON

    def _visits(self, group: Group, cell: Cell) -> int:
        """How often a kernel evaluates the cell: once for each point of the loops down to the last that it needs."""
        if group.rows is None and not group.tiles and not group.adds:
            return group.size_hint(loops_in_memory(group, cell, self.strides_of))
        return group.size_hint(loops_of(group, cell.index))


def _is_slow(node: Node) -> bool:
    """Whether an operation takes a CPU longer than to load what it gives."""
    return TABLE[node.op].kind == "pointwise" and op_time(node) >= costs.CPU_REPEATED
