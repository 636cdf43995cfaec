"""Rounding, promotion, zeros, ties, memory and writes are eager's."""

import math
import re

import pytest
import torch
from tests.unit.lower.recording import check, lowered, ops, run, trace_of

from framefuse.errors import Stop
from framefuse.fuse import fuse
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.numbers import Symbol
from framefuse.ir.schedule import RunKernel
from framefuse.lower import lower

# Long enough for eager's vector kernels: its scalar ends take the other one of two equal zeros.
SPECIAL = torch.tensor([-math.inf, -1.5, -0.0, 0.0, 2.0, math.inf, math.nan, 1.0]).repeat(64)


# ---- numerics --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.relu(x),
        lambda x: x.clamp(min=0.0),
        lambda x: x.clamp(-0.0, 1.0),
        lambda x: torch.maximum(x, x.flip(0)),
        lambda x: torch.minimum(x, x.new_zeros(())),
        lambda x: x + 0,
        lambda x: x - 0,
        lambda x: x * 1,
        lambda x: -x,
        lambda x: x.abs().neg(),
        lambda x: torch.where(x > 0, x, -0.0),
        lambda x: x.sum(),
        lambda x: x.argmax(),
        lambda x: x.amax(),
        lambda x: (x // 1.5, x % 1.5, torch.fmod(x, 1.5)),
        lambda x: (x**2, x**3, x**0.5, x**-1),
        lambda x: x.sign(),
        lambda x: torch.nn.functional.leaky_relu(x),
    ],
)
def test_special_values(function, dtype):
    check(function, SPECIAL.to(dtype))


def test_every_operation_rounds_to_sixteen_bits():
    x = torch.randn(200, dtype=torch.bfloat16)
    graph = lowered(lambda x: (x + 0.1) * 1.1, x)
    assert ops(graph) == ["cast", "add", "cast", "cast", "mul", "cast"]
    check(lambda x: ((x + 0.1) * 1.1 - x).sum(), x)


@pytest.mark.parametrize("a", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32])
@pytest.mark.parametrize("b", [torch.bool, torch.int8, torch.int64, torch.bfloat16, torch.float64])
def test_promotion_of_ranks_and_numbers(a, b):
    x, y, zero = torch.ones(3).to(a), torch.ones(2, 3).to(b), torch.ones(()).to(b)
    check(lambda x, y, z: (x + y, x * z, z * z, x + 1, x * 2.5, x == y, torch.where(x > 0, z, y)), x, y, zero)


def test_integer_sums_are_wide_and_bools_are_logical():
    x = torch.full((40,), 100, dtype=torch.uint8)
    check(lambda x, m: (x.sum(), (x > 3) + m, (x > 3) * m, m.sum(), x.prod()), x, torch.arange(40) % 2 == 0)


def test_the_first_of_equal_extremes_is_found():
    x = torch.tensor([[1.0, 3.0, 3.0], [math.nan, 5.0, math.nan], [0.0, -0.0, -1.0]])
    check(lambda x: (x.argmax(1), x.argmin(1), x.max(1), x.min(0), x.argmax()), x)


# ---- sizes -----------------------------------------------------------------------------------------------------------


def heads(x):
    b, s, d = x.shape
    return x.view(b, s, 4, d // 4).transpose(1, 2).reshape(b, -1).sum(-1)


def test_sizes_stay_expressions():
    graph = check(heads, torch.randn(2, 3, 8), others=[(torch.randn(5, 1, 8),), (torch.randn(1, 7, 16),)])
    assert not graph.bound


@pytest.mark.parametrize("dynamic", [None, False])
def test_the_channels_of_a_group_are_walked_not_divided(dynamic):
    def norm(x, weight, bias):
        return torch.nn.functional.group_norm(x, 4, weight, bias)

    def arguments(*shape):
        return torch.randn(shape), torch.randn(shape[1]), torch.randn(shape[1])

    others = [] if dynamic is False else [arguments(3, 4, 2, 1), arguments(1, 20, 5, 5), arguments(0, 8, 3, 5)]
    graph = check(norm, *arguments(2, 8, 3, 5), others=others, dynamic=dynamic)
    (kernel,) = [item.kernel for item in fuse(graph).items if isinstance(item, RunKernel)]
    moves = [line for line in kernel_text(kernel).splitlines() if re.search(r"\bb\d\[", line)]
    assert moves and not any(re.search(r"//|%", line) for line in moves)


def test_broadcasting_leaves_relations_only_where_they_are_needed():
    def function(x, y):
        return x + y

    assert not lowered(function, torch.randn(3, 4), torch.tensor(1.0)).relations
    equal = lowered(function, torch.randn(3, 4), torch.randn(3, 4)).relations
    assert [relation.op for relation in equal] == ["==", "=="]
    one = lowered(function, torch.randn(3, 4), torch.randn(1, 4)).relations
    assert {str(relation.right) for relation in one} & {"1"}


def test_a_demand_on_a_product_is_one_on_each_factor():
    graph = lowered(lambda x: x.reshape(x.shape[0], x.shape[1], -1), torch.randn(2, 3, 4))
    assert all(len(relation.left.terms[0][0]) == 1 for relation in graph.relations)


def test_a_size_that_depends_on_values_is_bound_at_run_time():
    graph = check(lambda x: x[x > 0] * 2, torch.tensor([1.0, -1.0, 3.0]), others=[(torch.ones(7),)])
    assert [symbol for symbol, _, _ in graph.bound] == [Symbol("u0")]


def test_static_sizes_are_constants():
    graph = lowered(heads, torch.randn(2, 3, 8), dynamic=False)
    assert all(size.constant is not None for node in graph.nodes for size in node.shape)


# ---- writes ----------------------------------------------------------------------------------------------------------


def through_views(x):
    base = x * 2
    row, column = base[1], base[:, 0]
    row += 1
    column.mul_(3)
    base[0, 1:3] = 7
    return base, row.clone(), column.sum()


def test_a_write_is_seen_through_every_view():
    check(through_views, torch.randn(3, 4), others=[(torch.randn(5, 6),)])


def test_an_input_is_written_after_everything_was_read():
    def function(x, y):
        before = x + y
        x.add_(1)
        x.mul_(y)
        return before, x * 1

    graph = check(function, torch.randn(3), torch.randn(3))
    assert [write.bumps for write in graph.writes] == [2]


def test_forms_of_writing():
    def function(x, mask):
        a = torch.empty_like(x)
        a.copy_(x)
        a.masked_fill_(mask, 0.5)
        b = torch.zeros(x.shape)
        torch.add(a, 1, out=b)
        b[mask] = -1.0
        c = torch.nn.functional.relu(b.clone(), inplace=True)
        c[[0, 1]] = 5.0
        c.index_add_(0, torch.tensor([0]), c[:1].clone())
        return a, b, c

    check(function, torch.randn(3, 4), torch.randn(3, 4) > 0)


def test_what_has_no_pure_form_is_refused():
    trace = trace_of(lambda x: (x * 1).as_strided((2,), (1,)).add_(1) + (x * 1).sum(), torch.randn(3, 4))
    with pytest.raises(Stop):
        lower(trace)


# ---- outputs ---------------------------------------------------------------------------------------------------------


def test_outputs_keep_eagers_strides_and_sharing():
    def function(x):
        y = x.T + 1
        whole = y * 2
        first, second = whole.chunk(2)
        return x, x.T, y, first, second, (x + 3)[:, 0], (x * 2).sum(0, keepdim=True).expand(3, -1), x.clone(), x.clone()

    x = torch.randn(4, 6)
    trace = trace_of(function, x)
    graph = lower(trace)
    check(function, x)

    result = run(trace, graph, (x,))
    assert result[0] is x and result[1].data_ptr() == x.data_ptr()
    assert result[3].untyped_storage().data_ptr() == result[4].untyped_storage().data_ptr()
    assert result[7].data_ptr() != x.data_ptr() and result[7].data_ptr() != result[8].data_ptr()


def test_channels_last_stays():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    w = torch.randn(6, 3, 3, 3)
    graph = check(lambda x, w: torch.relu(torch.conv2d(x, w)) + 1, x, w)
    assert graph.outputs[0].order == (0, 2, 3, 1)


# ---- the rest --------------------------------------------------------------------------------------------------------


def test_equal_values_are_computed_once_and_dead_ones_never():
    def function(x):
        torch.cos(x)
        return torch.sin(x) + torch.sin(x)

    assert ops(lowered(function, torch.randn(3))) == ["sin", "add"]


def test_random_calls_stay_in_order_even_when_unused():
    def function(x):
        torch.rand(3)
        return torch.nn.functional.dropout(x, 0.5, True) + torch.rand(3)

    graph = lowered(function, torch.randn(3))
    assert [node.attr("name") for node in graph.nodes if node.op == "library"] == ["rand", "draw_bernoulli", "rand"]


def test_a_wrong_or_failing_rule_costs_nothing_but_fusion():
    notes = []
    lower(trace_of(lambda x: torch.block_diag(x) + torch.combinations(x[0]).sum(), torch.randn(3, 3)), notes=notes)
    assert [name for name, _ in notes] == ["block_diag", "combinations"]


def test_attention_and_products():
    def function(q, k, w, b):
        a = torch.nn.functional.scaled_dot_product_attention(q, k, k)
        scores = torch.softmax(q @ k.transpose(-1, -2) / 2.0, -1) @ k
        flat = torch.nn.functional.linear(a, w, b)
        mixed = torch.einsum("bhqd,de->bhqe", scores, w)
        return flat + mixed, torch.addmm(b, q[0, 0], w), q[0, 0, 0] @ w

    x = [torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(4, 4), torch.randn(4)]
    y = [torch.randn(1, 6, 7, 4), torch.randn(1, 6, 7, 4), torch.randn(4, 4), torch.randn(4)]
    assert ops(check(function, *x, others=[y])).count("matmul") == 6


def test_einsum_of_several_operands():
    def function(a, b, c, d):
        within = torch.einsum("bclhn,bcshn,bclsh,bcshp->bclhp", a, b, c, d)
        states = torch.einsum("...shn,...sh,...shp->...hpn", b, c[:, :, 0], d)
        return within, states, torch.einsum("ij,ik,il->jkl", *b[0, 0, :3])

    def given(batch, steps):
        first = torch.randn(batch, 2, steps, 3, 4), torch.randn(batch, 2, steps, 3, 4)
        return [*first, torch.randn(batch, 2, steps, steps, 3), torch.randn(batch, 2, steps, 3, 6)]

    made = ops(check(function, *given(2, 5), others=[given(3, 7)]))
    assert "library" not in made and made.count("matmul") >= 4


def test_a_view_that_kernels_read_is_still_a_view_outside():
    def function(x):
        diagonal = x.diagonal()
        return diagonal, diagonal * 2

    x = torch.randn(4, 4)
    trace = trace_of(function, x)
    graph = lower(trace)
    result = run(trace, graph, (x,))
    assert result[0].data_ptr() == x.data_ptr()
    read = next(node for node in graph.nodes if node.op == "mul").inputs[0]
    assert graph.outputs[0].node is not read, "a kernel may have had its operand copied"


def test_statistics_of_a_batch_are_written_back():
    def function(x, mean, var):
        return torch.nn.functional.batch_norm(x, mean, var, training=True)

    graph = check(function, torch.randn(4, 3), torch.zeros(3), torch.ones(3))
    assert [write.input for write in graph.writes] == [1, 2]


def test_autocast_is_part_of_a_call():
    def function(x, w):
        return torch.nn.functional.linear(x, w) * 2.0

    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(function, torch.randn(4, 3), torch.randn(5, 3))
