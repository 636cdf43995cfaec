"""Launches of the user's own Triton kernels are calls of a whole graph, right for other sizes and with gradients.

With FRAMEFUSE_TEST_DEVICE=cpu and TRITON_INTERPRET=1 the same tests run on the CPU:
tests/unit/capture/callables/test_triton_kernels.py.
"""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, close, pytestmark  # noqa: F401

import framefuse
from framefuse.api import compiled_function

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
CASES = []


def case(given):
    """Adds a function that is called four times, with what ``given`` makes for each call."""

    def add(function):
        CASES.append(pytest.param(function, given, id=function.__name__))
        return function

    return add


def one(number):
    return (torch.randn(3 + number, 4 + number, device=DEVICE),)


def two(number):
    return one(number) + one(number)


@triton.jit
def put(pointer, places, values, mask):
    tl.store(pointer + places, values, mask=mask)


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n
    put(out_ptr, places, tl.load(x_ptr + places, mask=mask) + tl.load(y_ptr + places, mask=mask), mask)


tuned = triton.autotune(
    configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})],
    key=["n"],
    do_bench=lambda call, quantiles: call() or [1.0] * 3,
)(add)


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def double(x_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(x_ptr + places, tl.load(x_ptr + places) * 2)
    else:
        tl.store(x_ptr + places, tl.load(x_ptr + places, mask=places < n) * 2, mask=places < n)


@triton.jit
def rows(x_ptr, out_ptr, columns, x_row, x_column, out_row, out_column, BLOCK: tl.constexpr):
    row, places = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x_ptr + row * x_row + places * x_column, mask=places < columns)
    tl.store(out_ptr + row * out_row + places * out_column, values * 2 + 1, mask=places < columns)


def added(x, y, kernel=add, **options):
    out = torch.empty_like(x)
    kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel(), **options)
    return out


def by_rows(x, out):
    block = triton.next_power_of_2(x.shape[1])
    rows[(x.shape[0],)](x, out, x.shape[1], *x.stride(), *out.stride(), BLOCK=block)
    return out


@case(two)
def between_pointwise_code(x, y):
    return added(x.sin(), y.cos(), BLOCK=16).exp() * 2


@case(two)
def with_a_grid_of_numbers(x, y):
    out, n = torch.empty_like(x), x.numel()
    add[(triton.cdiv(n, 16),)](x, y, out, n, BLOCK=16, num_warps=2)
    return out.relu()


@case(two)
def autotuned(x, y):
    return added(x.sin(), y.cos(), tuned).exp()


@case(one)
def in_place_with_heuristics(x):
    y = x.sin()
    double[lambda meta: (triton.cdiv(y.numel(), meta["BLOCK"]),)](y, y.numel(), BLOCK=16)
    return y.cos()


@case(one)
def an_argument_is_written(x):
    add[(triton.cdiv(x.numel(), 16),)](x, x, x, x.numel(), BLOCK=16)
    return x.cos()


@case(one)
def a_part_is_written(x):
    y = x.sin()
    part = y[1:]
    double[(triton.cdiv(part.numel(), 16),)](part, part.numel(), BLOCK=16)
    return y.cos()


@case(one)
def strides_are_given(x):
    y = x.sin()
    return by_rows(y, torch.empty_like(y)) + by_rows(y.t(), torch.empty_like(y.t())).t()


@case(lambda number: (torch.randn(3 + number, 8, device=DEVICE)[:, ::2],))
def memory_with_gaps(x):
    both = torch.cat((x, x), 1)
    y = both[:, ::2] if DEVICE == "cpu" else both[:, :4]  # a GPU has no form for a write of every second element
    return by_rows(x, torch.empty_like(x)) + by_rows(y, y)


@case(two)
def what_is_written_is_written_again(x, y):
    first = added(x, y, BLOCK=16)
    second = added(first * 2, y.sin(), BLOCK=16)
    double[(triton.cdiv(first.numel(), 16),)](first, first.numel(), BLOCK=16)
    return first + second


@case(two)
def wrapped_for_torch(x, y):
    out = torch.empty_like(x)
    torch.library.wrap_triton(add)[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), 16)
    return out.sin()


@pytest.mark.parametrize(("function", "given"), CASES)
def test_launches_are_calls_of_one_graph(function, given):
    fast = framefuse.compile(function)
    for number in (0, 2, 5, 1):
        found = []
        for each in (function, fast):
            torch.manual_seed(number)
            args = given(number)
            found.append((each(*args), *args))
        close(*found)
    state = compiled_function(fast)
    assert not state.breaks and not state.reasons, [str(reason) for reason in (*state.reasons, *state.breaks)]


class Added(torch.autograd.Function):
    """A sum with gradients by the same kernel."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        return added(x, y, BLOCK=16)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return added(gradient, gradient, BLOCK=16), added(gradient * x, gradient, BLOCK=16)


@torch.library.triton_op("framefuse_kernels::added", mutates_args={})
def added_op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add)[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), 16)
    return out


added_op.register_autograd(lambda ctx, gradient: (gradient, gradient))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: Added.apply(x.sin(), y.cos()).exp(),
        lambda x, y: added_op(x.sin(), y.cos()).exp(),
        lambda x, y: (x.sin() * y) * added((x.sin() * y).detach(), y, BLOCK=16),  # a launch has no gradient
    ],
)
def test_gradients(function):
    fast = framefuse.compile(function)
    for number in (0, 2, 5, 1):
        found = []
        for each in (function, fast):
            torch.manual_seed(number)
            args = [tensor.requires_grad_() for tensor in two(number)]
            each(*args).sum().backward()
            found.append([tensor.grad for tensor in args])
        close(*found)
    assert not compiled_function(fast).breaks


def test_one_trace_serves_all_sizes():
    def function(x):
        return by_rows(x.sin(), torch.empty_like(x)) * 2

    def rows_below_nine(x):  # of blocks of eight
        out = torch.empty_like(x)
        rows[(x.shape[0],)](x, out, x.shape[1], *x.stride(), *out.stride(), BLOCK=16)
        return out * 2

    for each, traces in ((function, 2), (rows_below_nine, 1)):
        fast = framefuse.compile(each)
        for number in (0, 2, 5, 1):
            (x,) = one(number)
            close(fast(x), each(x))
        assert len(checked(fast, 2)) <= traces
