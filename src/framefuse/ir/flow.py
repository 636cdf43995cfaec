"""Turns a network of arcs with capacities into its least cut: the vertices on the sink's side."""

from __future__ import annotations

from collections.abc import Sequence

SOURCE, SINK = 0, 1
UNBOUNDED = 1 << 60  # a capacity that no cut pays


def sink_side(size: int, arcs: Sequence[tuple[int, int, int]]) -> bytearray:
    """For each of ``size`` vertices 1 if it is on the sink's side of a least cut between :data:`SOURCE` and
    :data:`SINK`, of all least cuts the one nearest to the sink. ``arcs`` are (tail, head, capacity).

    Maximum flow by blocking flows in layered networks (Dinic 1970), then what still reaches the sink in the residual
    network.
    """
    heads: list[int] = []
    room: list[int] = []  # of an arc; its reverse is the number with the last bit flipped
    leaving: list[list[int]] = [[] for _ in range(size)]
    for tail, head, capacity in arcs:
        leaving[tail].append(len(heads))
        leaving[head].append(len(heads) + 1)
        heads += (head, tail)
        room += (capacity, 0)
    while True:
        level = _to_sink(heads, room, leaving)
        if not level[SOURCE]:
            return bytearray(1 if depth else 0 for depth in level)
        _block(heads, room, leaving, level)


def _to_sink(heads: list[int], room: list[int], leaving: list[list[int]]) -> list[int]:
    """One more than each vertex's distance to the sink along arcs with room; 0 where none leads there."""
    level = [0] * len(leaving)
    level[SINK] = 1
    queue = [SINK]
    for vertex in queue:
        further = level[vertex] + 1
        for arc in leaving[vertex]:
            tail = heads[arc]
            if not level[tail] and room[arc ^ 1]:
                level[tail] = further
                queue.append(tail)
    return level


def _block(heads: list[int], room: list[int], leaving: list[list[int]], level: list[int]) -> None:
    """Fills shortest paths until none is left: each has an arc without room."""
    next_arc = [0] * len(leaving)
    path: list[int] = []  # arcs from the source to ``vertex``
    vertex = SOURCE
    while True:
        if vertex == SINK:
            pushed = min(room[arc] for arc in path)
            full = -1
            for place, arc in enumerate(path):
                room[arc] -= pushed
                room[arc ^ 1] += pushed
                if full < 0 and not room[arc]:
                    full = place
            vertex = heads[path[full] ^ 1]
            del path[full:]
            continue
        arcs, place, below = leaving[vertex], next_arc[vertex], level[vertex] - 1
        while place < len(arcs) and not (room[arcs[place]] and level[heads[arcs[place]]] == below):
            place += 1
        next_arc[vertex] = place
        if place < len(arcs):
            path.append(arcs[place])
            vertex = heads[arcs[place]]
        elif path:
            vertex = heads[path.pop() ^ 1]
            next_arc[vertex] += 1
        else:
            return
