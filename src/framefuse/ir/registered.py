"""Keeps the passes over graphs that users have registered, by stage, and runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from framefuse.errors import CompilerBug, Stop, UserError, kind_of
from framefuse.ir.graph import Graph
from framefuse.ir.passes import Pass, Stage, Step, UserPass, placed, run
from framefuse.ir.passes_in_force import PASSES, WITHIN, passes_of
from framefuse.ir.printer import graph_text
from framefuse.ir.values import Value
from framefuse.ir.verify import verify

Reference = Callable[[Graph], Callable[..., object]]
MOVES = 8.0  # times how far results move with one rounding of what comes in: what two graphs may differ by


def add(
    stage: str,
    name: str,
    change: Callable[[Graph], Graph | None],
    *,
    before: str | None = None,
    after: str | None = None,
    check: bool = True,
    version: str | None = None,
) -> UserPass:
    """Takes one more pass; raises ValueError for a name that is taken, and a place that is not there."""
    run = _called if stage == "captured" else _checked
    row = UserPass(name, stage, lambda graph, setting: run(name, change, graph), check, version)
    rows = placed(PASSES[stage], row, before=before, after=after)
    PASSES[stage] = tuple(each for each in rows if isinstance(each, UserPass))
    return row


def remove(row: UserPass) -> None:
    """Takes the pass out; nothing happens where it is out already."""
    PASSES[row.stage] = tuple(each for each in PASSES[row.stage] if each is not row)


@contextmanager
def within(stage: str, name: str, change: Callable[[Graph], Graph]) -> Iterator[None]:
    """While it lasts what this thread compiles is changed by one more pass, which is framefuse's own."""
    row = UserPass(name, stage, lambda graph, setting: change(graph), check=False)
    token = WITHIN.set((*WITHIN.get(), row))
    try:
        yield
    finally:
        WITHIN.reset(token)


def changed(
    stage: str, graph: Graph, reference: Reference, *, dump: bool, check: bool
) -> tuple[Graph, tuple[Step, ...]]:
    """The graph behind the stage's passes, and what each did. ``reference`` makes a graph callable: by it what a pass
    gave is run beside what it got, on drawn numbers, where the pass says so, or with ``check`` that of each.
    """
    rows = passes_of(stage)
    if not rows:
        return graph, ()
    stages = {stage: Stage(lambda value, name: None, _beside)}
    run_rows = [
        Pass(row.name, row.stage, _compared(row, reference)) if row.check or check else row for row in rows
    ]
    return run(run_rows, graph, None, stages, dump=dump)


def _beside(graph: Graph, before: Graph) -> str:
    return f"# before\n{graph_text(before)}\n\n# after\n{graph_text(graph)}"


def _called(name: str, change: Callable[[Value], Value], graph: Value) -> Value:
    """What a pass gave; None stands for what it got."""
    try:
        result = change(graph)
    except (UserError, Stop):
        raise
    except Exception as error:
        text = f"the pass {name!r} raised {type(error).__name__}: {error}. Mend it, or remove() what registered it"
        raise UserError(text) from error
    return graph if result is None else result


def _checked(name: str, change: Callable[[Graph], Graph | None], graph: Graph) -> Graph:
    """What a pass gave, if it fits in the place of what it got."""
    result: Graph = _called(name, change, graph)
    if result is graph:
        return graph
    wrong = _wrong(result, graph)
    if wrong:
        raise UserError(f"the pass {name!r} gave {wrong}. Give a graph with the inputs and outputs of its own")
    return result


def _wrong(graph: object, before: Graph) -> str:
    """What of a graph does not fit in the place of another; "" where all does."""
    if not isinstance(graph, Graph):
        return kind_of(graph)
    try:
        verify(graph, "the pass")
    except CompilerBug as error:
        return f"a broken graph: {error}"
    if graph.inputs != before.inputs:
        return "other inputs"
    if len(graph.outputs) != len(before.outputs) or len(graph.writes) != len(before.writes):
        return "more or fewer outputs"
    for place, (new, old) in enumerate(zip(graph.outputs, before.outputs, strict=True)):
        sizes = [tuple(size.evaluate(graph.hints) for size in each.node.shape) for each in (new, old)]
        if new.node.dtype is not old.node.dtype or sizes[0] != sizes[1] or new.node.device != old.node.device:
            return f"output {place} as {new.node!r}, which was {old.node!r}"
        if (new.value, new.input, new.requires_grad) != (old.value, old.input, old.requires_grad):
            return f"output {place} as another result"
    return ""


# ---- running both ----------------------------------------------------------------------------------------------------


def _compared(row: Pass, reference: Reference) -> Callable[[Graph, object], Graph]:
    def compare(graph: Graph, setting: object) -> Graph:
        result: Graph = row.run(graph, setting)
        if result is not graph:
            _compare(row.name, graph, result, reference)
        return result

    return compare


def _compare(name: str, before: Graph, after: Graph, reference: Reference) -> None:
    """Raises UserError where two graphs give different results for numbers that were drawn: results that differ by
    more than those of the first do with one rounding of these numbers.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            torch.manual_seed(0)
            drawn = [_drawn(before, place) for place in range(len(before.inputs))]
            old, moved, new = (
                _run(graph, reference, values)
                for graph, values in ((before, drawn), (before, list(map(nudged, drawn))), (after, drawn))
            )
        except Exception:  # drawn numbers may be none that the program takes, and floats of a run are not known
            return
    for place, (mine, beside, theirs) in enumerate(zip(old, moved, new, strict=True)):
        refuse_unlike(name, f"output {place}", theirs, mine, beside)


def refuse_unlike(name: str, what: str, found: torch.Tensor, expected: torch.Tensor, moved: torch.Tensor) -> None:
    """Raises UserError where a pass made another result; ``moved`` is the expected one of inputs that were nudged."""
    text = _unlike(found, expected, moved)
    if text:
        raise UserError(
            f"the pass {name!r} changes what the program computes: {what}: {text}. "
            "Mend the pass, or give check=False where it is meant to"
        )


def _run(graph: Graph, reference: Reference, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    found = reference(graph)([value.clone() for value in values], {})
    assert isinstance(found, (tuple, list)), "the results of a graph"
    return list(found)


def _unlike(found: torch.Tensor, expected: torch.Tensor, moved: torch.Tensor) -> str:
    """How a result differs; empty where it does not."""
    slack = 0.0
    if expected.is_floating_point() and expected.shape == moved.shape:
        steps = (moved.double() - expected.double()).abs()
        steps = steps[steps.isfinite()]
        slack = MOVES * float(steps.max()) if steps.numel() else 0.0
    try:
        if slack:
            rtol = 16 * torch.finfo(expected.dtype).eps
            torch.testing.assert_close(found, expected, equal_nan=True, rtol=rtol, atol=slack)
        else:
            torch.testing.assert_close(found, expected, equal_nan=True)
    except AssertionError as error:
        return str(error).strip().replace("\n", " ")
    return ""


def _drawn(graph: Graph, place: int) -> torch.Tensor:
    node = graph.inputs[place]
    sizes = [size.evaluate(graph.hints) for size in node.shape]
    strides = [stride.evaluate(graph.hints) for stride in node.strides or ()]
    tensor = torch.empty_strided(sizes, strides, dtype=node.dtype.torch, device=node.device)
    if node.dtype.is_float:
        return tensor.copy_(torch.randn(sizes).to(tensor.dtype))
    return tensor.copy_(torch.randint(0, 2, sizes).to(tensor.dtype))


def nudged(tensor: torch.Tensor) -> torch.Tensor:
    """Each float moved by a rounding."""
    if not tensor.is_floating_point():
        return tensor
    moved = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return moved.copy_(tensor.detach() * (1 + 2 * torch.finfo(tensor.dtype).eps))
