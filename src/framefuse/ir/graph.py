"""The tensor graph: pure values over the closed set of primitives, with symbolic sizes, in program order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TypeAlias

from framefuse.ir.comparisons import Relation
from framefuse.ir.dtypes import DType
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.numbers import Expr, Real, Symbol
from framefuse.ir.source import Line
from framefuse.ir.values import Value

# What a node has beside its operands; its op's row says which, and of what types. Constants of the program are some.
Attribute: TypeAlias = Value
Attributes: TypeAlias = tuple[tuple[str, Attribute], ...]
Path: TypeAlias = tuple[int, ...]  # to one result of a library call: its place in tuples that lie in tuples


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Node:
    """One value: primitive ``op`` (a row of :mod:`framefuse.ir.ops`) applied to ``inputs`` with static ``attrs``.

    ``shape`` holds expressions over the trace's symbols; ``()`` is a scalar tensor. ``strides`` is None for values
    that exist only as mathematics (fuse chooses their layout); inputs and results of library calls carry the strides
    of their real memory, in elements. Nodes compare by identity; :class:`Builder` gives equal pure nodes the same
    object.
    """

    op: str
    inputs: tuple[Node, ...]
    attrs: Attributes
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...] | None = None
    line: Line | None = None
    device: str = "cpu"

    def attr(self, name: str) -> Attribute:
        """The attribute ``name``; raises KeyError when the node has none."""
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(name)

    def over(self, inputs: tuple[Node, ...]) -> Node:
        """The same operation on other operands."""
        return Node(self.op, inputs, self.attrs, self.dtype, self.shape, self.strides, self.line, self.device)

    def __repr__(self) -> str:
        # Operands are not shown: a graph is a DAG, and following every path would never end.
        return f"<{self.op} {self.dtype}[{', '.join(map(str, self.shape))}]>"


@dataclass(frozen=True, slots=True)
class Arg:
    """In the argument template of a library call: the node's input number ``index`` as a tensor."""

    index: int


@dataclass(frozen=True, slots=True)
class Output:
    """What the trace's value ``value`` is after the run, for results and effects.

    ``node`` gives the contents. ``order`` is the permutation of dimensions, outermost first, in which a fresh tensor
    is laid out as eager's was (None: as is best). ``input`` is the number of the graph input when the output is that
    very tensor. An output that shares memory with an input or with another output is the result of a late call or a
    ``library`` node (eager's own view call), never a computed copy. ``requires_grad`` is what eager said of it; the
    value may be one that only ``late`` calls of the graph read. ``version`` is eager's count of writes to it.
    """

    value: int
    node: Node
    order: tuple[int, ...] | None
    input: int | None = None
    requires_grad: bool = False
    version: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an input: how it lies in the input's memory, in elements."""

    strides: tuple[Expr, ...]
    offset: Expr


@dataclass(frozen=True, slots=True)
class Write:
    """New contents of graph input ``input`` to be copied into it after everything else was computed; ``bumps`` is how
    often eager raised its version. With ``part`` they are those of a part, and the rest of the input stays: parts of
    one input lie apart, and the first of them has the bumps of all.
    """

    input: int
    node: Node
    bumps: int
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class Late:
    """A call of eager's own after the results were tied to autograd and inputs were written: a view of an input or
    result, or the write of contents that require grad to an input. ``grad`` is the gradient mode that the program made
    it in, by which autograd tells what may become of a view; ``requires_grad`` is what eager said of its results.

    ``args`` and ``kwargs`` are templates over ``Ref`` (values of inputs, outputs and earlier late calls), numbers and
    constants. ``results`` are the trace's values with the places where the call gives them.
    """

    target: Value
    name: str
    args: tuple[Value, ...]
    kwargs: dict[str, Value]
    results: tuple[tuple[int, tuple[int, ...]], ...] = ()
    grad: bool = True
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole trace in primitives.

    ``inputs[i]`` is the node of the trace's assumptions.inputs[i] (op ``input``, attr ``index``). ``nodes`` are all
    nodes in program order, inputs first; library calls that are random keep this order. ``relations`` are what the
    lowering assumed about sizes beyond the trace's own assumptions: they are guarded. ``values`` maps each symbol of
    the trace that belongs to an intermediate value to its expression over inputs' symbols and run-time symbols.
    ``bound`` are symbols set at run time by library results: (symbol, node, dimension), or ELEMENT in place of the
    dimension where it is the result's one element. ``differentiable`` are the
    numbers of the inputs that require grad; where eager cut the gradient stands a ``detach`` node. ``kept`` are
    the nodes that run for the error that they may raise, where nothing reads them, or not all of them: library calls,
    and values that are computed whole. ``consumed`` are the numbers of the inputs that nobody reads after the run: each
    is an entry of a list among the arguments, and leaves it when its last reader has run. ``lasting`` are the nodes
    whose values eager's autograd keeps as they were, whatever the program puts into inputs and results behind its back;
    ``results`` are those of them that one of eager's operations gave, where the others are what one computed within.
    ``sizes`` are further symbols that sizes are over, in order, each with what it is the largest of: one expression,
    over symbols before it.
    ``shown`` are the views whose own gradients may be asked: results of ``late`` calls that autograd has to find on the
    way from what was computed from them to what they are views of.
    ``held`` are relations that hold without being guarded: the guards of the forward pass check them.
    ``regions`` numbers the checkpoints of the program for the nodes that were made in them: where nobody outside of
    its region reads such a value, it is computed again for gradients and not saved. Numbers below zero are of what a
    checkpoint saves by its policy.
    """

    name: str
    inputs: tuple[Node, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    writes: tuple[Write, ...]
    relations: tuple[Relation, ...]
    values: dict[Symbol, Expr] = field(default_factory=dict)
    bound: tuple[tuple[Symbol, Node, int], ...] = ()
    hints: dict[Symbol, int] = field(default_factory=dict)
    differentiable: tuple[int, ...] = ()
    late: tuple[Late, ...] = ()
    kept: tuple[Node, ...] = ()
    consumed: tuple[int, ...] = ()
    lasting: frozenset[Node] = frozenset()
    results: frozenset[Node] = frozenset()
    sizes: tuple[tuple[Symbol, tuple[Expr, ...]], ...] = ()
    shown: tuple[int, ...] = ()
    regions: dict[Node, int] = field(default_factory=dict)
    held: tuple[Relation, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether a result, or a write to an input, requires grad."""
        return any(output.requires_grad for output in self.outputs)


Scalar = bool | int | float | Expr | Real


def call_attrs(
    target: Value,
    args: Value,
    orders: Sequence[tuple[int, ...] | None],
    *,
    name: str | None = None,
    kwargs: dict[str, Value] | None = None,
    random: bool = False,
    views: Sequence[tuple[int, tuple[int | Expr, ...]]] = (),
) -> Attributes:
    """The attributes of a ``library`` node, whose row in :mod:`framefuse.ir.ops` says what each is; the name is the
    target's own where none is given.
    """
    return (
        ("target", target),
        ("name", target.__name__ if name is None else name),
        ("args", args),
        ("kwargs", {} if kwargs is None else kwargs),
        ("random", random),
        ("orders", tuple(orders)),
        ("views", tuple(views)),
    )


def template_of(value: Value, operands: list[Node]) -> Value:
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


def node_of(value: Value, operands: Sequence[Node]) -> Value:
    """A template with the operands themselves in it."""
    kind = type(value)
    if kind is Arg:
        return operands[value.index]
    if kind is tuple or kind is list:
        return kind(node_of(part, operands) for part in value)
    if kind is dict:
        return {name: node_of(part, operands) for name, part in value.items()}
    return value
