"""The passes of fuse are one list: each leaves what it takes as it was, is timed and verified, and says what it did."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from tests.unit.fuse.graphs import Builder, check, symbol
from tests.unit.fuse.nest.test_random_graphs import graphs

from framefuse.errors import CompilerBug
from framefuse.fuse import fuse
from framefuse.fuse.memory.draft import Draft
from framefuse.fuse.passes import DRAFT, GRAPH, GROUPS, PASSES, SCHEDULE, STAGES
from framefuse.fuse.setting import Setting
from framefuse.ir.graph import Graph
from framefuse.ir.passes import Pass, placed, run
from framefuse.ir.schedule import RunKernel

S = symbol("s0")


def example():
    b = Builder(s0=5)
    x, y = b.input((S, 4)), b.input((S, 4))
    nothing = b.reduce("sum", b.slice(x, (0, 0), (0, 4)), 0)
    return b.graph(b.add(b.exp(x), b.reduce("sum", y, 1, keep=True)), nothing, x)


def broken(stage, run, after):
    """The list with one more pass."""
    return placed(PASSES, Pass("broken", stage, run), after=after)


def ran(passes, graph, **options):
    return run(passes, graph, Setting(), STAGES, **options)


def test_the_list_goes_from_graphs_to_groups_to_drafts_to_a_schedule():
    names = [each.name for each in PASSES]
    assert len(set(names)) == len(names)
    order = [GRAPH, GROUPS, DRAFT, SCHEDULE]
    places = [order.index(each.stage) for each in PASSES]
    assert places == sorted(places) and set(places) == set(range(len(order))) == set(range(len(STAGES)))


def test_a_schedule_tells_what_each_pass_did():
    schedule = fuse(example())
    assert [step.name for step in schedule.steps] == [each.name for each in PASSES]
    assert all(step.seconds >= 0 and not step.text for step in schedule.steps)
    changed = {step.name for step in schedule.steps if step.changed}
    assert {"empty values", "own results", "grouping", "nests", "lifetimes"} <= changed
    assert not changed & {"named sizes", "single copies", "own sums", "fused products", "overwriting"}


def test_a_dump_shows_what_was_changed_and_where_nodes_went():
    b = Builder(s0=5)
    x = b.input((S, 4))
    b.exp(x)
    steps = {step.name: step for step in fuse(b.graph(b.neg(b.permute(x, 1, 0)), x), dump=True).steps}
    assert all(bool(step.text) == step.changed for step in steps.values())
    assert "# added: expand f32[s0, 4]" in steps["own results"].text
    assert "part of an index: t1 permute" in steps["grouping"].text
    assert "removed, nothing needs it: t0 exp" in steps["grouping"].text
    assert "items 0 to 0" in steps["nests"].text and "for i0 in" in steps["nests"].text


def without_last_node(graph, setting):
    return replace(graph, nodes=graph.nodes[:-1])


def homeless(groups, setting):
    return replace(groups, home={})


def reordered(groups, setting):
    return replace(groups, order=groups.order[::-1])


def without_numbers(draft, setting):
    items = (replace(item, numbers=()) if isinstance(item, RunKernel) else item for item in draft.items)
    return replace(draft, items=tuple(items))


def unwritten(draft, setting):
    """Kernels that store into buffers which they only read."""

    def changed(kernel):
        return replace(kernel, buffers=tuple(replace(buffer, written=False) for buffer in kernel.buffers))

    kernels = {n: changed(item.kernel) for n, item in enumerate(draft.items) if isinstance(item, RunKernel)}
    items = (replace(item, kernel=kernels[n]) if n in kernels else item for n, item in enumerate(draft.items))
    return replace(draft, items=tuple(items))


def without_first_item(draft, setting):
    return replace(draft, items=draft.items[1:])


@pytest.mark.parametrize(
    ("stage", "change", "after", "said"),
    [
        (GRAPH, without_last_node, "own results", "is not among the nodes"),
        (GROUPS, homeless, "grouping", "is required and in no memory"),
        (GROUPS, reordered, "grouping", "which no group before it keeps"),
        (DRAFT, without_numbers, "nests", "wrong number of operands"),
        (DRAFT, unwritten, "nests", "neg: "),
        (DRAFT, without_first_item, "nests", "nothing has written"),
        (DRAFT, without_first_item, "shared kernels", "nothing has written"),
    ],
)
def test_a_pass_that_breaks_a_rule_is_named(stage, change, after, said):
    b = Builder(s0=5)
    x, w = b.input((S, 4)), b.input((4, 4))
    graph = b.graph(b.neg(b.matmul(b.exp(x), w)))
    with pytest.raises(CompilerBug, match=f"after broken: .*{said}"):
        ran(broken(stage, change, after), graph, check=True)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(graph=graphs())
def test_no_pass_changes_what_it_takes(graph):
    value, texts = graph, []
    for each in PASSES:
        if isinstance(value, (Graph, Draft)):
            stage = GRAPH if isinstance(value, Graph) else DRAFT
            texts.append((stage, value, STAGES[stage].text(value, value)))
        value = each.run(value, Setting())
    assert len(texts) > 10
    assert all(STAGES[stage].text(value, value) == text for stage, value, text in texts)


def test_a_pass_of_ones_own_is_a_row():
    """What a later stage builds on: a row between others is timed, verified and dumped as they are."""

    def halved(graph, setting):
        output = graph.outputs[0]
        half = replace(output.node, op="neg", inputs=(output.node,), attrs=())
        return replace(graph, nodes=(*graph.nodes, half), outputs=(replace(output, node=half), *graph.outputs[1:]))

    b = Builder(s0=5)
    x = b.input((S, 4))
    graph = b.graph(b.exp(x))
    schedule, steps = ran(broken(GRAPH, halved, "own sums"), graph, check=True, dump=True)
    (step,) = (step for step in steps if step.name == "broken")
    assert step.changed and "# added: neg f32[s0, 4]" in step.text
    check(halved(graph, None), schedule, torch.randn(3, 4))


@pytest.mark.parametrize(
    ("where", "neighbours"),
    [
        ({}, ("own results", "mine", "grouping")),
        ({"before": "empty values"}, ("mine", "empty values", "interleaved parts")),
        ({"after": "named sizes"}, ("named sizes", "mine", "own norms")),
        ({"before": "grouping"}, ("own results", "mine", "grouping")),
    ],
)
def test_a_pass_is_placed_by_names(where, neighbours):
    names = [each.name for each in placed(PASSES, Pass("mine", GRAPH, without_last_node), **where)]
    place = names.index(neighbours[0])
    assert tuple(names[place : place + 3]) == neighbours and len(names) == len(PASSES) + 1


@pytest.mark.parametrize(
    ("name", "where", "said"),
    [
        ("grouping", {}, "there is a pass 'grouping' already"),
        ("mine", {"after": "nothing"}, "there is no pass 'nothing'. Choose from: empty values"),
        ("mine", {"before": "nests", "after": "nests"}, "give one of both"),
        ("mine", {"after": "grouping"}, "there it would meet one of 'groups'"),
    ],
)
def test_a_pass_that_has_no_place_is_refused(name, where, said):
    with pytest.raises(ValueError, match=said):
        placed(PASSES, Pass(name, GRAPH, without_last_node), **where)
