"""A function that must be one kernel is one, alone and inside compiled code, or an error at its line says why not."""

import pytest
import torch

import framefuse
from framefuse.ir.schedule import RunKernel
from framefuse.runtime.function import compiled_function


def kernels(compiled) -> int:
    items = [item for product in compiled_function(compiled).products for item in product.stages.code.schedule.items]
    return sum(isinstance(item, RunKernel) for item in items)


@framefuse.kernel
def scores(x, y, factor):
    z = (x * y).relu() * factor
    z = z - z.amax(-1, keepdim=True)
    return z.exp() / z.exp().sum(-1, keepdim=True)


def called(x, y):
    return (scores(x @ x.T @ y, y, 2.0).sin() * 3) @ y.T


def twice(x, y):
    for factor in (2.0, 3.0):
        x = scores(x, y, factor)
    return x


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [lambda x, y: scores(x, y, 2.0), called, twice])
def test_one_kernel_gives_eagers_results(function, grad):
    fast = framefuse.compile(function)
    for rows in (3, 5, 70, 1):
        found = []
        for off in (False, True):
            torch.manual_seed(rows)
            x, y = (torch.randn(rows, 8, requires_grad=grad) for _ in range(2))
            if off:
                with framefuse.disable():
                    given = function(x, y)
            else:
                given = fast(x, y)
            if grad:
                given.sum().backward()
            found.append((given, x.grad, y.grad))
        torch.testing.assert_close(*found)


def test_alone_it_is_compiled_to_one_kernel():
    framefuse.reset()
    for rows in (4, 6):
        scores(torch.randn(rows, 8), torch.randn(rows, 8), 1.5)
    assert kernels(scores) == 1
    assert compiled_function(scores).dispatch.hits >= 1


@framefuse.kernel
def product(x):
    z = x.sin()
    return z @ z.T


@framefuse.kernel
def two_sums(x):
    z = x.sin().sum()
    w = (x * 2).sum(0)
    return w * z


@framefuse.kernel
def branch(x):
    if x.sum() > 0:
        return x.sin()
    return x.cos()


@framefuse.kernel
def sorted_rows(x):
    return x.sort().values + 1


@pytest.mark.parametrize(
    ("function", "line", "text"),
    [
        (product, "return z @ z.T", "framefuse.kernel, and a product is a call of a library. Take"),
        (two_sums, "w = ", "takes 2 kernels, of which one ends before this. Split the function here"),
        (branch, "if x.sum() > 0:", "cannot be part of a kernel: The branch depends on the value of a tensor"),
        (sorted_rows, "return x.sort()", "sort is a call of a library. Take it out of the function"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_what_is_no_kernel_is_an_error_at_its_line_in_each_call(function, line, text, inside):
    fast = framefuse.compile(lambda x: function(x * 2) + 1) if inside else function
    for rows in (3, 5, 4):
        with pytest.raises(framefuse.UserError) as caught:
            fast(torch.randn(rows, rows))
        said = str(caught.value)
        assert __file__ in said and line in said.split("\n")[1] and text in said.replace("\n", " ")


@pytest.mark.parametrize("inside", [False, True])
def test_an_error_of_the_program_is_its_own(inside):
    fast = framefuse.compile(lambda x, y, factor: scores(x, y, factor) + 1) if inside else scores
    for _ in range(2):
        with pytest.raises(RuntimeError, match="must match the size"):
            fast(torch.randn(2, 3), torch.randn(4, 5), 2.0)


def test_what_cannot_be_marked():
    with pytest.raises(framefuse.UserError, match="Give a Python function"):
        framefuse.kernel(torch.sin)


def test_a_whole_graph_that_cannot_be_had_is_an_error_in_each_call():
    @framefuse.compile(fullgraph=True)
    def function(x):
        return x.sin() if x.sum() > 0 else x.cos()

    for rows in range(2, 5):
        with pytest.raises(framefuse.UserError, match="branch"):
            function(torch.randn(rows))
