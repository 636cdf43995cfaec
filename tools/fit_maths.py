"""Fits the polynomials of codegen/llvm/coefficients.py: weighted minimax by Lawson's iteration over Chebyshev nodes.

Run `python tools/fit_maths.py` to print the table anew. Reference values come from mpmath with 40 digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import mpmath as mp  # type: ignore[import-untyped]
import numpy as np

mp.mp.dps = 40
Function = Callable[[mp.mpf], mp.mpf]


def fit(f: Function, low: float, high: float, degree: int, weight: Function) -> tuple[list[float], float]:
    """Coefficients (highest power first) that make ``max |(p(x) - f(x)) * weight(x)|`` small, and that maximum."""
    count = 400
    low_, high_ = mp.mpf(low), mp.mpf(high)
    nodes = [(low_ + high_) / 2 + (high_ - low_) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * count)) for i in range(count)]
    scaled = np.array([float((2 * x - low_ - high_) / (high_ - low_)) for x in nodes])
    basis = np.polynomial.chebyshev.chebvander(scaled, degree)
    wanted = np.array([float(f(x)) for x in nodes])
    weights = np.array([float(abs(weight(x))) for x in nodes])
    lawson = np.ones(count)
    for _ in range(80):
        rows = np.sqrt(lawson) * weights
        solution = np.linalg.lstsq(basis * rows[:, None], wanted * rows, rcond=None)[0]
        errors = np.abs((basis @ solution - wanted) * weights)
        lawson = lawson * (errors + 1e-300)
        lawson = lawson / lawson.sum() * count + 1e-9
    series = np.polynomial.chebyshev.Chebyshev(solution, domain=[float(low_), float(high_)])
    powers = series.convert(kind=np.polynomial.Polynomial).coef
    return [float(value) for value in powers[::-1]], float(errors.max())


def sine(coefficients: np.ndarray, r: np.ndarray) -> np.ndarray:
    """sin(r) as the kernels compute it in float32, with fused multiply-adds."""
    u = r * r
    total = np.full_like(u, coefficients[0])
    for coefficient in coefficients[1:]:
        total = (total.astype(np.float64) * u + np.float32(coefficient)).astype(np.float32)
    result: np.ndarray = ((u * r).astype(np.float64) * total + r).astype(np.float32)
    return result


def settled(coefficients: list[float], steps: int = 3000) -> tuple[list[float], float]:
    """Coefficients of a sine near those given, with few ulp of error after all roundings, and sin(pi / 2), from which
    cos(0) comes, exactly 1; and the largest error in ulp. A walk over neighbouring float32 numbers, always the same.
    """
    points = np.linspace(0, np.pi / 2, 40001).astype(np.float32)[1:]
    exact = np.sin(points.astype(np.float64))
    ulp = np.spacing(exact.astype(np.float32)).astype(np.float64)
    quarter = np.array([np.pi / 2], dtype=np.float32)

    def badness(candidate: np.ndarray) -> float:
        error = np.abs((sine(candidate, points) - exact) / ulp).max()
        return float(error) + 100 * float(abs(sine(candidate, quarter)[0] - 1) > 0)

    random = np.random.default_rng(0)
    best = np.array(coefficients, dtype=np.float32)
    least = badness(best)
    for _ in range(steps):
        place, ulps = random.integers(len(best)), random.integers(-2000, 2001)
        candidate = best.copy()
        candidate[place] += np.float32(ulps) * np.spacing(np.abs(best[place]))
        worst = badness(candidate)
        if worst < least:
            best, least = candidate, worst
    return [float(value) for value in best], least


def stretch(w: mp.mpf) -> mp.mpf:
    """erfinv(y) / y with w = -log(1 - y*y)."""
    y = mp.sqrt(-mp.expm1(-w))
    complement = mp.exp(-w) / (1 + y)
    x = mp.sqrt(w)
    for _ in range(9):  # Newton's steps on the logarithm of erfc
        rest = mp.erfc(x)
        x += rest * mp.log(rest / complement) * mp.sqrt(mp.pi) / 2 * mp.exp(x * x)
    return x / y


def erfinv_pieces() -> dict[str, list[float]]:
    """erfinv(y) = y * P over w < 5, over sqrt(w) - 3 < 1 and over sqrt(w) - 5, in float32 and in float64: the
    coefficients, highest power first, the constant in two parts, the last of which is the rounded one.
    """
    centre = mp.sqrt(mp.pi) / 2
    five = mp.sqrt(5) - 3
    found = {}
    for name, rounded, counts in (("ERFINV", np.float32, (9, 10)), ("ERFINV64", np.float64, (22, 23, 20))):
        terms = mp.chebyfit(lambda w: (stretch(w) - centre) / w, [mp.mpf("1e-8"), 5], counts[0])
        tail = mp.chebyfit(lambda t: stretch((t + 3) ** 2), [five, mp.mpf("1.01")], counts[1])
        lists = {"CENTRE": [*terms, centre], "TAIL": tail}
        if len(counts) > 2:
            lists["FAR"] = mp.chebyfit(lambda t: stretch((t + 5) ** 2), [-1, mp.mpf("1.1")], counts[2])
        for part, (*rest, last) in lists.items():
            head = float(rounded(float(last)))
            found[f"{name}_{part}"] = [*map(float, rest), float(last - head), head]
    return found


def tables() -> dict[str, tuple[list[float], float]]:
    """Every polynomial by name, with its relative error in the function that it serves."""
    third = mp.log(2) / 2 * mp.mpf("1.001")
    root = mp.sqrt(2)
    one = mp.mpf(1)
    tiny = mp.mpf("1e-10")

    def place(k: mp.mpf) -> mp.mpf:
        return 2 * (1 + k) / (1 - k)

    def complement(k: mp.mpf) -> mp.mpf:
        return (1 + 2 * place(k)) * mp.exp(place(k) ** 2) * mp.erfc(place(k))

    return {
        # exp(r) = 1 + r + r*r*P(r)
        "EXP": fit(
            lambda r: (mp.exp(r) - 1 - r) / r**2 if abs(r) > tiny else one / 2,
            -third, third, 4, lambda r: max(r * r, mp.mpf("1e-4")) / mp.exp(r),
        ),
        # 2**r = 1 + r*P(r)
        "EXP2": fit(
            lambda r: (mp.power(2, r) - 1) / r if abs(r) > tiny else mp.log(2),
            -0.5005, 0.5005, 5, lambda r: max(abs(r), mp.mpf("1e-2")) / mp.power(2, r),
        ),
        # expm1(r) = r + r*r*P(r), relative to expm1
        "EXPM1": fit(
            lambda r: (mp.expm1(r) - r) / r**2 if abs(r) > tiny else one / 2,
            -third, third, 5, lambda r: r * r / mp.expm1(r) if abs(r) > tiny else abs(r),
        ),
        # log(1 + f) = f + f*f*P(f)
        "LOG": fit(
            lambda f: (mp.log(1 + f) - f) / f**2 if abs(f) > tiny else -one / 2,
            1 / root - 1, root - 1, 8, lambda f: one,
        ),
        # sin(r) = r + r*u*P(u), u = r*r, |r| <= pi/2; settled, with its error in ulp
        "SIN": fit(
            lambda u: (mp.sin(mp.sqrt(u)) / mp.sqrt(u) - 1) / u,
            1e-12, float((mp.pi / 2) ** 2 * mp.mpf("1.01")), 4,
            lambda u: u * mp.sqrt(u) / mp.sin(mp.sqrt(u)),
        ),
        # tanh(x) = x + x*u*P(u), |x| <= 0.625
        "TANH": fit(
            lambda u: (mp.tanh(mp.sqrt(u)) / mp.sqrt(u) - 1) / u,
            1e-12, 0.3907, 5, lambda u: u * mp.sqrt(u) / mp.tanh(mp.sqrt(u)),
        ),
        # erf(x) = x + x*P(u), |x| <= 1
        "ERF_SMALL": fit(
            lambda u: mp.erf(mp.sqrt(u)) / mp.sqrt(u) - 1,
            1e-12, 1.001, 6, lambda u: mp.sqrt(u) / mp.erf(mp.sqrt(u)),
        ),
        # erf(x) = 1 - 2**P(x), 1 <= x <= 4
        "ERF_LARGE": fit(
            lambda x: mp.log(mp.erfc(x), 2), 1.0, 4.0, 5, lambda x: mp.log(2) * mp.erfc(x) / mp.erf(x),
        ),
        # 2**r of erf's, of whose errors a fifth is seen
        "ERF_POWER": fit(lambda r: mp.power(2, r), -0.5005, 0.5005, 5, lambda r: 1 / mp.power(2, r)),
        # (1 + 2x) exp(x*x) erfc(x) = 1 + P(k), k = (x - 2) / (x + 2), 0 <= x <= 10.1
        "ERFC": fit(lambda k: complement(k) - 1, -1.0, 8.1 / 12.1, 9, lambda k: 1 / complement(k)),
        # cosh(r) = 1 + u*P(u), sinh(r) = r + r*u*P(u), u = r*r, |r| <= ln 2 / 2
        "COSH": fit(
            lambda u: (mp.cosh(mp.sqrt(u)) - 1) / u, 1e-12, float(third**2), 2, lambda u: u / mp.cosh(mp.sqrt(u)),
        ),
        "SINH": fit(
            lambda u: (mp.sinh(mp.sqrt(u)) / mp.sqrt(u) - 1) / u,
            1e-12, float(third**2), 2, lambda u: u * mp.sqrt(u) / mp.sinh(mp.sqrt(u)),
        ),
    }  # fmt: skip


def erf_pieces() -> list[list[float]]:
    """With a = (k + t) / 4, erf(a) = a + a * P_k(t) for k = 0..3 and P_k(t) for k = 4..15: one row a power of t,
    highest first, of 16 columns.
    """

    def wanted(k: int, t: mp.mpf) -> mp.mpf:
        a = (k + t) / 4
        if k >= 4:
            return mp.erf(a)
        return mp.erf(a) / a - 1 if a > mp.mpf("1e-9") else 2 / mp.sqrt(mp.pi) - 1

    columns = [fit(partial(wanted, k), 0.0, 1.0, 5, lambda t: mp.mpf(1))[0] for k in range(16)]
    return [[column[power] for column in columns] for power in range(6)]


def main() -> None:
    for name, (coefficients, error) in tables().items():
        if name == "SIN":
            coefficients, error = settled(coefficients)
        digits = ", ".join(f"{value:.9g}" for value in coefficients)
        print(f"# {error:.1e}\n{name} = ({digits})")
    for name, values in erfinv_pieces().items():
        places = 17 if "64" in name else 9
        print(f"{name} = ({', '.join(f'{value:.{places}g}' for value in values)})")
    rows = ",\n".join("    (" + ", ".join(f"{value:.9g}" for value in row) + ")" for row in erf_pieces())
    print(f"ERF_PIECES = (\n{rows},\n)")


if __name__ == "__main__":
    main()
