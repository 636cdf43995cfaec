"""The public functions that change the graphs between a program and its code: passes and replaced patterns.

The graph of the stage ``"captured"`` is a :class:`torch.fx.GraphModule` of the calls that the program made of torch.
Those of the others are :class:`framefuse.ir.graph.Graph`\\s of primitives (``framefuse ops`` prints their table), pure
and with symbolic sizes: ``"lowered"``, what the program computes; ``"joint"``, in training, what it computes and then
the gradients of its inputs, which are behind them the gradients of its results; ``"forward"``, what a call computes,
with what it saves for backward behind its results; ``"backward"``, one for each case of a backward pass.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import torch

from framefuse.errors import UserError, kind_of
from framefuse.ir.values import Function

if TYPE_CHECKING:  # imported with the compiler, when the first pass is registered
    from framefuse.ir.graph import Graph
    from framefuse.ir.passes import UserPass
    from framefuse.ir.patterns import Exchange
    from framefuse.ir.rewrite import Change

    GraphPass = Callable[[Graph], Graph | None] | Callable[[torch.fx.GraphModule], torch.fx.GraphModule | None]


class Registered:
    """One or several passes that are in force until :meth:`remove` or the end of a ``with`` block.

    ``count`` is how many patterns were replaced so far; it stays 0 for what :func:`register_pass` gives. What was
    compiled meanwhile keeps its code until :func:`framefuse.reset`.
    """

    def __init__(self) -> None:
        self.count = 0
        self.rows: list[UserPass] = []

    def __repr__(self) -> str:
        passes = ", ".join(f"{row.name} ({row.stage})" for row in self.rows)
        return f"<passes {passes}: {self.count} replaced>" if self.count else f"<passes {passes}>"

    def remove(self) -> None:
        """Takes the passes out of force."""
        for row in self.rows:
            _registered().remove(row)

    def __enter__(self) -> Registered:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def register_pass(
    stage: str,
    function: GraphPass,
    *,
    name: str | None = None,
    before: str | None = None,
    after: str | None = None,
    check: bool = True,
    version: str | None = None,
) -> Registered:
    """Has ``function(graph)`` change every graph of a stage that is compiled from now on.

    ``function`` gets a graph of primitives, a :class:`framefuse.ir.graph.Graph`, and gives another, or None to leave
    it; :func:`framefuse.rewritten` makes one from another node by node. What it gives is checked: every node against
    the table of primitives, inputs and outputs against those that came, and results of both graphs against one another,
    on drawn numbers. ``options={"report": folder}`` writes the graph before and after each pass.

    At the stage ``"captured"`` it gets a :class:`torch.fx.GraphModule` of its own, and gives one; None stands for the
    one that it got, which it may have changed. Placeholders stay, results keep dtype, sizes, strides and history. Both
    run on the values of the call, copied, and their results and gradients are compared. Graphs with calls of custom
    autograd functions, and with autocast entered inside, are left as they are.

    At the stage ``"joint"`` it gets results and gradients of what autograd walks as one: the inputs of its graph are
    the program's and then the gradients of the results, its outputs are the results, what else of it the program reads,
    and the gradients of the inputs. What backward needs of either is saved or computed again, as is cheaper. Gradients
    that are differentiated again are those of the results that the pass gave.

    Args:
        stage: ``"captured"``, ``"lowered"``, ``"joint"``, ``"forward"`` or ``"backward"``.
        name: of the pass; else the function's.
        before, after: the pass of this stage that it stands right before or after; else it is the last.
        check: whether both graphs are run and compared; False for a pass that is meant to change results.
        version: stands for what the pass does in the keys of the disk cache: another text wherever the pass is
            another. Without one nothing that is compiled meanwhile is kept for later processes.

    Raises:
        UserError: an unknown stage or place, a taken name. A pass that raises, or gives a graph that does not fit,
            raises it from the call that is being compiled.
    """
    stages = _in_force().STAGES
    if stage not in stages:
        raise UserError(f"unknown stage {stage!r}. Choose one of: {', '.join(stages)}")
    if not callable(function):
        raise UserError(f"a pass must be callable, not {kind_of(function)}. Give (graph) -> graph")
    if version is not None and not isinstance(version, str):
        raise UserError(f"version is {kind_of(version)}. Give a text, such as '1'")
    handle = Registered()
    title = str(name or getattr(function, "__name__", type(function).__name__))
    handle.rows.append(_add(stage, title, function, before, after, check, version))
    return handle


def replace(
    pattern: Function,
    replacement: Function,
    example_inputs: Sequence[Any],
    *,
    name: str | None = None,
    stages: Sequence[str] = ("lowered", "backward"),
    check: bool = True,
    version: str | None = None,
) -> Registered:
    """Has ``replacement`` computed wherever a program computes what ``pattern`` does, from now on.

    Both are Python functions of the same parameters, tensors and floats, that give one tensor. They are recorded on
    ``example_inputs``, which say dtypes and numbers of dimensions; sizes of two and more stand for any size, floats
    for any number. What the program wrote need not be spelled like the pattern: primitives are compared. The pattern
    is sought with and without gradients, and in backward passes. A match whose inner values are read elsewhere too
    stays as it is.

    Args:
        stages: the graphs of primitives in which it is sought, see :func:`register_pass`. Of a captured graph it would
            be a pattern of calls: a pass with :func:`torch.fx.replace_pattern`.
        check: run both functions on ``example_inputs`` first, and compare.
        version: see :func:`register_pass`; ``count`` counts what this process compiled.

    Raises:
        UserError: the functions give different results, or cannot be recorded whole.
    """
    if "captured" in stages:
        raise UserError("a pattern is one of primitives. Register a pass that calls torch.fx.replace_pattern")
    record: Callable[..., list[Exchange]] = importlib.import_module("framefuse.driver.patterns").exchanges
    if check:
        _compare(pattern, replacement, example_inputs)
    with _in_force().suspended():
        exchanges = record(pattern, replacement, tuple(example_inputs))
    handle = Registered()

    def change(graph: Graph) -> Graph:
        for exchange in exchanges:
            graph, count = exchange.applied(graph)
            handle.count += count
        return graph

    title = name or getattr(pattern, "__name__", "pattern")
    try:
        for stage in stages:
            handle.rows += register_pass(stage, change, name=title, check=False, version=version).rows
    except UserError:
        handle.remove()
        raise
    return handle


def rewritten(graph: Graph, change: Change) -> Graph:
    """The graph in which ``change(node, operands, build)`` has said what comes in the place of each node.

    Nodes come in program order, operands before what reads them; ``operands`` are the node's own with what came in
    their place. ``build`` makes nodes, equal ones once: ``build.pointwise("add", a, b)``, ``build.full(1.0, dtype,
    shape)``, ``build.reshape(a, shape)``, ``build.matmul(a, b)`` and the other methods of
    :class:`framefuse.ir.builder.Builder`. None keeps the node. What nobody reads any more is gone. The graph itself
    comes back where nothing changed.

    Raises:
        UserError: a node of another dtype or shape than the one in whose place it comes.
    """
    result: Graph = importlib.import_module("framefuse.ir.rewrite").rewritten(graph, change)
    return result


def _add(
    stage: str,
    name: str,
    function: GraphPass,
    before: str | None,
    after: str | None,
    check: bool,
    version: str | None,
) -> UserPass:
    try:
        row: UserPass = _registered().add(
            stage, name, function, before=before, after=after, check=check, version=version
        )
    except ValueError as error:
        raise UserError(f"{error}. Give another name=, before= or after=") from error
    return row


def _registered() -> ModuleType:
    """What registers passes."""
    return importlib.import_module("framefuse.ir.registered")


def _in_force() -> ModuleType:
    return importlib.import_module("framefuse.ir.passes_in_force")


def _compare(pattern: Function, replacement: Function, inputs: Sequence[Any]) -> None:
    with torch.no_grad():
        expected, actual = pattern(*inputs), replacement(*inputs)
    for given, what in ((expected, "pattern"), (actual, "replacement")):
        if not isinstance(given, torch.Tensor):
            raise UserError(f"the {what} gives {kind_of(given)}. Write functions that give one tensor")
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True)
    except AssertionError as error:
        first = str(error).strip().replace("\n", " ")
        raise UserError(f"the replacement gives other results than the pattern: {first}. Mend one of them") from error
