"""Borders, rolls, windows, shuffles and copies into another order are kernels that load each element once."""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, pytestmark  # noqa: F401
from torch.nn import functional as F

import framefuse
from framefuse.ir import costs
from framefuse.ir.loops import Load, Loop, LoopKind
from framefuse.ir.loops.walk import statements, values_of
from framefuse.ir.schedule import Allocate, RunKernel
from framefuse.lower import own_memory, picture_windows

MOVES = {
    "reflect": (lambda x: F.pad(x, (3, 2, 1, 3), mode="reflect"), (2, 3, 7, 9)),
    "replicate": (lambda x: F.pad(x.sin(), (3, 2, 1, 3, 2, 1), mode="replicate"), (2, 3, 4, 5, 6)),
    "circular": (lambda x: F.pad(x, (3, 2, 1, 3), mode="circular") * 2, (2, 3, 7, 9)),
    "roll": (lambda x: torch.roll(x, (3, -2), (2, 3)), (2, 3, 7, 9)),
    "windows": (lambda x: torch.stack([x[:, i : i + 6] for i in range(5)], 1).amax(1), (3, 11)),
    "unfold": (lambda x: F.unfold(x, (2, 3), (2, 1), (1, 2), (2, 1)), (2, 3, 8, 9)),
    "unfold of one": (lambda x: F.unfold(x, 3, padding=1) + 1, (3, 6, 5)),
    "unfold by steps": (lambda x: F.unfold(x, 4, stride=4), (3, 12, 16)),
    "windows on a line": (lambda x: x.unfold(-1, 40, 16) * 2, (3, 200)),
    "windows one apart": (lambda x: x.unfold(1, 3, 1) * 2, (3, 20, 4)),
    "windows over both sides": (lambda x: x.unfold(2, 8, 4).unfold(3, 6, 3) + 1, (2, 3, 24, 30)),
    "rows that overlap": (lambda x: x.as_strided((3, 5, 16), (64, 8, 1)) * 2, (3, 64)),
    "shuffle": (lambda x: F.pixel_shuffle(x, 3), (2, 18, 4, 30)),
    "shuffle by 2": (lambda x: F.pixel_shuffle(x, 2), (2, 8, 5, 9)),
    "unshuffle": (lambda x: F.pixel_unshuffle(x, 3), (2, 2, 12, 33)),
    "contiguous": (lambda x: x.contiguous(), (2, 5, 6, 9)),
    "volume": (lambda x: x.contiguous(), (2, 5, 3, 6, 4)),
}
ORDERS = {"contiguous": torch.channels_last, "volume": torch.channels_last_3d}


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    for module, name in ((picture_windows, "COPIED"), (own_memory, "TURNED")):
        monkeypatch.setattr(module, name, {})
    for name, value in {"GPU_TILE_LEAST": 16, "GPU_CROSSED": 4}.items():
        monkeypatch.setattr(costs, name, value)


@pytest.mark.parametrize("name", MOVES)
def test_moves(name):
    function, shape = MOVES[name]
    torch.manual_seed(0)
    fast = framefuse.compile(function)
    for row in range(4):
        more = {"roll": 1, "reflect": 1, "circular": 1, "contiguous": 1, "shuffle by 2": 4}.get(name, 0) * (row // 2)
        x = torch.randn([size + more for size in shape], device=DEVICE)
        x = x.to(memory_format=ORDERS.get(name, torch.contiguous_format))
        with torch.no_grad():
            found, expected = fast(x), function(x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride() and found.data_ptr() != x.data_ptr()
    for product in checked(fast, 2):
        items = [item for item in product.stages.code.schedule.items if not isinstance(item, Allocate)]
        assert items and all(isinstance(item, RunKernel) for item in items), items
        for item in items:
            assert sum(isinstance(value, Load) for value in values_of(item.kernel.body)) == 1


FOLDS = [(3, 1, 1, 1), ((4, 5), 1, (1, 2), (2, 3)), (2, 1, 0, 2), ((3, 2), (2, 1), 2, (1, 4)), (3, 1, 0, 2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", FOLDS)
def test_overlapping_windows_are_summed_by_one_kernel(how, dtype):
    fast = framefuse.compile(lambda x, high, wide: F.fold(x, (high, wide), *how))
    for row in range(4):
        high, wide = 9 + row // 2, 11
        places = F.unfold(torch.zeros(1, 1, high, wide), *how).shape[1:]
        x = torch.randn(2 + row % 2, 3 * places[0], places[1], device=DEVICE).to(dtype)
        found, expected = fast(x, high, wide), F.fold(x.double(), (high, wide), *how).to(dtype)
        if row:  # the first call is eager's, which on a CPU rounds each sum
            torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
    for product in checked(fast, 2):
        items = [item for item in product.stages.code.schedule.items if not isinstance(item, Allocate)]
        assert len(items) == 1 and isinstance(items[0], RunKernel), items


def of_pairs(x):
    a, b = x[..., 0], x[..., 1]
    return torch.stack((a * b, a + b, a - b), -1)


PIECES = {
    "stack": (of_pairs, 2),
    "cat": (lambda x: torch.cat((x * 2, x.sin(), x + 1), 1), 1),
    "first": (lambda x: torch.cat((x.cos(), x.sin())) * 2, 1),
    "borders": (lambda x: (lambda p: p[:, :-2] + p[:, 1:-1] * p[:, 2:])(F.pad(x, (0, 0, 1, 1), mode="replicate")), 3),
}


@pytest.mark.parametrize("name", PIECES)
def test_pieces_that_read_the_same_load_it_once(name):
    function, loads = PIECES[name]
    fast = framefuse.compile(function)
    for rows in (5, 5, 8, 3):
        x = torch.randn(rows, 6, 7, device=DEVICE)
        torch.testing.assert_close(fast(x), function(x))
    for product in checked(fast, 2):
        kernels = [item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel)]
        assert [sum(isinstance(v, Load) for v in values_of(kernel.body)) for kernel in kernels] == [loads]


def turned(x):
    """In the order of the other of the two layouts of pictures."""
    return x.to(memory_format=torch.channels_last)


ACROSS = {
    "pooling": lambda x: turned(F.max_pool2d(x, 3, 1, 1)),
    "sum": lambda x: turned(x + x.sin() + F.pad(x, (1, 0))[..., 1:]),
    "pieces": lambda x: torch.cat([x, *(turned(x * n).sin() for n in range(6))], 1),
}


@pytest.mark.parametrize("name", ACROSS)
def test_results_that_lie_across_operands_are_written_by_tiles(name):
    function = ACROSS[name]
    fast = framefuse.compile(function)
    for row in range(4):
        x = torch.randn(2, 12 + row // 2, 9, 13, device=DEVICE)
        with torch.no_grad():
            found, expected = fast(x), function(x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
    for product in checked(fast, 2):
        kernels = [item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel)]
        loops = [each for each in statements(kernels[0].body) if isinstance(each, Loop)]
        assert len(kernels) == 1 and sum(loop.kind is LoopKind.VECTOR for loop in loops) == 2


def test_pieces_that_lie_across_the_result_are_no_call_of_the_library():
    fast = framefuse.compile(lambda x, *ys: torch.cat([x, *ys], 1))
    for row in range(4):
        x, *ys = (torch.randn(2, 12 + row // 2, 9, 13, device=DEVICE) for _ in range(6))
        ys = list(map(turned, ys))
        found = fast(x, *ys)
        torch.testing.assert_close(found, torch.cat([x, *ys], 1))
        assert found.is_contiguous()
    for product in checked(fast, 2):
        assert sum(isinstance(item, RunKernel) for item in product.stages.code.schedule.items) == 1


@pytest.mark.skipif(DEVICE == "cpu", reason="BLAS multiplies there")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_matrices_times_vectors_are_kernels(dtype, monkeypatch):
    monkeypatch.setattr(costs, "MATRIX_VECTOR", 64)
    fast = framefuse.compile(
        lambda a, b, c: (a @ b + c, torch.mv(a[0], b).relu(), a @ b[:, None], F.linear(a, b[None], c[0, :1]).tanh())
    )
    for row in range(4):
        a, b = torch.randn(3, 40 + row, 57, device=DEVICE).to(dtype), torch.randn(57, device=DEVICE).to(dtype)
        c = torch.randn(3, 40 + row, device=DEVICE).to(dtype)
        x, y = a.double(), b.double()
        linear = (x @ y[:, None] + c[0, 0].double()).tanh()
        expected = x @ y + c, torch.mv(x[0], y).relu(), x @ y[:, None], linear
        for found, exact in zip(fast(a, b, c), expected, strict=True):
            near = {"atol": 1e-4, "rtol": 1e-4} if dtype is torch.float32 else {"atol": 0.1, "rtol": 0.02}
            torch.testing.assert_close(found, exact.to(dtype), **near)
    for product in checked(fast, 2):
        items = [item for item in product.stages.code.schedule.items if not isinstance(item, Allocate)]
        assert items and all(isinstance(item, RunKernel) for item in items), items


@pytest.mark.skipif(DEVICE == "cpu", reason="BLAS multiplies there")
def test_columns_times_vectors_stay_with_the_library(monkeypatch):
    monkeypatch.setattr(costs, "MATRIX_VECTOR", 64)
    fast = framefuse.compile(lambda a, b: a.T @ b * 2)
    for row in range(4):
        a, b = torch.randn(40 + row, 57, device=DEVICE), torch.randn(40 + row, device=DEVICE)
        torch.testing.assert_close(fast(a, b), a.T @ b * 2, atol=1e-4, rtol=1e-4)
    for product in checked(fast, 2):
        assert any(not isinstance(item, (Allocate, RunKernel)) for item in product.stages.code.schedule.items)


@pytest.mark.skipif(DEVICE == "cpu", reason="BLAS multiplies there")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_layers_with_one_output(dtype, monkeypatch):
    monkeypatch.setattr(costs, "MATRIX_VECTOR", 64)
    fast = framefuse.compile(lambda x, w, b: F.linear(x.sin(), w, b).square().mean() + (x @ w.T).sum())
    for rows in (33, 33, 48, 21):
        leaves = [torch.randn(*sizes, device=DEVICE).to(dtype) for sizes in ((rows, 57), (1, 57), (1,))]
        found, exact = [[x.detach().to(kind).requires_grad_() for x in leaves] for kind in (dtype, torch.float64)]
        fast(*found).backward()
        x, w, b = exact
        (F.linear(x.sin(), w, b).square().mean() + (x @ w.T).sum()).backward()
        near = {"atol": 1e-4, "rtol": 1e-4} if dtype is torch.float32 else {"atol": 0.3, "rtol": 0.05}
        for mine, theirs in zip(found, exact, strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad.to(dtype), **near)
    checked(fast, 2)


def test_products_of_vectors_of_three():
    for dim in (-1, 0, 1):
        fast = framefuse.compile(lambda a, b, dim=dim: torch.linalg.cross(a, b, dim=dim) * 2)
        for length in (4, 4, 5, 6):
            shape = [length, length + 1, length + 2]
            shape[dim] = 3
            flat = [size if place == dim % 3 else 1 for place, size in enumerate(shape)]
            a, b = torch.randn(shape, device=DEVICE), torch.randn(shape if length < 6 else flat, device=DEVICE)
            torch.testing.assert_close(fast(a, b), torch.linalg.cross(a, b, dim=dim) * 2)
        for product in checked(fast, 2):
            assert sum(isinstance(item, RunKernel) for item in product.stages.code.schedule.items) == 1


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_gradients_of_borders(mode):
    torch.manual_seed(0)
    fast = framefuse.compile(lambda x: F.pad(x * 2, (2, 1, 1, 2), mode=mode).sin())
    for _ in range(3):
        x = torch.randn(2, 3, 5, 6, device=DEVICE, requires_grad=True)
        y = F.pad(x * 2, (2, 1, 1, 2), mode=mode).sin()
        (expected,) = torch.autograd.grad(y.square().sum(), x)
        (found,) = torch.autograd.grad(fast(x).square().sum(), x)
        torch.testing.assert_close(found, expected)


COMPLEX = {
    "turned matrices that are copied": lambda a: torch.linalg.inv(a.mT.contiguous()).mT.contiguous(),
    "a product of a copy": lambda a: a.transpose(0, 1).contiguous() @ a.transpose(0, 1).mH,
    "rows between": lambda a: torch.lerp(a, a.movedim(0, -1).contiguous().movedim(-1, 0), a),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_are_moved_by_kernels(name):
    function, fast = COMPLEX[name], framefuse.compile(COMPLEX[name])
    for seed in range(4):
        torch.manual_seed(seed)
        a = torch.randn(5, 5, 5, dtype=torch.complex64, device=DEVICE)
        found, expected = fast(a), function(a)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        assert found.stride() == expected.stride()
    checked(fast, 3)
