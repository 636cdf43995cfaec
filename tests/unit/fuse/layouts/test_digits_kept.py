"""Convolutions lie channels-last on a GPU where that rounds no float32 that its library multiplies whole in eager."""

import pytest
import torch
from tests.unit.autodiff.gradient_graphs import check_lowered
from tests.unit.lower.recording import trace_of
from tests.unit.lower.test_devices import on_gpu, target
from torch.nn import functional as F

from framefuse.fuse import fuse
from framefuse.fuse.layouts.digits_kept import digits_kept
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.schedule import RunCall
from framefuse.ir.whole_digits import ITSELF, OF_PICTURE, OF_WEIGHT
from framefuse.lower import lower

LAST = (0, 2, 3, 1)
CALLS = {
    "conv2d": (lambda x, w: F.conv2d(x, w, padding="same").tanh(), (32, 64, 3, 3)),
    "points": (lambda x, w: F.conv2d(x, w, stride=2).tanh(), (32, 64, 1, 1)),
    "transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1).tanh(), (64, 32, 3, 3)),
    "in groups": (lambda x, w: F.conv2d(x, w, groups=2).tanh(), (32, 32, 3, 3)),
}


@pytest.fixture(autouse=True)
def eager_to_turn(monkeypatch):
    """Contiguous convolutions cost so much that even small ones lie channels-last, if they may."""
    monkeypatch.setattr(costs, "CONVOLUTION", dict.fromkeys(costs.CONVOLUTION, (50.0, 50.0)))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        yield


def library(contiguous, turned, heard):
    """One that multiplies all digits so in each layout."""

    def asks(questions):
        heard.extend(questions)
        return [turned if question.last else contiguous for question in questions]

    return asks


def graph_of(name, **how):
    function, weight = CALLS[name]
    picture = torch.randn(8, 64, 12, 14).contiguous(**how)
    return lower(on_gpu(trace_of(function, picture, torch.randn(weight))), targets=target)


@pytest.mark.parametrize(
    ("contiguous", "turned", "lies_last"),
    [(True, False, False), (True, True, True), (False, False, True), (False, True, True), (True, None, True),
     (None, None, True)],
)  # fmt: skip
@pytest.mark.parametrize("name", CALLS)
def test_what_is_exact_contiguous_alone_stays(name, contiguous, turned, lies_last):
    heard = []
    made = fuse(graph_of(name), targets=target, asks=library(contiguous, turned, heard))
    (call,) = [item.node for item in made.items if isinstance(item, RunCall)]
    assert (call.attr("orders")[0] == LAST) is lies_last
    assert {question.last for question in heard} == ({False, True} if contiguous else {False})
    assert heard[0].device == call.device and heard[0].picture == (8, 64, 12, 14)


@pytest.mark.parametrize("digits", ["fewer", "half", "turned"])
def test_what_cannot_lose_digits_is_not_asked(digits):
    heard = []
    how = {"memory_format": torch.channels_last} if digits == "turned" else {}
    graph = graph_of("conv2d", **how)
    if digits == "half":
        trace = trace_of(lambda x, w: F.conv2d(x, w), torch.randn(2, 64, 9, 9).half(), torch.randn(8, 64, 3, 3).half())
        graph = lower(on_gpu(trace), targets=target)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=digits != "fewer"):
        assert digits_kept(graph, Setting(targets=target, asks=library(True, False, heard))) == {}
    assert not heard


def test_depthwise_convolutions_keep_all_digits_in_both():
    heard = []
    function = lambda x, w: F.conv2d(x.tanh(), w, groups=64)
    graph = lower(on_gpu(trace_of(function, torch.randn(2, 64, 9, 9), torch.randn(64, 1, 3, 3))), targets=target)
    assert digits_kept(graph, Setting(targets=target, asks=library(True, False, heard))) == {} and not heard


@pytest.mark.parametrize("groups", [1, 2])
def test_each_gradient_is_asked_for_and_one_that_must_stay_is_enough(groups):
    w = torch.randn(6, 8 // groups, 3, 3)
    graph = check_lowered(lambda x, w: F.conv2d(x, w, groups=groups).sin(), torch.randn(2, 8, 9, 9), w)
    (call,) = [node for node in graph.nodes if node.op == "library" and node.attr("name") == "convolution_backward"]
    heard = []

    def asks(questions):
        heard.extend(questions)
        return [not question.last or question.part == OF_WEIGHT for question in questions]

    found = digits_kept(graph, Setting(targets=lambda device: target("cuda"), trains=True, asks=asks))
    if groups != 1:  # slow contiguous, on many a GPU
        assert not heard and not found
        return
    asked = [(question.part, question.last) for question in heard if question.part != ITSELF]
    assert asked == [(part, last) for last in (False, True) for part in (OF_PICTURE, OF_WEIGHT)]
    assert found[call] is True


def test_a_cpu_is_not_asked():
    def asks(questions):
        raise AssertionError(questions)

    graph = lower(trace_of(lambda x, w: F.conv2d(x, w).tanh(), torch.randn(2, 8, 9, 9), torch.randn(4, 8, 3, 3)))
    assert digits_kept(graph, Setting(asks=asks)) == {}
