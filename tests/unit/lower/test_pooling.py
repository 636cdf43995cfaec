"""Pooling by kernels: values, indices, strides and gradients are eager's, for sizes other than the recorded ones."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framefuse
from framefuse.api import compiled_function
from framefuse.codegen.triton.widths import width
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.schedule import RunCall, RunKernel
from framefuse.lower import interpolation, pooling

WINDOWS = [(3, 2, 1), (2, 2, 0), (3, 1, 1), (2, 3, 0), (4, 1, 2), (5, 2, 2), (3, 2, 0), (1, 2, 0)]


def parts(value):
    return value if isinstance(value, tuple) else (value,)


def gradients(results, inputs, twice):
    """The gradients of the first result, and gradients of these where ``twice``."""
    torch.manual_seed(3)
    loss = (results[0] * torch.randn_like(results[0])).sin().sum()
    found = torch.autograd.grad(loss, inputs, create_graph=twice)
    if twice:
        again = sum((one * torch.randn_like(one)).sum() for one in found)
        found += torch.autograd.grad(again, inputs)
    return found


def agree(function, *shapes, dtype=torch.float32, layout=torch.contiguous_format, twice=False, ties=True):
    """Compares compiled code with eager on inputs of each shape; the first one records. Eager rounds sums of 16-bit
    gradients at each term.
    """
    near = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {}
    fast = framefuse.compile(function)
    for number, shape in enumerate((shapes[0], shapes[0], *shapes[1:])):
        torch.manual_seed(number)
        x = torch.randn(shape, dtype=dtype) * 2
        x = (x.round() if ties else x).contiguous(memory_format=layout)
        ours, theirs = (x.clone(memory_format=torch.preserve_format).requires_grad_(dtype.is_floating_point)
                        for _ in range(2))  # fmt: skip
        results, expected = parts(fast(ours)), parts(function(theirs))
        for mine, other in zip(results, expected, strict=True):
            assert mine.stride() == other.stride()
            torch.testing.assert_close(mine, other)
        if dtype.is_floating_point:
            pairs = zip(gradients(results, [ours], twice), gradients(expected, [theirs], twice), strict=True)
            for mine, other in pairs:
                assert mine.stride() == other.stride()
                torch.testing.assert_close(mine, other, **near)
    state = compiled_function(fast)
    assert state.dispatch.hits >= len(shapes) and not state.reasons
    return items_of(state)


def items_of(state):
    traces = [product.stages.code.schedule.items for product in state.products]
    return [item for items in traces for item in items if isinstance(item, (RunKernel, RunCall))]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("ceil", [False, True])
def test_planes(window, ceil):
    kernel, step, pad = window
    shapes = (2, 3, 9, 10), (1, 3, 13, 11), (3, 3, 9, 10)
    shapes = shapes[::2] if ceil else shapes  # whether the last window is cut depends on sizes
    agree(lambda x: F.max_pool2d(x, kernel, step, pad, ceil_mode=ceil), *shapes, twice=True, dtype=torch.float64)
    for padded in (True, False):
        pool = nn.AvgPool2d(kernel, step, pad, ceil_mode=ceil, count_include_pad=padded)
        agree(pool, *shapes, twice=True, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_floats_and_layouts(dtype, layout):
    shapes = (2, 4, 9, 10), (1, 4, 12, 8)
    agree(lambda x: F.max_pool2d(x, 3, 2, 1), *shapes, dtype=dtype, layout=layout)
    agree(lambda x: F.max_pool2d(x.relu(), 3, 2, 1, return_indices=True), *shapes, dtype=dtype, layout=layout)
    agree(lambda x: F.avg_pool2d(x, 2, 1, divisor_override=3), *shapes, dtype=dtype, layout=layout)


OTHERS = {
    "line": (lambda x: F.max_pool1d(x, 3, 2, 1), (2, 3, 11), (4, 3, 15)),
    "one line": (lambda x: F.avg_pool1d(x, 4, 2, 1), (3, 11), (3, 15)),
    "line with places": (lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True), (2, 3, 11), (4, 3, 15)),
    "box": (lambda x: F.max_pool3d(x, (3, 2, 1), (2, 1, 1), (1, 0, 0)), (2, 3, 5, 6, 7), (1, 3, 7, 8, 6)),
    "box with places": (lambda x: F.max_pool3d(x, 3, 2, 1, return_indices=True), (2, 3, 7, 8, 9), (1, 3, 5, 5, 6)),
    "box average": (lambda x: F.avg_pool3d(x, 3, 2, 1, count_include_pad=False), (2, 3, 5, 6, 7), (1, 3, 7, 8, 6)),
    "uneven": (lambda x: F.max_pool2d(x, (3, 1), (1, 2), (1, 0)), (2, 3, 9, 9), (1, 3, 8, 12)),
    "one picture": (lambda x: F.max_pool2d(x, 2), (3, 9, 9), (3, 8, 12)),
    "no pictures": (lambda x: F.avg_pool2d(F.max_pool2d(x, 2), 2), (2, 3, 9, 9), (0, 3, 8, 12)),
    "between": (lambda x: F.max_pool2d(x.exp() + 1, 2).sigmoid(), (2, 3, 9, 9), (1, 3, 8, 12)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_ranks(name):
    function, *shapes = OTHERS[name]
    items = agree(function, *shapes)
    assert items and not any(isinstance(item, RunCall) for item in items)


def test_large_windows_and_holes_are_the_library():
    for function in (lambda x: F.max_pool2d(x, 9, 1, 4), lambda x: F.max_pool2d(x, 3, 2, 1, 2)):
        assert any(isinstance(item, RunCall) for item in agree(function, (2, 3, 20, 20), (1, 3, 18, 21)))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_integers(dtype):
    def function(x):
        return F.max_pool2d(x, 3, 2, 1, return_indices=True)

    fast = framefuse.compile(function)
    for size in (9, 9, 12):
        x = torch.randint(0, 5, (2, 3, size, 10)).to(dtype)
        assert all(torch.equal(a, b) for a, b in zip(fast(x), function(x), strict=True))
    assert compiled_function(fast).dispatch.hits >= 2


@pytest.mark.parametrize("holes", [1, 2])
def test_not_a_number_and_infinities(holes):
    def function(x):
        return F.max_pool2d(x, 3, 2, 1, holes, return_indices=True)

    fast = framefuse.compile(function)
    values = torch.tensor([float("nan"), float("-inf"), 0.0, -0.0, 1.0])
    for turn in range(4):
        torch.manual_seed(turn)
        x = values[torch.randint(0, (5, 5, 2, 5)[turn], (2, 3, 9, 10))]
        if turn == 3:
            x = torch.full_like(x, float("-inf"))
        for mine, other in zip(fast(x), function(x), strict=True):
            assert torch.equal(mine.nan_to_num(7), other.nan_to_num(7))


def test_what_eager_keeps_is_kept():
    """Eager's indices do not follow a write behind autograd's back."""
    fast = framefuse.compile(lambda x: F.max_pool2d(x, 3, 2, 1))
    x = torch.randn(2, 3, 9, 9)
    found = []
    for function in (fast, fast, fast, lambda x: F.max_pool2d(x, 3, 2, 1)):
        leaf = x.clone().requires_grad_()
        result = function(leaf)
        leaf.data.mul_(-1)
        result.sum().backward()
        found.append(leaf.grad)
    assert all(torch.equal(one, found[-1]) for one in found)


def test_errors_stay_eager():
    fast = framefuse.compile(lambda x: F.max_pool2d(x, 3))
    for shape in ((2, 3, 9, 9), (2, 3, 9, 9), (2, 0, 9, 9), (2, 3, 2, 9)):
        errors = []
        for function in (fast, lambda x: F.max_pool2d(x, 3)):
            try:
                errors.append(tuple(function(torch.randn(shape)).shape))
            except RuntimeError as error:
                errors.append(str(error))
        assert errors[0] == errors[1]


def test_every_element_of_every_window_counts_once():
    """The gradient of a sum of averages is how many windows an element lies in, over the elements of a window."""
    for kernel, step in itertools.product((1, 2, 3, 4), repeat=2):
        fast = framefuse.compile(lambda x, kernel=kernel, step=step: F.avg_pool1d(x, kernel, step))
        for size in (9, 9, 14):
            x = torch.zeros(1, 1, size, dtype=torch.float64, requires_grad=True)
            fast(x).sum().backward()
            windows = torch.arange(size).unfold(0, kernel, step)
            counts = torch.bincount(windows.reshape(-1), minlength=size) / kernel
            torch.testing.assert_close(x.grad[0, 0], counts.double())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_repeated_elements(layout, dtype):
    shapes, twice = ((2, 3, 5, 4), (1, 3, 6, 9)), dtype is torch.float64
    if layout is torch.contiguous_format:
        shapes += ((0, 3, 4, 4),)
    for scale in (2, (4, 1), (8, 2), (3, 7)):
        items = agree(nn.Upsample(scale_factor=scale), *shapes, dtype=dtype, layout=layout, twice=twice)
        assert all(isinstance(item, RunKernel) for item in items)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_nearest_elements_that_sizes_or_parts_of_one_name(layout, dtype):
    """Places are eager's, also of sides that leave a rest and of a size that is a multiple in one call and not in the
    next.
    """
    shapes, twice = ((2, 3, 9, 8), (1, 3, 11, 17)), dtype is torch.float64
    for scale in (0.5, (0.25, 2), (0.125, 0.5)):
        pictures = [(*shape[:2], *(side + 8 for side in shape[2:])) for shape in shapes]
        items = agree(nn.Upsample(scale_factor=scale), *pictures, dtype=dtype, layout=layout, twice=twice)
        assert all(isinstance(item, RunKernel) for item in items)
    for size in ((18, 4), (27, 40), (9, 16)):
        items = agree(nn.Upsample(size=size), shapes[0], dtype=dtype, layout=layout, twice=twice)
        assert all(isinstance(item, RunKernel) for item in items)


def test_sizes_that_are_no_multiples_are_the_librarys():
    fast = framefuse.compile(lambda x, size: F.interpolate(x, size=size))
    for _ in range(2):
        for sides, size in (((4, 6), (8, 6)), ((4, 6), (7, 3)), ((5, 6), (8, 6)), ((7, 9), (14, 9)), ((8, 6), (8, 6))):
            x = torch.randn(2, 3, *sides)
            torch.testing.assert_close(fast(x, size), F.interpolate(x, size=size), rtol=0, atol=0)
    recomputed = framefuse.compile(lambda x: F.interpolate(x, scale_factor=0.5, recompute_scale_factor=True))
    for side in (9, 9, 11, 8):
        x = torch.randn(1, 2, side)
        torch.testing.assert_close(recomputed(x), F.interpolate(x, size=side // 2), rtol=0, atol=0)


@pytest.mark.parametrize("scale", [1.5, 0.5, 0.625, (0.75, 3.0), 1.3, 1 / 3])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest", "nearest-exact"])
def test_sizes_of_fractional_scales_are_eagers(scale, mode):
    fast = framefuse.compile(lambda x: F.interpolate(x + 1, scale_factor=scale, mode=mode) * 2)
    for sides in ((4, 6), (4, 6), (5, 7), (9, 3), (4, 3), (17, 31)):
        x = torch.randn(2, 3, *sides)
        torch.testing.assert_close(fast(x), F.interpolate(x + 1, scale_factor=scale, mode=mode) * 2)
    with pytest.raises(RuntimeError, match=r"greater than 0|positive|should be"):
        F.interpolate(torch.randn(2, 3, 0, 2), scale_factor=scale, mode=mode)
    with pytest.raises(RuntimeError, match=r"greater than 0|positive|should be"):
        fast(torch.randn(2, 3, 0, 2))


def test_what_lies_beside_a_point_is_weighed_without_checks(monkeypatch):
    monkeypatch.setattr(interpolation, "BETWEEN", {})
    programs = [
        (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (2, 3, 5, 4), (1, 2, 4, 6)),
        (lambda x: F.interpolate(x, size=(9, 3), mode="bilinear", align_corners=True), (2, 3, 5, 4), (1, 2, 4, 6)),
        (lambda x: F.interpolate(x, size=7, mode="linear"), (2, 3, 5), (1, 2, 9)),
        (lambda x: F.interpolate(x, size=(5, 3, 4), mode="trilinear"), (2, 3, 5, 4, 2), (1, 2, 3, 6, 3)),
        (lambda x: F.interpolate(x, size=(9, 3), mode="bicubic"), (2, 3, 5, 4), (1, 2, 8, 6)),
        (lambda x: F.interpolate(x, scale_factor=3, mode="bicubic", align_corners=True), (2, 3, 5, 4), (1, 2, 3, 6)),
        (lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"), (2, 3, 5, 4), (1, 2, 7, 6), (2, 1, 2, 3)),
        (lambda x: F.interpolate(x, scale_factor=(0.5, 2.25), mode="bilinear"), (2, 3, 5, 4), (1, 2, 7, 6)),
        (
            lambda x: F.interpolate(x, scale_factor=0.75, mode="bilinear", align_corners=True),
            (2, 3, 5, 4), (1, 2, 9, 6),
        ),
        (
            lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", recompute_scale_factor=True),
            (2, 3, 5, 4), (1, 2, 7, 9),
        ),
    ]
    for program, *shapes in programs:
        fast = framefuse.compile(program)
        for shape in (*shapes, *shapes):
            x = torch.randn(shape)
            torch.testing.assert_close(fast(x), program(x))
        assert fast.hits >= 3
        items = compiled_function(fast).products[0].stages.code.schedule.items
        assert not any(isinstance(item, RunCall) for item in items)
        kernels = [item.kernel for item in items if isinstance(item, RunKernel)]
        assert kernels and not any("check(" in kernel_text(kernel) for kernel in kernels)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_positions_beside_a_point_are_narrow_on_a_gpu(mode, monkeypatch):
    monkeypatch.setattr(interpolation, "BETWEEN", {})
    fast = framefuse.compile(lambda x: F.interpolate(x, scale_factor=2, mode=mode))
    for _ in range(3):
        x = torch.randn(2, 3, 64, 48)
        torch.testing.assert_close(fast(x), F.interpolate(x, scale_factor=2, mode=mode))
    items = compiled_function(fast).products[0].stages.code.schedule.items
    kernels = [item.kernel for item in items if isinstance(item, RunKernel)]
    found = [width(kernel, {number.symbol: 48 for number in kernel.numbers}, True) for kernel in kernels]
    assert all(one.integer == "tl.int32" for one in found)
    assert sum(len(one.clamped) for one in found) == (4 if mode == "bilinear" else 8)
    large = [width(kernel, {number.symbol: 1 << 20 for number in kernel.numbers}, True) for kernel in kernels]
    assert any(one.integer == "tl.int64" for one in large)


def test_the_gradient_of_a_mean_divides_once_for_each_element():
    fast = framefuse.compile(lambda x: F.avg_pool2d(x, 3, 2, 1))
    for shape in ((2, 3, 17, 14), (1, 2, 9, 30)):
        x, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
        y.data.copy_(x.data)
        g = torch.randn_like(F.avg_pool2d(x, 3, 2, 1))
        fast(x).backward(g)
        F.avg_pool2d(y, 3, 2, 1).backward(g)
        torch.testing.assert_close(x.grad, y.grad)
    (backward,) = framefuse.graphs(fast)[0].backward
    lines = [line for line in str(backward).splitlines() if "true_divide" in line]
    assert len(lines) == 1 and "s3, s4]" in lines[0]


@pytest.mark.parametrize("size", [0, 1, 2])
def test_one_number_beside_padding_is_read_where_it_is(size):
    fast = framefuse.compile(lambda x, y: F.pad(x * y, (1, 2), value=3.0) + 1)
    for shape in ((4, size), (3, size)):
        x, y = torch.randn(shape), torch.randn(1, 1)
        torch.testing.assert_close(fast(x, y), F.pad(x * y, (1, 2), value=3.0) + 1)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_a_picture_that_keeps_its_size_has_eagers_infinities(mode, monkeypatch):
    monkeypatch.setattr(interpolation, "BETWEEN", {})

    def program(x):
        return F.interpolate(x, size=(6, 5), mode=mode)

    fast = framefuse.compile(program)
    for shape in ((2, 3, 4, 7), (2, 3, 6, 5), (1, 3, 8, 4), (4, 3, 6, 5)):
        x = torch.randn(shape)
        if shape[2:] == (6, 5):
            x[0, 1, 2, 3], x[0, 0, 5, 4] = torch.inf, -torch.inf
        torch.testing.assert_close(fast(x), program(x), equal_nan=True)
    assert fast.hits >= 1


def test_averages_to_sizes_that_divide_the_picture_are_kernels():
    for size, shapes in ((7, ((2, 3, 14, 28), (1, 3, 7, 21))), ((4, None), ((2, 3, 8, 5),)), ((2, 1), ((2, 3, 6, 5),))):
        items = agree(nn.AdaptiveAvgPool2d(size), *shapes)
        assert all(isinstance(item, RunKernel) for item in items)
    assert any(isinstance(item, RunCall) for item in agree(nn.AdaptiveAvgPool2d(7), (2, 3, 15, 28)))


AVERAGES = {
    "the whole picture": lambda x: F.avg_pool2d(x, x.shape[-2:]) * 2,
    "by both sizes": lambda x: F.avg_pool2d(x.exp(), (x.size(-2), x.size(-1)), stride=1).flatten(1),
    "large windows": lambda x: F.avg_pool2d(x, 9) + 1,
    "with a rest": lambda x: F.avg_pool2d(x, (9, 8)) + 1,
}


@pytest.mark.parametrize("name", AVERAGES)
def test_averages_over_all_windows_that_lie_beside_each_other_are_reductions(name):
    function = AVERAGES[name]
    fast = framefuse.compile(function)
    for rows, wide in ((2, 18), (3, 18), (3, 27), (1, 27)):
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(rows, 5, 27, wide).to(memory_format=layout).requires_grad_()
            found, expected = fast(x), function(x)
            torch.testing.assert_close(found, expected)
            given = torch.autograd.grad(found.square().sum(), x)[0]
            torch.testing.assert_close(given, torch.autograd.grad(expected.square().sum(), x)[0])
    for product in compiled_function(fast).products:
        items = product.stages.code.schedule.items
        assert any(isinstance(item, RunCall) for item in items) == (name == "with a rest")


def test_computed_pictures_of_short_rows_are_averaged_by_the_library():
    class Computed(nn.Module):
        def forward(self, x):
            return F.adaptive_avg_pool2d(torch.relu(1 - x * 2), 2) + 1

    assert any(isinstance(item, RunCall) for item in agree(Computed(), (2, 3, 8, 8), (1, 3, 6, 10)))
    for shape in ((2, 3, 64, 48), (1, 3, 6, 40)):
        assert all(isinstance(item, RunKernel) for item in agree(Computed(), shape))


@pytest.mark.parametrize("size", [1, 4, 5])
def test_norms_by_neighbouring_channels_are_one_kernel(size):
    for shapes in (((2, 7, 4), (3, 9, 5)), ((2, 7, 4, 3), (1, 5, 6, 3)), ((2, 6, 3, 2, 2), (1, 6, 3, 2, 5))):
        items = agree(nn.LocalResponseNorm(size, 0.3, 0.6, 1.5), *shapes, dtype=torch.float64)
        assert len(items) == 1 and isinstance(items[0], RunKernel)


# Programs, their shapes, and whether the library computes them.
AREAS = {
    "half": (lambda x: F.interpolate(x, scale_factor=0.5, mode="area") + 1, [(2, 3, 16, 20), (3, 3, 16, 20)], False),
    "two scales": (
        lambda x: F.interpolate(x, scale_factor=(0.25, 0.5), mode="area"),
        [(2, 3, 16, 20), (1, 3, 8, 6)],
        False,
    ),
    "sizes": (lambda x: F.interpolate(x, size=(8, 10), mode="area") * 2, [(2, 3, 16, 20), (3, 3, 16, 20)], False),
    "one": (lambda x: F.interpolate(x, size=1, mode="area") * 2, [(2, 3, 16), (3, 2, 7)], False),
    "volume": (
        lambda x: F.interpolate(x, scale_factor=0.5, mode="area") * 2,
        [(2, 3, 4, 6, 2), (1, 3, 8, 6, 4)],
        False,
    ),
    "a rest": (lambda x: F.interpolate(x, scale_factor=0.5, mode="area") * 2, [(2, 3, 17, 20), (1, 2, 9, 11)], True),
    "more": (lambda x: F.interpolate(x, scale_factor=2.0, mode="area") * 2, [(2, 3, 7, 5), (1, 2, 3, 4)], True),
    "third": (lambda x: F.interpolate(x, scale_factor=1 / 3, mode="area") * 2, [(2, 3, 9, 12), (1, 2, 8, 7)], True),
}


@pytest.mark.parametrize("by_elements", [False, True])
@pytest.mark.parametrize("name", AREAS)
def test_areas_of_one_size_are_kernels(name, by_elements, monkeypatch):
    if by_elements:
        monkeypatch.setattr(pooling, "BY_ELEMENTS", {})
    function, shapes, called = AREAS[name]
    fast = framefuse.compile(function)
    for shape in (*shapes, *shapes):
        for last in (False, True):
            x = torch.randn(shape)
            x = x.to(memory_format=torch.channels_last) if last and len(shape) == 4 else x
            mine, theirs = (x.clone().requires_grad_() for _ in range(2))
            found, expected = fast(mine), function(theirs)
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()
            towards = torch.randn_like(expected)
            found.backward(towards)
            expected.backward(towards)
            torch.testing.assert_close(mine.grad, theirs.grad)
    items = compiled_function(fast).products[0].stages.code.schedule.items
    assert any(isinstance(item, RunCall) for item in items) == called


def test_areas_follow_the_size_of_a_picture(monkeypatch):
    monkeypatch.setattr(pooling, "BY_ELEMENTS", {})
    fast = framefuse.compile(lambda x: F.interpolate(x, scale_factor=0.5, mode="area") + 1)
    for sides in ((16, 20), (16, 20), (32, 8), (64, 24), (30, 10)):
        x = torch.randn(2, 3, *sides)
        torch.testing.assert_close(fast(x), F.interpolate(x, scale_factor=0.5, mode="area") + 1)
    (product,) = compiled_function(fast).products
    assert not any(isinstance(item, RunCall) for item in product.stages.code.schedule.items)
