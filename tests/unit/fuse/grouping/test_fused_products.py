"""Products of the library and the pointwise kernels behind them become one kernel, where one is offered and taken."""

import pytest
import torch
import torch.nn.functional as F
from tests.unit.fuse.graphs import Builder, check, symbol

from framefuse.autodiff.rules.library_products import times_transposed, transposed_times
from framefuse.codegen.triton.products import parts_of
from framefuse.fuse import fuse
from framefuse.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32
from framefuse.ir.loops.key import key_of
from framefuse.ir.schedule import RunCall, RunKernel
from framefuse.ir.target import Target

GPU = Target("cpu", "triton", launch=2500.0, products=False, scratch=False)
LOOSE = {"rtol": 3e-2, "atol": 3e-2}


def fused(graph, **options):
    return fuse(graph, targets=lambda device: GPU, **options)


def taken(graph, count=1, **options):
    """The schedule with the last product in a kernel, after a look at what was offered."""
    plain = fused(graph, offers=True, **options)
    assert len(plain.offers) == count
    offer = plain.offers[-1]
    calls = [item for item in plain.items if isinstance(item, RunCall)]
    assert offer.call in calls and offer.kernel.kernel in [i.kernel for i in plain.items if isinstance(i, RunKernel)]
    schedule = fused(graph, products=frozenset((offer.product,)), **options)
    assert sum(isinstance(item, RunCall) for item in schedule.items) == len(calls) - 1
    kernels = [sum(isinstance(item, RunKernel) for item in made.items) for made in (plain, schedule)]
    assert kernels[1] == kernels[0] - len(offer.before) and offer.product[1] == bool(offer.before)
    (product,) = [i.kernel for i in schedule.items if isinstance(i, RunKernel) and i.kernel.product is not None]
    assert key_of(product) == key_of(offer.fused.kernel)
    parts_of(product)
    return schedule


def sizes(dynamic, *given):
    names = [symbol(name) for name in "mnk"]
    return (names if dynamic else list(given)), dict(zip("mnk", given, strict=True)) if dynamic else {}


def linear(b, x, w, bias=None):
    operands = [x, w] if bias is None else [x, w, bias]
    return b.library(F.linear, operands, (*x.shape[:-1], w.shape[0]), x.dtype)


def random(*shape, dtype=torch.bfloat16):
    return (torch.randn(shape) / 2).to(dtype)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16])
@pytest.mark.parametrize("exact", [False, True])
def test_a_linear_layer_and_its_activation(dynamic, dtype, exact):
    (m, n, k), hints = sizes(dynamic, 17, 16, 20)
    b = Builder(**hints)
    x, w, bias, other = b.input((m, k), dtype), b.input((n, k), dtype), b.input((n,), dtype), b.input((m, n), dtype)
    y = linear(b, x, w, bias)
    graph = b.graph(b.add(b.sigmoid(y), other))
    schedule = taken(graph, exact=exact)
    for rows in (17, 30, 1) if dynamic else (17,):
        kind = dtype.torch
        check(graph, schedule, random(rows, 20, dtype=kind), random(16, 20, dtype=kind), random(16, dtype=kind),
              random(rows, 16, dtype=kind), **LOOSE)  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_of_several_dimensions(dynamic):
    b = Builder(**({"m": 3, "k": 24, "n": 18} if dynamic else {}))
    batch, k, n = (symbol(name) if dynamic else size for name, size in (("m", 3), ("k", 24), ("n", 18)))
    x, w, bias = b.input((batch, 7, k), BFLOAT16), b.input((n, k), BFLOAT16), b.input((n,), BFLOAT16)
    graph = b.graph(b.maximum(b.neg(linear(b, x, w, bias)), b.input((batch, 7, n), BFLOAT16)))
    check(graph, taken(graph), random(3, 7, 24), random(18, 24), random(18), random(3, 7, 18), **LOOSE)


@pytest.mark.parametrize(
    ("target", "left", "right"),
    [
        (torch.matmul, (20, 17), (17, 16)),
        (torch.mm, (20, 17), (17, 16)),
        (torch.Tensor.matmul, (2, 20, 17), (17, 16)),
        (times_transposed, (20, 17), (16, 17)),
        (transposed_times, (17, 20), (17, 16)),
    ],
)
def test_products_by_other_names(target, left, right):
    b = Builder()
    x, y = b.input(left, BFLOAT16), b.input(right, BFLOAT16)
    shape = (*left[:-2], 20, 16)
    graph = b.graph(b.exp(b.neg(b.abs(b.library(target, [x, y], shape, BFLOAT16)))))
    check(graph, taken(graph), random(*left), random(*right), **LOOSE)


@pytest.mark.parametrize("added", [(16,), (20, 16), (1, 16)])
def test_addmm(added):
    b = Builder()
    bias, x, y = b.input(added, BFLOAT16), b.input((20, 17), BFLOAT16), b.input((17, 16), BFLOAT16)
    graph = b.graph(b.neg(b.library(torch.addmm, [bias, x, y], (20, 16), BFLOAT16)))
    check(graph, taken(graph), random(*added), random(20, 17), random(17, 16), **LOOSE)


def test_operands_that_are_views():
    b = Builder()
    x, w = b.input((17, 60), BFLOAT16), b.input((24, 40), BFLOAT16)
    left, right = b.slice(x, (0, 5), (17, 20)), b.slice(w, (4, 1), (20, 16), (1, 2))
    graph = b.graph(b.neg(b.library(torch.matmul, [left, right], (17, 16), BFLOAT16)))
    check(graph, taken(graph, 2), random(17, 60), random(24, 40), **LOOSE)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("exact", [False, True])
def test_operands_are_computed_where_they_are_multiplied(dynamic, exact):
    (m, n, k), hints = sizes(dynamic, 17, 16, 20)
    b = Builder(**hints)
    x, w, gate = b.input((m, k), FLOAT32), b.input((n, k), FLOAT32), b.input((k,), FLOAT32)
    left = b.cast(b.exp(b.mul(x, gate)), dtype=BFLOAT16)  # exp(0) is 1: what is beyond the end must not count
    graph = b.graph(b.neg(linear(b, left, b.cast(w, dtype=BFLOAT16))))
    schedule = taken(graph, 2, exact=exact)
    assert sum(isinstance(item, RunKernel) for item in schedule.items) == 1
    for rows in (17, 30, 1) if dynamic else (17,):
        given = [random(*shape, dtype=torch.float32) for shape in ((rows, 20), (16, 20), (20,))]
        check(graph, schedule, *given, **LOOSE)


@pytest.mark.parametrize(("target", "left", "right"), [(transposed_times, (17, 20), (17, 16)),
                                                       (times_transposed, (20, 17), (16, 17)),
                                                       (torch.matmul, (3, 7, 17), (17, 16))])  # fmt: skip
def test_computed_operands_that_lie_otherwise(target, left, right):
    b = Builder()
    x, y = (b.cast(b.input(shape, FLOAT32), dtype=BFLOAT16) for shape in (left, right))
    shape = (*left[:-2], 20, 16) if len(left) == 2 else (3, 7, 16)
    graph = b.graph(b.exp(b.neg(b.abs(b.library(target, [x, y], shape, BFLOAT16)))))
    check(graph, taken(graph, 2), *(random(*shape, dtype=torch.float32) for shape in (left, right)), **LOOSE)


def test_the_kernel_between_two_products_is_part_of_one():
    b = Builder()
    x, v, w = b.input((32, 20), BFLOAT16), b.input((24, 20), BFLOAT16), b.input((16, 24), BFLOAT16)
    graph = b.graph(b.neg(linear(b, b.sigmoid(linear(b, x, v)), w)))
    offers = fused(graph, offers=True).offers
    assert [offer.product[1] for offer in offers] == [False, False, True]
    assert offers[0].covers & offers[2].covers and not offers[0].covers & offers[1].covers
    for chosen in (offers[:1], offers[:2], offers[2:]):
        schedule = fused(graph, products=frozenset(offer.product for offer in chosen))
        check(graph, schedule, random(32, 20), random(24, 20), random(16, 24), **LOOSE)


def test_operands_that_others_read_stay_in_memory():
    b = Builder()
    x, w = b.input((32, 20), FLOAT32), b.input((24, 20), BFLOAT16)
    left = b.cast(x, dtype=BFLOAT16)
    graph = b.graph(b.neg(linear(b, left, w)), left)
    assert [offer.product[1] for offer in fused(graph, offers=True).offers] == [False]
    b = Builder()
    x, w = b.input((32, 20), FLOAT32), b.input((24, 20), BFLOAT16)
    left = b.cast(x, dtype=BFLOAT16)
    graph = b.graph(b.neg(linear(b, left, w)), b.exp(linear(b, left, b.input((24, 20), BFLOAT16))))
    assert [offer.product[1] for offer in fused(graph, offers=True).offers] == [False, False]


def test_a_result_that_is_read_transposed_and_in_parts():
    b = Builder()
    x, w = b.input((32, 20), BFLOAT16), b.input((24, 20), BFLOAT16)
    y = linear(b, x, w)
    graph = b.graph(b.neg(b.permute(y, 1, 0)))
    check(graph, taken(graph), random(32, 20), random(24, 20), **LOOSE)
    b = Builder()
    x, w = b.input((32, 20), BFLOAT16), b.input((24, 20), BFLOAT16)
    y = b.reshape(linear(b, x, w), 4, 8, 3, 8)
    graph = b.graph(b.exp(b.neg(b.permute(y, 0, 2, 1, 3))))
    check(graph, taken(graph), random(32, 20), random(24, 20), **LOOSE)


def test_of_two_products_of_one_kernel_one_is_taken():
    b = Builder()
    x, v, w = b.input((32, 20), BFLOAT16), b.input((24, 20), BFLOAT16), b.input((24, 20), BFLOAT16)
    graph = b.graph(b.mul(b.sigmoid(linear(b, x, v)), linear(b, x, w)))
    check(graph, taken(graph, 2), random(32, 20), random(24, 20), random(24, 20), **LOOSE)


def test_several_results():
    b = Builder()
    x, w = b.input((32, 20), BFLOAT16), b.input((24, 20), BFLOAT16)
    y = linear(b, x, w)
    graph = b.graph(b.sigmoid(y), b.neg(y))
    check(graph, taken(graph), random(32, 20), random(24, 20), **LOOSE)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_that_is_wanted_itself(dynamic):
    (m, n, k), hints = sizes(dynamic, 17, 16, 20)
    b = Builder(**hints)
    x, w = b.input((m, k), BFLOAT16), b.input((n, k), BFLOAT16)
    y = linear(b, x, w)
    graph = b.graph(y, b.sigmoid(y))
    for rows in (17, 3) if dynamic else (17,):
        check(graph, taken(graph), random(rows, 20), random(16, 20), **LOOSE)


def test_chains_of_layers():
    """Temporaries in the arena live until the kernel that multiplies has read them."""
    b = Builder()
    x = b.input((20, 24), BFLOAT16)
    weights = [b.input((24, 24), BFLOAT16) for _ in range(3)]
    y = x
    for w in weights:
        y = b.add(b.sigmoid(linear(b, y, w)), y)
    graph = b.graph(y)
    offers = fused(graph, offers=True).offers
    assert len(offers) == 3
    given = [random(20, 24), *(random(24, 24) for _ in weights)]
    for count in range(1, 4):
        schedule = fused(graph, products=frozenset(offer.product for offer in offers[:count]))
        check(graph, schedule, *given, **LOOSE)


def offered(make, *shapes, dtype=BFLOAT16):
    b = Builder()
    return fused(b.graph(*make(b, *(b.input(shape, dtype) for shape in shapes))), offers=True).offers


def test_what_is_not_offered():
    big, square = (32, 20), (24, 20)
    assert offered(lambda b, x, w: [b.neg(linear(b, x, w))], big, square)
    assert not offered(lambda b, x, w: [b.neg(linear(b, x, w))], big, square, dtype=FLOAT32)
    assert not offered(lambda b, x, w: [linear(b, x, w)], big, square)
    assert not offered(lambda b, x, w: (lambda y: [b.neg(y), linear(b, y, w)])(linear(b, x, w)), square, (20, 20))
    assert not offered(lambda b, x, w: [b.reduce("amax", linear(b, x, w), 1)], big, square)
    assert not offered(lambda b, x, w: [b.neg(linear(b, x, w))], (4, 20), square)
    assert not offered(lambda b, x, w: [b.neg(b.slice(linear(b, x, w), (0, 0), (16, 24)))], big, square)
    assert not offered(
        lambda b, x, y: [b.neg(b.library(torch.bmm, [x, y], (2, 20, 16), BFLOAT16))], (2, 20, 17), (2, 17, 16)
    )
    b = Builder()
    x, w = b.input(big, BFLOAT16), b.input(square, BFLOAT16)
    graph = b.graph(b.neg(linear(b, x, w)))
    assert not fused(graph).offers, "nothing is looked for unless it is asked"
    assert not fuse(graph, offers=True).offers, "the CPU's kernels have no tiles"
