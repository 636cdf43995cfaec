"""The elementary functions of float32 are as exact on the device as they say, special values included."""

import math

import pytest
import torch
from tests.gpu.kernels import NEEDS_GPU
from tests.gpu.test_programs import checked, kernels
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

import framefuse

pytestmark = NEEDS_GPU


def computed(function, x):
    """The second call's result, which compiled code gives: all of one input."""
    fast = framefuse.compile(lambda x: function(x))
    fast(x)
    found = fast(x)
    assert kernels(checked(fast, 1)) >= 1
    return found


def test_functions_are_within_their_bounds():
    x = spread().cuda()
    found = computed(lambda x: tuple(getattr(torch, name)(x) for name in ULP), x)
    errors = {name: error(ours, getattr(torch, name)(x.double())) for name, ours in zip(ULP, found, strict=True)}
    assert all(errors[name] <= ULP[name][1] for name in ULP), errors


@pytest.mark.parametrize("name", [*ULP, *ROUNDED])
def test_special_values_are_eagers(name):
    x = SPECIAL.cuda()
    check_special(name, computed(getattr(torch, name), x), x)


@pytest.mark.parametrize("name", NEAR)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_becomes_16_bits_is_right_to_six_digits(name, dtype):
    x = torch.cat([spread(), SPECIAL]).cuda()
    x = x[(x.abs() < 80) | ~x.isfinite() | (name not in ("exp", "sigmoid", "sinh", "cosh"))]
    found = computed(lambda x: getattr(torch, name)(x).to(dtype), x)
    wanted = getattr(torch, name)(x.double()).to(dtype)
    if dtype is torch.bfloat16:
        check_near(found, wanted)
    torch.testing.assert_close(found, wanted, rtol=2e-3 if dtype is torch.float16 else 2**-7, atol=1e-7, equal_nan=True)


def test_digamma_is_as_exact_as_its_terms():
    x = torch.cat([spread(), SPECIAL, torch.linspace(-12, 12, 4001), torch.linspace(1.4, 1.5, 101)]).cuda()
    check_digamma(computed(torch.digamma, x), x)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_angles_of_any_size(name):
    x = torch.cat([torch.exp(torch.linspace(11, 88.7, 3000)), torch.tensor([16367173 * 2.0**72, 5.3e36, 2.0**127])])
    x = torch.cat([x, -x, torch.linspace(-3, 3, 500)]).cuda()
    x = x[torch.randperm(len(x), device="cuda")]
    assert error(computed(getattr(torch, name), x), getattr(torch, name)(x.double())) <= ULP[name][1]
    assert computed(torch.cos, torch.zeros(4, device="cuda")).tolist() == [1.0] * 4


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_nothing_is_beyond_one(name):
    near = torch.linspace(-2e-3, 2e-3, 20001)
    x = torch.cat([near + quarter * (math.pi / 2) for quarter in range(-4, 5)]).cuda()
    assert computed(getattr(torch, name), x).abs().max() == 1.0


def test_sigmoid_errs_by_little_of_one_and_less_than_eager_notices():
    x = torch.linspace(-88.7, 40, 200001, device="cuda")
    found, exact = computed(torch.sigmoid, x), torch.sigmoid(x.double())
    assert error(found[x > -2], exact[x > -2]) <= 4
    assert (found - exact).abs().max() < 2e-7
    assert ((found - exact).abs() / exact <= (1.25 * x.abs() + 12) * 2.0**-24)[x > -87].all()
    assert (found.diff() >= -2e-7).all() and found[-1] == 1 and found[0] > 0
    ends = torch.tensor([math.inf, -math.inf, -1e30, math.nan, 0.0, -88.0], device="cuda")
    ends = computed(torch.sigmoid, ends)
    assert ends[:3].tolist() == [1, 0, 0] and ends[3].isnan() and ends[4] == 0.5 and ends[5] > 0
