"""Functions that lowering builds of several primitives have eager's gradients, where a part overflows as well."""

import pytest
import torch
from tests.unit.autodiff.gradient_graphs import check_lowered, lowered, trace_of
from torch.nn import functional as F

import framefuse
from framefuse.api import compiled_function
from framefuse.autodiff import halves

POINTS = [
    -float("inf"), -1e30, -1e4, -200.0, -100.0, -50.0, -20.0, -3.0, -1.0, -0.5, -0.3, -0.0, 0.0, 0.2, 0.5, 1.0, 2.0,
    3.0, 5.0, 6.0, 20.0, 25.0, 50.0, 100.0, 200.0, 1e4, 1e30, float("inf"), float("nan"),
]  # fmt: skip
UNARY = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.5),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp_min": lambda x: x.clamp(min=0.5),
    "clamp_max": lambda x: x.clamp_max(0.5),
    "leaky_relu": F.leaky_relu,
    "silu": F.silu,
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": F.elu,
    "elu_alpha": lambda x: F.elu(x, 0.7),
    "celu": lambda x: F.celu(x, 2.0),
    "selu": F.selu,
    "softplus": F.softplus,
    "softplus_beta": lambda x: F.softplus(x, 2.0, 10.0),
    "logsigmoid": F.logsigmoid,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.5, 7.0),
    "softsign": F.softsign,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "logit": torch.logit,
    "logit_eps": lambda x: torch.logit(x, 0.2),
    "logit_no_eps": lambda x: torch.logit(x, -1),
    "sinc": torch.sinc,
    "nan_to_num": torch.nan_to_num,
    "square": torch.square,
    "cube": lambda x: x**3,
    "root": lambda x: x**0.5,
    "inverse_root": lambda x: x**-0.5,
    "inverse": lambda x: x**-1,
    "inverse_square": lambda x: x**-2,
    "one": lambda x: x**0,
    "power": lambda x: x**2.5,
    "exp2": lambda x: 2**x,
    "base": lambda x: 1.7**x,
    "one_base": lambda x: 1**x,
    "reciprocal": lambda x: 3 / x,
    "abs": torch.abs,
    "frac": torch.frac,
    "fill": lambda x: torch.fill(x, 3.0),
    "log1p": torch.log1p,
    "rsqrt": torch.rsqrt,
    "remainder": lambda x: x % 3,
    "masked": lambda x: x.masked_fill(x > 0, 2.0),
    "trunc": lambda x: torch.div(x, 3, rounding_mode="trunc"),
}
BINARY = {
    "prelu": lambda x, y: torch.where(x > 0, x, x * y),
    "clamp": lambda x, y: x.clamp(y, y + 1),
    "clamp_crossed": lambda x, y: x.clamp(y + 1, y),
    "clamp_min": lambda x, y: x.clamp(min=y),
    "clamp_max": lambda x, y: x.clamp(max=y),
    "xlogy": torch.xlogy,
    "logaddexp": torch.logaddexp,
    "maximum": torch.maximum,
    "fmin": torch.fmin,
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.5),
    "smooth_l1_beta": lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.5),
    "l1": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "mse": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "hypot": torch.hypot,
    "poisson": lambda x, y: F.poisson_nll_loss(x, y, reduction="none"),
    "kl": lambda x, y: F.kl_div(x, y, reduction="none"),
    "kl_log": lambda x, y: F.kl_div(x, y, reduction="none", log_target=True),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    points = torch.tensor(POINTS, dtype=dtype)
    if name in ("logit", "logit_no_eps"):  # eager's two kernels differ at -0
        points = points[~((points == 0) & points.signbit())]
    points = points.repeat(32)  # whole vectors: of NaN eager's kernels for what is left over give other gradients
    check_lowered(UNARY[name], points)


@pytest.mark.parametrize("name", UNARY)
def test_unary_in_16_bits(name):
    """Digits of 16 bits; a function of several roundings may differ from eager by some of them."""
    torch.manual_seed(0)
    check_lowered(UNARY[name], torch.randn(200, dtype=torch.bfloat16).abs() + 0.1, rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, dtype):
    x, y = (
        column.clone()
        for column in torch.cartesian_prod(*[torch.tensor([*POINTS[3:-4], float("nan")], dtype=dtype)] * 2).unbind(1)
    )
    check_lowered(BINARY[name], x, y)


ROWS = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(1),
    "softmin": lambda x: F.softmin(x, 0),
    "logsumexp": lambda x: x.logsumexp(1),
    "norm": lambda x: x.norm(),
    "norm_rows": lambda x: x.norm(dim=1),
    "norm1": lambda x: x.norm(1, 0),
    "norm3": lambda x: x.norm(3, 1),
    "norm_half": lambda x: x.norm(0.5, 1),
    "pairwise": lambda x: F.pairwise_distance(x, x.flip(0) * 2),
    "pairwise_cubes": lambda x: F.pairwise_distance(x, x[:1] * 2, 3.0, keepdim=True),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf"), 1),
    "std": lambda x: x.std(1),
    "var": lambda x: x.var(0, correction=0),
    "std_mean": lambda x: torch.std_mean(x, 1),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "normalize": lambda x: F.normalize(x),
    "group_norm": lambda x: F.group_norm(x, 3),
    "rms_norm": lambda x: F.rms_norm(x, (6,)),
    "max": lambda x: x.max(),
    "max_rows": lambda x: x.max(1)[0],
    "min_kept": lambda x: x.min(0, keepdim=True)[0],
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "prod": lambda x: x.prod(1),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(0)),
    "nanmean": lambda x: x.nanmean(1),
    "nansum": lambda x: x.nansum(0),
    "glu": lambda x: F.glu(x),
}


def rows(kind, dtype):
    torch.manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.float64)
    if kind == "ties":
        x = x.round()
    elif kind == "zeros":
        x[1] = 0.0
        x[:, 2] = 0.0
    elif kind == "equal":
        x[2] = 1.5
    elif kind == "masked":
        x[0, 1:4] = -float("inf")
    elif kind == "large":
        x *= 100
    elif kind == "nan":
        x[1, 3] = float("nan")
    elif kind == "nan rows":
        x[2] = float("nan")
    return x.to(dtype)


def skip_without_derivative(function):
    """Older versions of torch lack some."""
    found = function(torch.randn(4, 6, requires_grad=True))
    value = found[0] if isinstance(found, tuple) else found
    try:
        value.sum().backward()
    except RuntimeError as error:
        if "is not implemented" not in str(error):
            raise
        pytest.skip("eager has no derivative")


@pytest.mark.parametrize("kind", ["random", "ties", "zeros", "equal", "masked", "large", "nan", "nan rows"])
@pytest.mark.parametrize("name", ROWS)
def test_rows(name, kind):
    skip_without_derivative(ROWS[name])
    check_lowered(ROWS[name], rows(kind, torch.float64))


@pytest.mark.parametrize("name", ROWS)
def test_rows_in_16_bits(name):
    skip_without_derivative(ROWS[name])
    check_lowered(ROWS[name], rows("random", torch.bfloat16), rtol=4e-2, atol=4e-2)


def test_rows_of_minus_infinity():
    x = torch.randn(3, 4, dtype=torch.float64)
    x[1] = -float("inf")
    for function in (lambda x: x.logsumexp(1), lambda x: x.softmax(1), lambda x: x.log_softmax(1)):
        check_lowered(function, x)


@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"reduction": "none"}, {"ignore_index": 2}])
def test_cross_entropy(options):
    torch.manual_seed(0)
    x, target = torch.randn(5, 7, dtype=torch.float64), torch.tensor([0, 2, 6, 2, 1])
    backward = check_lowered(lambda x, t: F.cross_entropy(x, t, **options), x, target)
    # The gradient of the picked logits holds one element of a row: it is not summed over the row.
    sums = [node for node in backward.nodes if node.op == "sum" and len(node.inputs[0].shape) == 2]
    assert len(sums) == 1, sums  # that of the forward
    weight = torch.rand(7, dtype=torch.float64)
    check_lowered(lambda x, t, w: F.cross_entropy(x, t, weight=w, **options), x, target, weight, frozen=(2,))


@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"padding_idx": -1}, {"scale_grad_by_freq": True}])
def test_embedding(options):
    torch.manual_seed(0)
    table, index = torch.randn(5, 3, dtype=torch.float64), torch.tensor([[0, 2, 4], [2, 2, 1]])
    check_lowered(lambda w, i: F.embedding(i, w, **options), table, index)


def test_affine_norms():
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(shape, dtype=torch.float64) for shape in ((3, 6, 4), (6,), (6,)))
    mean, variance = torch.randn(6, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    check_lowered(lambda x, w, b: F.layer_norm(x.mT, (6,), w, b), x, weight, bias)
    check_lowered(lambda x, w, b: F.group_norm(x, 2, w, b), x, weight, bias)
    check_lowered(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), x, weight, bias)
    check_lowered(lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b), x, weight, bias, mean, variance, frozen=(3, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_relu_of_every_number_of_16_bits(dtype):
    points = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    fast = framefuse.compile(lambda x: F.relu(x))
    for function in (fast, fast, F.relu):
        x = points.clone().requires_grad_()
        y = function(x)
        y.backward(torch.full_like(y, 3))
        if function is fast:
            given = y.detach(), x.grad
    assert compiled_function(fast).dispatch.hits == 1
    for ours, theirs in zip(given, (y.detach(), x.grad), strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours.nan_to_num(), theirs.nan_to_num())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_relu_keeps_its_result_and_not_what_it_is_computed_from(dtype):
    x, w, v = (torch.randn(64, 64, dtype=dtype, requires_grad=True) for _ in range(3))
    graph = lowered(trace_of(lambda x, w, v: F.linear(F.relu(F.linear(x, w)), v), x, w, v))
    (piece,) = halves(graph, {0, 1, 2}, None).pieces
    (kept,) = [entry.node for entry in piece.saved if entry.kind == "own"]
    assert kept.dtype.torch is dtype
    assert (kept if kept.op == "maximum" else kept.inputs[0]).op == "maximum"
