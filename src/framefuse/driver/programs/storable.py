"""Names the classes whose objects are kept on disk: no file makes an object of another."""

from __future__ import annotations

from framefuse.autodiff.rules.linear_calls import Adjoint
from framefuse.autodiff.rules.reductions import Others
from framefuse.autodiff.tapes import Hole, Replay, Taped, Vjp
from framefuse.ir import comparisons, derivative, facts, graph, native_warnings, numbers, schedule, source, trace
from framefuse.ir.loops import nodes
from framefuse.lower.library import (
    BeforeWrite,
    Draw,
    OnCopies,
    Parts,
    Plainly,
    Silent,
    ThroughView,
    Turned,
    UnderAutocast,
)
from framefuse.lower.random_numbers import DropoutMask

# Dataclasses, written as the fields that their makers take. Equal ones may become one object but those of IDENTITY.
CLASSES: tuple[type, ...] = (
    comparisons.Relation, comparisons.RealRelation, derivative.Saved, derivative.Holder, derivative.Hold,
    derivative.Given, derivative.Piece, derivative.Halves, facts.TensorSpec, facts.GlobalState, facts.Fact, facts.Input,
    facts.Assumptions, graph.Node, graph.Arg, graph.Output, graph.Part, graph.Write, graph.Late, graph.Graph,
    numbers.Floordiv, numbers.Modulo, numbers.Minimum, numbers.Maximum, numbers.Real, numbers.Whole, schedule.Memory,
    schedule.RunKernel, schedule.RunMatmul, schedule.RunCall, schedule.Positions, schedule.Allocate, schedule.Release,
    schedule.Commit, schedule.Offer, schedule.Schedule, source.Line, trace.Ref, trace.TensorMeta, trace.Call,
    trace.Build, trace.Effect, trace.Holder, trace.Autograd, trace.Trace, nodes.Buffer, nodes.Number, nodes.Load,
    nodes.Const, nodes.Scalar, nodes.Index, nodes.Apply, nodes.Local, nodes.Let, nodes.Accumulator, nodes.Accumulate,
    nodes.Store, nodes.AtomicAdd, nodes.Scratch, nodes.Check, nodes.Loop, nodes.Product, nodes.Kernel, Adjoint, Others,
    Hole, Replay, Taped, Vjp, BeforeWrite, Draw, OnCopies, Parts, Plainly, Silent, ThroughView, Turned, UnderAutocast,
    DropoutMask, native_warnings.WarningPlace, native_warnings.Telling,
)  # fmt: skip
IDENTITY: frozenset[type] = frozenset((graph.Node, nodes.Kernel))  # that compare by identity, or are changed
