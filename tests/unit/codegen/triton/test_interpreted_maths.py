"""The elementary functions of float32 are as exact as they say, special values included."""

import inspect
import math

import pytest
import torch
from tests.unit.codegen import kernels as k
from tests.unit.codegen.triton.maths_samples import (
    NEAR,
    ROUNDED,
    SPECIAL,
    ULP,
    check_digamma,
    check_near,
    check_special,
    error,
    spread,
)

from framefuse.codegen.llvm import coefficients
from framefuse.codegen.specialisation import Place, Specialisation
from framefuse.codegen.triton import by_interpreter, maths, text
from framefuse.ir.dtypes import BFLOAT16, FLOAT32


def computed(make, *inputs):
    """The results of a kernel of one value over float32."""
    value = make(*(k.load(f"x{n}", k.I) for n in range(len(inputs))))
    out = torch.empty(inputs[0].shape, dtype=value.dtype.torch)
    large = by_interpreter(k.pointwise([FLOAT32] * len(inputs), value), Specialisation({k.N: 1 << 26}), Place("cpu"))
    assert large.run([*inputs, out], [len(out)], len(out)) == 0
    return out


@pytest.mark.parametrize("name", ULP)
def test_a_function_is_within_its_bound(name):
    x = spread()
    found = computed(lambda x: k.apply(name, x), x)
    exact = getattr(torch, name)(x.double())
    assert error(found, exact) <= ULP[name][0]
    assert torch.equal(found.isnan(), exact.isnan())


@pytest.mark.parametrize("name", [*ULP, *ROUNDED])
def test_special_values_are_eagers(name):
    check_special(name, computed(lambda x: k.apply(name, x), SPECIAL), SPECIAL)


@pytest.mark.parametrize("name", ROUNDED)
def test_rounding_is_exact(name):
    x = torch.cat([spread(), torch.linspace(-20, 20, 161)])
    wanted = getattr(torch, name)(x)
    found = computed(lambda x: k.apply(name, x), x)
    assert torch.equal(found, wanted) and torch.equal(found.signbit(), wanted.signbit())


def test_copysign_and_fma_are_exact():
    x, y, z = spread(), spread().flip(0), spread().roll(777)
    assert torch.equal(computed(lambda x, y: k.apply("copysign", x, y), x, y), torch.copysign(x, y))
    fused = (x.double() * y.double() + z.double()).float()
    torch.testing.assert_close(computed(lambda x, y, z: k.apply("fma", x, y, z), x, y, z), fused, rtol=1.2e-7, atol=0)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_angles_of_any_size(name):
    """Among them the float32 that is nearest to a multiple of pi / 2, and tiles of small angles with one large."""
    x = torch.cat([torch.exp(torch.linspace(11, 88.7, 3000)), torch.tensor([16367173 * 2.0**72, 5.3e36, 2.0**127])])
    x = torch.cat([x, -x, torch.linspace(-3, 3, 500)])
    x = x[torch.randperm(len(x))]
    found = computed(lambda x: k.apply(name, x), x)
    assert error(found, getattr(torch, name)(x.double())) <= ULP[name][0]
    assert computed(lambda x: k.apply("cos", x), torch.zeros(4)).tolist() == [1.0] * 4


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_nothing_is_beyond_one(name):
    near = torch.linspace(-2e-3, 2e-3, 20001)
    x = torch.cat([near + quarter * (math.pi / 2) for quarter in range(-4, 5)])
    assert computed(lambda x: k.apply(name, x), x).abs().max() == 1.0


def test_sigmoid_errs_by_little_of_one_and_less_than_eager_notices():
    x = torch.linspace(-88.7, 40, 200001)
    found, exact = computed(lambda x: k.apply("sigmoid", x), x), torch.sigmoid(x.double())
    assert error(found[x > -2], exact[x > -2]) <= 4
    assert (found - exact).abs().max() < 1e-7
    ratio = (found - exact).abs() / exact / ((1.25 * x.abs() + 4) * 2.0**-24)
    assert ratio[x > -87].max() <= 1, ratio[x > -87].max()
    assert (found.diff() >= 0).all() and found[-1] == 1 and found[0] > 0
    ends = computed(lambda x: k.apply("sigmoid", x), torch.tensor([math.inf, -math.inf, -1e30, math.nan, 0.0, -88.0]))
    assert ends[:3].tolist() == [1, 0, 0] and ends[3].isnan() and ends[4] == 0.5 and ends[5] > 0


def test_exp_of_a_value_that_is_surely_small_is_the_short_one():
    def short(x):
        x = k.apply("mul", k.apply("sin", x), k.const(-1.5))
        return k.apply("exp", k.apply("neg", k.apply("add", x, k.const(0.5))))

    assert "tl.exp(" in text(k.pointwise([FLOAT32], short(k.load("x0", k.I))), {})
    x = spread()
    inner = -(torch.sin(x) * -1.5 + 0.5)
    assert error(computed(short, x), inner.double().exp()) <= 6
    clamped = k.apply("maximum", k.apply("minimum", k.load("x0", k.I), k.const(2.0)), k.const(-2.0))
    assert "tl.exp(" in text(k.pointwise([FLOAT32], k.apply("exp", clamped)), {})
    for op in (lambda x: k.apply("fmax", k.apply("sin", x), x), lambda x: k.apply("add", k.apply("sin", x), x)):
        assert "maths.exp(" in text(k.pointwise([FLOAT32], k.apply("exp", op(k.load("x0", k.I)))), {})


@pytest.mark.parametrize("name", NEAR)
def test_what_becomes_16_bits_is_right_to_six_digits(name):
    x = torch.cat([spread(), SPECIAL])
    x = x[(x.abs() < 80) | ~x.isfinite() | (name not in ("exp", "sigmoid", "sinh", "cosh"))]
    found = computed(lambda x: k.cast(k.apply(name, x), BFLOAT16), x)
    check_near(found, getattr(torch, name)(x.double()).to(torch.bfloat16))


def test_digamma_is_as_exact_as_its_terms():
    x = torch.cat([spread(), SPECIAL, torch.linspace(-12, 12, 4001), torch.linspace(1.4, 1.5, 101)])
    check_digamma(computed(lambda x: k.apply("digamma", x), x), x)


def test_polynomials_are_those_of_the_table():
    source = inspect.getsource(inspect.getmodule(maths))
    for name in ("EXP2", "EXPM1", "LOG", "TANH", "ERF_SMALL", "ERF_LARGE"):
        assert all(f"{value!r}" in source for value in getattr(coefficients, name)), name
