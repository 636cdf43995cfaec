"""Equal groups are one kernel, written once, and each is called with its own tensors and numbers."""

from collections import Counter
from unittest import mock

import pytest
import torch

import framefuse
from framefuse.explain.report import describe
from framefuse.fuse.nest import cpu
from framefuse.ir.schedule import RunKernel
from framefuse.runtime.function import compiled_function


@pytest.fixture
def written():
    """How many groups were written as kernels."""
    found = Counter()
    build = cpu.build_kernels

    def counting(*args, **kwargs):
        found["groups"] += 1
        return build(*args, **kwargs)

    with mock.patch.object(cpu, "build_kernels", counting):
        yield found


def layers(count):
    def program(x, weights):
        for weight in weights[:count]:
            x = torch.softmax(x @ weight, -1) + x
        return x

    return program


def test_layers_of_one_size_are_written_once(written):
    counts = []
    for count in (4, 8):
        written.clear()
        program = layers(count)
        compiled = framefuse.compile(program)
        for seed in range(3):
            torch.manual_seed(seed)
            x, weights = torch.randn(3, 6), [torch.randn(6, 6) for _ in range(8)]
            with framefuse.assert_compiles(1 - min(seed, 1)):
                torch.testing.assert_close(compiled(x, weights), program(x, weights))
        assert describe(compiled_function(compiled)).hits == 2
        counts.append(written["groups"])
    assert counts[0] == counts[1] <= 4


def test_parameters_of_an_optimizer_have_kernels_by_size(written):
    sizes = [(4, 3), (5,), (4, 3), (5,), (4, 3), (5,)]
    ours = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
    theirs = [torch.nn.Parameter(one.detach().clone()) for one in ours]

    def groups(parameters):  # other rates for each: the numbers differ where the kernels are equal
        return [{"params": [one], "lr": 0.01 * (place + 1)} for place, one in enumerate(parameters)]

    mine, eager = torch.optim.Adam(groups(ours)), torch.optim.Adam(groups(theirs))
    step = framefuse.compile(mine.step)
    for turn in range(6):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for group, other in zip(mine.param_groups, eager.param_groups, strict=True):
            group["lr"] = other["lr"] = group["lr"] * 0.9
        if turn < 4:
            step()
        else:
            with framefuse.assert_compiles(0):
                hits = describe(compiled_function(step)).hits
                step()
                assert describe(compiled_function(step)).hits == hits + 1
        eager.step()
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other)
    assert 0 < written["groups"] <= 3 * 3  # steps, matrices and vectors; three recordings at most


@pytest.mark.parametrize("fill", [False, True])
def test_numbers_that_agree_in_one_group_alone_are_told_apart(fill):
    """``x * a + a`` and ``x * a + b`` are other kernels, and so is one that pads with the number it multiplies by."""

    def program(x, a, b):
        if fill:
            padded = [torch.nn.functional.pad(part, (1, 1), value=a) for part in (x[0], x[1])]
            return (padded[0] * a).sum(), (padded[1] * b).sum(), (padded[0] * b).sum()
        return (x[0] * a + a).sum(), (x[1] * a + b).sum(), (x[2] * b + a).sum(), (x[3] * b + b).sum()

    compiled = framefuse.compile(program)
    for turn in range(4):
        x = torch.randn(4, 5)
        with framefuse.assert_compiles(1 if turn == 0 else 0):
            found = compiled(x, 0.5 + turn, -1.25 * turn)
        torch.testing.assert_close(found, program(x, 0.5 + turn, -1.25 * turn))
    assert describe(compiled_function(compiled)).hits == 3


def test_each_kernel_names_its_own_lines():
    def program(x, y):
        a = torch.softmax(x, -1)
        b = torch.softmax(y, -1)
        return a, b

    compiled = framefuse.compile(program)
    compiled(torch.randn(3, 40), torch.randn(3, 40))
    (product,) = compiled_function(compiled).products
    items = product.stages.code.schedule.items
    kernels = [item.kernel for item in items if isinstance(item, RunKernel)]
    first = program.__code__.co_firstlineno
    assert sorted({line.line for kernel in kernels for line in kernel.lines}) == [first + 1, first + 2]
