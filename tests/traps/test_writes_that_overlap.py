"""Calls that read the memory which they write, writes behind a call before its backward, and reads of empty memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import framefuse
from framefuse.api import compiled_function

SIZES = ((2, 2), (3, 3), (5, 5), (4, 6), (1, 1), (2, 3))


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """What a call gives, or the type and the beginning of the text of what it raises."""
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)[:80]


def alike(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        flags = [(t.dtype, t.stride(), t.requires_grad, t.is_inference(), t._is_view()) for t in (ours, theirs)]
        return flags[0] == flags[1] and torch.allclose(ours, theirs, 1e-4, 1e-5, equal_nan=True)
    if isinstance(theirs, (list, tuple)) and len(theirs) == len(ours):
        return all(map(alike, ours, theirs))
    return bool(ours == theirs)


# ---- reads of what is written ----------------------------------------------------------------------------------------


def first_column_from_all(x):
    y = x * 2
    y -= y[:, :1]
    return y * 3


def first_column_of_an_input_from_all(x):
    x.sub_(x[:, :1])
    return x * 3


def neighbours_with_gaps(x):
    y = x * 2
    y[:, 1:].copy_(y[:, :-1])
    return y


def neighbours(x):
    y = x * 2
    y[1:] += y[:-1]
    return y


def transposed(x):
    x.add_(x.t())
    return x * 2


def one_element_times_its_column(x):
    x[:, 0].mul_(x[:1, 0])
    return x * 2


def through_detached_memory(x):
    y = x * 2
    y.data.mul_(y[:, :1])
    return y


def product_into_its_operand(x):
    y = x * 2
    y.addmm_(y, y)
    return y


def sum_into_a_part(x):
    y = x * 2
    torch.sum(y, 0, out=y[0])
    return y


def out_beside_the_operand(x):
    torch.add(x[1:], 1, out=x[:-1])
    return x * 2


def lists_of_neighbours(x):
    y = x * 2
    torch._foreach_add_([y[1:]], [y[:-1]])
    return y


@pytest.mark.parametrize(
    "function",
    [
        first_column_from_all, first_column_of_an_input_from_all, neighbours_with_gaps, neighbours, transposed,
        one_element_times_its_column, through_detached_memory, product_into_its_operand, sum_into_a_part,
        out_beside_the_operand, lists_of_neighbours,
    ],
)  # fmt: skip
@pytest.mark.parametrize("start", range(3))
def test_what_reads_the_memory_it_writes_has_eagers_order(function: Callable[..., Any], start: int) -> None:
    compiled = framefuse.compile(function)
    for sizes in SIZES[start:] + SIZES[:start] + SIZES:
        x = torch.randn(sizes)
        same = x.clone()
        assert alike(outcome(compiled, same), outcome(function, x)), sizes
        assert alike(same, x)
    assert compiled_function(compiled).dispatch.hits > 0 or function is transposed


def halves(x):
    y = x * 2
    y[:2] += y[2:4]
    return y


def columns(x):
    y = x * 2
    y[:, 0] = y[:, 1]
    return y


def itself(x):
    y = x * 2
    y.mul_(y)
    y.view(-1).add_(y.flatten())
    y.addcmul_(y, y.sum())
    return torch.add(y, y, out=y)


@pytest.mark.parametrize("function", [halves, columns, itself])
def test_what_reads_beside_what_it_writes_is_compiled(function: Callable[..., Any]) -> None:
    compiled = framefuse.compile(function, fullgraph=True)
    for rows in (4, 6, 5, 7, 8):
        x = torch.randn(rows, 4)
        assert alike(compiled(x), function(x))
    assert compiled_function(compiled).dispatch.hits >= 3


# ---- writes between a call and its backward --------------------------------------------------------------------------


def keeps_what_it_wrote(x, w):
    x.relu_()
    return x * 1


def keeps_the_exponential(x, w):
    x.exp_()
    return x.sin()


def writes_a_part(x, w):
    x[0].exp_()
    return x * 1


def keeps_its_factor(x, w):
    x.mul_(w)
    return x.sum()


def writes_unseen(x, w):
    with torch.no_grad():
        x.add_(1)
    return x * w


def writes_twice(x, w):
    x.mul_(2)
    x.tanh_()
    return x * w


def after(call: Callable[..., Any], who: str, given: str, again: bool, size: int) -> list[Any]:
    """The gradients of what a call gives and writes, one after the other, after a write to one of its tensors."""
    torch.manual_seed(size)
    leaf, w = torch.randn(size, 2, requires_grad=True), torch.randn(size, 2, requires_grad=given != "tracked")
    x = leaf.detach().clone() if given == "plain" else leaf * 1
    result = call(x, w)
    if who:
        with torch.no_grad():
            {"x": x, "w": w, "result": result}[who].add_(1)
    leaves = [tensor for tensor in (leaf, w) if tensor.requires_grad]
    found = []
    for part in (result.sum() + x.sum(), result.sum(), x.sum()):
        first = outcome(lambda part=part: torch.autograd.grad(part, leaves, None, True, again, True))
        if again and isinstance(first[0] if first[0] is not None else first[1], torch.Tensor):
            total = sum((g * g).sum() for g in first if g is not None)
            found.append(outcome(lambda total=total: torch.autograd.grad(total, leaves, None, True, False, True)))
            first = [None if g is None else g.detach() for g in first]
        found.append(first)
    return [*found, x._version, x.detach()]


@pytest.mark.parametrize(
    "function",
    [keeps_what_it_wrote, keeps_the_exponential, writes_a_part, keeps_its_factor, writes_unseen, writes_twice],
)
@pytest.mark.parametrize("given", ["tracked", "plain", "both"])
@pytest.mark.parametrize("who", ["", "x", "w", "result"])
@pytest.mark.parametrize("again", [False, True])
def test_a_write_before_backward_is_eagers_error(
    function: Callable[..., Any], given: str, who: str, again: bool
) -> None:
    compiled = framefuse.compile(function)
    for size in (3, 4, 5):
        ours, theirs = (after(call, who, given, again, size) for call in (compiled, function))
        assert alike(ours, theirs), (size, ours, theirs)
    assert compiled_function(compiled).dispatch.hits == 2


# ---- modes -----------------------------------------------------------------------------------------------------------


def written_in_inference_mode(x, w):
    with torch.inference_mode(), torch.enable_grad():
        y = x.clone()
        y.add_(w)
    return y


def made_in_inference_mode(x, w):
    with torch.inference_mode():
        y = x * 2
        with torch.enable_grad():
            z, v = y * w, x.view(-1)
    return y, z, v


@pytest.mark.parametrize("function", [written_in_inference_mode, made_in_inference_mode])
def test_gradient_mode_inside_inference_mode_tracks_nothing(function: Callable[..., Any]) -> None:
    compiled = framefuse.compile(function)
    for size in (3, 4, 5):
        x, w = torch.randn(size, 2, requires_grad=True), torch.randn(size, 2, requires_grad=True)
        assert alike(compiled(x, w), function(x, w))
    assert compiled_function(compiled).dispatch.hits == 2


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.t_(), lambda v: v.transpose_(0, 1), lambda v: v.swapaxes_(0, 1), lambda v: v.swapdims_(0, 1),
        lambda v: v.squeeze_(), lambda v: v.unsqueeze_(0), lambda v: v.squeeze_(0).unsqueeze_(-1),
    ],
)  # fmt: skip
def test_a_fresh_tensor_with_new_sizes_is_no_view(backend: str, change: Callable[..., Any]) -> None:
    def turned(x):
        v = x * 2
        change(v)
        return v, v._version

    compiled = framefuse.compile(turned, backend=backend)
    for size in (3, 4, 5):
        x = torch.randn(size, 2)
        (ours, count), (theirs, expected) = compiled(x), turned(x)
        assert alike(ours, theirs) and (count, ours._version) == (expected, theirs._version)
    assert compiled_function(compiled).dispatch.hits == 2


def a_sum_that_is_not_tracked(x, s):
    with torch.no_grad():
        s.add_(x.sum())
    return x


def a_product_that_is_not_tracked(x, s):
    with torch.no_grad():
        y = x * 2
    return y, s + 1


@pytest.mark.parametrize("function", [a_sum_that_is_not_tracked, a_product_that_is_not_tracked])
def test_a_backend_sees_the_gradient_modes_of_the_program(function: Callable[..., Any]) -> None:
    compiled = framefuse.compile(function, backend="eager")
    for size in (3, 4, 5):
        x, ours, theirs = torch.randn(size, requires_grad=True), torch.zeros(()), torch.zeros(())
        assert alike(compiled(x, ours), function(x, theirs)) and alike(ours, theirs)
    assert compiled_function(compiled).dispatch.hits == 2


def test_the_new_sizes_of_a_detached_input_count_for_the_input() -> None:
    def turned(x):
        x.detach().t_().add_(2)
        return x.detach().unsqueeze_(0)

    compiled = framefuse.compile(turned)
    for size in (3, 4, 5):
        x = torch.randn(size, 2)
        same = x.clone()
        assert alike(compiled(x), turned(same)) and x._version == same._version


def complex_factor(x, y):
    x.mul_(y)
    return x


def complex_zeros(x, y):
    v = y.view_as(y)
    x.zero_()
    return v, v


def complex_copy(x, y):
    x.copy_(y)
    return x * 2


@pytest.mark.parametrize("function", [complex_factor, complex_zeros, complex_copy])
@pytest.mark.parametrize("turned", [False, True])
def test_complex_inputs_that_a_call_writes_have_gradients(function: Callable[..., Any], turned: bool) -> None:
    def train(call: Callable[..., Any], size: int) -> Any:
        torch.manual_seed(size)
        x, y = (torch.randn(size, 2, dtype=torch.complex64, requires_grad=True) for _ in range(2))
        here = (x * 1).t() if turned else x * 1
        given = (here, y.t() if turned else y)
        result = call(*given)
        parts = [*(result if isinstance(result, tuple) else (result,)), given[0]]
        loss = sum(t.abs().square().sum() for t in parts)
        first = torch.autograd.grad(loss, (x, y), create_graph=True, allow_unused=True)
        again = sum((g.abs() ** 2).sum() for g in first if g is not None)
        second = torch.autograd.grad(again, (x, y), allow_unused=True)
        return [None if g is None else g.detach().contiguous() for g in (*first, *second)]

    compiled = framefuse.compile(function)
    for size in (3, 4, 5):
        assert alike(train(compiled, size), train(function, size)), size
    assert compiled_function(compiled).dispatch.hits == 2


# ---- rows of empty memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x.index_select(0, i), lambda x, i: x.index_select(1, i), lambda x, i: x[i], lambda x, i: x[:, i],
        lambda x, i: x[None, i], lambda x, i: x.index_select(0, i).sum(), lambda x, i: x[i].sum(0),
        lambda x, i: x.gather(0, i[:, None]), lambda x, i: torch.take_along_dim(x, i[None], 1),
        lambda x, i: torch.nn.functional.embedding(i, x), lambda x, i: x.index_put((i,), torch.tensor(1.0)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("sizes", [(0, 0), (0, 3), (3, 0), (1, 1), (3, 4)])
def test_positions_in_empty_memory_are_checked(function: Callable[..., Any], sizes: tuple[int, int]) -> None:
    compiled = framefuse.compile(function)
    for recorded in ((2, 3), (4, 5), (3, 3)):
        compiled(torch.randn(recorded), torch.tensor([0, 1]))
    assert compiled_function(compiled).dispatch.hits > 0
    for places in ([0], [5], [-1], [], [0, 0], [-9]):
        x, i = torch.randn(sizes), torch.tensor(places, dtype=torch.long)
        assert alike(outcome(compiled, x, i), outcome(function, x, i)), places


# ---- counts of writes ------------------------------------------------------------------------------------------------


class Scaled(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3, dtype=dtype) * 2)

    def forward(self, x):
        v = x - 1
        v.mul_(self.scale)
        w = v.clone()
        v.cumsum_(0)
        u = v.clone()
        v.zero_()
        return w, u


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_copy_of_what_was_written_counts_no_write(dtype: torch.dtype) -> None:
    module = Scaled(dtype)
    compiled = framefuse.compile(module)
    for rows in (3, 1, 4, 2):
        x = torch.rand(3, rows, dtype=dtype).t()
        ours, theirs = compiled(x), module(x)
        assert alike(ours, theirs) and [t._version for t in ours] == [0, 0]
        sums = [sum(t.abs().sum() for t in found) for found in (ours, theirs)]
        wanted = [torch.autograd.grad(total, module.scale)[0].clone() for total in sums]
        assert alike(*wanted)
    assert compiled_function(compiled).dispatch.hits == 3


def test_memory_that_is_empty_when_recorded_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAMEFUSE_CHECK", "1")

    def loss(y):
        part = y[:1]
        lost = torch.nn.functional.cross_entropy(part, torch.zeros(part.shape[0], dtype=torch.long))
        return y * 2, lost

    compiled = framefuse.compile(loss)
    for rows in (0, 0, 3, 0, 2):
        y = torch.randn(rows, 2)
        assert alike(compiled(y), loss(y))
    assert compiled_function(compiled).dispatch.hits >= 2
