"""What a stage cannot take costs one operation: the code before and after it is compiled, wherever it stands."""

import importlib

import pytest
import torch
from tests.traps.trap import Table, hold

import framefuse
from framefuse.errors import Stop
from framefuse.ir.stops import reason

TABLE = Table()
LOWERER = importlib.import_module("framefuse.lower.lower")._Lowerer  # the package has a function of that name


@pytest.fixture(autouse=True)
def refusing(monkeypatch):
    """Lowering refuses ``erfinv``, and has a fault at ``cosh``."""
    call = LOWERER._call

    def patched(self, index, found):
        if found.name == "erfinv":
            raise Stop(reason("gradient", "erfinv is refused", found.line))
        if found.name == "cosh":
            raise KeyError("a fault")
        return call(self, index, found)

    monkeypatch.setattr(LOWERER, "_call", patched)


def calls(compiled, function, *, grad=False, count=5):
    """Results, and gradients, of several calls with new numbers."""
    fast = compiled(function)
    for _ in range(count):
        x = (torch.rand(6) * 0.5 + 0.1).requires_grad_(grad)
        out = fast(x)
        yield out
        if grad:
            out.sum().backward()
            yield x.grad


@TABLE.trap(traces=1, hits=3)
def in_the_middle(compiled):
    yield from calls(compiled, lambda x: ((x * 2).sin() * 0.5).erfinv().cos() + 1)


@TABLE.trap(traces=1, hits=3)
def at_the_start_with_gradients(compiled):
    yield from calls(compiled, lambda x: x.erfinv().cos() * 2, grad=True)


@TABLE.trap(traces=1, hits=3)
def at_the_end_with_gradients(compiled):
    yield from calls(compiled, lambda x: (x.cos() * 0.3).erfinv(), grad=True)


@TABLE.trap(traces=3, hits=3)
def in_a_loop_with_gradients(compiled):
    def function(x):
        for _ in range(5):
            x = (x * 0.5).erfinv().sin() * 0.9
        return x.cos()

    yield from calls(compiled, function, grad=True)


def inner(x):
    y = x.cos() * 0.4
    return torch.erfinv(y) + 1


@TABLE.trap(traces=1, hits=3)
def in_an_inlined_callee(compiled):
    yield from calls(compiled, lambda x: inner(x.sin() * 0.5) * 2, grad=True)


@TABLE.trap(traces=3, hits=3)
def in_a_comprehension(compiled):
    yield from calls(compiled, lambda x: torch.stack([(x * 0.1 * k).erfinv() for k in range(3)]).sum(0).cos())


@TABLE.trap(traces=3, hits=3)
def in_a_generator(compiled):
    def function(x):
        def parts():
            for k in range(3):
                yield (x * 0.1 * k).erfinv()

        total = x
        for part in parts():
            total = total + part.cos()
        return total.sin()

    yield from calls(compiled, function, grad=True)


@TABLE.trap(traces=1, hits=3)
def behind_a_view_of_what_a_library_computed(compiled):
    # both what stands before the stop and what follows it read the view, whose base has a history of its own
    weight, scale = torch.randn(8, 3, 2, 2, requires_grad=True), torch.randn(8, requires_grad=True)

    def function(x):
        patches = torch.nn.functional.conv2d(x, weight, stride=2).flatten(2).transpose(1, 2)
        normed = torch.nn.functional.layer_norm(patches, (8,), scale)
        return patches + (normed.sin() * 0.5).erfinv().cos()

    fast = compiled(function)
    for _ in range(5):
        weight.grad = scale.grad = None
        fast(torch.randn(2, 3, 8, 8)).sin().sum().backward()
        yield weight.grad, scale.grad


@TABLE.trap(traces=3, hits=2)
def an_element_is_a_size_that_only_a_call_sees(compiled):
    # nothing but its size ties the call of zeros to the one that reads the element
    def program(x):
        torch.zeros(int(x.sum() * 10) % 3, 2) + int(x.sum())
        return x / 2 if x.sum() > 2 else x

    f = compiled(program)
    for shift in (0.1, 2.0, 0.2, 1.7):
        yield f(torch.tensor([2.5, -0.5]) + shift)


@TABLE.trap(traces=1, hits=3)
def where_native_code_calls_back(compiled):
    # max calls the key: no break is possible inside, so the whole call of max is the step
    yield from calls(compiled, lambda x: max([x * 0.1, x * 0.2], key=lambda t: t.erfinv().sum().item() * 2) + 1)


@TABLE.trap(traces=1, hits=3)
def under_no_grad(compiled):
    def function(x):
        with torch.no_grad():
            scale = (x * 0.5).erfinv() * 2
        return x * scale + 1

    yield from calls(compiled, function, grad=True)


@TABLE.trap(traces=1, hits=3)
def two_at_different_lines(compiled):
    def function(x):
        y = (x * 0.5).erfinv().sin()
        z = (y * 0.25).erfinv().cos()
        return y + z

    yield from calls(compiled, function, count=6)


@TABLE.trap(traces=2, hits=6)
def in_one_branch(compiled):
    def function(x, refused):
        y = x.sin() * 0.5
        return y.erfinv() + 1 if refused else y.cos() + 1

    fast = compiled(function)
    for number in range(10):
        yield fast(torch.rand(6), number % 2 == 0)


@TABLE.trap(traces=2, hits=3)
def in_a_step_of_training(compiled):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = (torch.erfinv(model(x).tanh() * 0.5) - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    fast = compiled(step)
    for _ in range(6):
        yield fast(torch.rand(5, 6))
    yield [parameter.detach() for parameter in model.parameters()]


@TABLE.parametrize()
def test_eager_and_compiled_agree(trap):
    hold(trap)


def test_a_fault_on_an_operation_costs_that_operation(monkeypatch, caplog):
    monkeypatch.setenv("FRAMEFUSE_CHECK", "0")
    fast = framefuse.compile(lambda x: (x * 2).cosh().sin() + 1, options={"check": False})
    for _ in range(5):
        x = torch.rand(6)
        assert torch.allclose(fast(x), (x * 2).cosh().sin() + 1)
    told = framefuse.explain(fast)
    assert len(told.graphs) == 2 and told.hits == 3
    assert [found.code for found in told.breaks] == ["fault"]
    assert len(caplog.records) == 1


def test_a_fault_that_names_no_operation_is_met_once(monkeypatch, caplog):
    recorded = []

    def graph(self):
        recorded.append(self)
        raise KeyError("another fault")

    monkeypatch.setattr(LOWERER, "graph", graph)
    fast = framefuse.compile(lambda x: (x * 2).sin() + 1, options={"check": False})
    for _ in range(40):
        fast(torch.rand(6))
    assert len(recorded) == 1 and len(caplog.records) == 1


def test_the_reason_is_told_once_where_it_is_a_break():
    fast = framefuse.compile(lambda x: (x * 0.5).erfinv().sin())
    for _ in range(3):
        fast(torch.rand(6))
    told = framefuse.explain(fast)
    assert not told.stops
    assert [(found.code, found.line.function) for found in told.breaks] == [
        ("gradient", "test_the_reason_is_told_once_where_it_is_a_break.<locals>.<lambda>")
    ]


def test_fullgraph_names_the_operation():
    fast = framefuse.compile(lambda x: (x * 0.5).erfinv().sin(), fullgraph=True)
    with pytest.raises(framefuse.UserError, match="erfinv is refused"):
        fast(torch.rand(6))


@pytest.mark.parametrize("dynamic", [None, False])
def test_dimensions_of_size_one_are_stepped_over_as_eagers(dynamic):
    # attention steps over its one query as if there were more
    weight = torch.rand(32)

    def function(h, b):
        b = torch.cat([b, (h * 2).unsqueeze(-2)], dim=-2) + 1
        query = weight.view(-1, 32).expand(*b.shape[:-2], -1, -1)
        return torch.nn.functional.scaled_dot_product_attention(query, b, b, scale=0.2).unbind(-2)[0]

    fast = framefuse.compile(function, dynamic=dynamic)
    for _ in range(3):
        h, b = torch.rand(1, 16, 32), torch.rand(1, 16, 2, 32)
        assert torch.allclose(fast(h, b), function(h, b), atol=1e-5)
    assert framefuse.explain(fast).hits == 2
