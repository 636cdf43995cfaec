"""Writes, views, detached aliases and memory order: what eager's tensors say of history and counts holds of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.unit.differential import compared

import framefuse
from framefuse.api import compiled_function

ROWS = (3, 3, 4, 5)  # of the tensors of each call


@dataclass(frozen=True)
class Row:
    """A function of two tensors; it is called with results of calls that require grad unless ``given`` says otherwise.
    ``stops`` says that eager raises, or that autograd will, so that nothing is compiled.
    """

    function: Callable[..., Any]
    given: str = "tracked"
    stops: bool = False


TABLE: list[Row] = []


def row(given: str = "tracked", stops: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        TABLE.append(Row(function, given, stops))
        return function

    return add


# ---- views -----------------------------------------------------------------------------------------------------------


@row()
def view_before_a_write(x, y):
    v = x.t()
    x.mul_(2)
    return v


@row()
def view_after_a_write(x, y):
    x.mul_(2)
    return x.t(), x


@row()
def view_of_all(x, y):
    return (x * 2).t(), (y * 2).reshape(-1)


@row()
def views_of_parts(x, y):
    return (x * 2)[1:], (x * 2)[:, 1], (y * 2)[0], (y * 2)[:1].expand(3, 4)


@row()
def several_views_at_once(x, y):
    return (x * 2).chunk(2, 1)


@row()
def one_of_several_views(x, y):
    return (x * 2).chunk(2, 1)[0]


@row()
def views_by_other_tensors_sizes(x, y):
    return (x * 2).view_as(y), y.expand_as(x), (x * 1).expand_as(y)


@row()
def view_of_hidden_memory(x, y):
    return F.linear(x[None], y), x.t().reshape(-1)


@row()
def views_that_the_library_makes(x, y):
    return (x * 2).as_strided((2, 2), (1, 2)), (x @ y.t()).diagonal(), (y * 2).unfold(1, 2, 1)


@row()
def views_of_integers(x, y):
    z = (x > 0).long()
    z.add_(1)
    return z, z.t(), z.view(-1)[1:]


@row("leaves")
def view_of_a_leaf_without_gradients(x, y):
    with torch.no_grad():
        return x.view(-1)


@row("leaves")
def views_that_are_read_without_gradients(x, y):
    with torch.no_grad():
        v = x[None].expand(2, -1, -1) + 1
    return v * y


@row()
def views_in_inference_mode(x, y):
    with torch.inference_mode():
        z = x * 2
        w = z.t()
    return z, w


# ---- writes that autograd sees ---------------------------------------------------------------------------------------


@row("plain")
def write_by_number(x, y):
    x[1] = y[0]
    return x


@row("plain")
def write_by_mask(x, y):
    x[x > 0] = y.sum()
    return x


@row("plain")
def write_by_positions(x, y):
    x.index_put_((torch.tensor([0, 1]),), y[:2])
    return x


@row("plain")
def masked_scatter(x, y):
    x.masked_scatter_(x > 0, y)
    return x


@row("plain")
def masked_scatter_of_itself(x, y):
    z = x * 2
    return z.clone().masked_scatter_(y > 0, z)


@row("plain")
def copy_and_view(x, y):
    x.copy_(y)
    return x, x.t()


@row()
def write_of_itself(x, y):
    x[...] = x
    return y


@row()
def replaced_contents_give_zeros(x, y):
    a, b, c, d = x * 2, x * 3, x * 4, x * 5
    a.zero_()
    b.fill_(y.sum())
    c.copy_(y)
    d[...] = y
    return a, b, c, d


@row()
def write_through_parts(x, y):
    x.add_(1)
    v = x[0]
    v.mul_(2)
    x[1:].sub_(y[1:])
    return v


@row()
def part_of_a_flat_tensor(x, y):
    flat = torch.cat([x.view(-1), y.view(-1)])
    part = flat[: x.numel()].view_as(x)
    part.mul_(2)
    return flat, part


@row()
def foreach(x, y):
    torch._foreach_add_([x, y], 1.0)
    return x + y


@row()
def cache(x, y):
    kept = torch.zeros(2, 8, 4)
    kept[:, : x.shape[0]] = x
    kept[:, x.shape[0] : x.shape[0] + 1] = y[:1]
    return kept, kept[:, : x.shape[0] + 1]


@row("leaves", stops=True)
def write_to_a_leaf(x, y):
    return x.add_(1)


@row(stops=True)
def write_to_one_of_several_views(x, y):
    part = (x * 2).unbind(0)[0]
    return part.add_(1)


@row(stops=True)
def write_to_repeated_memory(x, y):
    return (x * 2)[:1].expand(3, 4).add_(1)


# ---- writes behind autograd's back -----------------------------------------------------------------------------------


@row()
def hidden_write_after_a_tracked_one(x, y):
    x[0] = 4.0
    with torch.no_grad():
        x.mul_(2)
    return x


@row()
def hidden_write_under_a_view(x, y):
    v = x.t()
    with torch.no_grad():
        x.relu_()
    return v


@row("plain")
def hidden_write_keeps_a_new_history(x, y):
    x[...] = y * 2
    with torch.no_grad():
        x.clamp_(-1, 1)
    return x


@row("plain")
def write_through_a_detached_alias(x, y):
    x.detach().sub_(y)
    return x


@row()
def alias_of_a_result_is_written(x, y):
    z = x * 2
    z.detach().zero_()
    return z


@row()
def alias_has_the_history(x, y):
    z = x * 2
    alias = z.detach()
    alias.mul_(y)
    return alias


@row()
def hidden_then_tracked(x, y):
    z = x * 2
    with torch.no_grad():
        z.mul_(3)
    z.mul_(y)
    return z


@row()
def nested_modes(x, y):
    with torch.no_grad():
        z = x * 2
        with torch.enable_grad():
            w = x * 3
            w.add_(y)
        z.add_(w)
    return z, w


@row()
def write_to_memory_that_a_view_shows(x, y):
    v = x.view(-1)
    with torch.no_grad():
        x.copy_(v.sum())
    v.unsqueeze_(-1)
    return v


@row("leaves")
def step_of_an_optimizer_then_its_parameter(x, y):
    with torch.no_grad():
        x.add_(y, alpha=-0.1)
    return x * y


@row("leaves")
def foreach_on_parameters(x, y):
    with torch.no_grad():
        torch._foreach_mul_([x, y], 0.5)
        torch._foreach_addcdiv_([x, y], [x, y], [y + 5, x + 5], 0.1)
    return x + y


@row("leaves")
def average_of_parameters(x, y):
    with torch.no_grad():
        x.lerp_(y, 0.1)
    return x


@row("plain")
def out_without_gradients(x, y):
    with torch.no_grad():
        torch.add(x, y, out=x)
    return x


# ---- aliases ---------------------------------------------------------------------------------------------------------


@row()
def detached_results(x, y):
    z = x * 2
    return z, z.detach(), (y * 2).detach(), (y * 3).detach().t()


@row()
def detached_inputs(x, y):
    d = x.detach()
    d.add_(1)
    return d, y.data, x.detach().t()


# ---- counters and memory order ---------------------------------------------------------------------------------------


@row()
def counts_of_writes(x, y):
    z = x * 2
    z.add_(1).mul_(2)
    w = y.clone()
    w[0] = 1
    w[1] = 2
    return z, w, w[0]


@row()
def orders_of_dimensions(x, y):
    z = x.t()
    return z.clone(), z.contiguous(), z + 0, torch.zeros_like(z), z.to(torch.float64), (z * 2).t().contiguous()


@row()
def equal_contents_in_other_orders(x, y):
    z = x.t()
    return z.contiguous(), z.contiguous(), z.clone(), z.clone(), x.clone(), x.t().clone().t(), z.double().contiguous()


@row()
def memory_formats(x, y):
    z = x.reshape(1, 2, -1, 2).to(memory_format=torch.channels_last)
    plain = z.clone(memory_format=torch.contiguous_format)
    return z, z.clone(), z.contiguous(), torch.empty_like(z).copy_(z), plain, z * 2, z.to(torch.float64)


@row("plain")
def a_row_that_is_the_same_along_an_axis(x, y):
    y = y.detach().clone()
    y.copy_(y.sum())
    x[...] = y.mean()
    kept = torch.empty_like(x).copy_(x)
    y[-1].mul_(3)
    z = y + x
    alias = z.data
    alias *= 2
    return [x.data, kept, z, alias]


# ---- the test --------------------------------------------------------------------------------------------------------


def arguments(given: str, call: int) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor]]:
    """The arguments of a call, and the leaves behind them."""
    torch.manual_seed(call)
    a, b = (torch.randn(ROWS[call], 4, requires_grad=True) for _ in range(2))
    if given == "leaves":
        return (a, b), [a, b]
    if given == "plain":
        return (a.detach(), b), [b]
    with torch.enable_grad():
        return (a * 1, b * 1), [a, b]


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [part for each in value for part in tensors(each)] if isinstance(value, (tuple, list)) else []


def told(tensor: torch.Tensor) -> Any:
    """What a tensor says of itself."""
    try:
        leaf: Any = tensor.is_leaf
    except RuntimeError as error:  # of some views autograd refuses to say
        leaf = str(error)[:40]
    version = None if tensor.is_inference() else tensor._version
    place = (tensor.stride(), tensor.storage_offset(), str(tensor.dtype))
    return [tensor.detach().clone(), place, tensor.requires_grad, leaf, version, tensor._is_view()]


def outcome(function: Callable[..., Any], given: str, grad: bool, call: int) -> Any:
    """What a call gives and leaves: tensors with all that they tell, gradients, or the error."""
    args, leaves = arguments(given, call)
    with torch.set_grad_enabled(grad):
        try:
            result = function(*args)
        except Exception as error:
            return type(error).__name__, str(error)[:60]
    seen = [*tensors(result), *args]
    found = [told(tensor) for tensor in seen]
    if not grad:
        return found
    try:
        parts = [tensor for tensor in seen if tensor.requires_grad and tensor.is_floating_point()]
        total = sum((t * torch.arange(1.0, t.numel() + 1).reshape(t.shape)).sum() for t in parts)
        gradients = torch.autograd.grad(total, leaves, allow_unused=True) if parts else ()
    except RuntimeError as error:
        return found, str(error)[:60]
    return found, list(gradients)


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.function.__name__)
def test_memory_and_history_are_eagers(case: Row, grad: bool) -> None:
    compiled = framefuse.compile(case.function)
    for call in range(len(ROWS)):
        expected = outcome(case.function, case.given, grad, call)
        problem = compared(outcome(compiled, case.given, grad, call), expected, True)
        assert not problem, f"call {call}: {problem}"
    dispatch = compiled_function(compiled).dispatch
    if not (case.stops and grad) and case.function is not write_to_repeated_memory:
        assert dispatch.hits >= 1


def test_a_view_of_a_compiled_result_may_be_written_under_gradients() -> None:
    """A view that the program made in grad mode is one to which autograd lets others write."""
    compiled = framefuse.compile(lambda x: ((y := x * 2), y.t()))
    for n in ROWS:
        base, view = compiled(torch.ones(n, 2))
        weight = torch.full((2, n), 3.0, requires_grad=True)
        view.mul_(weight)
        base.sum().backward()
        assert base.requires_grad and torch.equal(weight.grad, torch.full((2, n), 2.0))
    assert compiled_function(compiled).dispatch.hits == 3


def test_an_input_that_nobody_may_write_raises_as_eager_does() -> None:
    def function(x, y):
        y.add_(1)
        x[...] = x
        return y

    compiled = framefuse.compile(function)
    for _ in range(3):
        x = torch.randn(3, requires_grad=True)
        compiled(x * 1, torch.zeros(3))
    assert compiled_function(compiled).dispatch.hits == 2
    y = torch.zeros(3)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        compiled(torch.randn(3, requires_grad=True), y)
    assert torch.equal(y, torch.ones(3))
    with pytest.raises(RuntimeError, match="multiple views"):
        compiled((torch.randn(3, 3, requires_grad=True) * 1).unbind(0)[0], y)
    assert torch.equal(y, torch.full((3,), 2.0))
    for rows in (torch.randn(1, 3).requires_grad_().expand(1, 3), torch.randn(3).requires_grad_()[1:]):
        with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
            compiled(rows, y)
    assert torch.equal(y, torch.full((3,), 4.0)), "each write is made once"


def test_gradients_that_lie_transposed_come_at_other_sizes() -> None:
    compiled = framefuse.compile(lambda x: x.exp() * 2)
    for n, m in ((1, 2), (1, 2), (2, 3), (3, 1), (2, 3), (1, 3)):
        x = torch.randn(n, m, requires_grad=True)
        y = compiled(x)
        for tangent in (torch.randn(m, n).t(), torch.randn(n, m)):
            (found,) = torch.autograd.grad(y, x, tangent, retain_graph=True)
            torch.testing.assert_close(found, tangent * 2 * x.detach().exp())
    assert compiled_function(compiled).dispatch.hits >= 4
