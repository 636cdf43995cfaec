"""The gradient of every row of the table is autograd's, at ties, zeros and values that are not finite as well."""

import pytest
import torch
from tests.unit.autodiff.gradient_graphs import check, check_lowered, gradient_graph, graph_of

from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.ops import TABLE

SPECIAL = [-float("inf"), -3.0, -1.0, -0.3, -0.0, 0.0, 0.4, 1.0, 2.5, float("inf"), float("nan")]
EAGER = {
    "maximum": torch.maximum, "minimum": torch.minimum, "where": torch.where, "div": torch.true_divide,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"), "fma": torch.addcmul,
}  # fmt: skip
ROWS = [
    row for row in TABLE.values()
    if row.kind == "pointwise" and row.domain != "integral" and row.name not in ("cast", "fma")
    and row.derivative and any(row.derivative)
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_pointwise(row):
    values = torch.tensor(SPECIAL, dtype=torch.float64)
    pairs = torch.cartesian_prod(*[values] * min(row.arity, 2)).reshape(-1, min(row.arity, 2))
    operands = [column.clone() for column in pairs.T]
    if row.name == "where":
        operands = [operands[0] > 0, *operands]

    def build(b, *nodes):
        return b.pointwise(row.name, *nodes)

    try:
        check(build, EAGER.get(row.name) or getattr(torch, row.name), *operands)
    except NotImplementedError as error:  # of an older torch
        pytest.skip(str(error))


def test_a_checked_value():
    values = torch.tensor(SPECIAL, dtype=torch.float64)
    holds = torch.ones_like(values, dtype=torch.bool)
    check(lambda b, *nodes: b.pointwise("checked", *nodes), lambda value, condition: value, values, holds)


def rand(*shape, dtype=torch.float64):
    torch.manual_seed(0)
    return torch.randn(shape, dtype=dtype)


def test_fma():
    a, c, d = rand(5), rand(5) + 1, rand(5) - 1
    check(lambda b, x, y, z: b.pointwise("fma", x, y, z), lambda x, y, z: x * y + z, a, c, d)


def test_cast():
    check(lambda b, x: b.cast(x, FLOAT32), lambda x: x.float(), rand(4))


VIEWS = {
    "expand": lambda x: x[:, None].expand(3, 2, 5, 4),
    "expand_stretched": lambda x: x.expand(3, 5, 4) + x[:, :1],
    "reshape": lambda x: x.reshape(15, 4).reshape(60),
    "permute": lambda x: x.permute(2, 0, 1),
    "slice": lambda x: x[1:, 2:5, ::2],
    "step": lambda x: x[:, ::3, 1::2],
    "step_to_the_end": lambda x: x[:, 1::3],
    "flip": lambda x: x.flip(0, 2)[:, ::2],
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2, 0, 3), value=2.0),
    "crop": lambda x: torch.nn.functional.pad(x, (-1, 2)),
    "cat": lambda x: torch.cat([x, x * 2, x[:, :2]], 1),
    "chunk": lambda x: torch.cat([part * k for k, part in enumerate(x.chunk(3, 1), 2)], 1),
    "unbind": lambda x: sum(k * row for k, row in enumerate(x.unbind(1))),
    "overlap": lambda x: x[:, :3] * x[:, 1:4],
    "gap": lambda x: x[:, 1:2] * x[:, 2:3] * x[:, 4:],
    "unfold": lambda x: x.diff(dim=1),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_views(name, dtype):
    bounds = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    check_lowered(VIEWS[name], rand(3, 5, 4, dtype=dtype), **bounds)


REDUCTIONS = {
    "sum": lambda x: x.sum((0, 2)), "sum_all": lambda x: x.sum(), "mean": lambda x: x.mean(1, keepdim=True),
    "amax": lambda x: x.amax((0, 2)), "amin": lambda x: x.amin(1), "prod": lambda x: x.prod(1),
    "var": lambda x: x.var(1), "prod_all": lambda x: x.prod(),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("kind", ["random", "ties", "nan", "zeros"])
def test_reductions(name, kind):
    x = rand(3, 5, 4)
    if kind == "ties":
        x = x.round()
    elif kind == "nan":
        x[1, 2, 3] = float("nan")
    elif kind == "zeros":
        x[0, 1], x[1, :3, 2], x[2, 0, 0] = 0.0, 0.0, 0.0
    check_lowered(REDUCTIONS[name], x)


PRODUCTS = {
    "matrices": (lambda a, b: a @ b, (3, 4), (4, 5)),
    "batch": (lambda a, b: a @ b, (2, 3, 4), (2, 4, 5)),
    "shared_right": (lambda a, b: a @ b, (2, 3, 4), (4, 5)),
    "shared_left": (lambda a, b: a @ b, (3, 4), (2, 4, 5)),
    "partly_shared": (lambda a, b: a @ b, (2, 6, 3, 4), (6, 4, 5)),
    "partly_shared_left": (lambda a, b: a @ b, (2, 1, 3, 4), (2, 6, 4, 5)),
    "transposed": (lambda a, b: a.mT @ b.mT, (2, 4, 3), (2, 5, 4)),
    "vectors": (lambda a, b: a @ b, (4,), (4,)),
    "matrix_vector": (lambda a, b: a @ b, (3, 4), (4,)),
    "linear": (torch.nn.functional.linear, (2, 3, 4), (5, 4)),
    "einsum": (lambda a, b: torch.einsum("bihd,bjhd->bhij", a, b), (2, 3, 4, 5), (2, 6, 4, 5)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    function, left, right = PRODUCTS[name]
    check_lowered(function, rand(*left), rand(*right) + 1)


@pytest.mark.parametrize("name", ["shared_right", "shared_left", "linear"])
def test_a_weight_shared_over_a_batch_gets_one_product(name):
    function, left, right = PRODUCTS[name]
    backward = check_lowered(function, rand(*left), rand(*right))
    products = [node for node in backward.nodes if node.op == "matmul"]
    weight = 0 if name == "shared_left" else 1
    assert len(products) == 2 and not any(node.op == "sum" for node in backward.nodes)
    shapes = [tuple(size.evaluate(backward.hints) for size in node.shape) for node in products]
    assert (left, right)[weight] in shapes, shapes  # in the weight's own order, not transposed


READS = {
    "rows": (lambda x, i: x[i], (5, 4), torch.tensor([[0, 4, -1], [2, 2, 0]])),
    "columns": (lambda x, i: x[:, i], (3, 5, 2), torch.tensor([[0, 4, -1], [2, 2, 0]])),
    "embedding": (lambda x, i: torch.nn.functional.embedding(i, x), (5, 4), torch.tensor([[0, 4, 1], [2, 2, 0]])),
    "index_select": (lambda x, i: x.index_select(1, i), (3, 5), torch.tensor([1, 1, 4])),
    "gather": (lambda x, i: x.gather(1, i), (2, 5), torch.tensor([[0, 0, 4], [1, 2, 1]])),
    "gather_one": (lambda x, i: x.gather(1, i), (2, 5), torch.tensor([[4], [1]])),
    "gather_less": (lambda x, i: x.gather(1, i), (3, 5), torch.tensor([[4], [1]])),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_reads(name, dtype):
    function, shape, index = READS[name]
    check_lowered(function, rand(*shape, dtype=dtype), index)


def test_nothing_is_made_off_the_path():
    def build(b, x, y):
        return b.pointwise("mul", b.pointwise("exp", x), b.pointwise("tanh", y))

    graph = graph_of(build, rand(3), rand(3))
    backward, exists = gradient_graph(graph, [0])
    ops = [node.op for node in backward.nodes if node.op != "input"]
    assert exists == [True] and ops == ["exp", "tanh", "mul", "mul"]


def test_what_is_not_reached_has_no_gradient_and_what_has_no_slope_zeros():
    check(
        lambda b, x, y, z: b.pointwise("add", b.pointwise("floor", x), b.detach(y)),
        lambda x, y, z: torch.floor(x) + y.detach(), rand(3), rand(3), rand(3),
    )  # fmt: skip
