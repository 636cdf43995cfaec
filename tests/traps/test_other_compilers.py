"""Modules and functions that other compilers of torch made are part of a compiled program, or one step of it."""

import dataclasses
import inspect
from typing import Any

import torch
from tests.traps.trap import Table, hold
from torch import nn

TABLE = Table()


def small() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU())


class Around(nn.Module):
    """Calls a module between pointwise code."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.sin() * 2).cos().sum()


def calls(fast, *, grad=False, count=5, rows=lambda number: 2):
    """Results of several calls, with gradients of the argument."""
    for number in range(count):
        x = torch.rand(rows(number), 6, requires_grad=grad)
        out = fast(x)
        yield out
        if grad:
            out.sum().backward()
            yield x.grad


@TABLE.trap(traces=1, hits=4)
def a_graph_module(compiled):
    yield from calls(compiled(torch.fx.symbolic_trace(small())), grad=True)


@TABLE.trap(traces=1, hits=4)
def a_graph_module_inside(compiled):
    yield from calls(compiled(Around(torch.fx.symbolic_trace(small()))), grad=True)


@TABLE.trap(traces=2, hits=4)
def an_exported_module(compiled):
    yield from calls(compiled(torch.export.export(small(), (torch.rand(2, 6),)).module()))


@TABLE.trap(traces=2, hits=4)
def an_exported_module_with_free_sizes(compiled):
    shapes = ({0: torch.export.Dim("rows", min=1)},)
    made = torch.export.export(small(), (torch.rand(2, 6),), dynamic_shapes=shapes).module()
    yield from calls(compiled(Around(made)), rows=lambda number: 2 + number, count=6)


@TABLE.trap(traces=1, hits=4)
def an_exported_module_checks_its_arguments(compiled):
    fast = compiled(torch.export.export(small(), (torch.rand(2, 6),)).module())
    yield from calls(fast)
    try:
        fast(torch.rand(3, 6))
    except Exception as error:
        yield type(error).__name__


@TABLE.trap(traces=1, hits=3)
def a_traced_module_inside(compiled):
    yield from calls(compiled(Around(torch.jit.trace(small(), torch.rand(2, 6)))), grad=True)


@TABLE.trap(traces=1, hits=3)
def a_scripted_module_inside(compiled):
    yield from calls(compiled(Around(torch.jit.script(small()))), grad=True)


@TABLE.trap(traces=1, hits=3)
def a_scripted_module_under_hooks(compiled):
    model = Around(torch.jit.trace(small(), torch.rand(2, 6)))
    model.register_forward_hook(lambda module, args, out: out * 2)
    yield from calls(compiled(model))


@torch.jit.script
def scripted(x: torch.Tensor):
    return x.sin() + 1


@TABLE.trap(traces=1, hits=3)
def a_scripted_function(compiled):
    yield from calls(compiled(lambda x: scripted(x * 2).cos()), grad=True)


class Logging(nn.Module):
    """Keeps its log from compilers, and asks before whether a method of its own takes an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.means = small(), {}

    def taking(self, value, batch_size=None, *rest):
        return value

    @torch.compiler.disable
    def log(self, name: str, value: torch.Tensor) -> None:
        told = torch.compiler.is_compiling()
        count, mean = self.means.get(name, (0, 0.0))
        self.means[name] = (count + 1, mean + (value.item() - mean) / (count + 1) if value > 0 else mean + told)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spec = inspect.getfullargspec(self.taking)
        loss = self.layer(x).square().mean() * (2 if "batch_size" in spec.args[1:] and spec.varargs else 1)
        self.log("loss", loss.detach())
        return loss * 2 + 1


@TABLE.trap(traces=1, hits=3)
def a_log_that_is_kept_from_compilers_is_one_step(compiled):
    model = Logging()
    yield from calls(compiled(model), grad=True)
    count, mean = model.means["loss"]
    yield count, torch.tensor(mean)


@TABLE.trap(traces=1, hits=3)
def a_function_of_torch_compile(compiled):
    inner = torch.compile(lambda x: x.cos() + 1, backend="eager")
    yield from calls(compiled(lambda x: inner(x.sin() * 2).exp()), grad=True)


@TABLE.trap(traces=1, hits=3)
def a_module_of_torch_compile(compiled):
    yield from calls(compiled(Around(torch.compile(small(), backend="eager"))), grad=True)


@TABLE.trap(traces=1, hits=3)
def a_backend_of_the_user_keeps_being_called(compiled):
    seen = []

    def backend(graph, examples):
        def call(*args):
            seen.append(len(args))
            return graph.forward(*args)

        return call

    inner = torch.compile(lambda x: x.cos() + 1, backend=backend)
    yield from calls(compiled(lambda x: inner(x.sin() * 2).exp()))
    yield len(seen)


@torch.library.custom_op("traps::times", mutates_args=())
def times(x: torch.Tensor, k: float) -> torch.Tensor:
    return x * k


@times.register_fake
def _(x, k):
    return torch.empty_like(x)


times.register_autograd(
    lambda ctx, g: (g * ctx.k, None), setup_context=lambda ctx, inputs, output: setattr(ctx, "k", inputs[1])
)


@torch.library.custom_op("traps::add_one", mutates_args={"x"})
def add_one(x: torch.Tensor) -> None:
    x.add_(1)


@TABLE.trap(traces=1, hits=4)
def a_custom_operator_by_its_python_name(compiled):
    yield from calls(compiled(lambda x: times(x.sin() * 2, 3.0).cos()), grad=True)


@TABLE.trap(traces=1, hits=4)
def a_custom_operator_that_writes(compiled):
    def function(x):
        y = x * 2
        add_one(y)
        return y.sin()

    yield from calls(compiled(function))


@dataclasses.dataclass
class Inner:
    """A dataclass inside another one."""

    op: str = "mean"
    weight: float = 1.0


@dataclasses.dataclass
class Outer:
    """A dataclass whose comparison asks that of its part."""

    name: str
    inner: Inner = dataclasses.field(default_factory=Inner)
    sizes: list = dataclasses.field(default_factory=lambda: [Inner("a"), 2])


@TABLE.trap(traces=3, hits=2)
def nested_dataclasses_are_compared(compiled):
    store: dict = {}

    def step(x, op):
        y = (x * 2).relu()
        made = Outer("y", Inner(op))
        if "y" not in store:
            store["y"] = made
        same = made == store["y"]
        return (y.sin().sum(), same, made != store["y"])

    fast = compiled(step)
    for op in ("mean", "mean", "mean", "mean", "sum", "mean"):
        yield fast(torch.rand(6), op)


class Odd:
    """Equal to whatever has its number, and it counts how often it was asked."""

    asked = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        Odd.asked += 1
        return isinstance(other, Odd) and self.number == other.number

    __hash__ = None


@TABLE.trap(traces=12, hits=3)
def parts_of_tuples_and_lists_are_asked_as_eager_asks(compiled):
    def function(x, number):
        first = Odd(1)
        equal = (first, Odd(2), [Odd(3)]) == (first, Odd(number), [Odd(3)])
        other = [Odd(number), 2.5] != [Odd(2), 2.5]
        return x * 2 if equal else x * 3, equal, other, (Odd(1),) == (Odd(1), Odd(2))

    fast = compiled(function)
    Odd.asked = 0
    for number in (2, 3, 2, 3, 2, 3):
        yield fast(torch.rand(4), number)
        yield Odd.asked


@TABLE.trap(traces=2, hits=6)
def a_mark_of_a_fixed_address(compiled):
    from torch._dynamo import mark_static_address

    class Cache:
        keys = None

    def function(x, cache):
        if cache.keys is None:
            cache.keys = torch.zeros(3, 6)
            mark_static_address(cache.keys)
        mark_static_address(x, guard=True)
        cache.keys[0] = x[0]
        return cache.keys * 2

    fast = compiled(function)
    for _ in range(4):
        cache = Cache()
        for _ in range(2):
            x = torch.rand(2, 6)
            yield fast(x, cache), vars(x), vars(cache.keys)


@TABLE.parametrize()
def test_eager_and_compiled_agree(trap):
    hold(trap)
