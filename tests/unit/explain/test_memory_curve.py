"""The memory over a call: what is there at each step, where the peak is, what lies between forward and backward."""

import re

import torch

import framefuse
from framefuse.explain.page_data import page_of
from framefuse.explain.pictures import HEIGHT, WIDTH, picture
from framefuse.runtime.function import compiled_function


def curve_of(compiled):
    return page_of(compiled_function(compiled), "f").graphs[0].memory


def test_a_chain_of_products_holds_what_it_works_in_and_gives():
    @framefuse.compile
    def chain(x, a, b):
        return (x @ a) @ b

    for _ in range(2):
        chain(torch.randn(4, 8), torch.randn(8, 16), torch.randn(16, 2))
    curve = curve_of(chain)
    assert chain.hits == 1 and curve.complete and curve.kept == 0
    inner, result = 4 * 16 * 4, 4 * 2 * 4
    assert [(point.bytes, point.kept, point.backward) for point in curve.points] == [
        (inner, 0, False), (inner + result, 0, False),
    ]  # fmt: skip
    assert curve.peak is curve.points[1]


def test_backward_begins_with_what_forward_kept_and_lets_it_go():
    first, second = torch.nn.Linear(8, 64), torch.nn.Linear(64, 2)

    @framefuse.compile
    def net(x):
        return second(torch.sigmoid(first(x)))

    for _ in range(3):
        net(torch.randn(32, 8)).sum().backward()
    page = page_of(compiled_function(net), "f").graphs[0]
    curve = page.memory
    assert net.hits == 2 and curve.kept == page.saved[0] == 32 * 64 * 4
    forward = [point for point in curve.points if not point.backward]
    backward = [point for point in curve.points if point.backward]
    assert forward[-1].kept == curve.kept == backward[0].kept and backward[-1].kept == 0
    assert all(0 <= point.kept <= point.bytes <= curve.peak.bytes for point in curve.points)
    gradients = 4 * sum(parameter.numel() for parameter in (*first.parameters(), *second.parameters()))
    assert backward[-1].bytes >= gradients


def test_a_picture_stays_in_its_frame_and_touches_the_peak():
    @framefuse.compile
    def net(x, w):
        return torch.relu(x @ w).softmax(-1)

    for _ in range(2):
        net(torch.randn(6, 6), torch.randn(6, 6, requires_grad=True)).sum().backward()
    drawn = picture(curve_of(net))
    for outline in (drawn.total, drawn.kept):
        corners = [tuple(map(int, corner.split(","))) for corner in outline.split()]
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in corners)
        assert [x for x, _ in corners] == sorted(x for x, _ in corners)
    assert drawn.peak[1] == min(int(y) for y in re.findall(r",(\d+)", drawn.total)) and drawn.backward is not None
