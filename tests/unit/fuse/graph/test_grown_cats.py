"""Cats that grow on a GPU are beginnings of one memory, in which each piece is written once."""

import pytest
import torch
from tests.unit.fuse.graphs import Builder, Size, check, kernels, symbol

from framefuse.fuse import fuse
from framefuse.fuse.verify import reads_and_writes
from framefuse.ir.graph import Output
from framefuse.ir.loops.key import key_of
from framefuse.ir.schedule import RunCall
from framefuse.ir.target import CPU, Target

GPU = Target("cpu", "triton", launch=2500.0, products=False, scratch=False, atomics=True)
N, W = symbol("n"), symbol("w")
HINTS = {"n": 3, "w": 5}


def layers(b, *, count=6, axis=1, calls=False, front=False, along: Size = 4):
    """What reads the features of each layer, the last of them behind or in front; a feature is computed, or given by a
    call, from the last of them.
    """
    shape = [N, 4, W]
    shape[axis] = along
    features, read = [b.input(shape)], []
    for number in range(count):
        joined = b.cat(features[::-1] if front else features, axis) if number else features[0]
        read.append(b.tanh(b.mul(joined, 0.25)))
        mean = b.mul(b.reduce("sum", read[-1], axis, keep=True), 0.125)
        new = b.add(b.mul(b.expand(mean, features[-1].shape), 0.5), b.tanh(b.mul(features[-1], 0.5)))
        features.append(b.library(torch.neg, (new,), new.shape, new.dtype) if calls else new)
    return features, read


def scheduled(b, *outputs, target=GPU, **more):
    graph = b.graph(*outputs, **more)
    return graph, fuse(graph, targets=lambda device: target, check=True)


def memories(schedule):
    """The memory that is parts of one whole, with how many buffers are parts of it."""
    bases = [m.base for m in schedule.memories if m.place == "view" and m.offset is not None]
    return {base: bases.count(base) for base in bases}


def tensors(n=3, w=5, shape=None):
    torch.manual_seed(n)
    return (torch.randint(-8, 9, shape or (n, 4, w)) / 4,)


@pytest.mark.parametrize("front", [False, True])
@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pieces_are_written_once(axis, calls, front):
    b = Builder(**HINTS)
    _, read = layers(b, axis=axis, calls=calls, front=front)
    graph, schedule = scheduled(b, *(b.reduce("sum", each, axis) for each in read))
    assert len(memories(schedule)) == 1
    (whole,) = memories(schedule)
    written = [n for item in schedule.items for n in reads_and_writes(item)[1] if schedule.memories[n].base == whole]
    assert len(written) == len(set(written)) == 6, "a piece each"
    assert not any(isinstance(item, RunCall) and item.node.attr("name") == "cat" for item in schedule.items)
    for sizes in ((3, 5), (1, 1), (8, 2)):
        shape = [sizes[0], 4, sizes[1]]
        shape[axis] = 4
        check(graph, schedule, *tensors(*sizes, shape=shape))


@pytest.mark.parametrize("front", [False, True])
def test_sizes_along_the_cat_may_be_known_at_run_time(front):
    b = Builder(**HINTS)
    _, read = layers(b, along=N, front=front)
    graph, schedule = scheduled(b, *(b.reduce("sum", each, 1) for each in read))
    assert len(memories(schedule)) == 1
    for n in (3, 1, 7):
        check(graph, schedule, *tensors(n, 5, shape=(n, n, 5)))


def test_layers_that_differ_in_sizes_alone_share_a_kernel():
    b = Builder(**HINTS)
    _, read = layers(b, count=12, calls=True)
    _, schedule = scheduled(b, *(b.reduce("sum", each, 1) for each in read[1:]))
    copies = [kernel for kernel in kernels(schedule) if kernel.title == "copy"]
    assert len(copies) == 11 and len({key_of(kernel) for kernel in copies}) == 1


def test_what_the_program_gets_or_a_call_reads_is_joined_as_it_was():
    for called in (False, True):
        b = Builder(**HINTS)
        features = [b.input((N, 4, W))]
        for _ in range(6):
            features.append(b.tanh(features[-1]))
        joined = [b.cat(features[: number + 2], 1) for number in range(6)]
        if called:
            joined = [b.library(torch.neg, (each,), each.shape, each.dtype) for each in joined]
        graph, schedule = scheduled(b, *joined)
        assert not memories(schedule)
        check(graph, schedule, *tensors())


def test_a_piece_that_is_seen_elsewhere_is_copied():
    """A result, and what a call reads: both have memory of their own."""
    b = Builder(**HINTS)
    features, read = layers(b)
    called = b.library(torch.neg, (features[2],), features[2].shape, features[2].dtype)
    result = Output(9, features[1], (2, 1, 0))
    graph, schedule = scheduled(b, *(b.reduce("sum", each, 1) for each in read), result, called)
    assert len(memories(schedule)) == 1
    check(graph, schedule, *tensors())


def test_a_branch_of_a_cat_has_memory_of_its_own():
    b = Builder(**HINTS)
    features, read = layers(b)
    other = b.tanh(b.cat((*features[:3], features[4]), 1))
    again = b.tanh(b.cat((*features[:3], features[4], features[4]), 1))
    graph, schedule = scheduled(b, *(b.reduce("sum", each, 1) for each in (*read, other, again)))
    assert len(memories(schedule)) == 1
    check(graph, schedule, *tensors())


def test_a_chain_grows_at_one_end():
    """What is joined in front of a longer beginning begins a chain, or is joined as it was."""
    b = Builder(**HINTS)
    x = b.input((N, 4, W))
    pieces, read = [x, b.tanh(x)], []
    for number in range(8):
        new = b.tanh(b.mul(pieces[0], 0.5 + number))
        pieces = [*pieces, new] if number < 4 else [new, *pieces]
        read.append(b.reduce("sum", b.tanh(b.cat(pieces, 1)), 1))
    graph, schedule = scheduled(b, *read)
    assert memories(schedule)
    check(graph, schedule, *tensors())


def test_one_piece_at_two_places():
    b = Builder(**HINTS)
    x = b.input((N, 4, W))
    pieces = [x, b.tanh(x)]
    read = []
    for _ in range(5):
        pieces.append(pieces[1])
        read.append(b.reduce("sum", b.tanh(b.cat(pieces, 1)), 1))
    graph, schedule = scheduled(b, *read)
    assert len(memories(schedule)) == 1
    check(graph, schedule, *tensors())


def test_cats_that_nothing_reads_do_not_count():
    b = Builder(**HINTS)
    x = b.input((N, 4, W))
    pieces = [x, x]
    for _ in range(8):
        pieces.append(x)
        last = b.cat(pieces, 1)
    graph, schedule = scheduled(b, b.tanh(last))
    assert not memories(schedule)
    check(graph, schedule, *tensors())


def test_a_cpu_joins_them_as_it_did():
    b = Builder(**HINTS)
    _, read = layers(b)
    graph, schedule = scheduled(b, *(b.reduce("sum", each, 1) for each in read), target=CPU)
    assert not memories(schedule)
    check(graph, schedule, *tensors())
