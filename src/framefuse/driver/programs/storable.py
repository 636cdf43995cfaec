"""Names the classes whose objects are kept on disk: no file makes an object of another."""

from __future__ import annotations

import importlib

from framefuse.ir import comparisons, derivative, facts, graph, native_warnings, numbers, schedule, source, trace
from framefuse.ir.loops import nodes

# Dataclasses, written as the fields that their makers take. Equal ones may become one object but those of IDENTITY.
CLASSES: tuple[type, ...] = (
    comparisons.Relation, comparisons.RealRelation, derivative.Saved, derivative.Holder, derivative.Hold,
    derivative.Given, derivative.Piece, derivative.Halves, derivative.Backward, facts.TensorSpec, facts.GlobalState,
    facts.Fact, facts.Input, facts.Assumptions, graph.Node, graph.Arg, graph.Output, graph.Part, graph.Write,
    graph.Late, graph.Graph, numbers.Floordiv, numbers.Modulo, numbers.Minimum, numbers.Maximum, numbers.Real,
    numbers.Whole, schedule.Memory, schedule.RunKernel, schedule.RunMatmul, schedule.RunCall, schedule.Positions,
    schedule.Allocate, schedule.Release, schedule.Commit, schedule.Offer, schedule.Schedule, source.Line, trace.Ref,
    trace.TensorMeta, trace.Call, trace.Build, trace.Effect, trace.Holder, trace.Autograd, trace.Trace,
    nodes.Buffer, nodes.Number, nodes.Load, nodes.Const, nodes.Scalar, nodes.Index, nodes.Apply, nodes.Local,
    nodes.Let, nodes.Accumulator, nodes.Accumulate, nodes.Store, nodes.AtomicAdd, nodes.Scratch, nodes.Check,
    nodes.Loop, nodes.Product, nodes.Kernel, native_warnings.WarningPlace, native_warnings.Telling,
)  # fmt: skip
# The same of the stages and of rare calls, by module: few programs hold one, and the others need not import it.
OF_STAGES: dict[str, tuple[str, ...]] = {
    "framefuse.ir.taped_calls": ("Adjoint", "ByRow", "Hole", "Others", "Replay", "Taped", "Vjp"),
    "framefuse.ir.wrapped_calls": (
        "BeforeWrite", "Draw", "InInference", "Named", "OnCopies", "Parts", "Plainly", "Silent", "ThroughView",
        "Turned", "UnderAutocast", "WithKernels",
    ),
    "framefuse.ir.derivations": ("Derived", "Packed"),
    "framefuse.ir.dropout_masks": ("DropoutMask", "Dropped"),
}  # fmt: skip
IDENTITY: frozenset[type] = frozenset((graph.Node, nodes.Kernel))  # that compare by identity, or are changed


def class_of(module: str, name: str) -> type:
    """A class of ``OF_STAGES``."""
    found: type = getattr(importlib.import_module(module), name)
    return found
