"""Turns a schedule into the random number generators whose states a run must keep, in case that it declines."""

from __future__ import annotations

from typing import Any

import torch

from framefuse.ir.graph import Graph, Node
from framefuse.ir.schedule import RunCall, Schedule

CHECKED = frozenset(("take", "gather"))  # kernels of these find bad indices
DIVIDING = frozenset(("floordiv", "remainder", "fmod"))  # and of these, zero divisors among integers


def kept_generators(schedule: Schedule) -> tuple[Any, ...]:
    """Templates of the generators that are advanced before something may make the run decline: what runs again eagerly
    must draw the same numbers. A run of draws and kernels without checks keeps nothing.
    """
    calls = [(place, item) for place, item in enumerate(schedule.items) if isinstance(item, RunCall)]
    first = next((place for place, item in calls if item.node.attr("random")), None)
    if first is None:
        return ()
    raising = any(place > first and not draws(item.node) for place, item in calls)
    return (("const", torch.default_generator),) if raising or _checks(schedule.graph) else ()


def draws(node: Node) -> bool:
    """Whether a library call only fills a tensor of its own with random numbers."""
    return bool(node.attr("random")) and not node.inputs and hasattr(node.attr("target"), "fill")


def _checks(graph: Graph) -> bool:
    return any(node.op in CHECKED or (node.op in DIVIDING and node.dtype.is_integral) for node in graph.nodes)
