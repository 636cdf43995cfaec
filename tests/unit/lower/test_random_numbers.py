"""Random results and the generator's state are eager's under the same seed, call for call; dropout fuses."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from tests.unit.lower.recording import lowered, ops
from torch import nn

import framefuse
from framefuse.lower import random_numbers, rules
from framefuse.runtime.function import compiled_function

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def runs(function, calls, seed=3):
    """Results, arguments afterwards and the generator's state after each call."""
    found = []
    torch.manual_seed(seed)
    with torch.no_grad():
        for args in calls:
            own = [a.clone(memory_format=torch.preserve_format) if isinstance(a, torch.Tensor) else a for a in args]
            found.append((function(*own), own, torch.get_rng_state()))
    return found


def same(function, calls, traces=1, tolerance=0.0):
    """Compares a compiled function with eager; it compiles ``traces`` traces, for these calls and points in them."""
    compiled = framefuse.compile(function)
    expected = runs(function, calls)
    with framefuse.testing.assert_compiles(traces, compiled) if traces is not None else contextlib.nullcontext():
        found = runs(compiled, calls)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    return compiled


def several(*shape, count=4, dtype=torch.float32):
    return [(torch.randn(shape).to(dtype),) for _ in range(count)]


def libraries(compiled):
    """The library calls of each trace."""
    nodes = [product.stages.graph.nodes for product in compiled_function(compiled).products]
    return [[node.attr("name") for node in graph if node.op == "library"] for graph in nodes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("drop", "shape"),
    [
        (F.dropout, (17, 9)),
        (F.alpha_dropout, (17, 9)),
        (F.dropout1d, (4, 5, 6)),
        (F.dropout1d, (4, 5)),
        (F.dropout2d, (3, 5, 4, 2)),
        (F.dropout3d, (3, 5, 4, 2, 2)),
        (F.dropout3d, (5, 4, 2, 2)),
        (F.feature_alpha_dropout, (3, 5, 4)),
    ],
)
def test_every_dropout_is_eagers_to_the_bit(drop, shape, inplace, dtype):
    for chance in (0.0, 0.1, 0.5, 0.9, 1.0):
        same(lambda x, p=chance: drop(x * 2.0, p, True, inplace), several(*shape, count=3, dtype=dtype))


def test_dropout_is_one_draw_of_bytes_and_arithmetic_that_fuses():
    graph = lowered(lambda x: F.dropout(torch.relu(x), 0.25, True) + 1.0, torch.randn(8, 4))
    assert ops(graph) == ["maximum", "library", "cast", "mul", "mul", "add"]
    (mask,) = (node for node in graph.nodes if node.op == "result")
    assert mask.dtype.size == 1
    compiled = same(lambda x: F.dropout(torch.relu(x), 0.25, True) + 1.0, several(8, 4))
    schedule = compiled_function(compiled).products[0].stages.code.schedule
    assert [type(item).__name__ for item in schedule.items if type(item).__name__.startswith("Run")] == [
        "RunCall",
        "RunKernel",
    ]


def test_nothing_is_drawn_where_eager_draws_nothing():
    for function in (
        lambda x: F.dropout(x + 1, 0.5, training=False),
        lambda x: F.dropout(x + 1, 0.0, True),
        lambda x: F.dropout(x + 1, 1.0, True),
        lambda x: torch.alpha_dropout(x + 1, 0.5, False),
    ):
        assert libraries(same(function, several(5, 6))) == [[]]


def test_all_dropped_keeps_the_signs_and_what_is_not_finite():
    special = torch.tensor([-1.0, 1.0, -0.0, torch.inf, -torch.inf, torch.nan]).repeat(8)
    for chance in (0.5, 1.0):
        compiled = framefuse.compile(lambda x, p=chance: F.dropout(x, p))
        expected, found = (runs(f, [(special,)] * 3) for f in (lambda x, p=chance: F.dropout(x, p), compiled))
        for (a, _, _), (b, _, _) in zip(expected, found, strict=True):
            torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True)
            assert torch.equal(torch.signbit(a[a == 0]), torch.signbit(b[b == 0]))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: (x + 1).contiguous(memory_format=torch.channels_last),
        lambda x: (x + 1).permute(3, 1, 0, 2),
        lambda x: (x + 1).transpose(0, 2)[:, ::2],
        lambda x: x[..., ::2],
        lambda x: x[:1].expand(6, -1, -1, -1),
        lambda x: x,
    ],
)
def test_the_numbers_lie_in_memory_as_eagers(change):
    same(lambda x: F.dropout(change(x), 0.3) * 2.0, several(5, 4, 6, 8))
    same(lambda x: torch.rand_like(change(x)) + torch.randn_like(change(x) * 2.0), several(5, 4, 6, 8))
    same(lambda x: torch.bernoulli(change(x).sigmoid()) * 2.0, several(5, 4, 6, 8), tolerance=1e-6)


def test_the_chance_may_be_a_number_of_each_call():
    chances = (0.1, 0.2, 0.3, 0.0, 0.4, 1.0, 0.7, 0.0)
    calls = [(torch.randn(5, 6), p) for p in chances]
    # one for the first chance, one for those inside of (0, 1), one for each end
    compiled = same(lambda x, p: F.dropout(x, p) * 2.0, calls, traces=3)
    with torch.no_grad(), pytest.raises(ValueError, match="between 0 and 1"):
        compiled(torch.randn(5, 6), 1.5)


def test_sizes_may_change_and_a_tensor_without_elements_draws_nothing():
    same(lambda x: F.dropout(x, 0.5) * 2.0, [(torch.randn(n, 6),) for n in (3, 4, 1, 9, 0, 0, 5)], traces=2)
    same(lambda x: x + torch.rand(x.shape), [(torch.randn(n, 6),) for n in (3, 4, 1, 9)])
    same(lambda x: x[torch.randperm(x.shape[0])] * 2.0, [(torch.randn(n, 6),) for n in (3, 4, 1, 9)])


def test_fills_draw_into_what_they_fill():
    def function(x):
        a = torch.empty(5, 6).uniform_() + torch.zeros(5, 6).normal_(1.0, 2.0) + torch.empty_like(x).exponential_()
        b = torch.empty(6).log_normal_() + torch.empty(6).geometric_(0.4) + torch.empty(6).random_(0, 9)
        return x + a + b + (x + 1).t().normal_().t() + torch.empty(6).cauchy_() + torch.empty(6).bernoulli_(0.3)

    (names,) = libraries(same(function, several(5, 6), tolerance=1e-6))
    assert len(names) == 9
    assert all(name.startswith("draw_") for name in names)  # the memory that they fill is their own


def test_fills_of_inputs_and_views_write_them():
    same(lambda x: x.uniform_().mul_(2.0), several(5, 6))
    same(lambda x: x[1:3].normal_() * 2.0, several(5, 60))
    for function in (lambda x: x[:, 2:50].normal_() * 2.0, lambda x: (x + 1)[:, ::2].normal_() * 2.0):
        same(function, several(30, 60, count=4), traces=2)  # eager fills memory with gaps in another way: a step


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.randn(6) * x + torch.randint(0, 9, (5, 1)) + torch.randint(5, (6,)),
        lambda x: torch.normal(0.0, 1.0, (5, 6)) + torch.normal(x, 1.0) + torch.normal(x, x.abs()),
        lambda x: torch.multinomial(x.softmax(-1), 2) + torch.multinomial(x.softmax(-1), 9, True).sum(),
        lambda x: F.rrelu(x + 1, 0.1, 0.3, True) * 2.0,
        lambda x: F.gumbel_softmax(x) + F.gumbel_softmax(x, hard=True),
        lambda x: torch.poisson(x.abs() * 3) + 1.0,
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3) * 2.0,
        lambda x: torch.empty_like(x).bernoulli_(torch.full_like(x, 0.3)) + x,
    ],
)
def test_calls_that_stay_with_the_library_draw_as_eager(function):
    same(function, several(5, 6), tolerance=1e-6)


def test_modules_in_training():
    encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
    recurrent = nn.LSTM(4, 8, 2, dropout=0.4)
    same(lambda x: encoder(x), several(2, 5, 16), tolerance=1e-5)
    same(lambda x: recurrent(x)[0], several(5, 2, 4), tolerance=1e-5)
    chain = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.ReLU(), nn.AlphaDropout(0.2), nn.Dropout1d(0.5))
    same(lambda x: chain(x), several(5, 6), tolerance=1e-6)


def test_a_seed_and_a_state_set_inside():
    def seeded(x):
        a = F.dropout(x, 0.5)
        torch.manual_seed(7)
        return a + F.dropout(x, 0.5)

    def restored(x):
        state = torch.get_rng_state()
        a = torch.rand(5, 6)
        torch.set_rng_state(state)
        return a + x, torch.rand(5, 6)

    def forked(x):
        with torch.random.fork_rng():
            a = F.dropout(x, 0.5)
        return a + F.dropout(x, 0.5)

    same(seeded, several(5, 6), traces=1)
    same(restored, several(5, 6), traces=1)
    # Where there is a GPU, its generator is asked for its state too: a break.
    same(forked, several(5, 6), traces=None if torch.cuda.is_available() else 1)


def test_numbers_drawn_in_branches_and_for_nobody():
    def branch(x):
        if x.sum() > 0:
            return F.dropout(x, 0.5) * 2.0
        return torch.rand(5, 6) + x

    def unread(x):
        F.dropout(x, 0.1)
        torch.rand(3)
        return F.dropout(x, 0.4)

    same(branch, [(x,) for x in (torch.ones(5, 6), -torch.ones(5, 6), torch.ones(5, 6), -torch.ones(5, 6))], traces=3)
    same(unread, several(5, 6))


def test_a_rule_that_fails_after_drawing_draws_once(monkeypatch):
    entry = rules._BY_TARGET[F.dropout]

    def wrong(lo, *args, **kwargs):
        return lo.reshape(entry.function(lo, *args, **kwargs), (lo.count(args[0].shape),))

    monkeypatch.setitem(rules._BY_TARGET, F.dropout, rules.Entry(("dropout",), "test", wrong))
    assert libraries(same(lambda x: F.dropout(x, 0.5) * 2.0, several(5, 6))) == [["dropout"]]


def test_a_call_that_declines_draws_once():
    def function(x, index):
        return F.dropout(x, 0.5)[index] * torch.rand(3)

    x, good, bad = torch.randn(50, 3), torch.tensor([1, 2]), torch.tensor([1, 99])
    states = []
    with torch.no_grad():
        for call in (function, framefuse.compile(function)):
            torch.manual_seed(1)
            for index in (good, good, bad, good):
                try:
                    states.append(call(x, index))
                except IndexError:
                    states.append(torch.rand(3))
                states.append(torch.get_rng_state())
    assert all(map(torch.equal, states[: len(states) // 2], states[len(states) // 2 :]))


class Sampler:
    def __init__(self):
        self.generator = torch.Generator()


def test_explicit_generators_are_read_again_at_each_call():
    held, other = Sampler(), torch.Generator()

    def owned(x):
        return torch.rand(5, 6, generator=held.generator) + x.bernoulli(0.3, generator=held.generator) * 2.0

    def given(x, generator):
        return torch.empty(5, 6).normal_(generator=generator) * x[torch.randperm(5, generator=generator)]

    def made(x):
        return torch.rand(5, 6, generator=torch.Generator().manual_seed(5)) + x

    def states(function, *args):
        for generator in (held.generator, other):
            generator.manual_seed(1)
        return [(function(x, *args), held.generator.get_state(), other.get_state()) for (x,) in calls]

    calls = several(5, 6)
    with torch.no_grad():
        for function, args in ((owned, ()), (given, (other,))):
            compiled = framefuse.compile(function)
            with framefuse.testing.assert_compiles(1, compiled):
                torch.testing.assert_close(states(compiled, *args), states(function, *args))
        held.generator = torch.Generator()
        torch.testing.assert_close(states(framefuse.compile(owned)), states(owned))
        compiled = framefuse.compile(given)
        for seed in range(4):
            expected = given(calls[0][0], torch.Generator().manual_seed(seed))
            torch.testing.assert_close(compiled(calls[0][0], torch.Generator().manual_seed(seed)), expected)
        assert len(compiled_function(compiled).products) == 1
    same(made, calls, traces=None)


def test_a_declined_call_puts_an_explicit_generator_back():
    generator = torch.Generator()

    def function(x, index):
        return x[index] * torch.rand(2, 3, generator=generator)

    found = []
    with torch.no_grad():
        for call in (function, framefuse.compile(function)):
            generator.manual_seed(2)
            for index in ([1, 2], [2, 1], [1, 99], [0, 1]):
                try:
                    found.append(call(torch.ones(5, 3), torch.tensor(index)))
                except IndexError:
                    found.append(generator.get_state())
    assert all(map(torch.equal, found[:4], found[4:]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", ["plain", "causal", "mask", "row masked", "bias", "scale", "run-time sizes"])
def test_attention_with_dropout_is_products_a_softmax_and_one_draw(case, dtype):
    mask = torch.rand(1, 1, 5, 7) > 0.4
    if case == "row masked":
        mask[:, :, 2] = False
    options = {
        "causal": {"is_causal": True},
        "mask": {"attn_mask": mask},
        "row masked": {"attn_mask": mask},
        "bias": {"attn_mask": torch.randn(2, 3, 5, 7, dtype=dtype)},
        "scale": {"scale": 0.3},
    }.get(case, {})

    def calls(rows):
        return [tuple(torch.randn(2, 3, size, 8, dtype=dtype) for size in (row, 7, 7)) for row in rows]

    def function(q, k, v):
        return F.scaled_dot_product_attention(q * 1.5, k, v, dropout_p=0.25, **options) * 2.0

    rows = (5, 6, 4) if case == "run-time sizes" else (5, 5, 5)
    assert libraries(same(function, calls(rows), tolerance=1e-5)) == [["draw_bernoulli"]]


def test_gradients_of_any_order_go_through_what_a_gpu_drops_from_memory(monkeypatch):
    """By the GPU's rule, on the CPU, whose own kernel of this name draws other numbers than its dropout."""
    monkeypatch.setattr(random_numbers, "type_of", lambda device: "cuda")
    rule = random_numbers._dropout_on_gpu
    monkeypatch.setattr(random_numbers, "_dropout", lambda lo, input, p, train: rule(lo, input, p))
    function = framefuse.compile(lambda x, y: F.dropout(x, 0.3).sin() * y)
    x, y = torch.randn(16, 16, requires_grad=True), torch.randn(16, 16)
    for _ in range(3):
        result = function(x, y)
        (first,) = torch.autograd.grad(result.square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
    kept = (result != 0) / 0.7
    torch.testing.assert_close(first, (2 * x * kept).sin() * y**2 * kept, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(second, 2 * (2 * x * kept).cos() * (y * kept) ** 2, rtol=1e-4, atol=1e-4)
    assert compiled_function(function).dispatch.hits == 2
