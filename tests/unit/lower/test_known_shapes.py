"""Library calls whose result sizes follow from the operands' sizes: one trace serves other sizes."""

import functools

import pytest
import torch
import torch.nn.functional as F

import framefuse


def patches(x):
    y = F.unfold(x, (3, 2), padding=1, stride=(2, 1))
    return y.reshape(y.shape[0], -1, 6, y.shape[-1]) * 2


def folded(x):
    height, width = x.shape[-2:]
    return F.fold(F.unfold(x, 3, padding=1, stride=2), (height, width), 3, padding=1, stride=2) + x


def windows(x):
    y = x.unfold(2, 3, 2).unfold(3, 2, 1)
    return y.reshape(*y.shape[:4], 6) + 1


def listed(x):
    return x[:, [2, 0, 0]].reshape(x.shape[0], 3, -1) * 2, x[[0, 0]] + 1, x[:, :, [0, -1]] - 1


def counted(x):
    return torch.histc(x, bins=5, min=-1, max=1).reshape(5) / x.numel()


def areas(x):
    return torch.trapezoid(x).reshape(x.shape[0], -1) * 2, torch.trapz(x, dx=0.5, dim=1) + 1


def of_numbers(x):
    count = x.shape[0]
    few = torch.tensor([[count, 0.5], [1, count * 2]]).reshape(4), x.new_tensor([count], dtype=torch.int64).expand(9)
    many = torch.tensor([count, 1j]).reshape(2, 1), torch.as_tensor([count] * 20).reshape(4, 5), x.new_tensor(count)
    return *few, *many, torch.tensor([True, False]) | (x.sum() > 0)


def counted_down(x):
    count = x.shape[-1]
    down = torch.arange(count, -count, -1.0), torch.arange(0, count, 2.0, dtype=torch.int64)
    return [each.view(1, -1) * 2 for each in (*down, torch.arange(1, count, 3.0))]


def of_matrices(x):
    square = x @ x.mT + torch.eye(x.shape[-2])
    q, r = torch.linalg.qr(x)
    factor, values = torch.linalg.cholesky(square), torch.linalg.svd(x, full_matrices=False)[1]
    solved = torch.linalg.solve(square, x) @ x.mT, torch.cholesky_solve(x, factor).reshape(x.shape) + 1
    alike = torch.linalg.inv(square) @ x, (q @ r).reshape(-1), torch.linalg.pinv(x).mT @ x.mT
    return *solved, *alike, values.sum(-1) * torch.logdet(square), torch.linalg.eigvalsh(square).reshape(-1, 1) + 1


def of_fused_layers():
    """What torch takes in evaluation instead of a layer, or of attention alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1
        for settings in ({}, {"need_weights": False}, {"average_attn_weights": False}):
            yield functools.partial(torch.nn.MultiheadAttention(16, 2, batch_first=True).eval(), **settings), 3
        yield torch.nn.Transformer(16, 2, 1, 1, 32, batch_first=True), 2


@torch.no_grad()
@pytest.mark.parametrize("called, count", list(of_fused_layers()))
def test_fused_layers_of_torch_are_read_by_what_follows(called, count):
    if isinstance(called, torch.nn.Module):
        called.eval()

    def f(*inputs):
        found = called(*inputs)
        return [y.view(y.shape[0], -1) * 2 for y in (found if type(found) is tuple else (found,)) if y is not None]

    fast = framefuse.compile(f, fullgraph=True)
    for batch, rows in ((2, 5), (3, 5), (3, 7), (4, 6)):
        x = torch.randn(batch, rows, 16)
        inputs = (x,) if count == 1 else (x,) * 3 if count == 3 else (x, torch.randn(batch, 4, 16))
        torch.testing.assert_close(fast(*inputs), f(*inputs))
    assert fast.__framefuse__.dispatch.hits >= 2, fast.__framefuse__.reasons


@pytest.mark.parametrize("function", [patches, folded, windows, listed, counted, areas, of_numbers, counted_down])
def test_other_sizes(function):
    fast = framefuse.compile(function, fullgraph=True)
    state = fast.__framefuse__
    for sizes in ((1, 3, 8, 9), (2, 3, 8, 9), (2, 4, 11, 7), (1, 3, 5, 12)):
        x = torch.randn(sizes)
        torch.testing.assert_close(fast(x), function(x))
    assert state.dispatch.hits >= 3, (state.reasons, len(state.products))


def test_what_is_computed_of_matrices():
    fast = framefuse.compile(of_matrices, fullgraph=True)
    for sizes in ((2, 4, 9), (2, 4, 9), (3, 5, 11), (5, 2, 7)):
        x = torch.randn(sizes, dtype=torch.float64)
        torch.testing.assert_close(fast(x), of_matrices(x))
    assert fast.__framefuse__.dispatch.hits == 3


def test_products_of_integers():
    def function(x):
        rows = (x * 5).to(torch.int8).reshape(-1, x.shape[-1])
        product = torch._int_mm(rows, rows.t()).float().reshape(*x.shape[:-1], -1)
        product += 1
        packed = torch._weight_int8pack_mm(x.new_ones(3, 32).bfloat16(), weight, scales)
        return product, packed.view(-1)[: x.shape[0]] * 2

    weight, scales = torch.ones(32, 32, dtype=torch.int8), torch.ones(32, dtype=torch.bfloat16)
    fast = framefuse.compile(function, fullgraph=True)
    for sizes in ((2, 8, 9), (3, 8, 9), (4, 7, 12), (5, 3, 11)):
        x = torch.randn(sizes)
        torch.testing.assert_close(fast(x), function(x))
    assert fast.__framefuse__.dispatch.hits == 3


def chosen(x):
    middle, place = x.flatten(2).median(-1)
    often, third = x.mode(1, keepdim=True)[0], torch.kthvalue(x, 3, dim=2)
    return middle.reshape(-1) + place.flatten(), often * 2 + x, third.values.reshape(-1, x.shape[3]), x.nanmedian() + 1


def of_points(x):
    """What is behind a call of the library, whose sizes it needs."""
    near = torch.cdist(x[0], x[0, :1]).amin(-1).reshape(x.shape[1], -1) * 2, torch.pdist(x[0, 0]).view(-1, 1) + 1
    level = torch.quantile(x, 0.3, dim=2, keepdim=True), torch.nanquantile(x, torch.tensor([0.2, 0.7]), 3)
    every = torch.quantile(x, 0.5).view(1, 1) * 2, torch.special.polygamma(1, x.abs() + 1).view(x.shape[0], -1) + 1
    grid = x[:, 0, :, :2].tanh().unsqueeze(1)
    seen = F.grid_sample(x, grid, "nearest", align_corners=False).sum(1)
    return *near, (x - level[0]).flatten(), level[1].reshape(2, -1) + 1, *every, seen


def of_bags(x):
    places = torch.arange(x.shape[-1] * 2).view(2, -1) % x.shape[2]
    starts = torch.arange(x.shape[0]) * 2
    table = x[0, 0]
    whole, ends = F.embedding_bag(places, table).view(-1, 1), torch.cat((starts, starts.new_full((1,), places.numel())))
    bags = F.embedding_bag(places.view(-1), table, starts, mode="sum").view(-1) * 2
    return whole + 1, bags, F.embedding_bag(places.view(-1), table, ends, mode="max", include_last_offset=True).view(-1)


def of_sound(x):
    sound, window = x.flatten(1), torch.hann_window(16)
    seen = torch.stft(sound, 16, 5, window=window, return_complex=True)
    other = torch.stft(sound[0], 12, center=False, onesided=False, return_complex=True)
    third = torch.stft(sound, 16, 4, 12, pad_mode="constant", normalized=True, return_complex=True).abs()
    return (seen.abs() ** 2).flatten(1).amax(1), other.abs().reshape(-1) * 2, third.reshape(x.shape[0], -1) + 1


def of_waves(x):
    """Each transform by its own sizes and by others."""
    count = x.shape[2]
    lines = torch.fft.rfft(x, n=20), torch.fft.rfft(x), torch.fft.fft(x, dim=2), torch.fft.ifft(x, count * 2, 1)
    back = torch.fft.irfft(lines[1]), torch.fft.irfft(lines[1], n=x.shape[-1]), torch.fft.hfft(x, dim=2)
    wide = torch.fft.rfft2(x), torch.fft.irfft2(lines[1], (-1, 7)), torch.fft.rfftn(x, (count, 6)), torch.fft.fftn(x)
    other = torch.fft.fftshift(x), torch.fft.ihfft(x, dim=-2), torch.fft.irfftn(lines[0], dim=(0, 2)), torch.fft.fft2(x)
    return [y.abs().reshape(-1) * 2 for y in (*lines, *back, *wide, *other)]


def of_sound_again(x):
    sound, window = x.flatten(1), torch.hann_window(16)
    seen = torch.stft(sound, 16, 4, window=window, return_complex=True)
    plain = torch.ones(15)
    odd = torch.stft(sound[0], 15, 3, window=plain, return_complex=True)
    again = torch.istft(seen, 16, 4, window=window), torch.istft(seen, 16, 4, window=window, length=30)
    return [y.reshape(1, -1) * 2 for y in (*again, torch.istft(odd, 15, 3, window=plain))]


def of_single_calls(x):
    count, places = x.shape[2], torch.arange(x.shape[2])
    grid = F.affine_grid(x[:, 0, :2, :3], (x.shape[0], 3, count, 5), align_corners=False)
    most = x[0, 0].index_reduce(0, places, x[0, 0] * 2, "amax").reshape(-1) * 2
    powers = torch.vander(x[0, 0, 0]).view(-1) * 2, torch.vander(x[0, 0, 0], N=3).flatten() + 1
    inside = torch.isin(places, torch.tensor([1, 3])).view(-1, 1) * x[0, 0]
    square = x @ x.mT + 3 * torch.eye(count)
    factor, pivots = torch.linalg.lu_factor(square)
    solved = torch.linalg.lu_solve(factor, pivots, x).reshape(-1) * 2
    mixed = F.bilinear(x[0, 0], x[0, 1], x.new_ones(3, x.shape[3], x.shape[3])).view(-1) * 2
    found = torch.nonzero_static(x[0, 0] > 0, size=3).view(-1) + 1, torch.histogram(x, 5)[0].view(5, 1) * 2
    return grid.view(-1) * 2, most, *powers, inside, factor.reshape(-1) * 2, pivots.view(-1) + 1, solved, mixed, *found


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta")
@pytest.mark.parametrize("function", [of_points, of_bags, of_sound, of_waves, of_sound_again, of_single_calls])
def test_what_is_behind_a_call_knows_its_sizes(function):
    fast = framefuse.compile(function, fullgraph=True)
    for sizes in ((1, 3, 8, 9), (2, 3, 8, 9), (2, 4, 11, 7), (3, 2, 5, 12)):
        x = torch.randn(sizes)
        for mine, other in zip(fast(x), function(x), strict=True):
            torch.testing.assert_close(mine, other)
            assert mine.stride() == other.stride()
    state = fast.__framefuse__
    assert state.dispatch.hits >= 2 and not state.reasons, (state.reasons, len(state.products))
    for product in state.products:
        assert not product.stages.lowered.bound, "sizes that are known only while it runs"


def test_one_chosen_along_a_dimension():
    fast = framefuse.compile(chosen)
    for sizes in ((1, 3, 8, 9), (2, 3, 8, 9), (2, 4, 11, 7), (1, 1, 3, 12), (2, 2, 5, 1)):
        x = torch.randn(sizes)
        for mine, other in zip(fast(x), chosen(x), strict=True):
            torch.testing.assert_close(mine, other)
    assert fast.hits >= 3
    with pytest.raises(RuntimeError):  # no third one: eager's error
        fast(torch.randn(1, 3, 2, 4))


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("first", [3, 4, 5, 20])
@pytest.mark.parametrize("shape", [(), (4,)])
def test_what_is_computed_from_windows_lies_as_under_eager(given, first, shape):
    """Windows one element apart and the elements of each have one stride: sizes decide which lie further apart."""
    function = (lambda x: x * 2) if given else (lambda x: x.unfold(-1, 3, 1) * 2)
    fast = framefuse.compile(function)
    for size in (first, first, 20, 12, 6, 5, 4, 3, 30):
        x = torch.randn(*shape, size)
        x = x.unfold(-1, 3, 1) if given else x
        made, expected = fast(x), function(x)
        torch.testing.assert_close(made, expected)
        strides = ([n for n, size in zip(t.stride(), t.shape, strict=True) if size > 1] for t in (made, expected))
        assert next(strides) == next(strides), size
    assert fast.__framefuse__.dispatch.hits >= 5


def test_a_list_is_read_at_each_call():
    places = [1, 0]
    fast = framefuse.compile(lambda x: x[places] * 2)
    x = torch.randn(4, 3)
    torch.testing.assert_close(fast(x), x[[1, 0]] * 2)
    places.append(3)
    for _ in range(2):
        x = torch.randn(4, 3)
        torch.testing.assert_close(fast(x), x[[1, 0, 3]] * 2)


def test_repeated_a_number_of_times_has_known_sizes():
    fast = framefuse.compile(lambda x: [row + 1 for row in x.repeat_interleave(2, 0)])
    for _ in range(2):
        x = torch.randn(3, 4)
        torch.testing.assert_close(fast(x), [row + 1 for row in x.repeat_interleave(2, 0)])
    assert fast.__framefuse__.dispatch.hits == 1, fast.__framefuse__.reasons


@pytest.mark.parametrize("product", [torch._grouped_mm, F.grouped_mm])
def test_experts_of_one_grouped_product_are_one_graph(product):
    """Torch's form without data refuses float32, so sizes of the product would be known only at run time."""

    def experts(x, weights, counts):
        gate, up = product(x, weights, offs=counts).chunk(2, dim=-1)
        return F.silu(gate) * up + x[:, :4]

    fast = framefuse.compile(experts)
    weights, counts = torch.randn(3, 8, 8), torch.tensor([2, 3, 6], dtype=torch.int32)
    for more in (0, 2, 4, 1):
        given = torch.randn(6 + more, 8), weights, counts + torch.tensor([0, 0, more], dtype=torch.int32)
        torch.testing.assert_close(fast(*given), experts(*given))
    state = fast.__framefuse__
    assert len(state.products) == 1 and not state.breaks and state.dispatch.hits >= 2


def test_several_grouped_products_without_offsets():
    fast = framefuse.compile(lambda x, y: F.grouped_mm(x, y).relu().reshape(-1))
    for groups in (2, 2, 5, 3):
        x, y = torch.randn(groups, 4, 8), torch.randn(groups, 8, 12)
        torch.testing.assert_close(fast(x, y), F.grouped_mm(x, y).relu().reshape(-1))
    assert fast.__framefuse__.dispatch.hits >= 2


def test_a_tensor_given_to_as_tensor_stays_one():
    def f(x, y):
        wide = torch.as_tensor(x.sin(), dtype=torch.float64, device=torch.device("cpu"))
        torch.as_tensor(y).add_(1)
        return torch.as_tensor(wide) * 2 + y, torch.as_tensor(x)

    fast = framefuse.compile(f)
    for size in (3, 3, 5):
        x, y, ours = torch.randn(size), torch.zeros(size), torch.zeros(size)
        made = fast(x, ours)
        torch.testing.assert_close(made, f(x, y))
        assert made[1] is x and torch.equal(ours, y)
    (graph,) = framefuse.explain(fast).graphs
    assert [work.kind for work in graph.work] == ["kernel"] * len(graph.work)
