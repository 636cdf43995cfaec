"""How library calls take their operands: as views of memory that is there, or as copies of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from framefuse.fuse.addressing.layout import Order, estimate, lies_in
from framefuse.fuse.addressing.strided import Strides, View, strided
from framefuse.fuse.grouping.library_items import may_see_views
from framefuse.fuse.grouping.work import points
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.graph import Graph, Node


@dataclass(frozen=True)
class CallViews:
    """The operands of one call; ``results`` are those of its results that the graph reads, ``strides_of`` the layouts
    of values that are in memory.
    """

    graph: Graph
    setting: Setting
    strides_of: Callable[[Node], Strides]
    results: Sequence[Node]

    def view(self, node: Node, number: int, operand: Node) -> View | None:
        """How a call takes an operand without a copy: as eager gave it, or so that its result lies as eager's."""
        order, eager = node.attr("orders")[number], dict(node.attr("views")).get(number)
        inside = may_see_views(node)
        if not inside and eager is None and (order is not None or not self._prefers_views(node)):
            return None
        view = strided(operand, self.strides_of, self.graph.hints)
        if view is None or view.is_whole:
            return view
        if eager is not None and self._lies_as(view, eager):
            return view if self._repays(node, view, inside) else None
        if not inside and view.base.op == "input":
            return None  # the call may keep it: it is not to hold what the user may write
        # Torch lays its results out as its operands lie.
        return view if _runs_along(view, order) and lies_in(view, order, self.graph.hints) else None

    def _repays(self, node: Node, view: View, inside: bool) -> bool:
        """Whether a view costs less than a copy of it, which lies so that libraries read it fast; one that a call may
        keep costs a call itself.
        """
        hints, target = self.graph.hints, self.setting.targets(node.device)
        size = points(view.node, hints)
        axes = zip(view.node.shape, view.strides, strict=True)
        strides = [estimate(stride, hints) for axis, stride in axes if estimate(axis, hints) > 1]
        if 0 in strides:  # of what a copy would have more elements
            return True
        on_cpu = target is not None and not target.tiles
        if on_cpu and not inside and size * view.node.dtype.size * costs.COPIED[0] < costs.VIEW:
            return False
        made = sum(points(result, hints) for result in self.results)
        return min(strides, default=1) == 1 or made < size // costs.READS_FEW

    def _lies_as(self, view: View, strides: Sequence[int]) -> bool:
        """Whether a view has recorded strides, but for dimensions of one point."""
        rows = zip(view.node.shape, view.strides, strides, strict=True)
        hints = self.graph.hints
        return all(estimate(size, hints) == 1 or estimate(own, hints) == other for size, own, other in rows)

    def _prefers_views(self, node: Node) -> bool:
        """Whether a call that may keep its operands takes one that was a view under eager too as a tensor over the
        memory of its base, which costs less than a kernel that copies it; what writes its operands takes a copy.
        """
        target = self.setting.targets(node.device)
        return target is not None and target.launch > costs.VIEW and not getattr(node.attr("target"), "commits", False)


def _runs_along(view: View, order: Order | None) -> bool:
    """Whether neighbours of the last dimension, or of that which is innermost in the order that eager's own had, are
    neighbours in memory.
    """
    if not view.strides:
        return False
    return view.strides[-1].constant == 1 or (order is not None and view.strides[order[-1]].constant == 1)
