"""What the stages make of one trace, a field a product: the driver fills it in, the record of a function keeps it."""

from __future__ import annotations

from dataclasses import field, fields
from typing import TYPE_CHECKING

from framefuse.ir.compiled import GraphCode
from framefuse.ir.facts import Assumptions
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.graph import Graph
from framefuse.ir.guards import Guards, KeptGuards
from framefuse.ir.plan import Plan
from framefuse.ir.schedule import RunCall, RunKernel, RunMatmul, Schedule
from framefuse.ir.trace import Trace
from framefuse.ir.values import Arguments, Function
from framefuse.runtime.derivative import Derivative

if TYPE_CHECKING:
    from framefuse.ir.compiled import Chosen
    from framefuse.ir.derivative import Halves
    from framefuse.ir.passes import Step
    from framefuse.runtime.fx_graph import Captured


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Rewritten:
    """A graph behind the passes that users registered for its ``stage``, and what each did, also of earlier stages.
    That of the stage ``captured`` is the trace.
    """

    stage: str
    graph: Graph | None
    steps: tuple[Step, ...] = ()


@dataclass(eq=False, repr=False, slots=True)
class Compilation:
    """A trace and all that was made of it.

    A field without a default is not there before its pass has run: :attr:`made` names those that are. What only one way
    of compiling makes has a default: ``captured``, ``examples`` and ``callable`` are another backend's. ``bound`` and
    ``examples`` are the values of the recorded call, ``kept`` its guards of an earlier process: they are dropped at the
    end; a case of a backward pass has none, and begins with its ``lowered`` graph. ``key`` is that under which the
    program is kept on disk, if it is.
    """

    trace: Trace
    bound: Arguments | None = None
    captured: Captured | None = None
    lowered: Graph = field(init=False)
    rewritten: Rewritten | None = None
    halves: Halves | None = None
    graph: Graph = field(init=False)
    chosen: Chosen | None = None
    planned: Schedule | None = None
    code: GraphCode | None = None
    kept: KeptGuards | None = None
    key: str | None = None
    assumptions: Assumptions = field(init=False)
    guards: Guards = field(init=False)
    derivatives: tuple[Derivative, ...] = ()
    examples: Arguments | None = None
    callable: Function | None = None
    plan: Plan = field(init=False)

    @property
    def made(self) -> tuple[str, ...]:
        """The names of what is there, in the order of the fields; a ``key`` is no stage's."""
        values = ((each.name, getattr(self, each.name, None)) for each in fields(self) if each.name != "key")
        return tuple(name for name, value in values if value is not None and value != ())

    @property
    def computes(self) -> bool:
        """Whether its code has kernels or products of its own."""
        return self.code is not None and any(isinstance(i, (RunKernel, RunMatmul)) for i in self.code.schedule.items)

    @property
    def library_targets(self) -> list[Function]:
        """What its code calls of torch, in order."""
        items = self.code.schedule.items if self.code is not None else ()
        return [item.node.attr("target") for item in items if isinstance(item, RunCall)]

    @property
    def is_hollow(self) -> bool:
        """Whether its code computes nothing: it gives back what comes in, or leads to a step."""
        return self.code is not None and not self.computes and not self.library_targets

    def forget_call(self) -> None:
        """Drops the values of the recorded call: what is compiled keeps no argument alive."""
        self.bound = self.examples = self.kept = None
