"""Differentiates library calls that have no rule by torch's autograd: on a tape that the forward keeps, or by calling
them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from framefuse.autodiff.library import calls
from framefuse.autodiff.registry import Given, Gradient
from framefuse.errors import Stop
from framefuse.ir.builder import Builder
from framefuse.ir.graph import Arg, Node
from framefuse.ir.stops import reason

Path = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Hole:
    """In the arguments of a call: operand ``index`` goes here."""

    index: int


def filled(value: Any, operands: Sequence[torch.Tensor]) -> Any:
    """Nested arguments with operands in their holes."""
    kind = type(value)
    if kind is Hole:
        return operands[value.index]
    if kind is tuple or kind is list:
        return kind(filled(part, operands) for part in value)
    if kind is dict:
        return {name: filled(part, operands) for name, part in value.items()}
    if kind is slice:
        return slice(*(filled(part, operands) for part in (value.start, value.stop, value.step)))
    return value


def hollow(value: Any) -> Any:
    """An argument template with holes in place of its tensors."""
    kind = type(value)
    if kind is Arg:
        return Hole(value.index)
    if kind is tuple or kind is list:
        return kind(hollow(part) for part in value)
    if kind is dict:
        return {name: hollow(part) for name, part in value.items()}
    if kind is slice:
        return slice(*(hollow(part) for part in (value.start, value.stop, value.step)))
    return value


def _run(
    target: Callable[..., Any], wanted: Sequence[int], operands: Sequence[torch.Tensor], args: Any, kwargs: Any
) -> tuple[Any, list[torch.Tensor]]:
    """The call's result in grad mode, and the leaves that stood for the wanted operands."""
    values = list(operands)
    for index in wanted:
        values[index] = operands[index].detach().requires_grad_()
    with torch.enable_grad():
        result = target(*filled(args, values), **filled(kwargs, values))
    return result, [values[index] for index in wanted]


def _at(result: Any, path: Path) -> Any:
    for step in path:
        result = result[step]
    return result


def _gradients(
    results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], given: Sequence[torch.Tensor], **how: bool
) -> tuple[torch.Tensor, ...]:
    """Gradients of the leaves; zeros where none flows."""
    pairs = [(result, g) for result, g in zip(results, given, strict=True) if result.requires_grad]
    if not pairs:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    found = torch.autograd.grad(
        [result for result, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True, **how
    )
    return tuple(torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True))


@dataclass(frozen=True, slots=True)
class Taped:
    """Runs a call in grad mode on leaves in place of the ``wanted`` operands.

    It takes (operands, args, kwargs), the last two with holes, and returns the results at ``paths`` without their
    graph, then with it, then the leaves.
    """

    target: Callable[..., Any]
    wanted: tuple[int, ...]
    paths: tuple[Path, ...]

    def __call__(self, operands: Sequence[torch.Tensor], args: Any, kwargs: Any) -> tuple[Any, ...]:
        result, leaves = _run(self.target, self.wanted, operands, args, kwargs)
        found = [_at(result, path) for path in self.paths]
        return tuple(part.detach() for part in found), tuple(found), tuple(leaves)

    @property
    def __name__(self) -> str:
        return f"{getattr(self.target, '__name__', 'call')}_taped"


def is_taped(node: Node) -> bool:
    """Whether the value is part of a tape: a result with its graph, or a leaf."""
    return node.op == "result" and isinstance(node.inputs[0].attr("target"), Taped) and node.attr("path")[0] != 0


def from_tape(
    results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The gradients of a tape's leaves; the tape stays."""
    return _gradients(results, leaves, given, retain_graph=True)


@dataclass(frozen=True, slots=True)
class Vjp:
    """Makes a call again and gives the gradients of its ``wanted`` operands, as a function of all operands and of the
    gradients ``given`` for the results at ``paths``. In grad mode these can be differentiated again.
    """

    target: Callable[..., Any]
    wanted: tuple[int, ...]
    paths: tuple[Path, ...]

    def __call__(
        self, operands: Sequence[torch.Tensor], args: Any, kwargs: Any, given: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        again = torch.is_grad_enabled()
        values = list(operands)
        for index in self.wanted:
            value = operands[index]
            values[index] = value if again and value.requires_grad else value.detach().requires_grad_()
        with torch.enable_grad():
            result = self.target(*filled(args, values), **filled(kwargs, values))
        leaves = [values[index] for index in self.wanted]
        return _gradients([_at(result, path) for path in self.paths], leaves, given, create_graph=again)

    @property
    def __name__(self) -> str:
        return f"{getattr(self.target, '__name__', 'call')}_vjp"


# ---- graphs ----------------------------------------------------------------------------------------------------------


def call_again(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient]:
    """The gradients of a library node's operands by :class:`Vjp`. Raises :class:`Stop` for a random call."""
    target, args, kwargs = node.attr("target"), hollow(node.attr("args")), hollow(node.attr("kwargs"))
    if isinstance(target, Taped):  # as the call was before it was taped
        args, kwargs = node.attr("args")[1:]
        given = {target.paths[path[1]]: g for path, g in given.items()}
        target = target.target
    if node.attr("random"):
        raise Stop(reason("gradient", f"{node.attr('name')}, which draws random numbers,", node.line))
    wanted = tuple(index for index, here in enumerate(need) if here)
    again = Vjp(target, wanted, tuple(given))
    return _spread(builder, node, again, (node.inputs, args, kwargs, tuple(given.values())), wanted)


def read_tape(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient]:
    """The gradients of a taped node's operands."""
    target = node.attr("target")
    parts = {part.attr("path"): part for part in builder.nodes if part.op == "result" and part.inputs[0] is node}
    results = tuple(parts[(1, path[1])] for path in given)
    wanted = [index for index in target.wanted if need[index]]
    leaves = tuple(parts[(2, target.wanted.index(index))] for index in wanted)
    return _spread(builder, node, from_tape, (results, leaves, tuple(given.values())), wanted)


def _spread(
    builder: Builder, node: Node, target: Callable[..., Any], args: Sequence[Any], wanted: Sequence[int]
) -> Sequence[Gradient]:
    """One gradient for each operand out of a call that gives those of the wanted ones."""
    results = [((place,), node.inputs[index].dtype, node.inputs[index].shape) for place, index in enumerate(wanted)]
    found = calls(builder, target, args, results, name=f"{node.attr('name')}_backward")
    parts: list[Gradient] = [None] * len(node.inputs)
    for index, part in zip(wanted, found, strict=True):
        parts[index] = part
    return parts
