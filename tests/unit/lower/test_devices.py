"""A trace of a GPU's tensors lowers as one of the CPU's does, with products, attention and dropout left to the library.

There is no GPU here: traces of the CPU are given the device of one.
"""

import dataclasses
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.programs import FUNCTIONS, MODELS, matrix
from tests.unit.lower.recording import trace_of
from torch import nn

from framefuse.capture.record import record
from framefuse.codegen import targets
from framefuse.fuse import fuse
from framefuse.fuse.verify import problems
from framefuse.ir.dropout_masks import DropoutMask
from framefuse.ir.schedule import RunCall, RunKernel, RunMatmul
from framefuse.ir.verify import verify
from framefuse.ir.wrapped_calls import UnderAutocast
from framefuse.lower import lower, rules

GPU = "cuda:0"
PLAIN = [program for program in FUNCTIONS if program.name not in ("product", "random", "moved", "scalar")]


def elsewhere(value):
    """Arguments with the GPU in the place of the CPU."""
    if isinstance(value, torch.device):
        return torch.device(GPU)
    if type(value) in (tuple, list):
        return type(value)(elsewhere(part) for part in value)
    return {key: elsewhere(part) for key, part in value.items()} if type(value) is dict else value


def on_gpu(trace, stays=lambda meta: False):
    """The trace as if its tensors, but those that ``stays`` names, had been on a GPU."""
    metas = tuple(meta if stays(meta) else dataclasses.replace(meta, device=GPU) for meta in trace.metas)
    assumed, rows = trace.assumptions, {kind: row for kind, *row in trace.assumptions.state.autocast}
    inputs = tuple(
        dataclasses.replace(entry, spec=dataclasses.replace(entry.spec, device=metas[entry.value].device))
        for entry in assumed.inputs
    )
    state = dataclasses.replace(assumed.state, autocast=(("cpu", False, rows["cpu"][1]), ("cuda", *rows["cpu"])))
    calls = tuple(
        dataclasses.replace(
            call, args=elsewhere(call.args), kwargs=elsewhere(call.kwargs),
            autocast=tuple(("cuda", dtype) for _, dtype in call.autocast),
        )
        for call in trace.calls
    )  # fmt: skip
    return dataclasses.replace(
        trace, metas=metas, calls=calls, assumptions=dataclasses.replace(assumed, inputs=inputs, state=state)
    )


def target(device):
    return targets.BACKENDS[device.partition(":")[0]].target


def scheduled(graph):
    """What the graph runs: kernels, products of ours, calls by name; kernels are on the GPU where their graph is."""
    verify(graph)
    schedule = fuse(graph, targets=target)
    assert not problems(schedule)
    kernels = [item for item in schedule.items if isinstance(item, RunKernel)]
    calls = Counter(item.node.attr("name") for item in schedule.items if isinstance(item, RunCall))
    return kernels, [item for item in schedule.items if isinstance(item, RunMatmul)], calls


@pytest.mark.parametrize("program", PLAIN, ids=lambda program: program.name)
def test_the_same_kernels(program):
    trace = trace_of(program.function, *program.inputs(5, "cpu"))
    _, _, calls = scheduled(lower(trace))
    graph = lower(on_gpu(trace))
    kernels, products, there = scheduled(graph)
    assert {node.device for node in graph.nodes} == {GPU} and {kernel.device for kernel in kernels} == {GPU}
    assert "as_strided" not in there
    assert there == calls and not products and len(kernels) >= program.kernels


@pytest.mark.parametrize("name", ["block", "words"])
@pytest.mark.parametrize("low", [False, True])
def test_products_and_attention_are_calls(name, low):
    make, inputs = MODELS[name]
    model = make().requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        graph = lower(on_gpu(trace_of(lambda x: model(x), *inputs(5, "cpu"))))
    kernels, products, calls = scheduled(graph)
    assert kernels and not products and {kernel.device for kernel in kernels} == {GPU}
    calls.pop("as_strided", 0)
    assert set(calls) == ({"linear", "scaled_dot_product_attention"} if name == "block" else {"linear"})
    called = [node.attr("target") for node in graph.nodes if node.op == "library"]
    assert not any(isinstance(target, UnderAutocast) for target in called), "operands are cast by kernels"


def test_a_transposed_operand_is_not_copied():
    def f(x, y):
        return x @ y.t()

    kernels, _, calls = scheduled(lower(on_gpu(trace_of(f, torch.randn(5, 4), torch.randn(6, 4)))))
    assert not kernels and calls == {"matmul": 1}


def test_dropout_draws_its_mask_there():
    kernels, _, calls = scheduled(lower(on_gpu(trace_of(lambda x: F.dropout(x.cos(), 0.4).sin(), *matrix(5, "cpu")))))
    assert len(kernels) == 1 and calls == {"draw_dropout": 1}, "what is drawn is multiplied in the kernel behind it"

    def of_memory(x):
        return F.dropout(x, 0.4).sin(), F.dropout(x @ x.t(), 0.2)

    kernels, _, calls = scheduled(lower(on_gpu(trace_of(of_memory, *matrix(5, "cpu")))))
    assert len(kernels) == 1 and calls == {"dropped": 2, "matmul": 1}, "what lies in memory is read once"

    def in_both(x):
        return F.dropout(x, 0.4).sin(), F.dropout(x @ x.t(), 0.2) + 1, F.dropout(x, 0.2).t() @ x, F.dropout(x.sin())

    large = torch.empty(4096, 4096)
    kernels, _, calls = scheduled(lower(on_gpu(trace_of(in_both, large))))
    assert calls == {"draw_dropout": 3, "dropped": 1, "matmul": 2}, "a kernel that reads the rest multiplies on its way"

    def with_gaps(x):
        return F.dropout(x[:, ::2], 0.4) * 2

    kernels, _, calls = scheduled(lower(on_gpu(trace_of(with_gaps, *matrix(5, "cpu")))))
    assert calls == {"dropout": 1}, "eager's kernel meets its elements in another order there"


def test_the_mask_of_dropout_is_that_of_torchs_kernel():
    draw = DropoutMask((1, 0), torch.float32, "cpu", 0.3)
    torch.manual_seed(3)
    mask = draw((5, 8))
    torch.manual_seed(3)
    _, expected = torch.native_dropout(torch.ones(8, 5).t(), 0.3, True)
    assert torch.equal(mask, expected) and mask.stride() == (1, 5) and mask.dtype is torch.bool


def test_an_element_of_the_cpu_takes_part_as_a_number():
    def f(x, s):
        return x * s, s - x, x.half() + s

    trace = on_gpu(trace_of(f, torch.randn(5, 4), torch.tensor(0.25)), lambda meta: not meta.sizes)
    kernels, _, calls = scheduled(lower(trace))
    assert calls == {"element_on": 1} and {kernel.device for kernel in kernels} == {GPU}


def test_tensors_of_two_devices_meet_in_no_kernel():
    def f(x, i):
        return x[i] * 2, x + 1, i + 1

    trace = on_gpu(trace_of(f, torch.randn(5), torch.tensor([1, 2])), lambda meta: meta.dtype is torch.int64)
    kernels, _, calls = scheduled(lower(trace))
    assert calls == {"__getitem__": 1} and {kernel.device for kernel in kernels} == {GPU, "cpu"}


def test_each_name_has_one_rule():
    """Of two the one that is imported last would hold, as logarithms of running sums had lost their kernels."""
    names = Counter(name for entry in rules.ENTRIES for name in entry.names)
    assert not [name for name, count in names.items() if count > 1]


def test_logarithms_of_running_sums_are_scans():
    for axis in (1, -1):
        trace = trace_of(lambda x, axis=axis: torch.logcumsumexp(x * 2, axis) + 1, torch.randn(3, 8, 5))
        graph = lower(on_gpu(trace), targets=target)
        assert "logcumsumexp" in [node.op for node in graph.nodes]
        assert not any(node.op == "library" for node in graph.nodes)


def test_chains_of_products_are_torchs_calls_in_the_best_order():
    def f(a, b, c):
        return torch.linalg.multi_dot([a, b, c])

    given = torch.randn(9, 4), torch.randn(4, 8), torch.randn(8, 3)
    alone = lower(on_gpu(trace_of(f, *given)), targets=target)
    assert scheduled(alone)[2] == {"linalg_multi_dot": 1}  # where nothing is trained: one call for all
    trained = record(f, [each.requires_grad_() for each in given], {}, owner=None, dynamic=None).trace
    graph = lower(on_gpu(trained), targets=target)
    kernels, _, calls = scheduled(graph)
    assert not kernels and calls == {"mm": 2}
    first = next(node for node in graph.nodes if node.op == "library")
    assert [node.attr("index") for node in first.inputs] == [1, 2]


def test_generators_begin_with_a_product():
    """A transposed convolution of pictures of one point is the weight, by the channels of each."""
    net = nn.Sequential(nn.ConvTranspose2d(8, 4, 4), nn.ReLU(), nn.ConvTranspose2d(4, 3, 4, 2, 1))
    graph = lower(on_gpu(trace_of(lambda x: net(x), torch.randn(5, 8, 1, 1))), targets=target)
    assert scheduled(graph)[2] == {"mm": 1, "conv_transpose2d": 1}
    padded = on_gpu(trace_of(lambda x: F.conv_transpose2d(x, net[0].weight, padding=1), torch.randn(5, 8, 1, 1)))
    assert scheduled(lower(padded, targets=target))[2] == {"conv_transpose2d": 1}
