"""The least cut has the value that networkx finds, and is the one nearest to the sink."""

import networkx
from hypothesis import given, settings
from hypothesis import strategies as st

from framefuse.ir.flow import SINK, SOURCE, UNBOUNDED, sink_side


@st.composite
def networks(draw):
    size = draw(st.integers(2, 9))
    vertices = st.integers(0, size - 1)
    arcs = draw(st.lists(st.tuples(vertices, vertices, st.integers(0, 9) | st.just(UNBOUNDED)), max_size=24))
    return size, [(a, b, c) for a, b, c in arcs if a != b and a != SINK and b != SOURCE and (a, b) != (SOURCE, SINK)]


def value(side, arcs):
    return sum(c for a, b, c in arcs if not side[a] and side[b])


@given(networks())
@settings(max_examples=300, deadline=None)
def test_least(network):
    size, arcs = network
    graph = networkx.DiGraph()
    graph.add_nodes_from((SOURCE, SINK))
    for a, b, c in arcs:
        before = graph.edges[a, b]["capacity"] if graph.has_edge(a, b) else 0
        graph.add_edge(a, b, capacity=before + c)
    best = networkx.maximum_flow_value(graph, SOURCE, SINK)
    if best >= UNBOUNDED:
        return
    side = sink_side(size, arcs)
    assert side[SINK] and not side[SOURCE]
    assert value(side, arcs) == best
    # No vertex of the side can leave it, alone or with others: every cut as cheap has at least these.
    for others in range(1 << (size - 2)):
        cut = bytearray([0, 1, *((others >> v) & 1 for v in range(size - 2))])
        if value(cut, arcs) == best:
            assert all(cut[v] for v in range(size) if side[v])
