"""``numerics="eager"`` gives eager's digits in kernels that still fuse; the default rounds 16-bit floats at the end."""

import math

import pytest
import torch
import torch.nn.functional as F

import framefuse
from framefuse.ir.schedule import RunKernel
from framefuse.runtime.function import compiled_function

LOW = [torch.bfloat16, torch.float16]
UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan asin acos atan sinh cosh tanh acosh atanh erf erfc "
    "erfinv lgamma sigmoid reciprocal floor ceil trunc round frac neg abs sign square deg2rad rad2deg"
).split()
ACTIVATIONS = (
    "silu mish hardswish hardsigmoid logsigmoid selu relu relu6 elu celu leaky_relu softplus softsign tanhshrink "
    "hardshrink softshrink"
).split()
FUNCTIONS = {
    **{name: getattr(torch, name) for name in UNARY},
    **{name: getattr(F, name) for name in ACTIVATIONS},
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "logit": lambda x: torch.logit(x, 1e-3),
    "threshold": lambda x: F.threshold(x, 0.3, 1.7),
    "clamp": lambda x: x.clamp(-0.3, 1.7),
    **{f"pow {power}": lambda x, p=power: torch.pow(x, p) for power in (-2.0, -1.0, -0.5, 0.5, 2.0, 3.0, 1.7)},
    "number first": lambda x: (1.3 - x, 1.3 + x, 1.3 * x, 1.3 / x, 1.7**x),
    "number last": lambda x: (x - 1.3, x + 1.3, x * 1.3, x / 1.3, x % 1.3, x // 1.3, torch.fmod(x, 1.3)),
    "compared": lambda x: (x < 0.3, x <= 0.3, x > 0.3, x >= 0.3, x == 0.3, x != 0.3),
    "alpha": lambda x: (torch.add(x, x, alpha=0.7), torch.sub(x, x, alpha=0.7)),
    "scalars": lambda x: (x + x.new_tensor(1.3).float(), x * x.new_tensor(1.3).float(), x / x.new_tensor(7.0).float()),
}


def every(dtype):
    """All values of a 16-bit dtype, a multiple of eager's vectors of them."""
    return torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)


def fixed(function):
    """The function with its default arguments as constants: a run-time number is no special power."""
    power = (function.__defaults__ or (None,))[0] if hasattr(function, "__defaults__") else None
    if power is None:
        return function
    name = {}
    exec(f"import torch\ndef f(x): return torch.pow(x, {power})", name)
    return name["f"]


def bits(tensor):
    return torch.where(tensor.isnan(), torch.tensor(math.nan, dtype=tensor.dtype), tensor).view(torch.int16)


def pieces(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_value_has_eagers_bits(name, dtype):
    function = fixed(FUNCTIONS[name])
    compiled = framefuse.compile(lambda x: function(x), options={"numerics": "eager"})
    x = every(dtype)
    for _ in range(2):
        found = compiled(x)
    expected = function(x)
    assert compiled.__framefuse__.dispatch.hits == 1, compiled.__framefuse__.reasons
    for mine, eager in zip(pieces(found), pieces(expected), strict=True):
        assert mine.dtype is eager.dtype
        if eager.dtype is dtype:
            mine, eager = bits(mine), bits(eager)
        assert torch.equal(mine, eager), (x[mine != eager][:5], mine[mine != eager][:5], eager[mine != eager][:5])


# Where eager calls what no kernel can (oneDNN's gelu, which makes NaN of infinity; Cephes on scalars): how many of the
# 65536 values differ, most of them by one digit.
EXCEPTIONS = {
    "gelu": (F.gelu, {torch.bfloat16: 700, torch.float16: 500}),
    "sinc": (torch.sinc, {torch.bfloat16: 8, torch.float16: 8}),
    "digamma": (torch.digamma, {torch.bfloat16: 0, torch.float16: 16}),
    "asinh": (torch.asinh, {torch.bfloat16: 0, torch.float16: 8}),
    "rsqrt": (torch.rsqrt, {torch.bfloat16: 0, torch.float16: 0}),
}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", EXCEPTIONS)
def test_documented_exceptions_are_few(name, dtype):
    function, most = EXCEPTIONS[name]
    compiled = framefuse.compile(lambda x: function(x), options={"numerics": "eager"})
    x = every(dtype)
    compiled(x)
    assert int((bits(compiled(x)) != bits(function(x))).sum()) <= most[dtype]


def chain(x, y):
    a = torch.tanh(x * y + x) * y - x / 1.3
    b = F.silu(a) + torch.where(a > x, a * 0.7, 1.3 - y)
    return torch.exp(b * 0.1) * a, b.to(torch.float32) * 1.1, torch.addcmul(a, b, y, value=0.3)


def binary(x, y):
    return x + y, x - y, x * y, x / y, torch.atan2(x, y), torch.hypot(x, y), torch.copysign(x, y), x % y


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("function", [chain, binary])
def test_chains_have_eagers_bits_and_are_one_kernel(function, dtype):
    compiled = framefuse.compile(function, options={"numerics": "eager"})
    for size in (4096, 1024, 4096 * 3):
        x, y = (torch.randn(size).to(dtype) for _ in range(2))
        found = compiled(x, y)
        assert found is not None
        for mine, eager in zip(found, function(x, y), strict=True):
            assert mine.dtype is eager.dtype and torch.equal(mine, eager)
    assert compiled.__framefuse__.dispatch.hits == 2
    (product,) = compiled_function(compiled).products
    items = [item for item in product.stages.code.schedule.items if type(item).__name__.startswith("Run")]
    assert all(type(item) is RunKernel for item in items) and (function is binary or len(items) == 1)


@pytest.mark.parametrize("dtype", LOW)
def test_the_default_rounds_once_where_a_result_ends(dtype):
    def function(x, y):
        return ((x * y + x) * y - x) * 0.3 + y

    compiled = framefuse.compile(function)
    x, y = (torch.randn(4096).to(dtype) for _ in range(2))
    compiled(x, y)
    found, exact = compiled(x, y), function(x.double(), y.double())
    nearest = exact.to(dtype)
    assert (found != nearest).float().mean() < 1e-3 < (function(x, y) != nearest).float().mean()
    assert (found.double() - exact).abs().max() <= (function(x, y).double() - exact).abs().max()


@pytest.mark.parametrize("dtype", LOW)
def test_the_default_decides_on_what_eager_sees(dtype):
    """Comparisons and rounding to integers see the 16-bit value, whatever a kernel keeps; so does a cast."""

    def function(x, y):
        z = x * y
        return z > x, torch.floor(z * 8), (z == z.clone() * 1.0), z.to(torch.float32), (x + 1000.0).to(torch.int32)

    compiled = framefuse.compile(function)
    for _ in range(2):
        x, y = (torch.randn(4096).to(dtype) for _ in range(2))
        found, expected = compiled(x, y), function(x, y)
        assert torch.equal(found[0], expected[0]) and torch.equal(found[2], expected[2])
        assert torch.equal(found[3], expected[3]) and torch.equal(found[4], expected[4])
    assert compiled.__framefuse__.dispatch.hits == 1


def test_products_stay_torchs():
    weight, bias = torch.randn(64, 700), torch.randn(64)

    def function(x):
        return F.relu(F.linear(x, weight, bias)) @ weight + 1.0

    compiled = framefuse.compile(function, options={"numerics": "eager"})
    for rows in (3, 50, 3):
        x = torch.randn(rows, 700)
        assert torch.equal(compiled(x), function(x))
    assert compiled.__framefuse__.dispatch.hits >= 1


def test_float32_functions_are_within_two_ulp():
    """Eager takes MKL's for whole tensors and SLEEF's elsewhere; neither is the other to the bit."""
    for function in (torch.exp, torch.log1p, torch.tanh, torch.erf, torch.sigmoid, F.silu):
        compiled = framefuse.compile(lambda x, f=function: f(x), options={"numerics": "eager"})
        x = torch.randn(10000).abs() + 0.01
        compiled(x)
        found, expected = compiled(x).view(torch.int32), function(x).view(torch.int32)
        assert (found - expected).abs().max() <= 2


def test_any_float32_rounds_to_bfloat16_as_eager():
    """Denormals, the largest values and NaN among ordinary ones, in every lane, and in tails."""
    compiled = framefuse.compile(lambda x: x.to(torch.bfloat16))
    generator = torch.Generator().manual_seed(0)
    for size in (1 << 16, 1000, 37, 5):
        x = torch.randint(-(2**31), 2**31, (size,), generator=generator).to(torch.int32).view(torch.float32)
        x[:: 7 if size > 100 else 2] *= 2.0**-100
        tiny = (torch.randn(size, generator=generator) * 1e-39).where(torch.arange(size) % 5 == 0, x)
        for given in (x, tiny):
            assert torch.equal(bits(compiled(given)), bits(given.to(torch.bfloat16)))
    assert compiled.__framefuse__.dispatch.hits >= 6


def test_a_size_has_a_value_in_each_dtype():
    def function(x):
        rows = x.shape[0]
        return x * rows + (x.double() * rows).float() * rows

    fast = framefuse.compile(function)
    for rows in (5, 7, 9, 11):
        x = torch.randn(rows, 40)
        torch.testing.assert_close(fast(x), function(x))
    assert compiled_function(fast).dispatch.hits == 3
