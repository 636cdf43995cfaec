"""Every pointwise primitive gives what eager gives on the same device, special values included."""

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.test_programs import DEVICE, checked, kernels, pytestmark  # noqa: F401
from tests.unit.codegen.test_pointwise import domain, samples

import framefuse
from framefuse.ir.dtypes import BOOL, FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8, DType
from framefuse.ir.ops import TABLE

TOGETHER = 12  # rows of one function
# By divisors that are neither zero nor denormal: for these eager itself differs between machines.
DIVISIONS = ("floordiv", "remainder", "fmod")


def names(dtype: DType) -> list[str]:
    rows = [op for op in TABLE.values() if op.kind == "pointwise" and op.name not in ("cast", "where")]
    return [op.name for op in rows if dtype in domain(op)]


CASES = [
    (dtype, tuple(names(dtype)[start : start + TOGETHER]))
    for dtype in (FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8, BOOL)
    for start in range(0, len(names(dtype)), TOGETHER)
]


def program(rows):
    """``f(a, b, c)`` with the value of each row, and of divisions by ``d``, of shifts and powers by ``n``."""
    lines = []
    for name in rows:
        formula = TABLE[name].formula
        other = "d" if name in DIVISIONS else "n" if name.startswith("shift") or name == "pow" else "b"
        lines.append(f"    {name} = (lambda a, b, c: {formula})(a, {other}, c)")
    text = "def f(a, b, c, d, n):\n" + "\n".join(lines) + f"\n    return {', '.join(rows)},\n"
    space = {"torch": torch}
    exec(text, space)
    return space["f"]


@pytest.mark.parametrize(("dtype", "rows"), CASES, ids=lambda part: str(part) if isinstance(part, DType) else part[0])
def test_rows_are_eagers(dtype, rows):
    a, b, c = (samples(dtype, seed).to(DEVICE) for seed in range(3))
    d, n = b.clone(), b.clone()
    if dtype.is_integral and dtype is not BOOL:
        d = torch.where(d == 0, torch.ones_like(d), d)
        n = (n % (8 * dtype.size - 1)).to(dtype.torch)
    elif dtype.is_float:
        d = torch.where(d.abs() < 1e-30, torch.ones_like(d), d)
    f = program(rows)
    fast = framefuse.compile(f)
    for _ in range(2):
        found = fast(a, b, c, d, n)
    assert kernels(checked(fast, 1)) >= 1
    for name, ours, theirs in zip(rows, found, f(a, b, c, d, n), strict=True):
        assert ours.dtype is theirs.dtype, name
        if ours.is_floating_point():
            torch.testing.assert_close(ours, theirs, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")
            zeros = (theirs == 0) & (ours == 0)
            if name in ("neg", "abs", "copysign", "mul", "trunc", "ceil", "round"):
                assert torch.equal(ours.signbit()[zeros], theirs.signbit()[zeros]), name
        else:
            assert torch.equal(ours, theirs), name


def shortened(x):
    """What models compute in 16-bit floats."""
    y = x if x.dtype is torch.float64 else x.float()
    found = torch.erf(y), torch.sigmoid(y), F.gelu(y), F.silu(y), torch.exp(y), 1 / (y.abs() + 1)
    return tuple(value.to(x.dtype) for value in found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_kernels_that_write_16_bit_floats_round_the_exact_result(dtype):
    """Every value of the dtype (a fifth of them where an interpreter computes): the nearest, or its neighbour, but for
    what lies below the precision of float32.
    """
    x = torch.arange(-(1 << 15), 1 << 15, 5 if DEVICE == "cpu" else 1).to(torch.int16).view(dtype).to(DEVICE)
    x = x[x.abs() < 1e4]  # beyond, eager's own differ between devices
    fast = framefuse.compile(shortened)
    found = [fast(x) for _ in range(2)][1]
    assert kernels(checked(fast, 1)) >= 1
    for ours, exact in zip(found, shortened(x.double()), strict=True):
        assert ours.dtype is dtype
        large = exact.abs() > torch.finfo(dtype).max
        assert torch.equal(ours[large].double(), exact[large] * float("inf"))
        digits = torch.finfo(dtype).eps * exact.abs()
        near = (ours.double() - exact).abs() <= torch.clamp(digits, min=1e-6)
        assert near[~large].all()
    assert all(value.isnan().all() for value in fast(torch.full_like(x, float("nan"))))
