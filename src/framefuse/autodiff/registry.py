"""Registers the rules that give the gradients of a node's operands, by row, by library call and by derived name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from framefuse.ir.builder import Builder
from framefuse.ir.graph import Node
from framefuse.ir.pairs import reals


class Zero:
    """The gradient of an operand whose slope is nothing everywhere: eager gives zeros, which nobody makes until a
    result needs them.
    """

    __slots__ = ()


ZERO = Zero()
FAINT = Zero()  # eager's zeros without memory, which stay zeros whatever they are multiplied by


@dataclass(frozen=True, slots=True)
class Onto:
    """A gradient for ``node``, which lies behind views of the operand: for a rule that computes it better than the
    views' own rules would.
    """

    node: Node
    gradient: Node


Gradient = Node | Onto | Zero | None
# (builder, node, gradient of the node, whether each operand's is wanted) -> one gradient for each operand
Vjp = Callable[[Builder, Node, Node, Sequence[bool]], Sequence[Gradient]]
# The same of a library node: gradients by the path of its results.
Given = dict[tuple[int, ...], Node]
CallVjp = Callable[[Builder, Node, Given, Sequence[bool]], Sequence[Gradient] | None]  # None: not this call

ROWS: dict[str, Vjp] = {}
DERIVED: dict[str, Vjp] = {}
CALLS: dict[str, CallVjp] = {}
WHEN: dict[str, Callable[[Node], bool]] = {}
COMPLEX: dict[str, Callable[[Node], bool]] = {}


def vjp(*names: str) -> Callable[[Vjp], Vjp]:
    """The rule of these rows of the table."""

    def keep(rule: Vjp) -> Vjp:
        ROWS.update(dict.fromkeys(names, rule))
        return rule

    return keep


def vjp_derived(*names: str) -> Callable[[Vjp], Vjp]:
    """The rule of ``derived`` nodes of these names; the first of its gradients belongs to the value, so it is None."""

    def keep(rule: Vjp) -> Vjp:
        DERIVED.update(dict.fromkeys(names, rule))
        return rule

    return keep


def vjp_call(
    *names: str, when: Callable[[Node], bool] | None = None, of_complex: Callable[[Node], bool] | None = None
) -> Callable[[CallVjp], CallVjp]:
    """The rule of library calls of these names; only of those calls for which ``when`` says so. Of calls on complex
    numbers, it is that of those for which ``of_complex`` does.
    """

    def keep(rule: CallVjp) -> CallVjp:
        CALLS.update(dict.fromkeys(names, rule))
        for table, condition in ((WHEN, when), (COMPLEX, of_complex)):
            if condition is not None:
                table.update(dict.fromkeys(names, condition))
        return rule

    return keep


# (builder, library node, its result nodes, whether a gradient flows to each operand) -> for each result the node that
# takes its place, as a call that gives more; None where the call has no such form.
DifferentiableForm = Callable[[Builder, Node, Sequence[Node], Sequence[bool]], dict[Node, Node] | None]
DIFFERENTIABLE_FORMS: dict[str, DifferentiableForm] = {}


def has_rules(node: Node) -> bool:
    """Whether the rules of a library call's name hold for it: they are about real numbers, but for some and for those
    of the calls that join and split complex ones, about operands that are read as they are, and some about some of the
    calls.
    """
    when = WHEN.get(node.attr("name"))
    if node.attr("target") in (torch.complex, reals):
        return True
    if _casts(node):
        return False
    if any(part.dtype.kind == "complex" for part in (node, *node.inputs)):
        when = COMPLEX.get(node.attr("name"), never)
    return when is None or when(node)


def never(node: Node) -> bool:
    """The condition of a rule that holds for none of the calls on such numbers."""
    return False


def _casts(node: Node) -> bool:
    """Whether a call that runs under autocast casts operands: its gradients are of their dtypes, not of its own."""
    target, under = node.attr("target"), False
    while target is not None and not under:
        target, under = getattr(target, "target", None), bool(getattr(target, "casts", ()))
    return under and any(part.dtype.is_float and part.dtype is not node.dtype for part in node.inputs)


def differentiable_form(*names: str) -> Callable[[DifferentiableForm], DifferentiableForm]:
    """The form that library calls of these names take where a gradient flows through them."""

    def keep(rule: DifferentiableForm) -> DifferentiableForm:
        DIFFERENTIABLE_FORMS.update(dict.fromkeys(names, rule))
        return rule

    return keep
