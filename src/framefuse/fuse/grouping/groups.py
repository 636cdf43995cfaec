"""The groups of a graph: what is computed together, in which order, and how what stays in memory is laid out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from framefuse.fuse.addressing.layout import Order, dense_strides
from framefuse.fuse.addressing.strided import Strides, View
from framefuse.fuse.graph.grown_cats import Place
from framefuse.fuse.grouping.cells import Cell, Group
from framefuse.fuse.grouping.choices import Activated, FusedProduct
from framefuse.fuse.setting import ProductName
from framefuse.ir.graph import Graph, Node


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """``order`` are the groups as they run. ``home`` is the group that leaves a node in memory, ``required`` are nodes
    that must be there at the end. ``demands`` are the cells of each node by group, ``readers`` the products and calls
    that read its memory, ``views`` their operands and ``results`` the results of each call. ``layouts`` are the orders
    of dimensions in memory, ``wanted`` those that the program asks for.

    ``activated`` are products that the library computes with what alone reads them, ``products`` those that a kernel of
    ours could compute with what is done with them. ``kept`` says why a kernel leaves a value in memory, and ``inside``
    of which values it is a part of another's.
    """

    graph: Graph
    order: tuple[Group, ...]
    home: Mapping[Node, Group]
    required: frozenset[Node]
    demands: Mapping[Node, Mapping[Group, Sequence[Cell]]]
    readers: Mapping[Node, Sequence[Group]]
    views: Mapping[tuple[Node, int], View]
    results: Mapping[Node, Sequence[Node]]
    layouts: Mapping[Node, Order]
    wanted: Mapping[Node, Order]
    activated: tuple[Activated, ...] = ()
    products: Mapping[ProductName, FusedProduct] = field(default_factory=dict)
    kept: Mapping[Node, str] = field(default_factory=dict)
    inside: Mapping[Node, Place] = field(default_factory=dict)

    def strides_of(self, node: Node) -> Strides:
        """The layout of a node that is in memory."""
        return strides_of(node, self.layouts, self.wanted, self.inside)


def strides_of(
    node: Node, layouts: Mapping[Node, Order], wanted: Mapping[Node, Order], inside: Mapping[Node, Place]
) -> Strides:
    """The layout of a node in memory: eager's own, else dense in the order that the node has among ``layouts``, or a
    product among those ``wanted``; that of the memory ``inside`` which it lies.
    """
    if node in inside:
        node = inside[node].whole
    if node.strides is not None and node.op in ("input", "result"):
        return node.strides
    return dense_strides(node.shape, layouts.get(node) if node.op != "matmul" else wanted.get(node))
