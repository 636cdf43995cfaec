"""Sizes that divisions give are symbols of their own, so that reshapes of such tensors move nothing in kernels."""

from dataclasses import replace

import pytest
import torch
from tests.unit.fuse.graphs import Builder, check, kernels, symbol
from torch import nn
from torch.nn import functional as F

import framefuse
from framefuse.fuse import fuse
from framefuse.fuse.graph.named_sizes import with_named_sizes
from framefuse.ir.comparisons import Relation
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.numbers import Symbol, expr
from framefuse.runtime.function import compiled_function

BATCH, SIDE = symbol("s0"), symbol("s1")
HALF = (SIDE - 1) // 2 + 1
QUARTER = (HALF - 1) // 2 + 1


def assert_no_divisions(schedule):
    """No kernel divides to find an element; only by the constants of an upsampling."""
    for kernel in kernels(schedule):
        lines = [line.partition("#")[0] for line in kernel_text(kernel).splitlines() if "[" in line]
        assert not any("// n" in line or "% (n" in line for line in lines), kernel_text(kernel)


def pooled(side=9):
    """Something of half the side, as a strided convolution gives it."""
    b = Builder(s0=2, s1=side)
    x = b.input((BATCH, 6, SIDE, SIDE))
    half = b.slice(x, (0, 0, 0, 0), (BATCH, 6, HALF, HALF), (1, 1, 2, 2))
    return b, x, half


def test_what_two_sizes_are_made_of_has_one_symbol():
    b, _, half = pooled()
    quarter = b.slice(b.exp(half), (0, 0, 0, 0), (BATCH, 6, QUARTER, 4 * QUARTER), (1, 1, 2, 1))
    graph = with_named_sizes(b.graph(quarter))
    first, second = Symbol("size0"), Symbol("size1")
    assert dict(graph.sizes) == {first: (HALF,), second: (QUARTER,)}
    assert graph.outputs[0].node.shape == (BATCH, b.sizes([6])[0], second.expr, second.expr * 4)
    assert graph.hints[first] == 5 and graph.hints[second] == 3
    assert with_named_sizes(graph) is graph


def test_what_is_left_behind_a_half_is_the_half():
    half = SIDE // 2
    b = Builder(s0=2, s1=8)
    x = b.input((BATCH, SIDE))
    first = b.exp(b.slice(x, (0, 0), (BATCH, half)))
    second = b.exp(b.slice(x, (0, half), (BATCH, SIDE - half)))
    held = (Relation("==", half * 2, SIDE),)
    graph = with_named_sizes(replace(b.graph(first, second), relations=held))
    assert {output.node.shape for output in graph.outputs} == {(BATCH, symbol("size0"))}
    unknown = with_named_sizes(b.graph(first, second))
    assert len({output.node.shape for output in unknown.outputs}) == 2


def test_sizes_that_relations_hold_to_a_number_or_to_each_other_go_by_one_name():
    b, _, half = pooled()
    inferred = 6 * BATCH * HALF * HALF // (BATCH * SIDE)
    a = b.slice(half, (0, 0, 0, 0), (BATCH, inferred, QUARTER, 6 * BATCH * HALF // SIDE))
    held = (Relation("==", inferred, expr(14)), Relation("==", QUARTER, 6 * BATCH * HALF // SIDE))
    graph = with_named_sizes(replace(b.graph(a), relations=held))
    assert dict(graph.sizes) == {Symbol("size0"): (HALF,), Symbol("size1"): (QUARTER,)}
    quarter = symbol("size1")
    assert graph.outputs[0].node.shape == (BATCH, expr(14), quarter, quarter)


def test_sums_of_symbols_and_late_sizes_stay():
    b = Builder(s0=2, s1=9, u0=3)
    x = b.input((BATCH, SIDE))
    both = b.cat([x, x], 1)
    late = symbol("u0")
    graph = b.graph(both, bound=[(Symbol("u0"), x, 0)])
    assert with_named_sizes(graph) is graph
    y = b.slice(x, (0, 0), (late // 2, SIDE))
    graph = b.graph(y, bound=[(Symbol("u0"), x, 0)])
    assert with_named_sizes(graph) is graph


def test_sums_that_a_library_call_gives_are_named_and_others_stay():
    b = Builder(s0=2, s1=9, s2=3, s3=7)
    x, kernel = b.input((BATCH, 4, SIDE, symbol("s3"))), b.input((4, 4, symbol("s2"), 3))
    sizes = (BATCH, 4, SIDE - symbol("s2") + 1, symbol("s3") - 2)
    y = b.library(torch.conv2d, [x, kernel], sizes, FLOAT32)
    inner = b.slice(x, (0, 0, 1, 1), (BATCH, 4, SIDE - 4, 3))
    graph = with_named_sizes(b.graph(b.reshape(y, BATCH, 4 * sizes[2] * sizes[3]), inner))
    high, wide = symbol("size0"), symbol("size1")
    assert graph.sizes == ((Symbol("size0"), (sizes[2],)), (Symbol("size1"), (sizes[3],)))
    assert graph.outputs[0].node.shape == (BATCH, 4 * high * wide)
    assert graph.outputs[1].node.shape == b.sizes((BATCH, 4, SIDE - 4, 3))
    assert graph.hints[Symbol("size0")] == 7 and graph.inputs[0].shape == x.shape
    assert with_named_sizes(graph) is graph


@pytest.mark.parametrize("side", [9, 8, 2, 1, 31])
def test_a_norm_over_groups_of_channels_runs_along_memory(side):
    b, _, half = pooled()
    kept = b.add(b.exp(half), 1.0)
    groups = b.reshape(kept, BATCH, 3, 2 * HALF * HALF)
    result = b.sub(groups, b.reduce("sum", groups, 2, keep=True))
    graph = b.graph(kept, b.reshape(result, BATCH, 6, HALF, HALF))
    schedule = fuse(graph)
    check(graph, schedule, torch.randn(2, 6, side, side))
    assert_no_divisions(schedule)


class Net(nn.Module):
    """Goes down, and with ``up`` up again."""

    def __init__(self, up):
        super().__init__()
        self.down, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(4, 8)
        self.lower, self.last = nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 16 if up else 8)
        self.up = up

    def forward(self, x):
        x = F.silu(self.norm(self.down(x)))
        y = F.relu(self.lower(x))
        if self.up:
            y = torch.cat([x, F.interpolate(y, scale_factor=2.0)], 1)
        return self.last(y).sum((2, 3))


class Valid(nn.Module):
    """Convolutions without padding, in two or three dimensions, and one that grows its operand again."""

    def __init__(self, volumes):
        super().__init__()
        first, again = (nn.Conv3d, nn.ConvTranspose3d) if volumes else (nn.Conv2d, nn.ConvTranspose2d)
        self.first, self.norm = first(3, 8, 3), nn.GroupNorm(4, 8)
        self.second, self.last, self.again = first(8, 6, 2), nn.GroupNorm(2, 6), again(6, 4, 3)
        self.axes = (1, 2, 3, 4) if volumes else (1, 2, 3)

    def forward(self, x):
        x = self.last(self.second(F.gelu(self.norm(self.first(x)))))
        return self.again(x).mean(self.axes), F.group_norm(torch.relu(self.again(x)), 2)


@pytest.mark.parametrize("volumes", [False, True])
def test_norms_behind_convolutions_without_padding_run_along_memory(volumes):
    torch.manual_seed(0)
    net = Valid(volumes).double()
    compiled = framefuse.compile(net, dynamic=True)
    for side in (8, 9, 12, 7, 5):
        x = torch.randn(2, 3, *(side,) * (3 if volumes else 2), dtype=torch.float64)
        expected, found = ([*module(x)] for module in (net, compiled))
        for one, other in zip(found, expected, strict=True):
            assert one.stride() == other.stride()
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        losses = [sum(result.sin().sum() for result in each) for each in (expected, found)]
        grads = [torch.autograd.grad(loss, list(net.parameters())) for loss in losses]
        torch.testing.assert_close(grads[1], grads[0], rtol=1e-9, atol=1e-9)
    state = compiled_function(compiled)
    assert state.dispatch.hits >= 3
    product = state.products[-1]
    assert_no_divisions(product.stages.code.schedule)
    for derivative in product.stages.derivatives:
        assert derivative.cases
        for case in derivative.cases:
            assert_no_divisions(case.stages.code.schedule)


@pytest.mark.parametrize("up", [False, True])
def test_a_network_with_strides_divides_in_no_kernel_and_takes_other_sides(up):
    torch.manual_seed(0)
    net = Net(up).double()
    compiled = framefuse.compile(net, dynamic=True)
    for side in (16, 20, 36, 12):
        x = torch.randn(2, 3, side, side, dtype=torch.float64)
        results = [module(x) for module in (net, compiled)]
        torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)
        gradients = [torch.autograd.grad(result.square().sum(), list(net.parameters())) for result in results]
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-9, atol=1e-9)
    state = compiled_function(compiled)
    assert state.dispatch.hits >= 2
    product = state.products[-1]
    assert_no_divisions(product.stages.code.schedule)
    for derivative in product.stages.derivatives:
        assert derivative.cases
        for case in derivative.cases if not up else ():  # there two sizes are equal only because cat took them
            assert_no_divisions(case.stages.code.schedule)


def test_a_size_that_is_held_to_twice_its_half_is_twice_a_symbol():
    b = Builder(s0=2, s1=8)
    x = b.input((BATCH, SIDE))
    pairs = b.slice(x, (0, 0), (BATCH, (SIDE + 1) // 2), (1, 2))
    held = (Relation("==", SIDE, (SIDE + 1) // 2 * 2), Relation("==", SIDE // 2 * 2, SIDE))
    graph = with_named_sizes(replace(b.graph(b.exp(pairs)), relations=held))
    half = symbol("size0")
    assert dict(graph.sizes) == {Symbol("size0"): (SIDE // 2,)}
    assert graph.inputs[0].shape == (BATCH, half * 2) and graph.outputs[0].node.shape == (BATCH, half)
    quarters = (Relation("==", SIDE, SIDE // 4 * 4), held[0])
    graph = with_named_sizes(replace(b.graph(b.exp(pairs)), relations=quarters))
    assert graph.inputs[0].shape == (BATCH, half * 4) and graph.outputs[0].node.shape == (BATCH, half * 2)
