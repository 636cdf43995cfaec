"""Kernels that differ in sizes alone are one where compiling is slow, and compute what each of them did."""

import pytest
import torch
from tests.unit.fuse.graphs import Builder, check, kernels

from framefuse.fuse import fuse
from framefuse.ir import costs
from framefuse.ir.loops.key import key_of
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.target import CPU, Target

GPU = Target("cpu", "triton", launch=2500.0, products=False, scratch=False)
MANY = costs.SHARED_SIZES


def layers(widths, target):
    """For each width a scaled sum with a number for each column, of a slice that begins further in each time."""
    b = Builder()
    outputs, tensors = [], []
    for place, width in enumerate(widths):
        x, w = b.input((4, width + 100)), b.input((width,))
        part = b.slice(x, (0, 20 + place), (4, width))
        outputs.append(b.exp(b.mul(part, b.expand(b.reshape(w, 1, width), (4, width)))))
        tensors += [torch.randn(4, width + 100), torch.randn(width)]
    graph = b.graph(*outputs)
    return graph, fuse(graph, targets=lambda device: target), tensors


def distinct(schedule):
    return {key_of(kernel) for kernel in kernels(schedule)}


@pytest.mark.parametrize("widths", [range(46, 62, 2), range(370, 458, 11), range(2600, 2920, 40)], ids=str)
def test_many_kernels_that_differ_in_sizes_are_one(widths):
    graph, schedule, tensors = layers(widths, GPU)
    assert len(kernels(schedule)) == len(widths) and len(distinct(schedule)) == 1
    (text,) = {kernel_text(kernel) for kernel in kernels(schedule)}
    assert "vector(min(" in text  # the bound of a tile stays a constant, and so do sizes in which all agree
    check(graph, schedule, *tensors)


@pytest.mark.parametrize(("count", "target"), [(MANY - 1, GPU), (costs.SHARED_LOOPS - 1, CPU)])
def test_few_kernels_know_their_sizes(count, target):
    graph, schedule, tensors = layers([70 + 31 * place for place in range(count)], target)
    assert len(distinct(schedule)) == count
    check(graph, schedule, *tensors)


@pytest.mark.parametrize(
    ("widths", "left"),
    [((150, 201, 333, 1030), 1), ((128, 192, 256, 320), 4), ((150, 201, 333, 20), 2), ((20, 33, 47, 90), 4)],
    ids=str,
)
def test_a_cpu_shares_where_sizes_do_not_decide_the_code(widths, left):
    graph, schedule, tensors = layers(widths, CPU)
    assert len(distinct(schedule)) == left
    check(graph, schedule, *tensors)


def test_reductions_of_a_cpu_are_shared():
    b = Builder()
    outputs, tensors = [], []
    for width in (150, 201, 333, 471):
        x = b.input((40, width))
        scale = b.expand(b.reshape(b.reduce("sum", b.mul(x, x), 0), 1, width), (40, width))
        outputs.append(b.mul(x, scale))
        tensors.append(torch.randn(40, width))
    graph = b.graph(*outputs)
    schedule = fuse(graph)
    assert 2 * len(distinct(schedule)) <= len(kernels(schedule))
    check(graph, schedule, *tensors)


def test_positions_that_are_equal_in_some_kernels_alone_are_another_form():
    b = Builder()
    outputs, tensors = [], []
    for place in range(2 * MANY):
        width, further = 370 + 4 * place, 0 if place % 2 else 50
        x = b.input((3, 900))
        one, other = (b.slice(x, (0, start + place), (3, width)) for start in (40, 40 + further))
        outputs.append(b.add(b.sin(one), b.exp(other)))
        tensors.append(torch.randn(3, 900))
    graph = b.graph(*outputs)
    schedule = fuse(graph, targets=lambda device: GPU)
    assert len(distinct(schedule)) == 2
    check(graph, schedule, *tensors)
