"""Turns a schedule into the random number generators whose states a run must keep, in case that it declines."""

from __future__ import annotations

import torch

from framefuse.ir.facts import Source
from framefuse.ir.graph import Graph, Node
from framefuse.ir.ops import TABLE
from framefuse.ir.schedule import RunCall, Schedule
from framefuse.ir.target import default_generator


def kept_generators(schedule: Schedule) -> tuple[torch.Generator | Source, ...]:
    """The generators that are advanced before something may make the run decline: what runs again eagerly must draw the
    same numbers. A run of draws and kernels without checks keeps nothing.
    """
    calls = [(place, item.node) for place, item in enumerate(schedule.items) if isinstance(item, RunCall)]
    first = next((place for place, node in calls if node.attr("random")), None)
    if first is None or not (
        _checks(schedule.graph)
        or any(place > first and not draws(node) for place, node in calls)
        or any(getattr(node.attr("target"), "whole", False) for _, node in calls)
    ):
        return ()
    given = (part for _, node in calls for part in (*node.attr("args"), node.attr("kwargs").get("generator")))
    drawn_from = (default_generator(device) for _, node in calls if node.attr("random") for device in _devices(node))
    return (
        *dict.fromkeys(part for part in drawn_from if part is not None),
        *dict.fromkeys(part for part in given if isinstance(part, Source)),
    )


def _devices(node: Node) -> tuple[str, ...]:
    """The devices on which a random call may draw."""
    whole = getattr(node.attr("target"), "devices", ())
    return (*whole, node.device, *(operand.device for operand in node.inputs))


def draws(node: Node) -> bool:
    """Whether a library call only fills a tensor of its own by random numbers."""
    return bool(node.attr("random")) and hasattr(node.attr("target"), "fill")


def _checks(graph: Graph) -> bool:
    """Whether a kernel may find a bad index, a false condition or a zero divisor among integers."""
    failing = [(node, TABLE[node.op].fails) for node in graph.nodes]
    return any(fails and (fails != "divisor" or node.dtype.is_integral) for node, fails in failing)
