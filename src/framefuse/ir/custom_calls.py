"""Custom autograd functions in traces and graphs: what forward gave, and the user's own backward as a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.autograd.function import FunctionCtx

from framefuse.ir.custom_runs import RUN, compiled
from framefuse.ir.graph import Node
from framefuse.ir.values import Value

NAME = "custom_function"  # of the calls in traces and graphs
Form = tuple[Sequence[int], torch.dtype, torch.device]


TWICE = "trying to differentiate twice a function that was marked with @once_differentiable"


@dataclass(frozen=True, slots=True)
class Nested:
    """How nested containers are made of a row of leaves: ``kind`` with ``parts`` in order, at ``keys`` for a dict."""

    kind: type
    parts: tuple[Nested | None, ...]  # None takes the next leaf
    keys: tuple[Value, ...] = ()

    def filled(self, leaves: Iterator[Value]) -> Value:
        """The containers with the next leaves."""
        values = [next(leaves) if part is None else part.filled(leaves) for part in self.parts]
        return dict(zip(self.keys, values, strict=True)) if self.kind is dict else self.kind(values)


@dataclass(frozen=True, slots=True)
class CustomCall:
    """A call of a custom autograd function whose forward stands in the trace as calls of its own, as a call of
    (what forward gave, its arguments, what ``ctx`` keeps): its results are what forward gave, with the function's
    gradient. Compiled code does not make it; where torch runs the captured graph, it hangs them into torch's autograd.

    ``tensors`` says which of forward's arguments are tensors, ``needs`` which require grad; for those at ``none``
    backward gives None by the letter of its code. ``kept`` makes the attributes of ``ctx`` of the leaves behind. Where
    ``materialize``, a gradient that did not come is zeros.
    """

    function: type[torch.autograd.Function]
    tensors: tuple[bool, ...]
    needs: tuple[bool, ...]
    none: tuple[int, ...]
    kept: Nested
    materialize: bool

    def __call__(self, raw: Sequence[Value], operands: Sequence[Value], leaves: Sequence[Value]) -> tuple[Value, ...]:
        results: tuple[Value, ...] = _Hung.apply(self, raw, leaves, *operands)
        return results

    @property
    def once(self) -> bool:
        """Whether torch refuses second derivatives, and only where a gradient that comes has a history."""
        return getattr(backward_of(self.function), "__globals__", {}).get("__name__") == "torch.autograd.function"

    @property
    def __name__(self) -> str:
        return NAME


class _Hung(torch.autograd.Function):
    """What forward gave, with the user's backward."""

    @staticmethod
    def forward(ctx: Any, call: CustomCall, raw: Sequence[Value], leaves: Sequence[Value], *operands: Value) -> Value:
        ctx.call, ctx.leaves, ctx.operands, ctx.raw = call, leaves, operands, raw
        ctx.set_materialize_grads(False)
        results = tuple(part.detach() if isinstance(part, torch.Tensor) else part for part in raw)
        tensors = [part for part in results if isinstance(part, torch.Tensor)]
        ctx.mark_non_differentiable(*(part for part in tensors if not part.is_floating_point()))
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Value) -> Value:
        call: CustomCall = ctx.call
        wanted = tuple(place for place, needed in enumerate(ctx.needs_input_grad[3:]) if needed)
        given = [
            (part.shape, part.dtype, part.device) if grad is None and call.materialize and part is not None else grad
            for grad, part in zip(grads, ctx.raw, strict=True)
        ]
        forms = [(part.shape, part.dtype, part.device) for part in (ctx.operands[place] for place in wanted)]
        gradients = CustomBackward(call, wanted)(given, ctx.leaves, forms)
        by_place = dict(zip(wanted, gradients, strict=True))
        return (None, None, None, *(by_place.get(place) for place in range(len(ctx.operands))))


@dataclass(frozen=True, slots=True)
class CustomBackward:
    """Calls the user's backward: takes (a gradient for each result, leaves of what ``ctx`` kept, sizes, dtype and
    device of the arguments of forward whose gradients are ``wanted``) and gives the gradients of these.

    A gradient that did not come is such a form where backward shall see zeros, and else None.
    """

    call: CustomCall
    wanted: tuple[int, ...]
    whole: ClassVar[bool] = True  # it may do anything: nobody repeats it
    commits: ClassVar[bool] = True  # nor where it raises

    def __call__(
        self, given: Sequence[Value], leaves: Sequence[Value], arguments: Sequence[Form]
    ) -> tuple[torch.Tensor, ...]:
        call = self.call
        grads = [torch.zeros(part[0], dtype=part[1], device=part[2]) if type(part) is tuple else part for part in given]
        ctx = Context(call, leaves)
        value: Any = compiled("backward", backward_of(call.function))(ctx, *grads)
        gradients = value if isinstance(value, tuple) else (value,)
        self._check(gradients)
        if RUN.calls is not None:
            RUN.calls.append((call, frozenset(place for place in self.wanted if gradients[place] is None)))
        places = zip(self.wanted, arguments, strict=True)
        fitted = tuple(self._fitted(place, gradients[place], argument) for place, argument in places)
        return self._refusing(fitted, grads) if call.once and torch.is_grad_enabled() else fitted

    def _refusing(self, gradients: tuple[torch.Tensor, ...], came: Sequence[Value]) -> tuple[torch.Tensor, ...]:
        """Gradients that torch does not differentiate, and says so in a walk to those that came."""
        heard = [each for each in came if isinstance(each, torch.Tensor) and each.requires_grad]
        if not heard:
            return gradients
        refusing = torch._C._functions.DelayedError(TWICE, len(gradients) + len(heard))
        return tuple(refusing(*(each.detach() for each in gradients), *heard)[: len(gradients)])

    def _check(self, gradients: Sequence[Value]) -> None:
        """Raises what torch's engine raises for gradients that fit no argument."""
        expected = len(self.call.needs)
        if len(gradients) > expected and all(extra is None for extra in gradients[expected:]):
            return
        if len(gradients) != expected:
            fact = f"(expected {expected}, got {len(gradients)})"
            raise RuntimeError(f"function {self._node} returned an incorrect number of gradients {fact}")

    def _fitted(self, place: int, gradient: Value, argument: Form) -> torch.Tensor:
        """A gradient as torch's engine hands it on: in the sizes and dtype of its argument."""
        sizes, dtype, device = argument
        if gradient is None:
            return torch.zeros(sizes, dtype=dtype, device=device)
        if not isinstance(gradient, torch.Tensor):
            raise TypeError(f"expected Variable or None (got {type(gradient).__name__})")
        if tuple(gradient.shape) != tuple(sizes):
            try:
                gradient = gradient.sum_to_size(sizes)
            except RuntimeError:
                fact = f"got {list(gradient.shape)} but expected shape compatible with {list(sizes)}"
                index = sum(self.call.tensors[:place])  # torch counts the tensors
                text = f"Function {self._node} returned an invalid gradient at index {index} - {fact}"
                raise RuntimeError(text) from None
        fitted: torch.Tensor = gradient.to(device, dtype).contiguous()
        return fitted

    @property
    def _node(self) -> str:
        return f"{self.call.function.__name__}Backward"

    @property
    def __name__(self) -> str:
        return f"{self.call.function.__name__}_backward"


def custom_call(node: Node) -> CustomCall | None:
    """The custom autograd function that a node calls, if it is such a call."""
    target: Value = node.attr("target") if node.op == "library" else None
    return target if isinstance(target, CustomCall) else None


def backward_of(function: type[torch.autograd.Function]) -> Callable[..., Value]:
    """What torch calls for the gradients of a custom autograd function."""
    own = function.vjp is not torch.autograd.Function.vjp
    return function.vjp if own else function.backward


class Context(FunctionCtx):
    """What backward gets as ``ctx``: what forward left there."""

    def __init__(self, call: CustomCall, leaves: Sequence[Value]) -> None:
        self.needs_input_grad = call.needs
        self.__dict__.update(call.kept.filled(iter(leaves)))
