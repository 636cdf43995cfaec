"""Sums at positions are one kernel that adds what it computes to memory that another one began."""

from dataclasses import replace

import pytest
import torch
from tests.unit.fuse.graphs import Builder, Failed, check, evaluate, kernels, run, symbol

from framefuse.codegen import llvm
from framefuse.codegen.unsupported import Unsupported
from framefuse.fuse import fuse
from framefuse.fuse.verify import problems, reads_and_writes
from framefuse.ir.dtypes import INT64
from framefuse.ir.graph import Output
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.schedule import RunKernel
from framefuse.ir.target import Target

GPU = Target("cpu", "triton", launch=2500.0, products=False, scratch=False, atomics=True)
E, N = symbol("e"), symbol("n")
HINTS = {"e": 50, "n": 7}


def zeros(b, like):
    return b.node("full", (), like.shape, like.dtype, value=0.0)


def edges(b, columns=4):
    return b.input((N, columns)), b.input((E,)), b.input((E,), INT64), b.input((E,), INT64)


def tensors(e=50, n=7, columns=4):
    torch.manual_seed(e)
    return (
        torch.randint(-8, 9, (n, columns)) / 2, torch.randint(-8, 9, (e,)) / 2,
        torch.randint(0, n, (e,)), torch.randint(0, n, (e,)),
    )  # fmt: skip


def message(b, x, w, src):
    return b.mul(b.take(x, src), b.reshape(w, E, 1))


def fused(b, *outputs, **more):
    graph = b.graph(*outputs, **more)
    return graph, fuse(graph, targets=lambda device: GPU)


def places(schedule):
    return [memory.place for memory in schedule.memories if memory.place != "input"]


def test_messages(golden):
    b = Builder(**HINTS)
    x, w, src, dst = edges(b)
    graph, schedule = fused(b, b.scatter_add(zeros(b, x), b.reshape(dst, E, 1), message(b, x, w, src), 0))
    assert [kernel.title for kernel in kernels(schedule)] == ["copy", "take_mul_scatter_add"]
    assert places(schedule) == ["fresh"], "what is added is never in memory"
    for sizes in ((50, 7), (0, 7), (3, 1), (64, 16)):
        check(graph, schedule, *tensors(*sizes), rtol=0, atol=0)
    golden("\n".join(map(kernel_text, kernels(schedule))))


def test_a_position_that_is_out_of_range_fails_and_adds_nothing_elsewhere():
    b = Builder(**HINTS)
    x, w, src, dst = edges(b)
    _, schedule = fused(b, b.scatter_add(zeros(b, x), b.reshape(dst, E, 1), message(b, x, w, src), 0))
    for bad in (-1, 7, 1 << 40):
        given = tensors()
        given[3][5] = bad
        with pytest.raises(Failed):
            run(schedule, given)


def test_a_sum_goes_on_in_its_memory_unless_others_read_it():
    for read in (False, True):
        b = Builder(**HINTS)
        x, w, src, dst = edges(b)
        first = b.scatter_add(zeros(b, x), b.reshape(dst, E, 1), message(b, x, w, src), 0)
        second = b.scatter_add(first, b.reshape(src, E, 1), b.take(first if read else x, dst), 0)
        graph, schedule = fused(b, b.exp(second))
        written = [number for item in schedule.items for number in reads_and_writes(item)[1]]
        assert len(written) == (5 if read else 4) and len(set(written)) == (3 if read else 2)
        check(graph, schedule, *tensors())


def test_what_is_added_to_stays_as_it_was():
    """The input, a value that others read, and a result."""
    b = Builder(**HINTS)
    x, _, src, dst = edges(b)
    y = b.exp(x)
    onto = [b.scatter_add(each, b.reshape(dst, E, 1), b.take(x, src), 0) for each in (x, y, y)]
    graph, schedule = fused(b, *onto, y, b.neg(y))
    given = tensors()
    before = given[0].clone()
    check(graph, schedule, *given)
    assert torch.equal(given[0], before)


def test_what_is_summed_before_it_is_added_has_a_kernel():
    b = Builder(**HINTS)
    x, _, src, dst = edges(b)
    weight = b.reduce("sum", b.mul(b.take(x, src), b.take(x, dst)), 1)
    total = b.scatter_add(zeros(b, x), b.reshape(dst, E, 1), b.mul(b.take(x, src), b.reshape(weight, E, 1)), 0)
    graph, schedule = fused(b, b.reduce("sum", total, 1))
    assert len(kernels(schedule)) == 4
    check(graph, schedule, *tensors())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_sum_lies_as_eagers(order):
    b = Builder(**HINTS)
    x, w, src, dst = edges(b)
    total = b.scatter_add(b.exp(x), b.reshape(dst, E, 1), message(b, x, w, src), 0)
    graph, schedule = fused(b, Output(0, total, order))
    (strides,) = {tuple(map(str, memory.strides)) for memory in schedule.memories if memory.place == "fresh"}
    assert strides == (("4", "1") if order == (0, 1) else ("1", "n"))
    check(graph, schedule, *tensors())


def test_a_title_says_that_a_kernel_adds():
    b = Builder(**HINTS)
    x, w, src, dst = edges(b)
    terms = b.sub(b.sin(b.exp(b.sigmoid(b.tanh(b.abs(message(b, x, w, src)))))), 1.0)
    _, schedule = fused(b, b.scatter_add(zeros(b, x), b.reshape(dst, E, 1), terms, 0))
    assert kernels(schedule)[-1].title == "take_mul_abs_tanh_scatter_add"


def test_a_call_reads_a_sum():
    b = Builder(**HINTS)
    x, w, src, dst = edges(b)
    total = b.scatter_add(zeros(b, x), b.reshape(dst, E, 1), message(b, x, w, src), 0)
    graph, schedule = fused(b, b.library(torch.cumsum, (total,), (N, 4), x.dtype, args=(0,)), b.exp(total))
    check(graph, schedule, *tensors())


def test_columns_that_are_split_and_parts_that_are_summed():
    """What is added is a reshape over both axes, and a piece of a larger tensor."""
    b = Builder(**HINTS)
    x, y, index = b.input((3, 8)), b.input((6, 5)), b.input((6, 4), INT64)
    whole = b.scatter_add(x, b.slice(index, (0, 0), (3, 4)), b.slice(b.exp(y), (1, 1), (3, 4)), 1)
    split = b.scatter_add(b.reshape(x, 6, 4), index, b.exp(b.permute(b.reshape(x, 4, 6), 1, 0)), 0)
    graph, schedule = fused(b, whole, b.neg(split))
    check(graph, schedule, torch.randn(3, 8), torch.randn(6, 5), torch.randint(0, 6, (6, 4)))


@pytest.mark.parametrize("reports", [False, True])
@pytest.mark.parametrize("case", ["alone", "read later", "itself read", "part of", "a call later", "result"])
def test_an_input_that_is_added_to(case, reports):
    """Where no call learns of a bad position, and nobody needs the old contents, the terms go to the input itself."""
    b = Builder(**HINTS)
    x, w, src, dst = edges(b)
    y = b.input((N, 4))
    read = y if case == "itself read" else x
    terms = message(b, read, w, src)
    total = b.scatter_add(b.exp(y) if case == "part of" else y, b.reshape(dst, E, 1), terms, 0)
    results = {"read later": [b.reduce("sum", b.exp(total), 0)], "result": [total]}.get(case, [])
    if case == "a call later":
        results = [b.library(torch.cumsum, (b.neg(x),), (N, 4), x.dtype, args=(0,))]
    graph = b.graph(*results, writes=[(4, total)])
    schedule = fuse(graph, targets=lambda device: replace(GPU, reports=reports))
    assert not problems(schedule)
    adding = [item for item in schedule.items if isinstance(item, RunKernel) and "scatter_add" in item.kernel.title]
    (number,) = (number for item in adding for number in reads_and_writes(item)[1])
    itself = schedule.memories[number].place == "input"
    assert itself == (not reports and case not in ("itself read", "a call later", "result"))
    copies = [kernel.title for kernel in kernels(schedule)].count("copy")
    assert copies == (0 if itself or case == "part of" else 1)
    given = (*tensors(), torch.randint(-8, 9, (7, 4)) / 2)
    values = evaluate(graph, [value.clone() for value in given])
    wanted, expected = values[total], [values[output.node] for output in graph.outputs]
    found = run(schedule, given)
    torch.testing.assert_close(given[4], wanted)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_cpus_own_emitter_refuses_it():
    b = Builder(**HINTS)
    x, w, src, dst = edges(b)
    _, schedule = fused(b, b.scatter_add(zeros(b, x), b.reshape(dst, E, 1), message(b, x, w, src), 0))
    with pytest.raises(Unsupported):
        llvm.text(kernels(schedule)[-1])
