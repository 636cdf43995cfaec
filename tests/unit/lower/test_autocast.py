"""Calls recorded under autocast lower to casts of their operands, as torch's lists say, and to the plain call."""

import pytest
import torch
import torch.nn.functional as F
from tests.unit.lower.recording import check, trace_of

import framefuse
from framefuse.ir.wrapped_calls import UnderAutocast
from framefuse.lower import autocast, lower
from framefuse.lower.autocast import LISTS, OVERLOADS, policy

SIZES = {
    "m": (4, 4), "n": (4, 4), "o": (4, 4), "v": (4,), "b": (2, 4, 4), "c": (2, 4, 4), "i1": (1, 2, 9), "w1": (3, 2, 3),
    "i2": (1, 2, 9, 9), "w2": (3, 2, 3, 3), "t2": (2, 3, 3, 3), "i3": (1, 2, 5, 5, 5), "w3": (3, 2, 3, 3, 3),
    "q": (1, 2, 4, 8), "i": (3, 6),
}  # fmt: skip
CASES = {
    "conv1d": lambda i1, w1: F.conv1d(i1, w1),
    "conv2d": lambda i2, w2, v: F.conv2d(i2, w2, v[:3]),
    "conv2d_same": lambda i2, w2: F.conv2d(i2, w2, padding="same"),
    "conv3d": lambda i3, w3: F.conv3d(i3, w3),
    "conv_transpose1d": lambda i1: F.conv_transpose1d(i1, i1[0, :, None, :3]),
    "conv_transpose2d": lambda i2, t2: F.conv_transpose2d(i2, t2),
    "addmm": lambda v, m, n: torch.addmm(v, m, n),
    "baddbmm": lambda b, c: torch.baddbmm(b, b, c),
    "bmm": lambda b, c: torch.bmm(b, c),
    "mm": lambda m, n: m.mm(n),
    "matmul": lambda m, b: (m @ b, b @ m, m.matmul(m)),
    "vectors": lambda m, v: (m @ v, v @ v),
    "linear": lambda m, n, v: (F.linear(m, n, v), F.linear(m, n)),
    "einsum": lambda m, n, q: (torch.einsum("ij,jk->ik", m, n), torch.einsum("bhid,bhjd->bhij", q, q)),
    "tensordot": lambda m, n: torch.tensordot(m, n, 1),
    "inner": lambda m, n: torch.inner(m, n),
    "prelu": lambda m, v: F.prelu(m, v[:1]),
    "attention": lambda q: F.scaled_dot_product_attention(q, q, q),
    "adaptive_avg_pool3d": lambda i3: F.adaptive_avg_pool3d(i3, 2),
    "avg_pool3d": lambda i3: F.avg_pool3d(i3, 2),
    "max_pool3d": lambda i3: F.max_pool3d(i3, 2),
    "binary_cross_entropy": lambda m, n: F.binary_cross_entropy(m, n),
    "binary_cross_entropy_with_logits": lambda m, n: F.binary_cross_entropy_with_logits(m, n),
    "cdist": lambda m, n: torch.cdist(m, n),
    "cosine_embedding_loss": lambda m, n, v: F.cosine_embedding_loss(m, n, v),
    "cross_entropy": lambda m, n: (F.cross_entropy(m, torch.arange(4)), F.cross_entropy(m, n)),
    "nll_loss": lambda m, v: (F.nll_loss(m, torch.arange(4)), F.nll_loss(m, torch.arange(4), v)),
    "hinge_embedding_loss": lambda m: F.hinge_embedding_loss(m, torch.ones(4, 4)),
    "huber_loss": lambda m, n: F.huber_loss(m, n),
    "kl_div": lambda m, n: F.kl_div(m, n, reduction="batchmean"),
    "l1_loss": lambda m, n: F.l1_loss(m, n),
    "mse_loss": lambda m, n: F.mse_loss(m, n),
    "smooth_l1_loss": lambda m, n: F.smooth_l1_loss(m, n),
    "soft_margin_loss": lambda m, n: F.soft_margin_loss(m, n),
    "margin_ranking_loss": lambda m, n: F.margin_ranking_loss(m, n, torch.ones(4, 4)),
    "poisson_nll_loss": lambda m, n: F.poisson_nll_loss(m, n),
    "triplet_margin_loss": lambda m, n, o: F.triplet_margin_loss(m, n, o),
    "prod": lambda m: (m.prod(), m.prod(1)),
    "trace": lambda m: m.trace(),
    "cat": lambda m, n: (torch.cat([m, n.float()]), torch.cat([m, n]), torch.stack([m, n.float()], 1)),
    "alone": lambda m, n: (m + n, m.exp(), m.softmax(1), F.gelu(m), m.sum(), m * n.float(), m.pow(1.5)),
    "norms": lambda m, v, i2: (F.layer_norm(m, (4,), v, v), F.rms_norm(m, (4,)), F.group_norm(i2, 2)),
    "statistics": lambda i2: F.batch_norm(i2, None, None, training=True),
    "pools": lambda i2: (F.max_pool2d(i2, 2), F.avg_pool2d(i2, 2), F.adaptive_avg_pool2d(i2, 2)),
    "interpolate": lambda i2: F.interpolate(i2, (3, 3)),
    "orders": lambda m: (m.topk(2)[0], m.sort()[0], m.cumsum(0), m.logsumexp(1)),
    "products alone": lambda m, v: (m.mv(v), v.dot(v), torch.addmv(v, m, v), torch.outer(v, v)),
    "scatters": lambda m: m.scatter(0, torch.zeros(1, 4, dtype=torch.int64), m[:1]),
}  # fmt: skip


def operands(function, dtype):
    generator = torch.Generator().manual_seed(1)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return [(torch.rand(SIZES[name], generator=generator) * 0.9 + 0.05).to(dtype) for name in names]


def wrapped(graph):
    calls = [node for node in graph.nodes if node.op == "library"]
    return [node.attr("name") for node in calls if isinstance(node.attr("target"), UnderAutocast)]


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [torch.float32, "low", torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_as_eager(name, given, low):
    function = CASES[name]
    args = operands(function, low if given == "low" else given)
    with torch.autocast("cpu", low):
        try:
            expected = function(*args)
        except RuntimeError as error:
            pytest.skip(str(error))
        graph = check(function, *args)
    assert wrapped(graph) == []
    found = expected if isinstance(expected, tuple) else (expected,)
    assert [output.node.dtype.torch for output in graph.outputs] == [part.dtype for part in found]


# What only newer versions of torch list.
SINCE_2_12 = {"rms_norm"} if torch.__version__ < "2.12" else set()


@pytest.mark.parametrize("device", LISTS)
def test_the_lists_are_those_of_torch(device):
    lists = LISTS[device]
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(lists.key)
    names = {full.removeprefix("aten::") for full in registered}
    listed = lists.lower | lists.single | lists.unless_given | lists.promote
    lacking = {name for name in listed if OVERLOADS.get(name, name) not in names}
    assert lacking <= SINCE_2_12 and all(policy(name, device) is None for name in lacking)
    assert not lists.alone & {name.partition(".")[0] for name in names}
    assert policy("square", "cuda") == policy("pow", "cuda") == "float32" and policy("square") is None
    assert policy("interpolate", "cuda") == "float32" and policy("interpolate") == "alone"
    assert policy("conv2d") == policy("einsum") == "lower" and policy("lstm") is None and policy("mm_") is None


def test_a_weight_is_cast_once():
    def function(x, w, b):
        return F.linear(F.linear(x, w, b), w, b)

    with torch.autocast("cpu", torch.bfloat16):
        graph = check(function, torch.randn(3, 4), torch.randn(4, 4), torch.randn(4))
    assert [node.op for node in graph.nodes].count("cast") == 3


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_states_inside_one_trace(low):
    def function(x):
        with torch.autocast("cpu", low):
            first = x @ x
            with torch.autocast("cpu", enabled=False):
                second = F.conv1d(x[None], x[:, :, None])
            third = F.conv1d(x[None], x[:, :, None])
        return first, second, third, F.conv1d(x[None], x[:, :, None])

    for around in (None, torch.bfloat16, torch.float16):
        with torch.autocast("cpu", around, enabled=around is not None):
            graph = check(function, torch.randn(4, 4))
            # What is called under another state than the trace, which begins and ends under that ``around``.
            expected = {None: [], low: ["conv1d"]}.get(around, ["matmul", "conv1d", "conv1d"])
            assert wrapped(graph) == expected


def test_what_no_list_names_runs_under_autocast():
    cell = torch.nn.GRUCell(4, 4).requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        graph = check(lambda x: torch.gru_cell(x, x, *cell.parameters()), torch.randn(3, 4))
    assert wrapped(graph) == ["gru_cell"]


@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16])
def test_gradients_of_what_no_list_names_are_of_its_operands_types(monkeypatch, low):
    """A pooling that autocast widens, as a version of torch may that these lists do not know."""
    monkeypatch.setattr(autocast, "policy", lambda name, device="cpu": None)

    def function(x):
        with torch.autocast("cpu", torch.bfloat16):
            return F.adaptive_avg_pool3d(x.sin(), 2)

    fast = framefuse.compile(function)
    for size in (4, 4, 6):
        x = torch.randn(1, 2, size, 4, 4).to(low).requires_grad_()
        pairs = [(y, torch.autograd.grad(y.sum(), x)[0]) for y in (fast(x), function(x))]
        torch.testing.assert_close(pairs[0], pairs[1])


@pytest.mark.parametrize("make", [torch.nn.RNNCell, torch.nn.LSTMCell, torch.nn.GRUCell])
def test_cells_of_recurrent_networks_run_as_they_are(make):
    cell = make(4, 4).requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        graph = check(lambda x: cell(x), torch.randn(3, 4))
    assert len(wrapped(graph)) == 1


def test_the_state_outside_is_left_alone():
    x = torch.randn(4, 4)
    call = UnderAutocast(torch.mm, (("cpu", "bfloat16"),))
    before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
    assert call(x, x).dtype is torch.bfloat16
    with pytest.raises(RuntimeError):
        call(x, x[1:])
    with torch.autocast("cpu", torch.float16, cache_enabled=False):
        assert UnderAutocast(torch.mm, ())(x, x).dtype is torch.float32
        assert call(x, x).dtype is torch.bfloat16 and torch.mm(x, x).dtype is torch.float16
        assert not torch.is_autocast_cache_enabled()
    assert before == (
        torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
    )  # fmt: skip


def test_a_list_that_does_not_hold_is_not_used(monkeypatch):
    monkeypatch.setattr(autocast, "policy", lambda name, device: "float32")
    with torch.autocast("cpu", torch.bfloat16):
        graph = lower(trace_of(lambda x: F.conv1d(x, x), torch.randn(2, 2, 2)))
    assert wrapped(graph) == ["conv1d"]


@pytest.mark.parametrize("cached", [True, False])
def test_a_weight_that_is_written_may_be_used_as_it_was_cast(cached):
    """Torch keeps the casts of weights until autocast is left, also of those that were written since."""
    weight = torch.nn.Parameter(torch.ones(2, 2))

    def function(x):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
            first = x @ weight
            weight.add_(1)
            return first, x @ weight

    fast, x, found = framefuse.compile(function), torch.ones(2, 2), []
    with torch.no_grad():
        for run in (function, fast, fast, fast):
            weight.fill_(1)
            found.append([part[0, 0].item() for part in run(x)])
    assert found == [[2, 2 if cached else 4]] * 4
    assert [reason.code for reason in fast.__framefuse__.reasons] == ["autocast-cache"]


def test_a_weight_that_no_gradient_wants_is_cast_anew():
    weight = torch.ones(2, 2)

    def function(x):
        with torch.autocast("cpu", torch.bfloat16):
            first = x @ weight
            weight.add_(1)
            return first, x @ weight

    fast, x = framefuse.compile(function), torch.ones(2, 2)
    for _ in range(3):
        weight.fill_(1)
        assert [part[0, 0].item() for part in fast(x)] == [2, 4]
    assert fast.__framefuse__.dispatch.hits == 2
