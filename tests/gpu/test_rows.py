"""Every pointwise primitive gives what eager gives on the same device, special values included."""

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.test_programs import DEVICE, checked, kernels, pytestmark, seed  # noqa: F401
from tests.unit.codegen.test_pointwise import domain, samples

import framefuse
from framefuse.ir.dtypes import BOOL, FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8, DType
from framefuse.ir.ops import TABLE

TOGETHER = 12  # rows of one function
# By divisors that are neither zero nor denormal: for these eager itself differs between machines.
DIVISIONS = ("floordiv", "remainder", "fmod")


def names(dtype: DType) -> list[str]:
    rows = [op for op in TABLE.values() if op.kind == "pointwise" and op.name not in ("cast", "where", "checked")]
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


def test_rows_by_one_number_are_divided_to_the_last_digit():
    """Quotients that are normal numbers, of any operands; special values too."""

    def f(a, b):
        return a / b[:, None], (a * 2).sum(1, keepdim=True) + a / (b[:, None] + 0)

    fast = framefuse.compile(f)
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, -1e-45, 3e38, 1e-38, 1.0])
    for number in range(3):
        seed(number)
        a = torch.randint(-(1 << 31), 1 << 31, (70, 333), dtype=torch.int64).to(torch.int32).view(torch.float32)
        b = torch.randint(-(1 << 31), 1 << 31, (70,), dtype=torch.int64).to(torch.int32).view(torch.float32)
        a[:, :10], b[:10] = special, special
        b[10:40], a[10:40] = torch.randn(30), torch.randn(30, 333)
        a, b = a.to(DEVICE), b.to(DEVICE)
        found, expected = fast(a, b)[0], f(a, b)[0]
        near = (expected.abs() < 1.2e-38) | (a.abs() < 1e-23)
        assert torch.equal(torch.signbit(found)[~expected.isnan()], torch.signbit(expected)[~expected.isnan()])
        same = (found == expected) | (found.isnan() & expected.isnan())
        assert (same | (near & ((found - expected).abs() <= 2.4e-7 * expected.abs() + 3e-45))).all()
    assert kernels(checked(fast, 1)) >= 1


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("classes", [3, 300, 20_000])
def test_smoothed_labels_do_not_need_the_logarithms(classes, reduction):
    def f(x, labels):
        return F.cross_entropy(x, labels, label_smoothing=0.1, reduction=reduction, ignore_index=1)

    fast = framefuse.compile(f)
    for number in range(4):
        seed(number)
        x, labels = torch.randn(9, classes) * (1 + 10 * number), torch.randint(3, (9,))
        x = x + (1e4 if number == 2 else 0)
        if number == 3 and reduction == "none":  # where a row begins, and elsewhere
            for row, number_ in enumerate((float("-inf"), float("inf"), float("nan"))):
                x[row, 0], x[3 + row, 1] = number_, number_
        x, labels = x.to(DEVICE), labels.to(DEVICE)
        with torch.no_grad():
            torch.testing.assert_close(fast(x, labels), f(x, labels), rtol=2e-5, atol=2e-5, equal_nan=True)
    assert kernels(checked(fast, 2)) >= 1


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_offsets_of_groups(groups):
    """Where each group begins: of one group, a scan of nothing behind a zero."""

    def offsets(counts):
        return F.pad(counts.cumsum(0)[:-1], (1, 0)), F.pad(counts.cumprod(0)[:-1], (1, 0), value=1)

    fast = framefuse.compile(offsets)
    for number in range(4):
        counts = torch.arange(1 + number, 1 + number + groups, device=DEVICE)
        for found, expected in zip(fast(counts), offsets(counts), strict=True):
            assert torch.equal(found, expected)
    assert kernels(checked(fast, 2)) >= 1
