"""Turns assumptions into a guard program: arguments first, long-lived objects as single words to compare.

A fact about a long-lived object is read from the object itself, once the program has settled that the path to it still
leads there. What lies in a dict is a block under the dict's version tag, and is skipped while the dict is unchanged;
``type(x) is T``, ``x.__dict__ is D``, the length of a list, the content of a cell and the code of a function are
compares of one word. A parameter is loaded into a register in its dict's block and checked as a tensor on every call,
so that another parameter of the same kind needs no new trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from framefuse.guards.check import Texts
from framefuse.guards.fact_checks import add
from framefuse.guards.registers import Builder, Granted
from framefuse.guards.source_nodes import Instruction, Part
from framefuse.ir.facts import Assumptions, Source
from framefuse.ir.guards import Guards
from framefuse.ir.plan import GuardProgram


def build(assumptions: Assumptions, arguments: int = 0, sources: Iterable[Source] = ()) -> Guards:
    """The program that checks ``assumptions`` and leaves their tensors and ``sources`` in registers.

    ``arguments`` is the number of bound arguments, if the caller wants fewer to be refused at once (0: not stated).
    Raises ValueError for a fact that no rule checks.
    """
    return _built(Builder(assumptions), arguments, sources)


def build_portable(assumptions: Assumptions, sources: Iterable[Source]) -> tuple[Guards, Sequence[Granted]]:
    """What :func:`build` makes, and what another process has to find the same to use the program as it is."""
    builder = Builder(assumptions)
    guards = _built(builder, 0, sources)
    return guards, builder.granted


def _built(builder: Builder, arguments: int, sources: Iterable[Source]) -> Guards:
    inputs = builder.assumptions.inputs
    if arguments > 0:
        builder.load(builder.nodes.node(Source("arg", None, arguments - 1)))
    for given in inputs:
        if given.source.is_argument:
            builder.tensor(given.source, given.spec)
    for fact in builder.assumptions.facts:
        if fact.source.is_argument:
            add(builder, fact)
    early = builder.relations(builder.assumptions.relations, builder.assumptions.comparisons, early=True)
    for fact in builder.assumptions.facts:
        if not fact.source.is_argument:
            add(builder, fact)
    for given in inputs:
        if not given.source.is_argument:
            builder.tensor(given.source, given.spec)
    register_of = {given.source: builder.load(builder.nodes.node(given.source)) for given in inputs}
    register_of.update((source, builder.load(builder.nodes.node(source))) for source in sources)
    last = builder.relations(
        [r for r in builder.assumptions.relations if r not in early.stated],
        [r for r in builder.assumptions.comparisons if r not in early.stated],
        early=False,
    )
    for relation in (*builder.assumptions.relations, *builder.assumptions.comparisons):
        if relation not in early.stated | last.stated:
            raise ValueError(f"no fact binds the numbers of {relation}")
    program = _assembled(
        builder,
        [
            builder.constants,
            builder.front,
            early.part,
            builder.words,
            *builder.blocks.values(),
            builder.late,
            last.part,
        ],
    )
    return Guards(program, dict(builder.numbers.number_of), register_of)


def _assembled(builder: Builder, parts: list[Part]) -> GuardProgram:
    """All parts in order, those of long-lived dicts and types as watch blocks."""
    instructions: list[Instruction] = []
    reasons: list[object] = []
    for part in parts:
        if part.subject is not None:
            instructions.append(("watch", part.subject, len(part.instructions)))
            reasons.append("unchanged since the last check")
        instructions += part.instructions
        reasons += part.reasons
    state = builder.assumptions.state
    return GuardProgram(state, tuple(instructions), builder.registers, builder.numbers.count, Texts(tuple(reasons)))
