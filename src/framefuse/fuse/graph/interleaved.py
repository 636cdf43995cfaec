"""Has kernels write the parts of complex numbers side by side, as complex numbers lie, so that nothing joins them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from framefuse.fuse.setting import Setting
from framefuse.ir.builder import ONE, builder_for
from framefuse.ir.graph import Arg, Graph, Node
from framefuse.ir.pairs import is_join
from framefuse.ir.rename import rebuilt


def complexes(pairs: torch.Tensor) -> torch.Tensor:
    """The complex numbers whose parts are neighbours in memory, in that memory; no view of it, as a sum is none."""
    return torch.view_as_complex(pairs).data


def with_interleaved_parts(graph: Graph, setting: Setting) -> Graph:
    """The graph in which a CPU's kernels write the complex numbers whose parts they compute: the library's call reads
    both parts and writes them once more.
    """
    found = [node for node in graph.nodes if node.op == "library" and _is_computed(node, setting)]
    # Equal numbers that are two results for the program have memory of their own: one of them alone lies in the pairs.
    joins = set({tuple(map(id, node.inputs)): node for node in reversed(found)}.values())
    if not joins:
        return graph
    builder = builder_for(graph)

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        if node not in joins:
            return (node if inputs == node.inputs else node.over(inputs),)
        start, row = len(builder.nodes), inputs[0].shape
        builder.line = node.line
        pairs = builder.cat([builder.reshape(part, (*row, ONE)) for part in (inputs[0], inputs[-1])], len(row))
        order = node.attr("orders")[0]
        own = {
            "target": complexes, "name": "view_as_complex", "args": (Arg(0),),
            "orders": ((*(range(len(row)) if order is None else order), len(row)),),
        }  # fmt: skip
        attrs = tuple((name, own.get(name, value)) for name, value in node.attrs)
        return *builder.nodes[start:], replace(node, inputs=(pairs,), attrs=attrs)

    return rebuilt(graph, change)


def _is_computed(node: Node, setting: Setting) -> bool:
    """Whether a call joins parts of one shape that are not both in memory already, for a CPU that runs the library."""
    target = setting.targets(node.device)
    on_cpu = target is not None and not target.tiles and target.library
    return on_cpu and is_join(node) and any(part.op not in ("input", "result") for part in node.inputs)
