"""Tensors that hold their elements in others (a ``__torch_dispatch__`` in Python, as of quantised weights) are objects
of the program: what their class does with the tensors inside them is part of the trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from tests.traps.trap import Table, Trap, hold

TABLE = Table()
trap = TABLE.trap


class Quantised(torch.Tensor):
    """Bytes with a scale for each row."""

    data8: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, data8: torch.Tensor, scale: torch.Tensor) -> Quantised:
        made: Quantised = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, data8.shape, dtype=torch.float32, requires_grad=False
        )
        return made

    def __init__(self, data8: torch.Tensor, scale: torch.Tensor) -> None:
        self.data8, self.scale = data8, scale

    def __tensor_flatten__(self) -> Any:
        return ["data8", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> Quantised:
        return Quantised(inner["data8"], inner["scale"])

    @property
    def levels(self) -> int:
        return 127

    def wide(self) -> torch.Tensor:
        return self.data8.to(self.dtype) * self.scale

    @classmethod
    def of(cls, x: torch.Tensor) -> Quantised:
        scale = x.abs().amax(1, keepdim=True) / 127
        return cls((x / scale).round().to(torch.int8), scale)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.linear:
            x, w, bias = (*args, None)[:3]
            x = x.wide() if isinstance(x, cls) else x
            y = x @ w.wide().t()
            return y if bias is None else y + bias
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return args[0]
        if function is torch.ops.aten.sin.default:
            return args[0].wide().sin()
        raise NotImplementedError(str(function))


def layer(rows: int = 5) -> torch.nn.Linear:
    made = torch.nn.Linear(4, rows)
    made.weight = torch.nn.Parameter(Quantised.of(made.weight.detach()), requires_grad=False)
    return made


@trap(traces=1, hits=3)
def a_layer_of_quantised_weights(compiled: Any) -> Iterator[Any]:
    torch.manual_seed(0)
    f = compiled(torch.nn.Sequential(layer(), torch.nn.ReLU(), torch.nn.Linear(5, 3)))
    for rows in (2, 2, 3, 4):
        x = torch.randn(rows, 4, requires_grad=True)
        y = f(x)
        y.sum().backward()
        yield y.detach(), x.grad


@trap(traces=1, hits=3)
def what_lies_inside_is_read_again(compiled: Any) -> Iterator[Any]:
    torch.manual_seed(0)
    linear = layer()
    f = compiled(lambda x: linear(x) * 2)
    for number in range(4):
        yield f(torch.randn(2, 4)).detach()
        if number == 1:
            linear.weight.scale.mul_(2)
        if number == 2:
            linear.weight.scale = torch.rand(5, 1)  # type: ignore[assignment]


@trap(traces=2, hits=2)
def another_weight_of_other_sizes(compiled: Any) -> Iterator[Any]:
    torch.manual_seed(0)
    linear, other = layer(), layer(3)

    def function(x: torch.Tensor) -> Any:
        weight: Any = linear.weight
        return F.linear(x, weight), weight.shape, weight.dtype, weight.levels, isinstance(weight, Quantised)

    f = compiled(function)
    for number in range(4):
        yield [part.detach() if isinstance(part, torch.Tensor) else part for part in f(torch.randn(2, 4))]
        if number == 1:
            linear.weight = other.weight


@trap(traces=1, hits=3)
def one_that_is_made_inside(compiled: Any) -> Iterator[Any]:
    torch.manual_seed(0)
    linear = layer()

    def function(x: torch.Tensor) -> Any:
        made = Quantised.of(x)
        return F.linear(made, linear.weight), made.shape[0], made.ndim, made.wide().sum()

    f = compiled(function)
    for rows in (2, 2, 3, 4):
        yield [part.detach() if isinstance(part, torch.Tensor) else part for part in f(torch.randn(rows, 4))]


@trap(traces=4, hits=0, waits="tensor-kind unknown-tensor native-call")
def one_that_is_returned(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda x: Quantised.of(x * 2))
    for _ in range(4):
        made = f(torch.randn(2, 4))
        yield type(made) is Quantised, made.data8, made.scale


@trap(traces=4, hits=0, waits="tensor-kind")
def an_operator_of_its_class(compiled: Any) -> Iterator[Any]:
    torch.manual_seed(0)
    weight = layer().weight
    f = compiled(lambda x: weight.sin() * x)
    for _ in range(4):
        yield f(torch.randn(4)).detach()


@TABLE.parametrize()
def test_row(trap: Trap) -> None:
    hold(trap)
