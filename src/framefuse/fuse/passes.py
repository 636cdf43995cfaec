"""The passes of fuse, in order: a graph becomes groups, the groups a draft, the draft a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from framefuse.fuse.graph.aligned_products import with_aligned_products
from framefuse.fuse.graph.biases import with_biases_apart
from framefuse.fuse.graph.changed_parts import with_parts
from framefuse.fuse.graph.copied_operands import with_copied_operands
from framefuse.fuse.graph.copies import with_single_copies
from framefuse.fuse.graph.derived_values import with_derived
from framefuse.fuse.graph.dropouts import with_whole_dropouts
from framefuse.fuse.graph.empty import without_empty
from framefuse.fuse.graph.exclusive_scans import with_exclusive_scans
from framefuse.fuse.graph.folded_scales import with_folded_scales
from framefuse.fuse.graph.grown_cats import with_grown_cats
from framefuse.fuse.graph.interleaved import with_interleaved_parts
from framefuse.fuse.graph.joins import with_pieces
from framefuse.fuse.graph.long_softmaxes import with_parts_of_softmaxes
from framefuse.fuse.graph.named_sizes import with_named_sizes
from framefuse.fuse.graph.norms import with_own_norms
from framefuse.fuse.graph.packed_weights import with_packed_weights
from framefuse.fuse.graph.results import with_own_results
from framefuse.fuse.graph.row_sums import with_row_sums
from framefuse.fuse.graph.scatters import with_own_sums
from framefuse.fuse.graph.short_runs import without_short_runs
from framefuse.fuse.graph.together import with_rows_together
from framefuse.fuse.grouping.epilogues import with_activations
from framefuse.fuse.grouping.fused_products import with_fused_products
from framefuse.fuse.grouping.grouping import grouped
from framefuse.fuse.layouts.layouts import with_layouts
from framefuse.fuse.memory.lifetimes import with_lifetimes
from framefuse.fuse.memory.needless import without_needless
from framefuse.fuse.memory.offers import with_aliases, with_offers
from framefuse.fuse.memory.overwrite import with_overwrites
from framefuse.fuse.memory.own_operands import with_own_operands
from framefuse.fuse.memory.places import with_places
from framefuse.fuse.memory.sharing import with_shared_kernels
from framefuse.fuse.setting import ProductName, Setting
from framefuse.fuse.text import draft_text, graph_change_text, groups_text, schedule_text
from framefuse.fuse.verify import verify_draft, verify_groups, verify_schedule
from framefuse.fuse.writer import written
from framefuse.ir.graph import Graph
from framefuse.ir.passes import Pass, Stage, run
from framefuse.ir.schedule import Schedule
from framefuse.ir.target import Targets, on_cpu
from framefuse.ir.verify import verify
from framefuse.ir.whole_digits import Asks

T = TypeVar("T")
R = TypeVar("R")


def _alone(change: Callable[[T], R]) -> Callable[[T, Setting], R]:
    """A pass that needs no setting."""
    return lambda value, setting: change(value)


GRAPH, GROUPS, DRAFT, SCHEDULE = "graph", "groups", "draft", "schedule"
STAGES = {
    GRAPH: Stage(verify, graph_change_text),
    GROUPS: Stage(verify_groups, groups_text),
    DRAFT: Stage(verify_draft, draft_text),
    SCHEDULE: Stage(verify_schedule, schedule_text),
}
PASSES = (
    Pass("empty values", GRAPH, _alone(without_empty)),
    Pass("interleaved parts", GRAPH, with_interleaved_parts),
    Pass("pieces", GRAPH, _alone(with_pieces)),
    Pass("exclusive scans", GRAPH, _alone(with_exclusive_scans)),
    Pass("folded scales", GRAPH, with_folded_scales),
    Pass("aligned products", GRAPH, with_aligned_products),
    Pass("named sizes", GRAPH, _alone(with_named_sizes)),
    Pass("own norms", GRAPH, with_own_norms),
    Pass("biases apart", GRAPH, with_biases_apart),
    Pass("dropouts", GRAPH, _alone(with_whole_dropouts)),
    Pass("layouts", GRAPH, with_layouts),
    Pass("packed weights", GRAPH, with_packed_weights),
    Pass("derived values", GRAPH, with_derived),
    Pass("short runs", GRAPH, without_short_runs),
    Pass("single copies", GRAPH, _alone(with_single_copies)),
    Pass("row sums", GRAPH, with_row_sums),
    Pass("parts of softmaxes", GRAPH, with_parts_of_softmaxes),
    Pass("grown cats", GRAPH, with_grown_cats),
    Pass("own sums", GRAPH, _alone(with_own_sums)),
    Pass("parts", GRAPH, _alone(with_parts)),
    Pass("rows together", GRAPH, _alone(with_rows_together)),
    Pass("copied operands", GRAPH, with_copied_operands),
    Pass("own results", GRAPH, _alone(with_own_results)),
    Pass("grouping", GROUPS, grouped),
    Pass("activations", GROUPS, with_activations),
    Pass("fused products", GROUPS, with_fused_products),
    Pass("nests", DRAFT, written),
    Pass("overwriting", DRAFT, with_overwrites),
    Pass("own operands", DRAFT, _alone(with_own_operands)),
    Pass("memory offers", DRAFT, _alone(with_offers)),
    Pass("places", DRAFT, _alone(with_places)),
    Pass("aliases", DRAFT, _alone(with_aliases)),
    Pass("shared kernels", DRAFT, with_shared_kernels),
    Pass("needless kernels", DRAFT, _alone(without_needless)),
    Pass("lifetimes", SCHEDULE, _alone(with_lifetimes)),
)


def fuse(
    graph: Graph,
    *,
    threads: bool = True,
    exact: bool = False,
    targets: Targets = on_cpu,
    offers: bool = False,
    products: frozenset[ProductName] = frozenset(),
    trains: bool = False,
    fixed: Mapping[int, bool] | None = None,
    asks: Asks | None = None,
    check: bool = False,
    dump: bool = False,
) -> Schedule:
    """The schedule of ``graph``, with what each pass did; the others are as in :class:`Setting`. With ``check`` what
    each pass changed is verified, with ``dump`` it is printed into the schedule's steps.
    """
    setting = Setting(threads, exact, targets, offers, products, trains, fixed or {}, asks)
    schedule, steps = run(PASSES, graph, setting, STAGES, check=check, dump=dump)
    result: Schedule = schedule
    return result.with_steps(steps)
