"""Says where a tensor without dimensions stands for a float of a torch call, so that graphs need not hold the float.

What a user's backend makes of a graph may hold the numbers of its example inputs (torch's ``aot_autograd`` does), as
it may hold their sizes; the elements of tensors it has to read at each call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
import torch.fx

from framefuse.ir.nested import leaves
from framefuse.ir.numbers import Real
from framefuse.ir.trace import Call, Ref, TensorMeta
from framefuse.ir.values import Value

# Calls of two operands, whose names may stand between underscores, that take a tensor where they take a number.
PLAIN = frozenset(("add", "sub", "mul", "div", "truediv", "pow", "rsub", "multiply", "subtract", "divide"))
FACTORS: dict[str, Callable[..., Value]] = {"addcmul": operator.mul, "addcdiv": operator.truediv}
Argument = torch.fx.node.Argument
Args = tuple[Value, ...]


def takes_tensors(call: Call, metas: Sequence[TensorMeta]) -> bool:
    """Whether tensors may stand for the floats of a call that are known at run time only. Beside a tensor of ints, or
    one without dimensions, they would give another dtype.
    """
    if not any(isinstance(leaf, Real) for leaf in leaves((call.args, call.kwargs))):
        return True
    tensors = [metas[leaf.value] for leaf in leaves((call.args, call.kwargs)) if isinstance(leaf, Ref)]
    if not tensors or not all(meta.dtype.is_floating_point and meta.sizes for meta in tensors):
        return False
    if any(isinstance(leaf, Real) for leaf in leaves(call.args[2:])):
        return False
    name = _name(call)
    scaled = {key for key, value in call.kwargs.items() if isinstance(value, Real)}
    if scaled:
        factor = "value" if name in FACTORS and len(call.args) == 3 else "alpha" if name in ("add", "sub") else ""
        return scaled == {factor} == set(call.kwargs) and not any(isinstance(part, Real) for part in call.args)
    return name in PLAIN and len(call.args) == 2 and not call.kwargs


def scaled(
    graph: torch.fx.Graph, call: Call, args: tuple[Argument, ...], kwargs: dict[str, Argument]
) -> tuple[tuple[Argument, ...], str]:
    """The operands of a call of two, and its name, that does what one does which is scaled by the only keyword."""
    (factor,) = kwargs.values()
    name = _name(call)
    other = graph.call_function(operator.mul, (args[1], factor))
    if name in FACTORS:
        other = graph.call_function(FACTORS[name], (other, args[2]))
        name = "add"
    return (args[0], other), f"{name}_" if call.name.endswith("_") else name


def _name(call: Call) -> str:
    name = call.name.strip("_")
    return name[1:] if name not in PLAIN and name[:1] in ("i", "r") and name[1:] in PLAIN else name


def as_tensors(function: Callable[..., Value], places: tuple[int, ...]) -> Callable[..., Value]:
    """The function, which is given tensors for the floats at ``places``."""
    if not places:
        return function

    def call(*args: Value) -> Value:
        return function(*with_tensors(args, places))

    return call


def with_tensors(args: Args, places: tuple[int, ...]) -> list[Value]:
    """The arguments with tensors for the floats at ``places``."""
    given = list(args)
    for place in places:
        given[place] = torch.tensor(given[place], dtype=torch.float64)
    return given
