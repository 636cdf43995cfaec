"""Walks back over a tape of few nodes by calling them: torch's engine takes longer to begin than a small gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.ir.values import Value

MOST = 4  # nodes of a chain
OF_PYTHON = torch._C._FunctionBase  # a node whose backward is Python code cannot be called from here


def chain_walked(
    results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> list[torch.Tensor | None] | None:
    """The gradients of the leaves, None for one to which the tape does not lead. None instead of a list where the tape
    is no chain of torch's own nodes on a CPU, where it leads on to a leaf that is not asked for, or where a gradient
    has another shape or dtype than what it is of, which the engine mends. Nodes keep what they saved.

    A walk within ``torch.autograd.grad`` finds nothing either: nodes then compute what that walk itself asks for.
    """
    node: Value = results[0].grad_fn
    if torch.is_grad_enabled() or torch.is_anomaly_enabled() or not leaves[0].is_cpu or node is None:
        return None
    taken: list[torch.Tensor | None] = [None] * len(node._input_metadata)
    for part, g in zip(results, given, strict=True):
        if part.grad_fn is not node:
            return None
        taken[part.output_nr] = g
    places = {id(leaf): place for place, leaf in enumerate(leaves)}
    found: list[torch.Tensor | None] = [None] * len(leaves)
    for _ in range(MOST):
        ways, onward = _ways(node, places)
        if ways is None:
            return None
        gradients = node(*taken)
        gradients = gradients if type(gradients) is tuple else (gradients,)
        for place, number in ways:
            g, leaf, before = gradients[number], leaves[place], found[place]
            if g is None or g.dtype is not leaf.dtype or g.shape != leaf.shape:
                return None
            found[place] = g if before is None else before + g
        if onward is None:
            return found
        g = gradients[onward]
        node, number = node.next_functions[onward]
        wanted = node._input_metadata
        if g is None or g.dtype is not wanted[number].dtype or list(g.shape) != wanted[number].shape:
            return None
        taken = [None] * len(wanted)
        taken[number] = g
    return None


def _ways(node: Value, places: dict[int, int]) -> tuple[list[tuple[int, int]] | None, int | None]:
    """Which of the node's gradients are those of leaves, as (place of the leaf, number of the gradient), and which one
    goes to another node. None where the node or one of its ways is none for a walk by hand.
    """
    if isinstance(node, OF_PYTHON):
        return None, None
    ways: list[tuple[int, int]] = []
    onward: int | None = None
    for number, (after, _) in enumerate(node.next_functions):
        if after is None:
            continue
        variable = getattr(after, "variable", None)
        place = places.get(id(variable)) if variable is not None else None
        if place is not None:
            ways.append((place, number))
        elif variable is not None or onward is not None:
            return None, None
        else:
            onward = number
    return ways, onward
