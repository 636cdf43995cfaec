"""Calls that give their operand, a view of it or a copy, as memory lies, do at later calls what eager does then."""

import pytest
import torch
import torch.nn.functional as F

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.loops import Loop
from framefuse.ir.loops.walk import statements
from framefuse.ir.schedule import RunKernel

WIDE, DEEP = torch.arange(200.0).reshape(10, 20), torch.arange(480.0).reshape(4, 10, 12)
DENSE = torch.arange(6.0).reshape(2, 3)

# name: the function, the arguments of its calls, and how many of these compiled code answers at least.
CASES = {
    "contiguous": (lambda x: x.contiguous(), [WIDE[:2, :6:2], WIDE[:2, :6:2], DENSE, WIDE[:, :0], WIDE[:4, :9:3]], 2),
    "reshape": (lambda x: x.reshape(-1), [WIDE[:2, :6:2], WIDE[:2, :6:2], DENSE, WIDE[:0, :6:2], WIDE[:4, :9:3]], 2),
    "some dimensions flattened": (
        lambda x: x.flatten(0, 1), [DEEP[::2], DEEP[::2], DEEP[:3, :, :6], DEEP[:2, ::2], DEEP[:2], DEEP[:1, ::2]], 1,
    ),
    "turned and flattened": (lambda x: x.t().reshape(-1), [WIDE, WIDE, WIDE[:3], WIDE[:1], WIDE[:, :1]], 2),
    "turned and copied": (
        lambda x: x.t().contiguous(), [WIDE, WIDE, WIDE[:3].clone(), WIDE[:1].clone(), WIDE[:, :1].clone()], 2,
    ),
    "heads": (
        lambda x: x.transpose(0, 1).reshape(x.shape[1], -1), [DEEP, DEEP, DEEP[:2], DEEP[:1], DEEP[:, :1]], 2,
    ),
    "columns": (lambda x: x[:, :3].contiguous(), [WIDE, WIDE, WIDE[:2], DENSE, WIDE[:1]], 2),
    "columns of a new tensor": (lambda x: (x + 1)[:, :3].reshape(-1), [WIDE, WIDE, WIDE[:2], DENSE, WIDE[:1]], 2),
    "new dimensions": (lambda x: x.unflatten(1, (2, -1)).flatten(1), [WIDE, WIDE, WIDE[:2], WIDE[:, ::2]], 2),
    "expanded": (lambda x: x.expand(3, *x.shape).reshape(-1), [WIDE, WIDE, WIDE[:1]], 1),
    "seen as a line": (lambda x: x.t().view(-1), [WIDE[:1], WIDE[:1], WIDE[:, :1], WIDE, WIDE[:1, :4]], 1),
    "written": (lambda x: (x.t().contiguous().add_(1), x)[1], [WIDE[:2], WIDE[:2], WIDE[:1]], 1),
    "compared": (lambda x: x + 1 if x.contiguous() is x else x + 2, [WIDE.t(), WIDE.t(), WIDE[:1].t(), WIDE], 1),
}  # fmt: skip


def answer(function, x):
    """What a caller sees of the result, and of the argument afterwards."""
    x = x.clone(memory_format=torch.preserve_format) if x.is_contiguous() else x
    base = x.untyped_storage().data_ptr()
    try:
        y = function(x)
    except RuntimeError as error:
        return type(error), str(error)
    return y is x, y.untyped_storage().data_ptr() == base, y.stride() if y.numel() else (), y.tolist(), x.tolist()


@pytest.mark.parametrize("name", CASES)
def test_a_view_stays_a_view_and_a_copy_a_copy(name):
    function, arguments, hits = CASES[name]
    compiled = framefuse.compile(function)
    with torch.no_grad():
        for x in arguments:
            if name == "written":
                assert answer(compiled, x.clone()) == answer(function, x.clone())
            else:
                assert answer(compiled, x) == answer(function, x)
    assert compiled.hits >= hits


def test_what_nobody_sees_is_not_guarded():
    def attention(q, k):
        scores = q.transpose(0, 1).contiguous() @ k.transpose(0, 1).reshape(k.shape[1], -1, k.shape[0])
        return scores.reshape(-1).cumsum(0)

    compiled = framefuse.compile(attention)
    with torch.no_grad():
        for length in (5, 4, 1, 7):
            q, k = torch.randn(length, 3, 4), torch.randn(4, 3, 4)
            torch.testing.assert_close(compiled(q, k), attention(q, k))
    assert compiled.hits == 3


PICTURES = torch.randn(2, 5, 6, 3)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x: torch.tensor([x.numel(), 0.5]) + x.contiguous(), [torch.randn(2, 3, 2).permute(2, 1, 0)]),
        (lambda x, w: F.conv2d(x.contiguous(), w), [PICTURES.permute(0, 3, 1, 2), torch.randn(4, 3, 3, 3)]),
        (lambda x, w: F.conv2d(x.permute(0, 3, 1, 2).contiguous(), w), [PICTURES, torch.randn(4, 3, 3, 3)]),
        (lambda x, w: F.conv2d(x.permute(0, 3, 1, 2), w), [PICTURES, torch.randn(4, 3, 3, 3)]),
        (lambda x: x.t().contiguous().cumsum(0), [torch.randn(3, 4)]),
        (lambda x: x.t().cumsum(0), [torch.randn(3, 4)]),
        (lambda x: x.clone(memory_format=torch.contiguous_format).msort(), [torch.randn(3, 4).t()]),
    ],
)
def test_results_of_torch_lie_as_eagers(function, arguments):
    compiled = framefuse.compile(function)
    with torch.no_grad():
        for _ in range(3):
            found, expected = compiled(*arguments), function(*arguments)
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()
    assert compiled.hits == 2


@pytest.mark.parametrize("sizes", [(3, 4), (4, 2)])
def test_dimensions_of_one_element_show_eagers_strides(sizes):
    """Also those that say how later calls of torch lay out what they compute, as of pictures of one channel."""

    def function(x):
        picture = x[None, None].to(memory_format=torch.channels_last) * 2
        turned = x.view(x.shape[0], 1, x.shape[1])
        return x[:1].t() * 2, x.t()[:1] + 1, turned.transpose(1, 2).exp() * 2, turned.transpose(0, 1) * 2, picture

    compiled, weight = framefuse.compile(function), torch.randn(2, 1, 2, 2)
    compiled(torch.randn(5, 6))
    x = torch.randn(sizes)
    found, expected = compiled(x), function(x)
    assert compiled.hits == 1
    torch.testing.assert_close(found, expected)
    assert [each.stride() for each in found] == [each.stride() for each in expected]
    shown = F.conv2d(found[-1], weight).stride()
    assert shown == F.conv2d(expected[-1], weight).stride()


def test_dimensions_that_were_recorded_with_one_element_show_eagers_strides():
    compiled = framefuse.compile(lambda x: (x.flip(0), x.bfloat16(), torch.where(x > 0, x, 1.0)))
    for seed in range(3):
        x = torch.randn(1, 3, generator=torch.Generator().manual_seed(seed)).t()
        found, expected = compiled(x), (x.flip(0), x.bfloat16(), torch.where(x > 0, x, 1.0))
        torch.testing.assert_close(found, expected)
        assert [each.stride() for each in found] == [each.stride() for each in expected]
    assert compiled.hits == 2


JOINED = {
    "expanded": lambda x: x[:1].expand(5, *x.shape[1:]),
    "every second": lambda x: x[::2],
    "heads": lambda x: x[:, None].expand(x.shape[0], 2, *x.shape[1:]),
}


@pytest.mark.parametrize("name", JOINED)
def test_axes_of_an_argument_without_a_gap_between_them_are_one_loop(name):
    view = JOINED[name]
    fast = framefuse.compile(lambda x: x.exp())
    for sizes in ((6, 7, 3), (6, 7, 3), (4, 20, 5), (2, 3, 9), (8, 3, 2)):
        x = view(torch.randn(sizes))
        torch.testing.assert_close(fast(x), x.exp())
    assert fast.hits >= 3
    (product,) = compiled_function(fast).products
    (kernel,) = (item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel))
    assert sum(isinstance(each, Loop) for each in statements(kernel.body)) == 2
    x = torch.randn(6, 9, 12)[:, 1:-1, 2:7]  # with gaps between all axes: another trace
    torch.testing.assert_close(fast(x), x.exp())
