"""Classes of tensors that say in Python what torch's functions do with them are part of the trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.traps.trap import Table, Trap, hold
from torch import nn

import framefuse

TABLE = Table()
trap = TABLE.trap


class Plain(torch.Tensor):
    scale = 3.0

    @property
    def half(self):
        return self / 2

    def times(self, factor):
        return self * factor * self.scale

    @staticmethod
    def made(x):
        return x.as_subclass(Plain)


class Logged(torch.Tensor):
    log: list[str] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.log.append(function.__name__)
        return super().__torch_function__(function, types, args, kwargs or {})


class Other(torch.Tensor):
    """Subtracts where it is told to add."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        function = torch.Tensor.sub if function in (torch.Tensor.add, torch.add) else function
        return super().__torch_function__(function, types, args, kwargs or {})


class Unwrapped(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        args = tuple(part.as_subclass(torch.Tensor) if isinstance(part, cls) else part for part in args)
        return function(*args, **(kwargs or {}))


class Measured(torch.Tensor):
    """Has a special method in Python, so traces do not hold it, and turns results into itself by its own hand."""

    def __len__(self):
        return 7

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
            return result.as_subclass(cls) if isinstance(result, torch.Tensor) else result


class Quiet(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


class Disabled(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class Handled(torch.Tensor):
    """As in torch's documentation: a table of functions that are implemented otherwise."""

    table: dict[Any, Any] = {
        F.relu: lambda x, inplace=False: torch.clamp(x, min=0.1),
        torch.Tensor.mean: torch.Tensor.sum,
    }

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in cls.table:
            return cls.table[function](*args, **(kwargs or {}))
        return super().__torch_function__(function, types, args, kwargs or {})


class Named(torch.Tensor):
    """As in torch's documentation: carries what is known of it along."""

    @staticmethod
    def __new__(cls, x, name=None):
        return torch.as_tensor(x).as_subclass(cls)

    def __init__(self, x, name=None):
        self._name = name

    @property
    def title(self):
        return self._name

    @title.setter
    def title(self, value):
        self._name = value

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        names = [part._name for part in args if hasattr(part, "_name")]
        out = super().__torch_function__(function, types, args, kwargs or {})
        if isinstance(out, Named) and names:
            out._name = names[0]
        return out


class Duck:
    """No tensor, yet torch's functions take it."""

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        def bare(part):
            return part.inner if isinstance(part, Duck) else part

        named = {key: bare(part) for key, part in (kwargs or {}).items()}
        return Duck(function(*[bare(part) for part in args], **named))


class Operators(torch.Tensor):
    """Its operators are Python, which stays as it is."""

    factor = 7

    def __add__(self, other):
        return torch.Tensor.mul(self, Operators.factor)


CLASSES = (Plain, Logged, Other, Unwrapped, Quiet, Disabled, Handled)


def told(value: Any) -> Any:
    """A result with the class of its tensors and what hangs onto them."""
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return (type(value).__name__, value.as_subclass(torch.Tensor), {**value.__dict__})
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, [told(part) for part in value])
    return told(value.inner) if isinstance(value, Duck) else value


def inputs(cls: Any = None, grad: bool = False):
    for number in range(4):
        x = torch.randn(6 if number == 3 else 4, 3, requires_grad=grad)
        yield x if cls is None else x.as_subclass(cls)


def each_class(program: Any) -> Any:
    """A trap of a function of one tensor, for every class."""

    def rows(compiled):
        for cls in CLASSES:
            f = compiled(program)
            for x in inputs(cls):
                Logged.log.clear()
                yield told(f(x)), list(Logged.log)

    rows.__name__ = program.__name__
    trap(traces=14, hits=14)(rows)
    return program


@each_class
def arithmetic(t):
    return (torch.sin(t) * 2).sum(0) - t.mean(), t + 1, 1 - t, -t


@each_class
def functions_written_in_python(t):
    return F.softmax(t, -1) + F.relu(t), F.linear(t, torch.ones(2, 3))


@each_class
def several_results(t):
    return [part * 2 for part in torch.split(t, 2)], t.max(0)


@each_class
def views(t):
    return t.view(-1)[1:], t.T, t.reshape(t.size(0) * t.size(1)) * t.dim()


@each_class
def written_in_place(t):
    y = t * 1
    y[0] = 3
    return t.mul_(2), y


@each_class
def questions(t):
    return type(t).__name__, isinstance(t, torch.Tensor), t.shape, t.ndim, t.dtype, t.requires_grad, len(t), t * 2


@each_class
def beside_plain_tensors(t):
    return t + torch.ones(t.shape[-1]), torch.minimum(torch.zeros(3), t), t @ t.T


@trap(traces=2, hits=2)
def lists_of_a_class(compiled):
    f = compiled(lambda t: torch.cat([t, t.new_zeros(1, 3), torch.ones(2, 3)]))
    for x in inputs(Logged):
        Logged.log.clear()
        yield told(f(x)), list(Logged.log)


@trap(traces=2, hits=2)
def gradients_of_a_class(compiled):
    f = compiled(lambda t: (t * t).sum())
    for x in inputs(grad=True):
        Logged.log.clear()
        out = f(x.as_subclass(Logged))
        out.backward()
        yield type(out).__name__, x.grad, list(Logged.log)


@trap(traces=2, hits=2)
def members_of_a_class(compiled):
    f = compiled(lambda t: Plain.made(t).half + Plain.made(t).times(2))
    for x in inputs():
        yield told(f(x))
    Plain.scale = 4.0
    try:
        yield told(f(x))
    finally:
        Plain.scale = 3.0


@trap(traces=2, hits=2)
def made_in_the_call(compiled):
    def program(t):
        named = Named(t, "first")
        out = named.sin().sum(0)
        title = out.title
        named.title = "second"
        return out, title, named, named.title

    f = compiled(program)
    for x in inputs():
        yield told(f(x))


@trap(traces=2, hits=2)
def made_without_history(compiled):
    f = compiled(lambda t: torch.Tensor._make_subclass(Plain, t) * 2)
    for x in inputs(grad=True):
        yield told(f(x)), f(x).requires_grad


@trap(traces=2, hits=2)
def attributes_of_what_is_made(compiled):
    def program(t):
        y = t * 2
        y.note, y.size_then, y.base = "a", t.shape[0] * 2, t
        return y, y.note + "b", y.size_then + 1

    f = compiled(program)
    for x in inputs():
        y, *rest = f(x)
        yield y, y.note, y.size_then, y.base is x, rest


@trap(traces=2, hits=3)
def attributes_over_a_break(compiled):
    def program(t):
        y = t * 2
        y.note = "a"
        number = y.sum().item()
        return y, y.note + "b", [number][0] > 0

    f = compiled(program)
    for x in inputs():
        y, *rest = f(x)
        yield y, y.note, rest


@trap(traces=2, hits=2, waits="result")
def a_tensor_that_holds_itself(compiled):
    def program(t):
        y = t * 2
        y.me = y
        return y

    f = compiled(program)
    for x in inputs():
        y = f(x)
        yield y, y.me is y


@trap(traces=2, hits=2)
def what_is_no_tensor(compiled):
    f = compiled(lambda t: torch.sub(torch.add(Duck(t), 1), other=Duck(t)))
    for x in inputs():
        yield told(f(x))


@trap(traces=2, hits=2)
def switched_off_in_a_block(compiled):
    def program(t):
        with torch._C.DisableTorchFunctionSubclass():
            first = t + 1
        with torch._C.DisableTorchFunction():
            second = t + 2
        return first, second, t + 3

    f = compiled(program)
    for x in inputs(Other):
        yield told(f(x))


@trap(traces=1, hits=3, waits="torch-mode")
def called_where_classes_are_off(compiled):
    f = compiled(lambda t: t + 1)
    for number, x in enumerate((*inputs(Other), *inputs(Other))):
        if number in (2, 3, 5):
            with torch._C.DisableTorchFunctionSubclass():
                yield told(f(x))
        yield told(f(x))


@trap(traces=2, hits=2)
def given_to_a_module(compiled):
    module = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4))
    f = compiled(module)
    for x in inputs(Logged):
        Logged.log.clear()
        yield told(f(x)), list(Logged.log)


@trap(traces=2, hits=2)
def a_parameter_of_a_class(compiled):
    module = nn.Linear(3, 2)
    module.weight = nn.Parameter(module.weight.detach().as_subclass(Plain))
    f = compiled(module)
    for x in inputs():
        yield told(f(x))


@trap(traces=2, hits=2)
def a_table_that_changes(compiled):
    f = compiled(lambda t: t.mean() * 2)
    for number, x in enumerate(inputs(Handled)):
        if number == 2:
            Handled.table[torch.Tensor.mean] = torch.Tensor.prod
        yield told(f(x))
    Handled.table[torch.Tensor.mean] = torch.Tensor.sum


@trap(traces=1, hits=1)
def results_turned_into_a_class_that_is_not_held(compiled):
    def copies(tensors):
        made = [t.clone() for t in tensors]
        return made[0] * 2, made

    f = compiled(copies)
    for x in inputs():
        first, (_, second) = f([x, (x + 1).as_subclass(Measured)])
        yield first, type(second), len(second), second.as_subclass(torch.Tensor)


@trap(traces=4, hits=4)
def operators_in_python(compiled):
    f = compiled(lambda t: (t + 1) * 2)
    for number, x in enumerate((*inputs(Operators), *inputs(Operators))):
        Operators.factor = 7 + number
        yield told(f(x))


@TABLE.parametrize()
def test_tensor_subclasses(trap: Trap) -> None:
    hold(trap)




class Tripled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        made = super().__torch_function__(function, types, args, kwargs or {})
        return made + 1 if function is torch.Tensor.mul else made


class Noted(torch.Tensor):
    def __new__(cls, x, note):
        return super().__new__(cls, x)

    def __init__(self, x, note):
        self.note = note


MADE = {
    "plain": lambda x: Plain(x * 2).times(3),
    "with functions of its own": lambda x: Tripled(x * 2).mul(3),
    "of an argument": lambda x: (Plain(x), type(Plain(x)) is Plain),
    "of another class": lambda x: Plain(Tripled(x)) + 1,
    "by a constructor": lambda x: Noted(x * 2, 5) * 2,
    "and written": lambda x: (lambda y: (Plain(y).add_(1), y))(x * 2),
}


@pytest.mark.parametrize("name", MADE)
def test_a_class_called_with_a_tensor(name: str) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(MADE[name])
        for number in range(6):
            x = torch.rand(4, generator=torch.Generator().manual_seed(number)).requires_grad_(number % 2 > 0)
            made = f(x)
            first = made[0] if isinstance(made, tuple) else made
            yield made, type(first), first.requires_grad, first.data_ptr() == x.data_ptr()
            if first.requires_grad:
                yield torch.autograd.grad(first.sum(), x)

    hold(Trap(program, traces=2, hits=4, options={"fullgraph": True}))


class Declining(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def test_the_error_where_no_class_answers() -> None:
    x = torch.ones(3).as_subclass(Declining)
    fast = framefuse.compile(lambda t: torch.cat([t, t]))
    for _ in range(3):
        with pytest.raises(TypeError, match="all __torch_function__ handlers returned NotImplemented"):
            fast(x)
