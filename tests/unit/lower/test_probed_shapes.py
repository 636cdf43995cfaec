"""Sizes of library calls without a rule follow from their operands', as runs without data tell, and only where a line
gives them.
"""

import subprocess
import sys

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F

import framefuse


@torch.library.custom_op("probed::paired", mutates_args=())
def paired(x: torch.Tensor, times: int) -> torch.Tensor:
    return torch.cat([x] * times) * 2


@paired.register_fake
def _(x, times):
    return x.new_empty(x.shape[0] * times, *x.shape[1:])


@torch.library.custom_op("probed::padded", mutates_args=())
def padded(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (0, -x.shape[0] % 8))


@padded.register_fake
def _(x):
    return x.new_empty((x.shape[0] + 7) // 8 * 8)


@torch.library.custom_op("probed::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(2)


TRIED = []


@torch.library.custom_op("probed::counted", mutates_args=())
def counted(x: torch.Tensor, slope: float) -> torch.Tensor:
    return x.tile(2) * slope


@counted.register_fake
def _(x, slope):
    TRIED.append(slope)
    return x.new_empty(x.shape[0] * 2)


def check(function, calls, graphs):
    """All calls equal eager's, and the code of ``graphs`` stretches serves all of them but the first ones."""
    fast = framefuse.compile(function)
    for args in calls:
        found, expected = fast(*args), function(*args)
        assert found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5)
    told = framefuse.explain(fast)
    assert len(told.graphs) == graphs and told.hits >= len(calls) - 3, str(told)
    return told


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (lambda x: F.unfold(x, 3, padding=1).transpose(1, 2).reshape(-1, 9 * x.shape[1]).sum(0),
         lambda n: (torch.rand(1 + n, 2, 4 + n, 5),)),
        (lambda x: F.pixel_unshuffle(x, 2).chunk(2, 1)[0] * 3, lambda n: (torch.rand(1, 1, 4 + 2 * n, 6),)),
        (lambda x, y: torch.cdist(x, y).view(-1).cos(), lambda n: (torch.rand(5 + n, 3), torch.rand(4, 3))),
        (lambda x, y: torch.kron(x, y).view(-1) * x.shape[0], lambda n: (torch.rand(2 + n, 3), torch.rand(3, 2 + n))),
        (lambda x: paired(x.sin(), 3).view(3, -1)[1] + x.view(-1), lambda n: (torch.rand(4 + n, 3),)),
        (lambda x: torch.ops.probed.paired(x.sin(), 2).view(2, -1)[1] + x.view(-1), lambda n: (torch.rand(4 + n, 3),)),
    ],
)  # fmt: skip
def test_a_branch_on_such_a_size_breaks_nothing(function, make):
    assert not check(function, [make(n) for n in (1, 2, 5, 3, 4)], 1).breaks


def test_a_size_that_is_rounded_is_known_at_run_time_only():
    told = check(lambda x: padded(x.sin()) * 2, [(torch.rand(n),) for n in (16, 17, 16, 23, 24, 25)], 1)
    assert not told.breaks


def test_a_branch_on_a_size_known_at_run_time_is_one_break():
    def function(x):
        y = padded(x.sin())
        return y * 2 if y.shape[0] > 20 else y * 3

    fast = framefuse.compile(function)
    for n in (16, 17, 3, 23, 24, 25, 9, 40):
        x = torch.rand(n)
        assert torch.allclose(fast(x), function(x))
    assert len(framefuse.explain(fast).breaks) == 1


def test_a_call_without_a_form_for_it():
    check(lambda x: unknown(x.sin()) * 2, [(torch.rand(n),) for n in (3, 4, 9, 1)], 1)


def test_sizes_of_nothing_and_of_one():
    check(lambda x: paired(x.sin(), 2) * 2, [(torch.rand(n, 3),) for n in (0, 1, 0, 1, 4, 2)], 1)


def test_what_recorded_sizes_give_is_written_through_a_view():
    def function(x):
        y = paired(x, 2 if x.shape == (4, 3) else 1)
        rows = y.reshape(-1, y.shape[-1])
        rows += 1
        return rows * 2

    check(function, [(torch.rand(4, 3),) for _ in range(4)], 1)


def test_torchs_compiler_is_not_imported_to_ask():
    program = (
        "import sys, torch, framefuse\n"
        "f = framefuse.compile(lambda x: torch.kron(x, x).view(-1) * 2)\n"
        "for n in (2, 3, 4): f(torch.rand(n, 3))\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_equal_layers_are_tried_once():
    def layers(x, y):
        for _ in range(4):
            x, y = counted(x, 0.5)[::2] + y, y + counted(y, 0.25)[1::2]
        return x

    calls = [(torch.randn(size), torch.randn(size)) for size in (6, 8, 5)]
    TRIED.clear()
    check(lambda x, y: layers(x, y), calls, 1)
    once = TRIED.count(0.5)
    assert 0 < once == TRIED.count(0.25) < 12, TRIED  # for each number as for one layer
