"""Exported convolutions and products give eager's results for any window, layout, size and count of threads."""

import shutil

import pytest
import torch
import torch.nn.functional as F

import framefuse
from framefuse.aot import exporting
from framefuse.aot.shared_library import build

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler")

# Of each convolution: the sizes of its weight, whether it has a bias, and what else it is called with.
WINDOWS = [
    ((40, 20, 3, 3), True, {"padding": 1}),
    ((33, 20, 1, 1), False, {}),
    ((33, 20, 3, 3), False, {"padding": (0, 2)}),
    ((16, 20, 3, 3), True, {"padding": "same"}),
    ((16, 20, 1, 1), True, {"stride": 2}),
    ((24, 20, 5, 3), True, {"stride": (2, 1), "padding": (2, 0), "dilation": (1, 2)}),
    ((20, 20, 4, 3), False, {"padding": "same", "dilation": 2}),
    ((12, 5, 3, 3), True, {"groups": 4, "padding": 1}),
    ((20, 1, 3, 3), True, {"groups": 20, "padding": 1, "stride": 2}),
    ((20, 1, 5, 5), False, {"groups": 20, "padding": 4, "dilation": 2}),
    ((40, 1, 3, 3), False, {"groups": 20}),
    ((20, 1, 3, 3), True, {"groups": 20, "padding": 1, "stride": (1, 6)}),
    ((20, 1, 9, 9), False, {"groups": 20, "padding": 4, "stride": 5}),
    ((8, 20, 7, 7), True, {"padding": 3, "stride": 4}),
]


def windows(dtype=torch.float32):
    torch.manual_seed(0)
    return [(torch.randn(sizes, dtype=dtype) / 4, torch.randn(sizes[0], dtype=dtype) if bias else None, settings)
            for sizes, bias, settings in WINDOWS]  # fmt: skip


def near(result, expected, exact):
    """About as near to the exact result as eager is."""
    error, eagers = ((each.double() - exact).abs().max() for each in (result, expected))
    assert result.shape == expected.shape
    assert error <= 3 * eagers + 1e-6 * exact.abs().max()


def wide(values):
    return [(w.double(), b if b is None else b.double(), settings) for w, b, settings in values]


@pytest.mark.parametrize("channels_last", [False, True])
def test_every_window_is_eagers(channels_last, tmp_path):
    each = windows()

    def g(x, each):
        x = x.permute(0, 3, 1, 2) if channels_last else x
        return [F.conv2d(x, w, b, **settings) for w, b, settings in each]

    def f(x):
        return g(x, each)

    path, order = tmp_path / "windows.so", ((0, 2, 3, 1) if channels_last else (0, 1, 2, 3))
    framefuse.export(f, (torch.randn(2, 20, 16, 13).permute(order).contiguous(),), path)
    program = framefuse.load(path)
    for threads, sizes in ((1, (2, 20, 14, 17)), (3, (1, 20, 9, 30)), (2, (3, 20, 61, 52)), (1, (2, 20, 14, 17))):
        program.set_threads(threads)
        x = torch.randn(sizes).permute(order).contiguous()
        exact = g(x.double(), wide(each))
        for result, expected, true in zip(program(x), f(x), exact, strict=True):
            near(result, expected, true)


def test_windows_of_three_by_three_have_eagers_infinities_and_follow_their_weights(tmp_path):
    model = torch.nn.Conv2d(20, 24, 3, padding=1)
    with torch.no_grad():
        model.weight[:, 3] *= 100
    path = tmp_path / "squares.so"
    framefuse.export(model, (torch.randn(1, 16, 18, 20).permute(0, 3, 1, 2),), path)
    program = framefuse.load(path)
    for value in (float("inf"), float("nan"), 3e38, -3e38, 1.0):
        x = torch.randn(2, 21, 14, 20).permute(0, 3, 1, 2)
        x[1, 3, 7, 5] = value
        result, expected = program(x), model(x)
        same = expected.isfinite()
        assert torch.equal(result.isfinite(), same) and torch.equal(result.isnan(), expected.isnan())
        torch.testing.assert_close(result[same], expected[same], rtol=1e-5, atol=1e-4)
    with torch.no_grad():
        model.weight.mul_(-2)
    program.update_constants({"weight": model.weight.detach()})
    torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=1e-4)


def test_weights_take_what_follows_for_each_channel_and_follow_later_weights(tmp_path):
    model = torch.nn.Sequential(
        torch.nn.Conv2d(16, 24, 1, bias=False), torch.nn.BatchNorm2d(24), torch.nn.Hardswish(),
        torch.nn.Conv2d(24, 24, 3, padding=1, groups=24), torch.nn.BatchNorm2d(24), torch.nn.ReLU(),
        torch.nn.Conv2d(24, 32, 3, padding=1), torch.nn.BatchNorm2d(32),
    ).eval()  # fmt: skip
    numbers = {name: tensor for name, tensor in model.state_dict().items() if "num_batches" not in name}
    for name, tensor in numbers.items():
        tensor.copy_(torch.rand_like(tensor) + 0.5 if "var" in name else torch.randn_like(tensor))
    path = tmp_path / "norms.so"
    framefuse.export(model, (torch.randn(1, 16, 12, 13),), path)
    first, second = framefuse.load(path), framefuse.load(path)

    def check(program):
        for sizes in ((2, 16, 14, 15), (1, 16, 9, 20)):
            x = torch.randn(sizes)
            near(program(x), model(x), model.double()(x.double()))
            model.float()

    with torch.no_grad():
        check(first)
        check(second)
        before, x = first(torch.ones(1, 16, 8, 8)), torch.ones(1, 16, 8, 8)
        for name in ("1.weight", "4.running_var", "3.bias", "7.running_mean", "6.weight"):
            model.state_dict()[name].mul_(1.5)
            second.update_constants({name: model.state_dict()[name].clone()})
        check(second)
        assert torch.equal(first(x), before) and torch.equal(framefuse.load(path)(x), before)


class Block(torch.nn.Module):
    """A residual block: activations behind each kind of convolution, and a sum."""

    def __init__(self, channels):
        super().__init__()
        self.narrow, self.norm = torch.nn.Conv2d(16, channels, 1, bias=False), torch.nn.BatchNorm2d(channels)
        self.alone = torch.nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.strided = torch.nn.Conv2d(channels, channels, 5, padding=2, groups=channels, stride=2)
        self.wide = torch.nn.Conv2d(channels, channels, 3, padding=1)
        self.grouped = torch.nn.Conv2d(channels, 16, 3, padding=1, groups=2)

    def forward(self, x):
        y = F.hardswish(self.norm(self.narrow(x)))
        z = torch.relu(self.wide(F.silu(self.alone(y))) + y)
        w = F.gelu(self.grouped(z)) * 2
        return w, F.relu6(self.strided(z)).mean((2, 3)), torch.tanh(self.grouped(w.repeat(1, 2, 1, 1)[:, : z.shape[1]]))


@pytest.mark.parametrize("channels", [16, 20, 32])
def test_activations_and_sums_follow_convolutions(channels, tmp_path):
    torch.manual_seed(channels)
    model = Block(channels).eval()
    path = tmp_path / "block.so"
    framefuse.export(model, (torch.randn(1, 16, 12, 13),), path)
    program = framefuse.load(path)
    with torch.no_grad():
        for threads, sizes in ((1, (2, 16, 14, 15)), (1, (1, 16, 57, 40)), (3, (3, 16, 31, 22)), (1, (1, 16, 3, 2))):
            program.set_threads(threads)
            x = torch.randn(sizes)
            exact = model.double()(x.double())
            for result, expected, true in zip(program(x), model.float()(x), exact, strict=True):
                near(result, expected, true)
        x = torch.randn(2, 16, 26, 27)
        x[0, 3, 22, 1] = float("inf")
        for threads in (1, 3):
            program.set_threads(threads)
            for result, expected in zip(program(x), model(x), strict=True):
                torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_what_follows_each_convolution_of_a_chain_is_its_tail(tmp_path, monkeypatch):
    model = torch.nn.Sequential(
        torch.nn.Conv2d(8, 24, 3, padding=1), torch.nn.SiLU(), torch.nn.Conv2d(24, 24, 5, padding=2, groups=24),
        torch.nn.ReLU(), torch.nn.Conv2d(24, 16, 1), torch.nn.Hardswish(), torch.nn.Conv2d(16, 4, 1),
    ).eval()  # fmt: skip
    made = []
    monkeypatch.setattr(exporting, "build", lambda program, *rest: made.append(program) or build(program, *rest))
    framefuse.export(model, (torch.randn(2, 8, 12, 13),), tmp_path / "chain.so")
    assert len(made[0].tails) == 3
    program = framefuse.load(tmp_path / "chain.so")
    for threads in (1, 2, 5):  # rows that no thread has, one has, or several have
        program.set_threads(threads)
        for sizes in ((1, 8, 1, 1), (1, 8, 5, 5), (1, 8, 7, 7), (3, 8, 14, 15), (1, 8, 61, 40)):
            x = torch.randn(sizes)
            torch.testing.assert_close(program(x), model(x).detach(), rtol=1e-4, atol=1e-5)


class Residual(torch.nn.Module):
    """Adds what the convolution itself reads, and what was there before."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(24, 24, 3, padding=1)
        self.second = torch.nn.Conv2d(24, 24, 3, padding=1, bias=False)

    def forward(self, x, bump):
        x = F.silu(self.first(x)) + x
        y = F.silu(self.second(x)) + x
        return (self.second(self.first(y).relu() + bump) + y.exp()).tanh()


@pytest.mark.parametrize("blocks", [1, 3])
def test_what_follows_a_convolution_writes_over_nothing_that_it_reads(blocks, tmp_path):
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(Residual() for _ in range(blocks)).eval()

    def f(x, bump):
        for layer in layers:
            x = layer(x, bump)
        return x

    path = tmp_path / "residual.so"
    with torch.no_grad():
        framefuse.export(f, (torch.randn(1, 24, 12, 13), torch.randn(1, 24, 12, 13)), path)
        program = framefuse.load(path)
        for threads, sizes in ((1, (2, 24, 48, 48)), (2, (2, 24, 48, 48)), (1, (1, 24, 5, 3))):
            program.set_threads(threads)
            given = torch.randn(sizes), torch.randn(sizes)
            torch.testing.assert_close(program(*given), f(*given), rtol=1e-5, atol=1e-5)
        x, bump = torch.randn(2, 24, 48, 48), torch.randn(2, 24, 48, 48)
        bump[0, 3, 20, 21] = float("inf")  # eager's sums are infinite there, and their tanh is not
        for threads in (1, 2):
            program.set_threads(threads)
            torch.testing.assert_close(program(x, bump), f(x, bump), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_convolution_that_nobody_reads_asks_for_its_sizes_alone(tmp_path):
    first, second = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.Conv2d(8, 4, 5)

    def f(x):
        y = first(x).relu()
        second(y)
        return y

    path = tmp_path / "unread.so"
    framefuse.export(f, (torch.randn(2, 8, 12, 13),), path)
    program, x = framefuse.load(path), torch.randn(1, 8, 20, 9)
    torch.testing.assert_close(program(x), f(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="do not fit together"):
        program(torch.randn(1, 8, 4, 9))


def test_other_dtypes_ranks_and_weights_of_the_caller(tmp_path):
    line, few = torch.randn(6, 4, 5), torch.randn(24, 3, 7, 7)
    double = torch.randn(7, 3, 3, 3).double()

    def f(x, w, picture):
        lines = F.conv1d(x, line, stride=2, padding=3), F.conv1d(x[0], w, padding="same", groups=2, dilation=2)
        return *lines, F.conv2d(picture, few, stride=2, padding=3), F.conv2d(picture.double(), double, padding=1)

    path = tmp_path / "others.so"
    framefuse.export(f, (torch.randn(2, 4, 16), torch.randn(6, 2, 4), torch.randn(1, 3, 20, 21)), path)
    program = framefuse.load(path)
    for length in (9, 40):
        given = torch.randn(2, 4, length), torch.randn(6, 2, 4), torch.randn(2, 3, length + 3, 30)
        for result, expected in zip(program(*given), f(*given), strict=True):
            torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-5)


def test_a_network_of_pictures_and_its_replaced_weights(tmp_path):
    torch.manual_seed(0)

    def network():
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 24, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(24), torch.nn.Hardswish(),
            torch.nn.Conv2d(24, 24, 5, 1, 2, groups=24), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1),
            torch.nn.Conv2d(24, 40, 1), torch.nn.SiLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
            torch.nn.Linear(40, 10),
        ).eval()  # fmt: skip

    model, other, path = network(), network(), tmp_path / "network.so"
    framefuse.export(model, (torch.randn(2, 3, 32, 32),), path)
    program, second = framefuse.load(path), framefuse.load(path, threads=2)
    x = torch.randn(3, 3, 45, 38)
    torch.testing.assert_close(program(x), model(x).detach())
    program.update_constants({name: t for name, t in other.state_dict().items() if t.ndim})
    torch.testing.assert_close(program(x), other(x).detach())
    torch.testing.assert_close(second(x), model(x).detach())
    program.update_constants({name: t for name, t in model.state_dict().items() if t.ndim})
    del second
    torch.testing.assert_close(program(x), model(x).detach())


def test_products_of_few_rows_and_of_parts(tmp_path):
    table = torch.randn(70, 300)

    def f(x, y, z):
        first = x @ table[: x.shape[1]]  # another part of the weight in each call
        return first, y @ z, y @ z.transpose(1, 2).contiguous().transpose(1, 2), x.T @ x

    path = tmp_path / "products.so"
    framefuse.export(f, (torch.randn(2, 33), torch.randn(3, 5, 64), torch.randn(3, 64, 48)), path)
    program = framefuse.load(path)
    for rows, columns, threads in ((1, 33, 1), (3, 70, 2), (50, 9, 1), (600, 33, 2)):
        program.set_threads(threads)
        given = torch.randn(rows, columns), torch.randn(4, rows, columns), torch.randn(4, columns, 48)
        for result, expected in zip(program(*given), f(*given), strict=True):
            torch.testing.assert_close(result, expected, atol=2e-4, rtol=1e-5)


def test_windows_of_integers_are_refused_at_their_line(tmp_path):
    w = torch.ones(3, 3, 2, 2, dtype=torch.int64)
    x = torch.ones(1, 3, 5, 5, dtype=torch.int64)
    with pytest.raises(framefuse.UserError, match=r"test_convolutions\.py:\d+ in (?s:.*)conv2d of int64"):
        framefuse.export(lambda x: F.conv2d(x, w), (x,), tmp_path / "refused.so")


def test_volumes_in_batches_of_one_and_more(tmp_path):
    forward, back = torch.nn.Conv3d(2, 4, 3, padding=1), torch.nn.ConvTranspose3d(4, 2, 2, 2)

    def f(x):
        return back(forward(x))

    path = tmp_path / "volumes.so"
    with torch.no_grad():
        framefuse.export(f, (torch.randn(2, 2, 4, 5, 6),), path)
        program = framefuse.load(path)
        for sizes in ((2, 2, 4, 5, 6), (1, 2, 5, 4, 3), (3, 2, 1, 4, 1)):
            x = torch.randn(sizes)
            torch.testing.assert_close(program(x), f(x), rtol=1e-4, atol=1e-5)


def held():
    """Products of what lies channels-last, where the pictures do or convolutions are, and may not lie otherwise."""
    c, d = torch.randn(32, 16, 1, 1) / 4, torch.randn(16, 16, 3, 3) / 12

    def result(x, v):
        return F.conv2d(x, c) @ torch.cat([v, v], 1)

    def copied(x, v):
        return F.conv2d(x.softmax(-1), c).contiguous() @ torch.cat([v, v], 1)

    def given(x, v):
        return x @ v, v.mT @ x.exp()

    def shown(x, v):
        a = x.relu()
        return a, a @ v, a[:, :, 0] @ v[:, 0]

    def called(x, v):
        a = x.relu()
        return F.conv2d(a, d), a @ v, x @ a.mT

    def between(x, v):
        return F.conv2d(F.conv2d(x, d, padding=1) @ (v @ v.mT), d)

    def lines(x, v):
        a = x.relu()
        return a.permute(0, 2, 3, 1) @ d[0, :, :, 0], a @ v

    return result, copied, given, shown, called, between, lines


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("number", range(7))
def test_products_read_what_lies_channels_last(number, last, tmp_path):
    f = held()[number]

    def inputs(*sizes):
        x = torch.randn(sizes).to(memory_format=torch.channels_last if last else torch.contiguous_format)
        return x, torch.randn(*sizes[:2], sizes[3], 5)

    path = tmp_path / "products.so"
    framefuse.export(f, inputs(2, 16, 8, 8), path)
    program = framefuse.load(path)
    for sizes in ((2, 16, 8, 8), (3, 16, 8, 8)):
        x, v = inputs(*sizes)
        results, expected = program(x, v), f(x, v)
        torch.testing.assert_close(results, expected if isinstance(expected, torch.Tensor) else list(expected))
