"""Makes the library nodes of backward graphs: a torch callable on nodes, with results whose shapes are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from framefuse.ir.builder import Builder, Shape
from framefuse.ir.dtypes import DType
from framefuse.ir.graph import Arg, Node
from framefuse.ir.numbers import expr


def call(builder: Builder, target: Callable[..., Any], args: Sequence[Any], *, like: Node, **kwargs: Any) -> Node:
    """``target(*args)`` where nodes among the arguments stand for tensors; the result is one row-major tensor of the
    shape and dtype of ``like``.
    """
    return calls(builder, target, args, [((), like.dtype, like.shape)], kwargs)[0]


def calls(
    builder: Builder,
    target: Callable[..., Any],
    args: Sequence[Any],
    results: Sequence[tuple[tuple[int, ...], DType, Shape]],
    kwargs: dict[str, Any] | None = None,
    name: str | None = None,
) -> tuple[Node, ...]:
    """``target(*args, **kwargs)`` with one row-major result for each (path, dtype, shape)."""
    operands: list[Node] = []
    template, named = template_of(tuple(args), operands), template_of(kwargs or {}, operands)
    attrs = (
        ("target", target),
        ("name", name or getattr(target, "__name__", "call")),
        ("args", template),
        ("kwargs", named),
        ("random", False),
        ("orders", tuple(tuple(range(len(node.shape))) for node in operands)),
    )
    device = operands[0].device
    node = builder.opaque("library", tuple(operands), attrs, results[0][1], (), None, device)
    found = []
    for path, dtype, shape in results:
        found.append(builder.opaque("result", (node,), (("path", path),), dtype, shape, row_major(shape), device))
    return tuple(found)


def row_major(shape: Shape) -> Shape:
    """The strides of a dense tensor whose last dimension is innermost, in elements."""
    strides, step = [], expr(1)
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def template_of(value: Any, operands: list[Node]) -> Any:
    """Nested arguments with each node replaced by its place among ``operands``."""
    if isinstance(value, Node):
        if value not in operands:
            operands.append(value)
        return Arg(operands.index(value))
    kind = type(value)
    if kind is tuple or kind is list:
        return kind(template_of(part, operands) for part in value)
    if kind is dict:
        return {name: template_of(part, operands) for name, part in value.items()}
    return value
