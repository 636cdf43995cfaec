"""Convolutions and what is around them lie as is best for the whole graph; what the program gets lies as eager's."""

import copy
from dataclasses import replace

import pytest
import torch
from tests.unit.fuse.graphs import Builder
from tests.unit.lower.recording import trace_of
from tests.unit.lower.test_devices import on_gpu, target
from torch import nn
from torch.nn import functional as F

import framefuse
from framefuse.fuse import fuse
from framefuse.fuse.layouts import layouts, movable_calls
from framefuse.ir import costs
from framefuse.ir.dtypes import BY_TORCH
from framefuse.ir.schedule import RunCall, RunKernel
from framefuse.lower import lower
from framefuse.runtime.function import compiled_function

CONVOLUTIONS = ("conv2d", "conv_transpose2d", "conv3d", "convolution_backward")
LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}


@pytest.fixture
def eager_to_turn(monkeypatch):
    """Contiguous convolutions cost so much that even small ones lie channels-last."""
    monkeypatch.setattr(costs, "CONVOLUTION", dict.fromkeys(costs.CONVOLUTION, (50.0, 50.0)))


def orders(schedule):
    """How the pictures lie that convolutions of a schedule read."""
    calls = [item.node for item in schedule.items if isinstance(item, RunCall)]
    named = [call for call in calls if call.attr("name") in CONVOLUTIONS]
    return [call.attr("orders")[0] for call in named]


def channels_last(schedule):
    found = orders(schedule)
    assert found
    return all(order == LAST[len(order)] for order in found)


class Chain(nn.Module):
    """Convolutions of several kinds with kernels, pooling and a residual between them."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.depth, self.point = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 6, 1)
        self.up, self.last = nn.ConvTranspose2d(6, 5, 2, stride=2), nn.Conv2d(5, 4, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = x + F.gelu(self.depth(x))
        y = self.last(self.up(torch.tanh(self.point(x))))
        return y, F.adaptive_avg_pool2d(y, 1).flatten(1), x


def same(found, expected, **how):
    assert [one.stride() for one in found] == [other.stride() for other in expected]
    torch.testing.assert_close(list(found), list(expected), **how)


def drawn(batch, side=16):
    return torch.randn(batch, 3, side, side + 2)


def test_results_lie_as_eagers_and_sizes_may_change(eager_to_turn):
    torch.manual_seed(0)
    net = Chain().eval()
    compiled = framefuse.compile(net, options={"check": True})
    with torch.no_grad():
        turned = drawn(2).contiguous(memory_format=torch.channels_last)
        for x in (drawn(2), drawn(2), drawn(3), drawn(1), drawn(2, 20), turned):
            same(compiled(x), net(x), rtol=1e-4, atol=1e-5)
    state = compiled_function(compiled)
    assert state.dispatch.hits >= 3 and not state.reasons
    assert channels_last(state.products[0].stages.code.schedule)


def test_windows_of_few_channels_stay_contiguous(eager_to_turn, monkeypatch):
    monkeypatch.setattr(costs, "WINDOWS", dict.fromkeys(costs.WINDOWS, (50.0, 50.0)))

    def f(x):
        return F.interpolate(x * 1.5, size=(9, 11), mode="area") + 1

    for channels, order in ((1, (0, 1, 2, 3)), (3, (0, 1, 2, 3)), (16, LAST[4])):
        compiled = framefuse.compile(f)
        for _ in range(3):
            x = torch.randn(2, channels, 20, 30)
            same([compiled(x)], [f(x)])
        (product,) = compiled_function(compiled).products
        (call,) = [item.node for item in product.stages.code.schedule.items if isinstance(item, RunCall)]
        assert call.attr("orders") == (order,)


@pytest.mark.parametrize(
    ("batch", "channels", "window", "lies_last"), [(1, 4, 3, False), (2, 4, 3, True), (1, 4, 5, True)]
)
def test_a_single_small_picture_of_few_channels_stays(eager_to_turn, batch, channels, window, lies_last):
    """Torch multiplies copies of its windows, which it makes point by point where they lie channels-last."""
    nets = [nn.Conv2d(channels, channels, window, padding=window // 2) for _ in range(3)]
    net = nn.Sequential(*(part for each in nets for part in (each, nn.GELU())))
    compiled = framefuse.compile(net)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(batch, channels, 20, 22)
            same([compiled(x)], [net(x)], rtol=1e-4, atol=1e-5)
    assert channels_last(compiled_function(compiled).products[0].stages.code.schedule) is lies_last


def test_a_single_small_picture_of_many_channels_turns(eager_to_turn):
    net = nn.Sequential(nn.GELU(), nn.Conv2d(128, 4, 3, padding=1), nn.GELU()).eval()
    compiled = framefuse.compile(net)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(1, 128, 12, 12)
            same([compiled(x)], [net(x)], rtol=1e-4, atol=1e-5)
    assert channels_last(compiled_function(compiled).products[0].stages.code.schedule)


def test_a_single_small_picture_with_large_weights_stays(eager_to_turn):
    """Torch copies the weight channels-last in each call, which takes longer than the few windows do."""
    net = nn.Sequential(*(part for _ in range(3) for part in (nn.Conv2d(256, 256, 3, padding=1), nn.GELU()))).eval()
    compiled = framefuse.compile(net)
    with torch.no_grad():
        for batch, lies_last in ((1, False), (2, True)):
            for _ in range(3):
                x = torch.randn(batch, 256, 6, 6)
                same([compiled(x)], [net(x)], rtol=1e-4, atol=1e-5)
            product = compiled_function(compiled).products[-1]
            assert channels_last(product.stages.code.schedule) is lies_last
            framefuse.reset()


@pytest.mark.parametrize("window", [1, 3])
def test_a_weight_that_lies_channels_last_decides(window):
    """Torch makes such a convolution channels-last, whatever its picture: a copy of that would be turned back."""
    net = nn.Sequential(nn.Conv2d(3, 16, window), nn.SiLU(), nn.Conv2d(16, 4, window), nn.SiLU())
    compiled = framefuse.compile(net.to(memory_format=torch.channels_last))
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(1, 3, 20, 22).contiguous(memory_format=torch.channels_last)
            same([compiled(x)], [net(x)], rtol=1e-4, atol=1e-5)
    schedule = compiled_function(compiled).products[0].stages.code.schedule
    assert channels_last(schedule)
    assert sum(isinstance(item, RunKernel) for item in schedule.items) == 2  # none copies


def test_an_exported_programs_own_convolutions_lie_channels_last():
    net = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 1), nn.ReLU(), nn.Conv2d(24, 8, 3)).eval()
    compiled = framefuse.compile(net, options={"cpu_target": "alone"})
    with torch.no_grad():
        for x in (drawn(2), drawn(2), drawn(2)):
            same([compiled(x)], [net(x)], rtol=1e-4, atol=1e-5)
    schedule = compiled_function(compiled).products[0].stages.code.schedule
    assert orders(schedule) == [(0, 1, 2, 3), LAST[4], LAST[4]]  # the first copies its few channels itself


def test_forward_and_backward_lie_alike_and_gradients_as_parameters(eager_to_turn):
    torch.manual_seed(0)
    net = Chain().train()
    other = copy.deepcopy(net)
    compiled = framefuse.compile(other, options={"check": True})
    for batch in (2, 2, 3):
        x = drawn(batch)
        losses = []
        for module in (net, compiled):
            module.zero_grad()
            losses.append(sum(result.sin().sum() for result in module(x)))
            losses[-1].backward()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-4)
        gradients = [[weight.grad for weight in module.parameters()] for module in (net, other)]
        same(gradients[1], gradients[0], rtol=1e-3, atol=1e-3)
    same(list(other.buffers()), list(net.buffers()), rtol=1e-4, atol=1e-5)
    state = compiled_function(compiled)
    assert state.dispatch.hits
    product = state.products[-1]
    assert channels_last(product.stages.code.schedule)
    cases = [case for derivative in product.stages.derivatives for case in derivative.cases]
    schedules = [case.stages.code.schedule for case in cases if orders(case.stages.code.schedule)]
    assert schedules and all(map(channels_last, schedules))


def test_kernels_write_what_their_reader_wants(eager_to_turn):
    """The input is copied once, and the result is written as eager's by the kernel behind the last convolution."""
    one, two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    @framefuse.compile
    def f(x):
        return torch.sigmoid(two(F.gelu(one(torch.tanh(x))) * 2))

    with torch.no_grad():
        for x in (drawn(2), drawn(2), drawn(4)):
            same([f(x)], [torch.sigmoid(two(F.gelu(one(torch.tanh(x))) * 2))], rtol=1e-4, atol=1e-5)
    state = compiled_function(f)
    schedule = state.products[0].stages.code.schedule
    assert state.dispatch.hits and channels_last(schedule)
    assert sum(isinstance(item, RunKernel) for item in schedule.items) == 3


def test_a_result_that_leaves_is_copied_back(eager_to_turn):
    first, second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    @framefuse.compile
    def f(x):
        middle = first(x)
        return middle, second(middle), middle.transpose(1, 2)

    with torch.no_grad():
        for x in (drawn(2), drawn(2), drawn(3)):
            middle = first(x)
            same(f(x), (middle, second(middle), middle.transpose(1, 2)), rtol=1e-4, atol=1e-5)
    state = compiled_function(f)
    assert state.dispatch.hits and channels_last(state.products[0].stages.code.schedule)


def test_what_only_a_backward_gets_is_not_copied_back(eager_to_turn):
    """What forward saves of a convolution lies channels-last, and so does what the backward sums up with it."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    compiled = framefuse.compile(lambda x: net[1](net[0](x).sin()).cos())
    for batch in (2, 2, 3):
        x = drawn(batch)
        found, expected = compiled(x), net[1](net[0](x).sin()).cos()
        same([found], [expected], rtol=1e-4, atol=1e-5)
        gradients = [torch.autograd.grad(value.sum(), net.parameters()) for value in (found, expected)]
        same(*gradients, rtol=1e-3, atol=1e-3)
    state = compiled_function(compiled)
    schedule = state.products[-1].stages.code.schedule
    assert state.dispatch.hits and channels_last(schedule)
    values = schedule.graph.outputs
    saved = [value.node for value in values if value.value < 0 and len(value.node.shape) == 4 and value.node.strides]
    assert saved and all(node.op == "result" for node in saved)


def test_what_gains_nothing_stays():
    """A convolution between norms over groups, and one whose weight is larger than what it reads."""
    net = nn.Sequential(nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8)).eval()
    large = nn.Conv2d(64, 256, 3, padding=1)
    for module, x in ((net, torch.randn(2, 8, 9, 9)), (large, torch.randn(1, 64, 2, 2))):
        compiled = framefuse.compile(module)
        with torch.no_grad():
            compiled(x)
            same([compiled(x)], [module(x)], rtol=1e-4, atol=1e-5)
        (order,) = orders(compiled_function(compiled).products[0].stages.code.schedule)
        assert order == (0, 1, 2, 3)


@pytest.mark.parametrize(("side", "order"), [(16, LAST[4]), (56, (0, 1, 2, 3))])
def test_large_pictures_of_a_batch_norm_alone_stay_contiguous(side, order):
    """Small ones are turned: copies in a cache are cheap."""
    norm = nn.BatchNorm2d(32)
    compiled = framefuse.compile(lambda x: F.relu(norm(x)))
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(16, 32, side, side)
            same([compiled(x)], [F.relu(norm(x))], rtol=1e-4, atol=1e-4)
    assert compiled.hits >= 1
    schedule = compiled_function(compiled).products[0].stages.code.schedule
    (call,) = [item.node for item in schedule.items if isinstance(item, RunCall)]
    assert call.attr("orders")[0] == order


@pytest.mark.parametrize(("channels", "lies_last"), [(3, False), (32, True)])
def test_steps_over_points_of_few_channels_stay(eager_to_turn, channels, lies_last):
    """Torch's gradient of such a weight writes beyond its memory where the picture lies channels-last."""
    net = nn.Conv2d(channels, 8, 1, stride=2)
    compiled = framefuse.compile(net)
    for _ in range(3):
        x = torch.randn(2, channels, 16, 16, requires_grad=True)
        found, expected = compiled(x), net(x)
        gradients = [torch.autograd.grad(y.cos().sum(), (x, *net.parameters())) for y in (found, expected)]
        same((found, *gradients[0]), (expected, *gradients[1]), rtol=1e-3, atol=1e-4)
    product = compiled_function(compiled).products[-1]
    (case,) = product.stages.derivatives[0].cases
    for schedule in (product.stages.code.schedule, case.stages.code.schedule):
        assert channels_last(schedule) == lies_last


def test_other_calls_of_the_name_are_left_alone(eager_to_turn):
    """A function of the user is not torch's, whatever it is called."""
    seen = []

    @framefuse.allow_in_graph
    def conv2d(x, w):
        seen.append(x.stride())
        return F.conv2d(x, w)

    weight = torch.randn(4, 3, 3, 3)
    f = framefuse.compile(lambda x: conv2d(x * 2, weight) + 1)
    for _ in range(3):
        x = drawn(2)
        same([f(x)], [F.conv2d(x * 2, weight) + 1], rtol=1e-4, atol=1e-5)
    assert compiled_function(f).dispatch.hits and set(seen) == {(x * 2).stride()}


def test_a_graph_without_such_calls_is_the_same_object():
    f = framefuse.compile(lambda x: x.sin() * 2)
    f(torch.randn(4)), f(torch.randn(4))
    product = compiled_function(f).products[0]
    graph = product.stages.graph
    assert layouts.with_layouts(graph, None) is graph


@pytest.mark.parametrize(
    ("shape", "trains", "kind"),
    [
        ((96, 1, 7, 7), False, "depthwise"),
        ((96, 1, 7, 7), True, "wide depthwise"),
        ((96, 1, 9, 9), False, "large depthwise"),  # several times as long channels-last on a GPU
        ((96, 1, 9, 9), True, "large depthwise"),
        ((96, 1, 4, 4), False, "large depthwise"),  # and so do windows of even sides, or of two lengths
        ((96, 1, 3, 5), False, "large depthwise"),
        ((96, 8, 3, 3), False, "grouped"),
        ((96, 8, 3, 3), True, "grouped in training"),
    ],
)
def test_the_price_of_a_convolution_in_groups_goes_by_its_window(shape, trains, kind):
    assert movable_calls._grouped_kind(Builder().input(shape), shape, trains) == kind
    assert (costs.CONVOLUTION[kind][1] < 0) == (kind in ("wide depthwise", "large depthwise", "grouped"))


@pytest.mark.parametrize(
    ("weight", "few"),
    [
        ((2, 1, 3, 3), True), ((64, 1, 3, 3), True), ((8, 3, 3, 3), False), ((64, 4, 3, 3), False),
        ((24, 8, 3, 3), True), ((64, 16, 3, 3), False), ((3, 64, 3, 3), True), ((4, 64, 3, 3), False),
        ((24, 8, 3, 3, 3), True), ((16, 8, 3, 3, 3), False), ((32, 4, 3, 3, 3), True), ((64, 64, 3, 3, 3), False),
    ],
)  # fmt: skip
def test_convolutions_of_few_channels_stay_contiguous_on_a_gpu(weight, few):
    rank = len(weight) - 2
    assert _few_channels(f"conv{rank}d", weight) is few
    assert not _few_channels(f"conv_transpose{rank}d", weight)
    assert costs.CONVOLUTION["few channels"][1] < 0 < costs.CONVOLUTION["plain"][1]


@pytest.mark.parametrize(
    ("name", "weight", "digits", "stays"),
    [
        ("conv2d", (64, 3, 3, 3), True, True), ("conv2d", (64, 8, 3, 3), True, True),
        ("conv2d", (64, 16, 3, 3), True, False), ("conv3d", (16, 3, 3, 3, 3), True, True),
        ("conv3d", (64, 16, 3, 3, 3), True, True), ("conv3d", (64, 32, 3, 3, 3), True, False),
        ("conv_transpose2d", (3, 64, 3, 3), True, False),
        ("conv2d", (64, 3, 3, 3), False, False), ("convolution_backward", (64, 3, 3, 3), True, True),
        ("weight's gradient", (64, 3, 3, 3), True, False),
    ],
)  # fmt: skip
def test_float32_that_eager_multiplies_with_all_digits_is_not_rounded_channels_last(name, weight, digits, stays):
    b = Builder()
    picture, given = b.input((2, weight[1], *[9] * (len(weight) - 2))), b.input(weight)
    mask = (name == "convolution_backward", True, False)
    args = (*[None] * 7, False, 0, 1, mask) if name in ("convolution_backward", "weight's gradient") else ()
    call = b.node(
        "library", (picture, given), (), picture.dtype, kwargs={}, args=args,
        name="convolution_backward" if args else name,
    )  # fmt: skip
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=digits):
        assert movable_calls._rounds_turned(call, picture, given, {}) is stays


@pytest.mark.parametrize(
    ("given", "waits"),
    [
        ({}, 6.5e5), ({"trains": False}, 0), ({"device": "cpu"}, 0), ({"window": 3}, 0),
        ({"dtype": torch.bfloat16}, 4.95e5), ({"mask": (True, True, False)}, 4e5),
        ({"mask": (False, True, False)}, 0), ({"order": (0, 2, 3, 1)}, 0),
        ({"mask": (False, True, False), "dtype": torch.float16}, 3e5),
    ],
)  # fmt: skip
def test_depthwise_convolutions_of_training_have_the_price_of_finding_a_kernel(given, waits):
    """Channels-last on a GPU, where eager does not look for the same one."""
    b = Builder()
    dtype, mask = BY_TORCH[given.get("dtype", torch.float32)], given.get("mask")
    picture, weight = b.input((2, 9, 8, 8), dtype), b.input((9, given.get("window", 1), 3, 3), dtype)
    order = given.get("order", (0, 1, 2, 3))
    args = (*[None] * 9, 9, mask) if mask else (*[None] * 6, 9)
    call = b.node(
        "library", (picture, weight), (), dtype, kwargs={}, args=args, orders=(order, (0, 1, 2, 3)),
        name="convolution_backward" if mask else "conv2d",
    )  # fmt: skip
    where = replace(target(call.device), device=given.get("device", "cuda"))
    trains = given.get("trains", True) and not mask
    assert movable_calls._wait(call, weight, where, bool(mask), trains, {}) == waits


@pytest.mark.parametrize("waits", [True, False])
def test_small_depthwise_convolutions_of_training_stay_contiguous_on_a_gpu(waits, monkeypatch):
    """They gain too little to repay the time in which the library looks for a kernel."""
    if not waits:
        monkeypatch.setattr(costs, "DEPTHWISE_WAIT", dict.fromkeys(costs.DEPTHWISE_WAIT, (0.0, 0.0, 0.0)))
    given = torch.randn(8, 144, 56, 56), torch.randn(144, 1, 3, 3)
    trace = trace_of(lambda x, w: F.conv2d(x.exp(), w, padding=1, groups=144).tanh(), *given)
    monkeypatch.setattr(costs, "STENCIL_POINTS", (0, 0))  # as where gradients are asked for
    assert channels_last(fuse(lower(on_gpu(trace), targets=target), targets=target, trains=True)) is not waits


def _few_channels(name, weight):
    b = Builder()
    picture, given = b.input((2, weight[1], *[9] * (len(weight) - 2))), b.input(weight)
    call = b.node("library", (picture, given), (), picture.dtype, name=name)
    return movable_calls._has_few_channels(call, picture, weight)


@pytest.mark.parametrize(
    ("f", "lies_last"),
    [
        (lambda x, w, z: (F.conv2d(x, w) * z).tanh(), True),
        (lambda x, w, z: (F.conv2d(x, w) * z).tanh().sum((2, 3)), False),
    ],
)
def test_what_a_kernel_reduces_lies_alike(f, lies_last):
    """A kernel that reduces what is contiguous and what is channels-last reads one of them element by element."""
    trace = trace_of(f, torch.randn(32, 64, 66, 66), torch.randn(64, 64, 3, 3), torch.randn(32, 64, 64, 64))
    assert channels_last(fuse(lower(on_gpu(trace), targets=target), targets=target)) is lies_last


@pytest.mark.parametrize(
    ("f", "lies_last"),
    [
        (lambda x, w: F.relu(F.group_norm(F.conv2d(x, w), 8)), True),
        (lambda x, w: F.instance_norm(F.conv2d(x, w)).tanh(), True),
        (lambda x, w: F.batch_norm(F.conv2d(x, w), None, None, training=True) * 2, True),
        (lambda x, w: F.layer_norm(F.conv2d(x, w), (64,)), False),
        (lambda x, w: F.conv2d(x, w, dilation=2).tanh(), True),
        (lambda x, w: F.conv2d(x, w, dilation=2, stride=2).tanh(), False),
    ],
)
def test_norms_of_long_rows_and_windows_with_holes_lie_channels_last_on_a_gpu(f, lies_last):
    """Norms over all points of a picture; rows of the innermost dimension stay as they lie."""
    trace = trace_of(f, torch.randn(32, 64, 66, 66), torch.randn(64, 64, 3, 3))
    assert channels_last(fuse(lower(on_gpu(trace), targets=target), targets=target)) is lies_last


def test_a_weight_that_is_given_is_known_by_its_recorded_sizes():
    given = torch.randn(8, 1, 130, 130), torch.randn(2, 1, 3, 3)
    trace = trace_of(lambda x, w: F.conv2d(x.exp(), w).square().sum(1), *given)
    assert orders(fuse(lower(on_gpu(trace), targets=target), targets=target)) == [(0, 1, 2, 3)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_batch_norm_of_16_bits_stays_contiguous(dtype):
    """The library reads it by vectors there, and so it is not turned for the call and back."""
    fast = framefuse.compile(lambda x: F.batch_norm(x, None, None, training=True))
    for sizes in ((8, 16, 32, 32), (8, 16, 32, 32), (5, 18, 20, 20)):
        x = torch.randn(sizes).to(dtype)
        torch.testing.assert_close(fast(x), F.batch_norm(x, None, None, training=True))
    items = compiled_function(fast).products[-1].stages.code.schedule.items
    assert not any(isinstance(item, RunKernel) for item in items)


@pytest.mark.parametrize("norm", [False, True])
def test_small_convolutions_of_float16_lie_channels_last(norm):
    """Contiguous ones take the library point by point, beside which any copy is cheap."""

    def program(x, weight):
        y = F.conv2d(x, weight, padding=1)
        return F.batch_norm(y, None, None, training=True).relu() if norm else y.relu()

    fast = framefuse.compile(program)
    for count in (2, 2, 3):
        x, weight = torch.randn(count, 16, 12, 12).half(), torch.randn(16, 16, 3, 3).half()
        torch.testing.assert_close(fast(x, weight), program(x, weight), rtol=1e-2, atol=1e-2)
    assert channels_last(compiled_function(fast).products[-1].stages.code.schedule)


def _gradients_of_sines(x, w, g):
    return torch.ops.aten.convolution_backward(
        g.sin(), x.sin(), w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
    )[:2]


@pytest.mark.parametrize(
    ("f", "weight", "lies_last"),
    [
        (lambda x, w, g: F.conv2d(x.sin(), w).sin(), (16, 16, 3, 3), True),
        (lambda x, w, g: F.conv2d(x.sin(), w).sin(), (16, 16, 1, 1), False),
        (lambda x, w, g: F.conv2d(x.sin(), w, groups=16).sin(), (16, 1, 3, 3), False),
        (lambda x, w, g: F.conv2d(x.sin(), w, groups=8).sin(), (16, 2, 3, 3), False),
        (_gradients_of_sines, (16, 16, 3, 3), False),
    ],
)
def test_float16_lies_on_a_cpu_as_the_library_is_fast(f, weight, lies_last):
    """Its forward is slow contiguous, its gradients, products and small groups are slow channels-last."""
    compiled = framefuse.compile(f)
    for count in (2, 2, 3):
        x, w = torch.randn(count, 16, 12, 12).half(), torch.randn(weight).half()
        g = torch.randn(count, 16, 13 - weight[-1], 13 - weight[-1]).half()
        found, expected = compiled(x, w, g), f(x, w, g)
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert channels_last(compiled_function(compiled).products[-1].stages.code.schedule) is lies_last
