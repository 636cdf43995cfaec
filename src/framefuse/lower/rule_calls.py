"""Asks the rule of a torch call what it gives, and forgets what a rule that failed had assumed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.ir.builder import Unprovable
from framefuse.ir.graph import Node
from framefuse.ir.nested import mapped
from framefuse.ir.numbers import Expr, Real
from framefuse.ir.trace import Call, Ref, TensorMeta, refs
from framefuse.ir.values import Value
from framefuse.lower.argument_names import by_place
from framefuse.lower.complex_clusters import by_parts
from framefuse.lower.complex_numbers import Parts
from framefuse.lower.library_calls import LibraryCalls
from framefuse.lower.rules import Lowered, Shapes, Unsupported, find, shapes_of

# What a rule may raise when a call's arguments are not what it expresses: the call is then a library call. A wrong
# call of the rule (TypeError) or a wrong assumption in it is the same case, since the result is checked anyhow.
FALLBACK = (Unsupported, Unprovable, TypeError, ValueError, IndexError, KeyError, AttributeError, ZeroDivisionError)


class RuleCalls:
    """Rules as calls of the trace ask them, which are ``calls`` of the library where they do not say what a call gives;
    its notes tell why. ``casts`` are, by value, the operands of the call at hand that autocast casts; None where torch
    casts them itself.
    """

    def __init__(self, calls: LibraryCalls) -> None:
        self.builder, self.trace, self.values = calls.builder, calls.trace, calls.values
        self.gradients, self.number, self.notes = calls.gradients, calls.number, calls.notes
        self.casts: dict[int, Node] | None = {}
        cpu = self.builder.targets("cpu")
        self.by_parts = by_parts(self.trace, cpu is None or cpu.library)

    def result(self, call: Call, parts: Parts | None = None) -> Lowered | None:
        """What the rule of the call answers, or that for the ``parts`` of complex numbers; relations of a rule that
        failed are forgotten.
        """
        rule = find(torch.Tensor.__setitem__ if call.assigns else call.target)
        if rule is None:
            self.notes.append((call.name, "no rule"))
            return None
        before = dict(self.builder.relations)
        operands = refs((call.args, call.kwargs))
        self.builder.memory = {self.values.contents[value]: self.trace.metas[value] for value in operands}
        self.builder.drawn, self.builder.writes = [], bool(call.written)
        try:
            args, kwargs = mapped((call.args, call.kwargs), self.argument)
            args, kwargs = by_place(rule, call.name, args, kwargs)
            result = rule(self.builder, *args, **kwargs) if parts is None else parts.lowered(rule, args, kwargs)
            if call.random != bool(self.builder.drawn) and not isinstance(result, Shapes):
                raise Unsupported("random")
            for shape in shapes_of(result):
                self.builder.exists(shape)
            return result
        except FALLBACK as error:
            self.builder.relations = before
            self.notes.append((call.name, f"{type(error).__name__}: {error}"))
            return None

    def on_parts(self, index: int, call: Call, metas: Sequence[TensorMeta]) -> Lowered | None:
        """What the call ``index`` of the trace does with the parts of complex numbers; None where it has no such
        form.
        """
        if index not in self.by_parts or call.random or self.casts:
            return None
        return self.result(call, Parts(self.builder, metas, self.gradients.carries))

    def is_complex(self, call: Call, results: Sequence[TensorMeta]) -> bool:
        """Whether complex numbers go into a call or come out of it."""
        operands = (self.values.contents[value].dtype for value in refs((call.args, call.kwargs)))
        return any(meta.dtype.is_complex for meta in results) or any(dtype.kind == "complex" for dtype in operands)

    def agrees(self, node: Node, meta: TensorMeta) -> bool:
        """Whether a rule gave what eager gave."""
        return (
            node.dtype.torch is meta.dtype
            and node.device == meta.device
            and len(node.shape) == len(meta.sizes)
            and self.builder.sizes(node.shape) == meta.sizes
        )

    def argument(self, value: Value) -> Value:
        """A part of a call's arguments as rules take it: a tensor is its node, a number one of the graph."""
        if isinstance(value, Ref):
            cast = self.casts.get(value.value) if self.casts else None
            return cast if cast is not None else self.values.contents[value.value]
        if isinstance(value, (Expr, Real)):
            return self.number(value)
        return tuple(value) if type(value) is torch.Size else value
