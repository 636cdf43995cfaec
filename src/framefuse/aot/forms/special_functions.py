"""Functions of mathematics that kernels have no instructions for, by series over Chebyshev's polynomials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from framefuse.aot.forms.registry import form
from framefuse.ir.values import Value

# Coefficients, to 17 digits, of series over t in [-1, 1]. NEAR: of exp(-x) I0(x) and of exp(-x) I1(x) / x for x from 0
# to 8, t = x / 4 - 1. FAR: of exp(-x) sqrt(x) I0(x), and the same of I1, from 8 on, t = 16 / x - 1. SCALED_ERFC: of
# (1 + 2x) exp(x^2) erfc(x) from 0 on, t = (x - 3.75) / (x + 3.75).
I0_NEAR = (
    0.338397637204738042,
    -0.304682672343198399,
    0.171620901522208775,
    -0.0949010970480476444,
    0.0493052842396707085,
    -0.0237374148058994688,
    0.0105464603945949983,
    -0.00432430999505057594,
    0.0016394756169413358,
    -0.000576375574538582366,
    0.000188502885095841656,
    -0.000057541950100821037,
    0.0000164484480707288971,
    -4.41673835845875056e-6,
    1.11738753912010372e-6,
    -2.67079385394061173e-7,
    6.04699502254191895e-8,
    -1.30002500998624804e-8,
    2.65982372468238665e-9,
    -5.18979560163526291e-10,
    9.67580903537323691e-11,
    -1.72682629144155571e-11,
    2.95505266312963983e-12,
    -4.85644678311192946e-13,
    7.67618549860493562e-14,
    -1.16853328779934517e-14,
    1.71539128555513303e-15,
    -2.43127984654795469e-16,
    3.3307945188222381e-17,
    -4.41534164647933938e-18,
)
I0_FAR = (
    0.402245205507054416,
    0.00336911647825569409,
    0.0000688975834691682398,
    2.89137052083475648e-6,
    2.04891858946906374e-7,
    2.26666899049817806e-8,
    3.39623202570838635e-9,
    4.94060238822496959e-10,
    1.18891471078464383e-11,
    -3.14991652796324136e-11,
    -1.32158118404477131e-11,
    -1.79417853150680612e-12,
    7.18012445138366623e-13,
    3.8527783827421427e-13,
    1.54008621752140983e-14,
    -4.15056934728722209e-14,
    -9.55484669882830765e-15,
    3.81168066935262242e-15,
    1.77256013305652638e-15,
    -3.42548561967721913e-16,
    -2.82762398051658348e-16,
    3.46122286769746109e-17,
    4.46562142029676e-17,
    -4.83050448594418207e-18,
    -7.23318048787475395e-18,
)
I1_NEAR = (
    0.126293593221816827,
    -0.176416518357834055,
    0.102643658689847095,
    -0.0529459812080949914,
    0.0247264490306265168,
    -0.0105640848946261982,
    0.00415642294431288816,
    -0.00151357245063125315,
    0.000512285956168575773,
    -0.000161760815825896746,
    0.0000478156510755005423,
    -0.0000132731636560394358,
    3.47025130813767848e-6,
    -8.56872026469545474e-7,
    2.00329475355213526e-7,
    -4.44505912879632808e-8,
    9.38153738649577178e-9,
    -1.88724975172282929e-9,
    3.62559028155211704e-10,
    -6.66348972350202774e-11,
    1.17361862988909016e-11,
    -1.98397439776494372e-12,
    3.22379336594557471e-13,
    -5.04218550472791169e-14,
    7.60068429473540693e-15,
    -1.10559694773538631e-15,
    1.55363195773620047e-16,
    -2.11142121435816608e-17,
)
I1_FAR = (
    0.38928811750914006,
    -0.00976109749136146841,
    -0.000110588938762623716,
    -3.88256480887769039e-6,
    -2.51223623787020893e-7,
    -2.63146884688951951e-8,
    -3.83538038596423702e-9,
    -5.58974346219658381e-10,
    -1.89749581235054123e-11,
    3.25260358301548824e-11,
    1.41258074366137813e-11,
    2.03562854414708951e-12,
    -7.19855177624590851e-13,
    -4.08355111109219732e-13,
    -2.10154184277266431e-14,
    4.27244001671195135e-14,
    1.04202769841288028e-14,
    -3.8144030724370078e-15,
    -1.88035477551078245e-15,
    3.30820231092092828e-16,
    2.96262899764595014e-16,
    -3.20952592199342396e-17,
    -4.65030536848935833e-17,
    4.41434832307170795e-18,
    7.51729631084210481e-18,
)
SCALED_ERFC = (
    1.17757893456740175,
    -0.00459005458064647733,
    -0.0842491333665179156,
    0.0592099399981918905,
    -0.0266586684353057523,
    0.00907499767070526509,
    -0.00241316354041760819,
    0.000490775836525808632,
    -0.0000691697330250120637,
    4.13902798607301017e-6,
    7.74038306619849067e-7,
    -2.18864010492343957e-7,
    1.07649994656709104e-8,
    4.5219598112182869e-9,
    -7.75440020883135111e-10,
    -6.31808834088668449e-11,
    2.8687950109306699e-11,
    1.94558685457773472e-13,
    -9.65469674843343891e-13,
    3.25254814814873984e-14,
    3.34781194828680539e-14,
    -1.8645628804193131e-15,
    -1.25079505306886471e-15,
    7.41823525662404346e-17,
    5.06814890479611132e-17,
)


def _working(input: Tensor) -> Tensor:
    """The numbers as floats of 32 or 64 bits."""
    if not input.dtype.is_floating_point:
        return input.to(torch.get_default_dtype())
    return input if input.dtype in (torch.float32, torch.float64) else input.to(torch.float32)


def _given(result: Tensor, input: Tensor) -> Tensor:
    return result.to(input.dtype) if input.dtype.is_floating_point else result


def _series(t: Tensor, coefficients: Sequence[float]) -> Tensor:
    """By Clenshaw's recurrence, with as many terms as the dtype shows."""
    least = torch.finfo(t.dtype).eps * coefficients[0] / 64
    terms = [each for each in coefficients if abs(each) > abs(least)]
    first, second = torch.zeros_like(t), torch.zeros_like(t)
    for each in reversed(terms[1:]):
        first, second = 2 * t * first - second + each, first
    return t * first - second + terms[0]


def _bessel(input: Tensor, near: Sequence[float], far: Sequence[float]) -> Tensor:
    """exp(-x) I0(x) or exp(-x) I1(x) / x of absolute values up to 8, and without the division of larger ones."""
    size = input.abs()
    beyond = size.clamp(min=8)
    return torch.where(
        size <= 8, _series(size.clamp(max=8) / 4 - 1, near), _series(16 / beyond - 1, far) / beyond.sqrt()
    )


@form(torch.special.i0e)
def i0e(input: Tensor) -> Tensor:
    return _given(_bessel(_working(input), I0_NEAR, I0_FAR), input)


@form(torch.i0, torch.Tensor.i0, torch.special.i0)
def i0(input: Tensor) -> Tensor:
    x = _working(input)
    return _given(_bessel(x, I0_NEAR, I0_FAR) * x.abs().exp(), input)


@form(torch.special.i1e)
def i1e(input: Tensor) -> Tensor:
    x = _working(input)
    found = _bessel(x, I1_NEAR, I1_FAR)
    return _given(torch.where(x.abs() <= 8, found * x, torch.where(x < 0, -found, found)), input)


@form(torch.special.i1)
def i1(input: Tensor) -> Tensor:
    x = _working(input)
    return _given(i1e(x) * x.abs().exp(), input)


@form(torch.special.erfcx)
def erfcx(input: Tensor) -> Tensor:
    x = _working(input)
    size = x.abs()
    found = torch.where(
        size < torch.inf, _series(1 - 7.5 / (size + 3.75), SCALED_ERFC) / (1 + 2 * size), torch.zeros_like(size)
    )
    return _given(torch.where(x < 0, 2 * (x * x).exp() - found, torch.where(x != x, x, found)), input)


@form(torch.special.log_ndtr)
def log_ndtr(input: Tensor) -> Tensor:
    x = _working(input)
    place = x / math.sqrt(2)
    low = (erfcx(-place) / 2).log() - place * place
    return _given(torch.where(x < -1, low, torch.log1p(-torch.erfc(place) / 2)), input)


@form(torch.special.entr)
def entr(input: Tensor) -> Tensor:
    x = _working(input)
    below = torch.where(x == 0, torch.zeros_like(x), torch.full_like(x, -torch.inf))
    return _given(torch.where(x > 0, -x * x.log(), torch.where(x != x, x, below)), input)


@form(torch.ldexp, torch.Tensor.ldexp)
def ldexp(input: Tensor, other: Tensor) -> Tensor:
    return input * torch.pow(2.0, other)


def _power(exponent: Tensor) -> Tensor:
    """2 to whole numbers between -1023 and 1023, to the bit, as doubles."""
    found, size = torch.ones_like(exponent, dtype=torch.float64), exponent.abs()
    for bit in range(10):
        found = torch.where((size >> bit) & 1 == 1, found * 2.0 ** (2**bit), found)
    return torch.where(exponent < 0, 1 / found, found)


class Parts(NamedTuple):
    """As torch names the two."""

    mantissa: Value
    exponent: Value


@form(torch.frexp, torch.Tensor.frexp)
def frexp(input: Tensor) -> Parts:
    """By a logarithm that may miss by one, and products with powers of two, which are exact."""
    x = input.to(torch.float64)
    plain = (x != 0) & (x.abs() < torch.inf)
    exponent = torch.where(plain, x.abs().log2().floor() + 1, 0.0).to(torch.int64)
    half = exponent // 2
    mantissa = x * _power(-half) * _power(half - exponent)
    large, small = mantissa.abs() >= 1, mantissa.abs() < 0.5
    mantissa = torch.where(large, mantissa / 2, torch.where(small, mantissa * 2, mantissa))
    exponent = exponent + large.to(torch.int64) - small.to(torch.int64)
    return Parts(torch.where(plain, mantissa, x).to(input.dtype), torch.where(plain, exponent, 0).to(torch.int32))
