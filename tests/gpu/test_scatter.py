"""Sums at positions (index_add, scatter_add) are kernels that add atomically what they compute; results are eager's.

Terms are halves, so that sums are exact in any order. See tests/gpu/test_programs.py for how this runs without a GPU.
"""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.test_programs import DEVICE, checked, close, kernels, pytestmark  # noqa: F401
from torch import nn

import framefuse
from framefuse.codegen import targets
from framefuse.ir.loops import AtomicAdd
from framefuse.ir.loops.walk import statements
from framefuse.ir.schedule import RunCall, RunKernel

SIZES = ((40, 7), (40, 7), (33, 9), (50, 1), (1, 4), (64, 16))  # edges and nodes


def halves(*sizes, dtype=torch.float32):
    return (torch.randint(-8, 9, sizes) / 2).to(dtype).to(DEVICE)


def places(count, *sizes):
    return torch.randint(0, count, sizes).to(DEVICE)


def edges(e, n):
    return halves(n, 24), halves(e), places(n, e), places(n, e)


def messages(x, w, src, dst):
    return torch.zeros(x.shape[0], 24, device=x.device).index_add(0, dst, x[src] * w[:, None])


def scattered(x, w, src, dst):
    message = (x.index_select(0, src) * w[:, None]).relu()
    return torch.zeros_like(x).scatter_add(0, dst[:, None].expand_as(message), message) + 1


def mean(x, w, src, dst):
    total = torch.zeros_like(x).index_add(0, dst, x[src])
    count = torch.zeros(x.shape[0], device=x.device).scatter_add(0, dst, torch.ones_like(w))
    return total, count, total * count[:, None]


def onto(x, w, src, dst):
    y = x * 2
    return y.index_add(0, dst, x[src], alpha=0.5), y, (y + 1).index_add(0, src, y[dst], alpha=-1)


def twice(x, w, src, dst):
    return torch.zeros_like(x).index_add(0, dst, x[src]).index_add(0, src, x[dst] * 2) * 2


def parted(x, w, src, dst):
    """The first sum is read before the second goes on from it."""
    first = torch.zeros_like(x).index_add(0, dst, x[src])
    return first.index_add(0, src, first[dst]), first.sum(0)


def to_itself(x, w, src, dst):
    return x.index_add(0, dst, x[src])


def in_place(x, w, src, dst):
    x.index_add_(0, dst, x[src] * w[:, None])
    y = torch.zeros_like(x)
    y.scatter_add_(0, dst[:, None].expand(-1, 24), x[src])
    y[:, 3:7].index_add_(0, src, x[dst, 3:7])
    return y


def narrow_rows(x, w, src, dst):
    """Rows that are short are decoded by division, and one column is one axis."""
    message, begun = x[src, :3], torch.zeros_like(x[:, :3])
    return begun.index_add(0, dst, message), begun[:, :1].index_add(0, dst, message[:, :1])


def columns(x, w, src, dst):
    return x.t().contiguous().index_add(1, dst, x[src].t()), x.t().index_add(-1, src, x[dst].t())


def whole_numbers(x, w, src, dst):
    i, j, y = x.long(), x.int(), x.double()
    return i.index_add(0, dst, i[src] * 2), j.index_add(0, dst.int(), j[src], alpha=3), y.index_add(0, dst, y[src])


def half_numbers(x, w, src, dst):
    """Each term is rounded before it is added, as eager's message is."""
    y, v = x.half(), w.half()
    return torch.zeros_like(y).index_add(0, dst, y[src] * v[:, None]), y.index_add(0, src, y[dst], alpha=2)


def one_place(x, w, src, dst):
    """Every term goes to one element, and every term is one number."""
    nowhere = torch.zeros_like(dst)
    return torch.zeros_like(w[:2]).index_add(0, nowhere, w), x.index_add(0, nowhere, torch.ones_like(x[src]))


def elements(x, w, src, dst):
    """Each element has a position of its own; the source is larger than the positions."""
    index = (x > 0).long() * 5
    return x.scatter_add(1, index[:, :9], torch.cat([x, x[src]])), index


def by_name(x, w, src, dst):
    """Sums are added; what is not a sum is eager's own call."""
    message, index = x[src] * w[:, None], dst[:, None].expand(-1, 24)
    x.scatter_reduce_(0, index, message, "sum")
    return x.scatter_reduce(0, index, message, reduce="sum") + 1


def reduced(x, w, src, dst):
    """A reduction before and one behind."""
    weight = (x[src] * x[dst]).sum(1, keepdim=True)
    return torch.zeros_like(x).index_add(0, dst, x[src] * weight).sum(1)


PROGRAMS = {
    "messages": (messages, 1), "scattered": (scattered, 1), "mean": (mean, 2), "onto": (onto, 2), "twice": (twice, 2),
    "parted": (parted, 2), "to_itself": (to_itself, 1), "in_place": (in_place, 3), "narrow_rows": (narrow_rows, 2),
    "columns": (columns, 2), "whole_numbers": (whole_numbers, 3), "one_place": (one_place, 2),
    "elements": (elements, 1), "reduced": (reduced, 1), "by_name": (by_name, 2),
    "half_numbers": (half_numbers, 2),
}  # fmt: skip


def sums(products):
    """How many kernels add atomically, and the names of the library calls."""
    items = [item for product in products for item in product.stages.code.schedule.items]
    adding = [
        item for item in items
        if isinstance(item, RunKernel) and any(isinstance(s, AtomicAdd) for s in statements(item.kernel.body))
    ]  # fmt: skip
    return len(adding), [str(item.node.attr("name")) for item in items if isinstance(item, RunCall)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_sums_are_eagers(name):
    function, count = PROGRAMS[name]
    fast = framefuse.compile(function)
    with torch.no_grad():
        for number, (e, n) in enumerate(SIZES):
            torch.manual_seed(number)
            ours = edges(e, n)
            theirs = [value.clone() for value in ours]
            close(fast(*ours), function(*theirs))
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    products = checked(fast, 1)
    assert all(sums([product]) == (count, []) for product in products), [sums([product]) for product in products]


@pytest.mark.parametrize("name", ["messages", "scattered", "mean"])
def test_messages_are_never_in_memory(name):
    function = PROGRAMS[name][0]
    fast = framefuse.compile(function)
    with torch.no_grad():
        for number in range(3):
            torch.manual_seed(number)
            given = edges(300, 20)
            close(fast(*given), function(*given))
    (product,) = checked(fast, 2)
    schedule = product.stages.code.schedule
    sizes = {memory.sizes[0] for memory in schedule.memories if memory.place != "input"}
    assert sizes == {schedule.graph.inputs[0].shape[0]}, "a row for each node, none for each edge"
    assert kernels([product]) == {"messages": 2, "scattered": 3, "mean": 5}[name]
    assert "scatter_add" in str(framefuse.explain(fast, *given))


def test_terms_go_to_an_argument_itself(monkeypatch):
    """Nothing of the table but the rows that are added to is moved; versions count as eager's."""
    if DEVICE == "cpu":  # where a call learns of a bad position, the table is written when all were seen
        held = targets.BACKENDS["cpu by triton"]
        silent = dataclasses.replace(held, target=dataclasses.replace(held.target, reports=False))
        monkeypatch.setitem(targets.BACKENDS, "cpu by triton", silent)

    def f(table, w, src, dst):
        table.index_add_(0, dst, (w * 2)[:, None].expand(-1, 24))
        return table.sum(1)

    fast = framefuse.compile(f)
    with torch.no_grad():
        for number, (e, n) in enumerate(SIZES):
            torch.manual_seed(number)
            ours = edges(e, n)
            theirs = [value.clone() for value in ours]
            close(fast(*ours), f(*theirs))
            close(ours[0], theirs[0])
            assert ours[0]._version == 1 and theirs[0]._version == 1
    products = checked(fast, 1)
    for product in products:
        schedule = product.stages.code.schedule
        assert not schedule.writes and kernels([product]) == 2 and sums([product]) == (1, [])


@pytest.mark.parametrize("bad", [-1, 7, 1 << 40])
@pytest.mark.parametrize("name", ["messages", "scattered", "in_place"])
def test_a_bad_position_is_an_error(name, bad):
    if DEVICE == "cuda":
        pytest.skip("eager's own error ends the use of the device")
    function = PROGRAMS[name][0]
    fast = framefuse.compile(function)
    with torch.no_grad():
        for position in (3, 3, bad, 3):
            x, w, src, dst = edges(12, 7)
            dst[5] = position
            ours, theirs = [[value.clone() for value in (x, w, src, dst)] for _ in range(2)]
            if position == bad:
                for call, given in ((fast, ours), (function, theirs)):
                    with pytest.raises((IndexError, RuntimeError)):
                        call(*given)
            else:
                close(fast(*ours), function(*theirs))
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert sums(checked(fast, 2))[0]


def test_nothing_to_add():
    fast = framefuse.compile(scattered)
    with torch.no_grad():
        for e, n in ((5, 3), (0, 3), (0, 3), (6, 2)):
            given = edges(e, n)
            close(fast(*given), scattered(*given))
    checked(fast, 1)


def test_what_is_no_plain_sum_is_eagers_own_call():
    def f(x, w, src, dst):
        index = dst[:, None].expand(-1, 24)
        rest = x.scatter_reduce(0, index, x[src], "sum", include_self=False)
        return rest, x.scatter_reduce(0, index, x[src] + 1, "amax")

    fast = framefuse.compile(f)
    with torch.no_grad():
        for _ in range(3):
            given = edges(40, 7)
            close(fast(*given), f(*given))
    (product,) = checked(fast, 2)
    # Both read the index as the view that it is.
    assert sums([product]) == (0, ["as_strided", "scatter_reduce", "scatter_reduce"])


@pytest.mark.skipif(DEVICE != "cuda", reason="of GPUs only")
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes(mode):
    """A graph that is replayed begins each sum anew; what is measured is not added to anything of the program's."""
    fast = framefuse.compile(mean, mode=mode)
    with torch.no_grad():
        for number, (e, n) in enumerate([(400, 70)] * 5 + [(300, 50)] * 3):
            torch.manual_seed(number)
            given = edges(e, n)
            close(fast(*given), mean(*given))
    assert sums(checked(fast, 5)[:1]) == (2, [])


def test_as_many_terms_as_only_the_run_tells():
    def f(x, w, src, dst):
        chosen = (w > 0).nonzero().squeeze(1)
        count = chosen.shape[0]
        ones = torch.zeros(x.shape[0], device=x.device).index_add(0, dst[:1].expand(count), w[:1].expand(count))
        return torch.zeros_like(x).index_add(0, dst[chosen], x[src[chosen]] * w[chosen][:, None]), ones

    fast = framefuse.compile(f)
    with torch.no_grad():
        for number in range(4):
            torch.manual_seed(number)
            given = edges(40 + number, 7)
            close(fast(*given), f(*given))
    assert all(sums([product])[0] == 2 for product in checked(fast, 2))


def test_other_dtypes_are_eagers_own_call():
    def f(x, dst, y):
        return y.index_add(0, dst, x)

    fast = framefuse.compile(f)
    with torch.no_grad():
        for dtype in (torch.int8, torch.bool) * 2:
            x, y = halves(9, 4).to(dtype), halves(5, 4).to(dtype)
            dst = torch.randperm(9)[:9].to(DEVICE) % 5
            close(fast(x, dst, y), f(x, dst, y))
    for product in checked(fast, 2):
        assert sums([product]) == (0, ["index_add"])


def test_deterministic_algorithms_are_eagers():
    """Compiled code that adds in any order is not used where the program asks for one order."""
    fast = framefuse.compile(messages)
    given = edges(40, 7)
    try:
        with torch.no_grad():
            for wanted in (False, False, True, True, False):
                torch.use_deterministic_algorithms(wanted)
                assert torch.equal(fast(*given), messages(*given))
    finally:
        torch.use_deterministic_algorithms(False)
    products = checked(fast, 3)
    assert [sums([product]) for product in products] == [(1, []), (0, ["index_add"])]


# ---- training


class Layer(nn.Module):
    """A graph network's layer: messages weighted by an edge's value, their sum and what the node had."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(24, 24), nn.Linear(24, 24)
        self.edge = nn.Linear(3, 1)

    def forward(self, x, features, src, dst):
        weight = torch.sigmoid(self.edge(features))
        message = self.other(x)[src] * weight
        total = torch.zeros_like(x).index_add(0, dst, message)
        count = torch.zeros(x.shape[0], 1, device=x.device).scatter_add(0, dst[:, None], torch.ones_like(weight))
        return F.relu(self.own(x) + total / count.clamp(min=1))


def test_a_graph_network_trains():
    torch.manual_seed(0)
    eager = nn.ModuleList([Layer(), Layer()]).to(DEVICE)
    model = copy.deepcopy(eager)

    def step(layers, x, features, src, dst):
        for layer in layers:
            x = layer(x, features, src, dst)
        return x.square().mean()

    fast = framefuse.compile(step)
    for number, (e, n) in enumerate(((40, 7), (40, 7), (33, 9), (50, 5))):
        torch.manual_seed(number)
        given = torch.randn(n, 24).to(DEVICE), torch.randn(e, 3).to(DEVICE), places(n, e), places(n, e)
        for layers, call in ((eager, step), (model, fast)):
            layers.zero_grad()
            x = given[0].clone().requires_grad_()
            loss = call(layers, x, *given[1:])
            loss.backward()
            if layers is eager:
                expected, wanted = loss, x.grad
        close(loss.detach(), expected.detach(), 4)
        close(x.grad, wanted, 10)
        for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            close(ours.grad, theirs.grad, 10)
    products = checked(fast, 3)
    assert all(sums([product])[0] == 3 for product in products), "both layers count the same"
    cases = [case for product in products for part in product.stages.derivatives for case in part.cases]
    assert cases and kernels(cases) and not any(sums([case])[0] for case in cases), "no forward sum is made again"


def test_gradients_of_every_operand_and_of_gradients():
    def f(y, w, x, src, dst):
        first = y.index_add(0, dst, x.index_select(0, src) * w[:, None], alpha=2)
        return first.scatter_add(1, (src[:, None] + dst[:, None]) % 24, w[:, None] * w[:, None])

    fast = framefuse.compile(f)
    for number in range(3):
        torch.manual_seed(number)
        x, w, src, dst = edges(7, 9)
        values = halves(9, 24), w, x
        results = []
        for call in (f, fast):
            leaves = [value.clone().requires_grad_() for value in values]
            result = call(*leaves, src, dst)
            first = torch.autograd.grad(result.square().sum(), leaves, create_graph=True)
            second = torch.autograd.grad(sum((part * part).sum() for part in first), leaves)
            results.append([result.detach(), *(part.detach() for part in first), *second])
        for ours, theirs in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert sums(checked(fast, 2))[0] == 2


def test_gradients_of_what_was_read_are_added_atomically():
    """Those of index_select and gather, as eager's; those of x[i] come in one order, as eager's."""

    def f(x, w, src, dst):
        selected = torch.zeros_like(x).index_add(0, dst, x.index_select(0, src) * w[:, None])
        columns = x.index_select(1, src.remainder(24))
        taken = x.gather(0, (dst[:5, None] + torch.arange(24, device=x.device)).remainder(x.shape[0]))
        return selected.square().sum() + columns.square().sum() + taken.square().sum() + x[src].square().sum()

    fast = framefuse.compile(f)
    for number in range(4):
        torch.manual_seed(number)
        x, w, src, dst = edges(40 + number, 9)
        results = []
        for call in (f, fast):
            leaf, weight = x.clone().requires_grad_(), w.clone().requires_grad_()
            result = call(leaf, weight, src, dst)
            results.append((result.detach(), *torch.autograd.grad(result, (leaf, weight))))
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    products = checked(fast, 2)
    cases = [case for product in products for part in product.stages.derivatives for case in part.cases]
    called = "embedding_dense_backward" if DEVICE == "cuda" else "rows_added"
    assert all(sums([case]) == (3, [called]) for case in cases), [sums([case]) for case in cases]


def test_gradients_made_again_in_order():
    """The forward that a gradient of a gradient makes again, where the program has come to ask for one order."""

    def f(x, w, src, dst):
        return messages(x, w, src, dst).exp()

    fast = framefuse.compile(f)
    x, w, src, dst = edges(30, 5)
    try:
        for _ in range(3):
            results = []
            for call in (f, fast):
                leaf = (x / 64).requires_grad_()
                torch.use_deterministic_algorithms(False)
                result = call(leaf, w, src, dst)
                torch.use_deterministic_algorithms(True)
                (first,) = torch.autograd.grad(result.sum(), leaf, create_graph=True)
                (second,) = torch.autograd.grad(first.sum(), leaf)
                results.append((result.detach(), first.detach(), second))
            close(results[1], results[0], 10)
    finally:
        torch.use_deterministic_algorithms(False)
    products = checked(fast, 2)
    cases = [case for product in products for part in product.stages.derivatives for case in part.cases]
    assert cases and not any(sums([case])[0] for case in cases)
