"""Functions of torch that exported programs make of simpler ones: their results are eager's on other values."""

import shutil
import threading

import pytest
import torch
import torch.nn.functional as F

import framefuse

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler")


def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def whole(high, *shape):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(high))


def tensors(value):
    return [value] if hasattr(value, "__dlpack__") else [tensor for part in value for tensor in tensors(part)]


def agrees(tmp_path, f, *examples, **options):
    """Exports the function, calls it on other values, and compares with eager's."""
    path = tmp_path / "program.so"
    framefuse.export(f, examples, path, **options)
    program = framefuse.load(path)
    given = [example.flip(0).contiguous() for example in examples]
    with torch.no_grad():
        wanted = tensors(f(*given, **options.get("kwargs", {})))
    results = [torch.as_tensor(result) for result in tensors(program(*given))]
    assert len(results) == len(wanted)
    for result, want in zip(results, wanted, strict=True):
        torch.testing.assert_close(result, want, rtol=1e-4, atol=1e-5, equal_nan=True)
    return program




def written(x, places, values):
    y = x.clone()
    y[places] = values
    return y


PICTURES = drawn(2, 4, 7, 6)
PADDED = torch.nn.TransformerEncoder(
    torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
).eval()
RESAMPLED = {
    "nearest": {"scale_factor": 9},
    "nearest to a size": {"size": (9, 4)},
    "nearest exact": {"size": (13, 4), "mode": "nearest-exact"},
    "bilinear": {"scale_factor": 2, "mode": "bilinear"},
    "bilinear by a fraction": {"scale_factor": 1.7, "mode": "bilinear"},
    "bilinear aligned": {"size": (11, 1), "mode": "bilinear", "align_corners": True},
    "bicubic": {"scale_factor": 2, "mode": "bicubic"},
    "area": {"size": (3, 4), "mode": "area"},
}
DEEP, ROWS = drawn(2, 2, 5, 6, 4), drawn(2, 4, 9)
# Of each convolution: its function, input, the sizes of its weight, whether it has a bias, and what else it is given.
CONVOLVED = {
    "conv3d": (F.conv3d, DEEP, (4, 2, 3, 3, 2), True, (2, (0, 1, 1))),
    "conv3d of groups": (F.conv3d, DEEP, (6, 1, 3, 2, 3), False, ((1, 2, 1), 1, (1, 1, 2), 2)),
    "conv3d same": (F.conv3d, DEEP, (3, 2, 1, 3, 3), False, (1, "same", 2)),
    "transposed 1d": (F.conv_transpose1d, ROWS, (4, 3, 3), True, (2, 1, 1)),
    "transposed 2d": (F.conv_transpose2d, PICTURES, (4, 3, 3, 2), False, ((2, 3), (3, 0), (1, 2), 2, (2, 1))),
    "transposed 3d": (F.conv_transpose3d, DEEP, (2, 3, 3, 3, 3), True, (2, 1)),
}
OTHERS = {
    "adaptive average": (lambda x: F.adaptive_avg_pool2d(x, (3, None)), PICTURES),
    "adaptive average of all": (lambda x: F.adaptive_avg_pool2d(x, 1), PICTURES),
    "adaptive maximum": (lambda x: F.adaptive_max_pool2d(x, (3, 4)), PICTURES),
    "unfold": (lambda x: F.unfold(x, (3, 2), (1, 2), 1, (2, 1)), PICTURES),
    "fold": (lambda x: F.fold(x, (6, 6), 3, 1, 1, 2), drawn(2, 18, 9)),
    "sampled": (lambda x, t: F.grid_sample(x, t, align_corners=False), PICTURES, drawn(2, 3, 5, 2)),
    "sampled at borders": (
        lambda x, t: F.grid_sample(x, 2 * t, "nearest", "border", align_corners=True), PICTURES, drawn(2, 3, 5, 2)
    ),
    "sampled in mirrors": (
        lambda x, t: F.grid_sample(x, 3 * t, padding_mode="reflection", align_corners=True), PICTURES, drawn(2, 3, 5, 2)
    ),
    "distances": (lambda x, y: (torch.cdist(x, y), torch.cdist(x, y, 1.0)), drawn(3, 4), drawn(5, 4)),
    "kron": (lambda x, y: torch.kron(x, y), drawn(2, 3), drawn(3, 2)),
    "response norm": (lambda x: F.local_response_norm(x, 3), PICTURES),
    "bag": (torch.nn.EmbeddingBag(9, 4), whole(9, 3, 5)),
    "one hot": (lambda i: F.one_hot(i, 5), whole(5, 2, 3)),
    "scatter_add": (lambda x, i: torch.ones(3, 9).scatter_add(1, i, x), drawn(3, 4), whole(9, 3, 4)),
    "index_add": (lambda x, i: torch.ones(5, 4).index_add(0, i, x, alpha=2), drawn(3, 4), whole(5, 3)),
    "index_put": (
        lambda x, i, j: torch.ones(5, 6).index_put((i, j - 6), x, accumulate=True), drawn(3), whole(5, 3), whole(6, 3)
    ),
    "index_put by masks": (
        lambda x, y: [torch.index_put(x, (x > 0,), y[0, 0]), torch.index_put(x, [x[:, 0] > 0], y[:1], True),
                      torch.index_put(x, (x[:, 0] > 0,), y[0]), x.index_put((x[:, 0] > -9,), y, accumulate=True),
                      x.index_put((x > 9,), y[0, :1]), written(x, x[:, 0] > 0, y[1])],
        drawn(3, 4), drawn(3, 4) * 2,
    ),
    "half product": (lambda x: (x.bfloat16() @ x.bfloat16().t()).float(), drawn(3, 4)),
    "integers' product": (lambda x: x @ x.t(), whole(9, 3, 4)),
    "half net": (
        torch.nn.Sequential(torch.nn.Conv2d(4, 3, 3), torch.nn.Flatten(), torch.nn.Linear(60, 2)).bfloat16(),
        PICTURES.bfloat16(),
    ),
    "attention layer": (torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(), drawn(2, 5, 8),
                        drawn(2, 4, 8), drawn(2, 4, 8) + 1),
    "written at positions": (
        lambda x, i, v: [written(x, (slice(None), i), v[:, :, :1]), written(x, (Ellipsis, i - 3), x[:, :, :4] * 2),
                         written(x, (i % 2, slice(None), i), 0.5), written(x, (0, None, i, slice(1, 3)), v[0, 0, 0]),
                         torch.index_put(x, (i % 2, i), x[0, 0]), written(x[0].clone(), i, v[0, 0, 0])],
        drawn(2, 5, 6), torch.tensor([3, 0, 2, 1]), drawn(2, 4, 6),
    ),
    "complex products": (
        lambda x: (torch.view_as_real(torch.complex(x, x + 1) @ torch.complex(x, 2 * x).mT),
                   torch.complex(x, x + 1).matmul(torch.complex(x[0, 0], x[0, 1])).abs(),
                   torch.einsum("bij,bkj->ibk", torch.complex(x, x + 1), torch.complex(x - 2, x)),
                   torch.einsum("bij,j", torch.complex(x, x + 1), torch.complex(x[0, 0], x[0, 1]))),
        drawn(2, 3, 4),
    ),
    "padded encoder": (
        lambda x, k: (PADDED(x, src_key_padding_mask=k), *PADDED.layers[0].self_attn(x, x, x, key_padding_mask=k),
                      PADDED(x, mask=torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1]), is_causal=True)),
        drawn(2, 5, 8), torch.arange(5) > torch.tensor([[4], [2]]),
    ),
    "encoder": (
        torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval(),
        drawn(2, 5, 8),
    ),
    "quantiles": (
        lambda x, q: [x.quantile(0.3, dim=1), x.quantile(q, 1), x.quantile(q[0], 1, True), x.quantile(q, keepdim=True),
                      torch.quantile(x, torch.tensor([0.25, 0.6, 1.0]), dim=0), x.quantile(0.5),
                      *(torch.where(x > 1, torch.nan, x).nanquantile(q, 1, True, interpolation=kind)
                        for kind in ("lower", "higher", "nearest", "midpoint", "linear")),
                      torch.where(x > 1, torch.nan, x).quantile(q, 1), (x * torch.nan).nanquantile(0.2, -1)],
        drawn(3, 9), torch.tensor([0.0, 0.41, 0.9]),
    ),
    "searchsorted": (lambda x: torch.searchsorted(torch.arange(-2.0, 2.0), x, right=True), drawn(3, 4)),
    "windows": (lambda x: (x.unfold(2, 4, 2).unfold(3, 3, 2).flatten(4) + 1, x.unfold(-1, 3, 3)), PICTURES),
    "sums of products": (
        lambda x, y, z: (z[0].addbmm(x, y, beta=2), z.baddbmm(x, y, alpha=0.5),
                         torch.tensordot(x, y, ([0, 2], [0, 1]))),
        drawn(2, 3, 4), drawn(2, 4, 5), drawn(2, 3, 5),
    ),
    "several factors": (
        lambda x, y: (torch.linalg.multi_dot([x, y, x]), torch.einsum("ij,jk,kl->li", x, y, x), (x @ y).matrix_power(3),
                      torch.addr(y, x[0], y[0]), F.pdist(x)),
        drawn(4, 3), drawn(3, 4),
    ),
    "bilinear": (torch.nn.Bilinear(3, 4, 5), drawn(2, 3), drawn(2, 4)),
    "scatter": (
        lambda x, i: (torch.zeros(3, 9).scatter(1, i.sort(1)[0] + torch.arange(4), x),
                      torch.zeros(3, 9).scatter(1, i, 2.5)),
        drawn(3, 4), whole(5, 3, 4),
    ),
    "scatter_reduce": (
        lambda x, i: [torch.ones(3, 9).scatter_reduce(1, i, x, kind, include_self=own)
                      for kind in ("sum", "mean", "amax", "amin") for own in (True, False)],
        drawn(3, 4), whole(9, 3, 4),
    ),
    "integers' extremes": (
        lambda x, i: [x.scatter_reduce(1, i, i - 4, kind) for kind in ("amax", "amin", "mean")],
        whole(9, 3, 4), whole(3, 3, 4),
    ),
    "index_fill": (
        lambda x, i: (x.index_fill(1, i, 2.0), x.index_copy(1, torch.arange(6), x[:, :6])), drawn(3, 9), whole(9, 4)
    ),
    "masked_scatter": (lambda x, y: x.masked_scatter(x > 0, y), drawn(3, 9), drawn(3, 9) + 1),
    "counts": (lambda x, i: (torch.histc(x, 5, -2, 2), torch.isin(i, i[:2])), drawn(40), whole(9, 30)),
    "listed": (lambda x: (x[..., [-2], :], x[:, [2, 0, 1]] * 2, x[[1, 1]]), PICTURES),
    "made matrices": (
        lambda x, y: (x.diag_embed(), x.diag_embed(1), x.diag_embed(-2, 0, 2), torch.block_diag(x, y), torch.vander(y),
                      torch.vander(y, 3, increasing=True), torch.linalg.vander(x), torch.linalg.vander(y, N=2),
                      *torch.meshgrid(y, x[0], indexing="xy"), torch.cartesian_prod(y, x[0]), torch.combinations(y)),
        drawn(2, 3), drawn(4),
    ),
    "affine grids": (
        lambda t: [F.affine_grid(t, (2, 1, 3, 4), align_corners=each) for each in (False, True)], drawn(2, 2, 3)
    ),
    "covariances": (lambda x: (torch.cov(x), torch.corrcoef(x), torch.cov(x[0])), drawn(3, 9)),
    "covariances of integers": (lambda x: [torch.cov(x), torch.corrcoef(x)], whole(9, 3, 9)),
    "norms": (
        lambda x: (*(torch.linalg.matrix_norm(x, kind) for kind in ("fro", 1, -torch.inf)), x.renorm(2, 0, 1.0),
                   torch.trapezoid(x, dim=1), torch.trapezoid(x, x[0, 0].sort()[0])),
        drawn(3, 4, 5),
    ),
    "medians": (lambda x: (*torch.where(x > 1, torch.nan, x).nanmedian(1), x.nanmedian()), drawn(3, 8)),
    "normalised weights": (
        lambda w: F.batch_norm(w.flatten(1)[None], None, None, w[:, 0, 0, 0], training=True, momentum=0.0),
        drawn(4, 3, 2, 2),
    ),
    "triangles": (
        lambda x, y: [torch.linalg.solve_triangular(x + 3 * torch.eye(4), y, upper=each, unitriangular=one)
                      for each in (True, False) for one in (True, False)],
        drawn(4, 4), drawn(4, 2),
    ),
    "spectra": (
        lambda x: (torch.fft.fft(x).abs(), torch.fft.rfft(x, 9, norm="ortho"), torch.fft.irfft(torch.fft.rfft(x), 7),
                   torch.fft.ifft2(torch.fft.fft2(x) * 2).real, torch.fft.fftn(x, norm="forward").imag,
                   torch.fft.irfftn(torch.fft.rfftn(x), x.shape), torch.fft.ifft(x, 3)),
        drawn(3, 4, 7),
    ),
    "spectrogram": (
        lambda x: (torch.stft(x, 16, 5, 12, torch.hann_window(12), return_complex=True).abs(),
                   torch.blackman_window(9)),
        drawn(2, 64),
    ),
    "complex results": (
        lambda x, y: (torch.complex(x, y) * 2, torch.polar(x.abs(), y), torch.view_as_real(torch.polar(y, x))),
        drawn(3, 4), drawn(3, 4) + 1,
    ),
}  # fmt: skip
LAYERS = (
    torch.nn.LSTM(4, 5, 2, batch_first=True),
    torch.nn.LSTM(4, 5, 2, bidirectional=True, proj_size=3),
    torch.nn.GRU(4, 5, bias=False, bidirectional=True),
    torch.nn.RNN(4, 5, nonlinearity="relu"),
)


def test_interpolation(tmp_path):
    agrees(tmp_path, lambda x: [F.interpolate(x, **settings) for settings in RESAMPLED.values()], PICTURES)


def test_convolutions_of_other_kinds(tmp_path):
    calls = []
    for name, (function, x, sizes, biased, rest) in CONVOLVED.items():
        bias = drawn(sizes[1] if "transposed" in name else sizes[0]) if biased else None
        calls.append((function, x, drawn(*sizes), bias, rest))

    def f(*inputs):
        made = zip(calls, inputs, strict=True)
        return [function(x, weight, bias, *rest) for (function, _, weight, bias, rest), x in made]

    agrees(tmp_path, f, *(x.clone() for _, x, *_ in calls))


@pytest.mark.parametrize("first", range(0, len(OTHERS), 12))
def test_other_functions(first, tmp_path):
    chosen = list(OTHERS.values())[first : first + 12]

    def f(*inputs):
        left, results = list(inputs), []
        for function, *examples in chosen:
            results.append(function(*left[: len(examples)]))
            left = left[len(examples) :]
        return results

    agrees(tmp_path, f, *(example.clone() for _, *examples in chosen for example in examples))


def test_recurrent_layers(tmp_path):
    layers = torch.nn.ModuleList(LAYERS)
    agrees(tmp_path, lambda x: [layer(x) for layer in layers], drawn(6, 3, 4))


def test_weights_with_lengths_and_what_only_a_first_call_does(tmp_path):
    lock, once = threading.Lock(), []
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(4, 3, 3), dim=2)

    def f(x):
        if not once:
            with lock:
                once.append(1)
        return layer(x[..., 0])

    agrees(tmp_path, f, PICTURES)


def test_sizes_are_those_of_the_run(tmp_path):
    program = agrees(tmp_path, lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), PICTURES)
    x = drawn(3, 4, 9, 5)
    torch.testing.assert_close(
        torch.as_tensor(program(x)), F.interpolate(x, scale_factor=2, mode="bilinear"), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("descending", [False, True])
def test_elements_in_order(descending, tmp_path):
    values = (4 * drawn(3, 40)).round()
    strange = values.clone()
    strange[0, :8] = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-7, -1e-7])

    def f(x, y):
        results = []
        for kind in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool):
            each = x.to(kind) if kind.is_floating_point else y.to(kind)
            ordered, places = torch.sort(each, dim=-1, descending=descending, stable=True)
            first = each.sort(dim=0, descending=descending)[0]
            narrow = kind in (torch.bfloat16, torch.float16)  # which NumPy has not
            results += [places, *((part.float() if narrow else part) for part in (ordered, first))]
        return results

    agrees(tmp_path, f, strange, values)


def test_the_first_in_order(tmp_path):
    values = drawn(5, 9)
    values[1, 3] = torch.nan

    def f(x):
        top = x.topk(3, 1)
        least, at = x.kthvalue(2, 0, keepdim=True)
        return top.values, top.indices, x.topk(2, 0, largest=False)[0], least, at, *x.median(1), x.median(), x.argsort()

    agrees(tmp_path, f, values)


def test_a_position_outside_is_an_error_with_a_text(tmp_path):
    program = agrees(tmp_path, lambda x, i: torch.zeros(3, 9).scatter_add(1, i, x), drawn(3, 4), whole(9, 3, 4))
    with pytest.raises(ValueError, match="an index is out of bounds: 9 of 9"):
        program(drawn(3, 4), torch.full((3, 4), 9))


@pytest.mark.first_call
def test_what_has_no_form_is_refused_with_its_line(tmp_path):
    def f(x):
        return torch.linalg.eigvals(x)

    with pytest.raises(framefuse.UserError, match=r"return torch\.linalg\.eigvals\(x\)"):
        framefuse.export(f, (drawn(3, 3),), tmp_path / "program.so")


def test_forms_are_for_exports_alone():
    compiled = framefuse.compile(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"))
    for _ in range(2):
        compiled(PICTURES)
    assert [work.title for work in framefuse.explain(compiled).graphs[0].work] == ["interpolate"]


def equations(a, b, v):
    definite = a @ a.mT + torch.eye(a.shape[-1])
    return (
        torch.linalg.inv(definite) + 1, torch.linalg.solve(a, b), torch.linalg.solve(a[0], v), a[1].det(),
        torch.linalg.det(a) * 2, torch.linalg.cholesky(definite), (9 * v).logcumsumexp(0), torch.logcumsumexp(a, -1),
    )  # fmt: skip


def test_equations_of_matrices_agree_at_other_sizes(tmp_path):
    program = agrees(tmp_path, equations, drawn(3, 4, 4), drawn(1, 4, 2), drawn(4))
    given = drawn(2, 6, 6), drawn(1, 6, 3), drawn(6)
    for result, want in zip(program(*given), equations(*given), strict=True):
        torch.testing.assert_close(result, want, rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="a matrix is singular"):
        program(torch.zeros(2, 6, 6), *given[1:])
    program = agrees(tmp_path, torch.logcumsumexp, drawn(3, 7), kwargs={"dim": 1})
    odd = torch.tensor([[1.0, -torch.inf, torch.inf, 2.0, torch.nan, 3.0], [-torch.inf] * 6])
    torch.testing.assert_close(program(odd), torch.logcumsumexp(odd, 1), equal_nan=True)


def test_writes_in_place_slopes_and_smooth_pictures_agree(tmp_path):
    def f(x, at):
        y = (x * 2).scatter_(1, at, 9.0).index_add_(0, torch.tensor([0, 1]), x[:2], alpha=2)
        top = torch.zeros_like(x).scatter_reduce_(1, at, x[:, :2], "amax", include_self=False)
        line = torch.linspace(-2, 3, 7, dtype=torch.float64)
        return y, top, *torch.gradient(x), torch.gradient(x, spacing=2.0, dim=-1)[0], *x.round().mode(0), line

    def smooth(x):
        up = F.interpolate(x, size=(11, 3), mode="bicubic", antialias=True, align_corners=True)
        return up, F.interpolate(x, scale_factor=0.4, mode="bilinear", antialias=True)

    def again(x):
        window = torch.hann_window(16)
        spectrum = torch.stft(x, 20, 4, 16, window, return_complex=True)
        return torch.istft(spectrum, 20, 4, 16, window, length=x.shape[-1]), torch.istft(spectrum[0], 20, 4, 16, window)

    def all_of(x, at, picture, signal):
        return *f(x, at), *smooth(picture), *again(signal)

    at = torch.tensor([[0, 5], [2, 1], [3, 4], [1, 0], [5, 2]])
    agrees(tmp_path, all_of, drawn(5, 6), at, PICTURES, drawn(2, 64))


def factors(a):
    """What does not depend on the signs that factors may have."""
    definite = a @ a.mT + torch.eye(a.shape[-2], dtype=a.dtype)
    left, values, right = torch.linalg.svd(a)
    count = values.shape[-1]
    whole = (left[..., :count] * values.unsqueeze(-2)) @ right[..., :count, :]
    thin, _, wide = torch.linalg.svd(a.mT, full_matrices=False)
    eigenvalues, vectors = torch.linalg.eigh(definite)
    lower = torch.linalg.cholesky(definite)
    return (
        whole, values, left.mT @ left, (thin * values.unsqueeze(-2)) @ wide,
        eigenvalues, (vectors * eigenvalues.unsqueeze(-2)) @ vectors.mT,
        *torch.linalg.qr(a), torch.linalg.qr(a, mode="complete")[0], torch.linalg.eigvalsh(definite, UPLO="U"),
        torch.linalg.matrix_norm(a, "nuc", keepdim=True), torch.linalg.matrix_norm(a, 2), torch.linalg.matrix_rank(a),
        torch.matrix_exp(definite * 0.2), *torch.linalg.slogdet(definite - 3), torch.logdet(definite),
        torch.linalg.cholesky(definite, upper=True), torch.cholesky_solve(a, lower), torch.cholesky_inverse(lower),
        torch.linalg.solve(definite, a.mT, left=False), torch.linalg.solve(definite, a[..., 0]),
        torch.linalg.inv(definite) @ a,
    )  # fmt: skip


def test_factors_of_matrices_agree_at_other_sizes(tmp_path):
    program = agrees(tmp_path, factors, drawn(2, 5, 3))
    given = drawn(3, 7, 4)
    for result, want in zip(program(given), factors(given), strict=True):
        torch.testing.assert_close(result, want, rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="it holds what is no number"):
        program(given * torch.nan)


def test_matrices_that_lack_a_rank_agree(tmp_path):
    def f(a):
        return torch.linalg.pinv(a), torch.linalg.lstsq(a, a[:, :2]).solution, torch.linalg.solve_triangular(
            torch.tril(a, -1), a, upper=False
        ), torch.linalg.svd(a)[0].abs().sum(), a.mT, (a * 2).T, (a * 2).diagonal(1), torch.linalg.norm(a, "nuc")

    program = agrees(tmp_path, f, drawn(4, 4, dtype=torch.float64))
    given = drawn(4, 1, dtype=torch.float64) @ drawn(1, 4, dtype=torch.float64)
    for place, (result, want) in enumerate(zip(program(given), f(given), strict=True)):
        if place != 3:  # columns for values of zero may point anywhere
            torch.testing.assert_close(result, want, equal_nan=True)
    left = framefuse.load(program.path)(given)[3]
    assert torch.isfinite(left)
