"""Keeps the passes over graphs that users have registered, by stage, and runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from framefuse.errors import CompilerBug, Stop, UserError, kind_of
from framefuse.ir.graph import Graph
from framefuse.ir.passes import Pass, Stage, Step, placed, run
from framefuse.ir.printer import graph_text
from framefuse.ir.verify import verify

# The graphs that users' passes change, in the order in which they are made of a call.
STAGES = ("lowered", "forward", "backward")
Reference = Callable[[Graph], Callable[..., object]]
_passes: dict[str, tuple[Pass, ...]] = dict.fromkeys(STAGES, ())
_suspended: ContextVar[bool] = ContextVar("suspended", default=False)


def passes_of(stage: str) -> tuple[Pass, ...]:
    """The passes of a stage in order."""
    return () if _suspended.get() else _passes[stage]


def add(
    stage: str,
    name: str,
    change: Callable[[Graph], Graph | None],
    *,
    before: str | None = None,
    after: str | None = None,
) -> Pass:
    """Takes one more pass; raises ValueError for a name that is taken, and a place that is not there."""
    row = Pass(name, stage, lambda graph, setting: _checked(name, change, graph))
    _passes[stage] = placed(_passes[stage], row, before=before, after=after)
    return row


def remove(row: Pass) -> None:
    """Takes the pass out; nothing happens where it is out already."""
    _passes[row.stage] = tuple(each for each in _passes[row.stage] if each is not row)


@contextmanager
def suspended() -> Iterator[None]:
    """While it lasts nothing that this thread compiles is changed: for what patterns are recorded from."""
    token = _suspended.set(True)
    try:
        yield
    finally:
        _suspended.reset(token)


def changed(
    stage: str, graph: Graph, *, dump: bool, reference: Reference | None = None
) -> tuple[Graph, tuple[Step, ...]]:
    """The graph behind the stage's passes, and what each did. ``reference`` makes a graph callable: with it what each
    pass gave is run beside what it got, on drawn numbers.
    """
    rows = passes_of(stage)
    if not rows:
        return graph, ()
    stages = {stage: Stage(lambda value, name: None, _beside)}
    if reference is not None:
        rows = tuple(Pass(row.name, row.stage, _compared(row, reference)) for row in rows)
    result, steps = run(rows, graph, None, stages, dump=dump)
    return result, steps


def _beside(graph: Graph, before: Graph) -> str:
    return f"# before\n{graph_text(before)}\n\n# after\n{graph_text(graph)}"


def _checked(name: str, change: Callable[[Graph], Graph | None], graph: Graph) -> Graph:
    """What a pass gave, if it fits in the place of what it got."""
    try:
        result = change(graph)
    except (UserError, Stop):
        raise
    except Exception as error:
        text = f"the pass {name!r} raised {type(error).__name__}: {error}. Mend it, or remove() what registered it"
        raise UserError(text) from error
    if result is None or result is graph:
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
    """Raises UserError where two graphs give different results for numbers that were drawn."""
    results = []
    for graph in (before, after):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            tensors = [_drawn(graph, place) for place in range(len(graph.inputs))]
            try:
                results.append(reference(graph)(tensors, {}))
            except Exception:  # drawn numbers may be none that the program takes, and floats of a run are not known
                return
    for place, (old, new) in enumerate(zip(*results, strict=True)):
        try:
            torch.testing.assert_close(new, old, equal_nan=True)
        except AssertionError as error:
            first = str(error).strip().replace("\n", " ")
            text = f"the pass {name!r} changes what the program computes: output {place}: {first}. Mend the pass"
            raise UserError(text) from error


def _drawn(graph: Graph, place: int) -> torch.Tensor:
    node = graph.inputs[place]
    sizes = [size.evaluate(graph.hints) for size in node.shape]
    strides = [stride.evaluate(graph.hints) for stride in node.strides or ()]
    tensor = torch.empty_strided(sizes, strides, dtype=node.dtype.torch, device=node.device)
    if node.dtype.is_float:
        return tensor.copy_(torch.randn(sizes).to(tensor.dtype))
    return tensor.copy_(torch.randint(0, 2, sizes).to(tensor.dtype))
