"""Captured graphs: equal results over changed arguments and state, results that stay, bounds, and reasons for none.

The device is a stand-in on the CPU; tests/gpu/test_graphs.py asks the same of a GPU.
"""

import gc
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from tests.unit.runtime.graph_machine import on_cpu

import framefuse
from framefuse.api import compiled_function
from framefuse.runtime import captures

MODE = "reduce-overhead"
made = []  # every tensor of a test lives to its end, so that no two of them lie at one address


def randn(*sizes, **options):
    made.append(torch.randn(*sizes, **options))
    return made[-1]


@pytest.fixture
def machine():
    with on_cpu() as machine:
        yield machine
    made.clear()


def regions(fast):
    """What was captured of each trace."""
    return [product.stages.plan.region for product in compiled_function(fast).products]


def only(fast):
    (region,) = regions(fast)
    assert not isinstance(region, str), region
    return region.captures


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def layer(x, w):
    y = torch.softmax(x @ w, -1)
    return y * 2, y.sum(0)


def test_results_are_eagers_and_stay(machine):
    fast = framefuse.compile(layer, mode=MODE)
    w, kept = randn(8, 8), []
    for _ in range(7):
        x = randn(5, 8)
        kept.append((fast(x, w), layer(x, w), x))
        for found, expected, _ in kept:
            same(found, expected)
    assert (machine.captures, machine.replays) == (1, 5)
    assert compiled_function(fast).dispatch.hits == 6
    assert only(fast).copied == 1 and only(fast).outs == 2  # w is read in place
    w.mul_(2)
    same(fast(x, w), layer(x, w))
    assert machine.replays == 6


def test_an_input_that_moves_later_is_copied_from_then_on(machine):
    fast = framefuse.compile(layer, mode=MODE)
    x, w = randn(5, 8), randn(8, 8)
    for _ in range(4):
        same(fast(x, w), layer(x, w))
    assert only(fast).copied == 0 and machine.captures == 1
    kept = []
    for _ in range(5):
        kept.append(randn(5, 8))
        same(fast(kept[-1], w), layer(kept[-1], w))
    assert only(fast).copied == 1 and machine.captures == 2
    assert machine.replays == 7


def test_large_inputs_that_move_are_captured_where_they_lie(machine, monkeypatch):
    monkeypatch.setattr(captures, "SMALL", 200)  # bytes: less than w, more than x
    fast = framefuse.compile(layer, mode=MODE)
    weights = [randn(8, 8) for _ in range(2)]
    for turn in range(12):
        w = weights[turn // 3 % 2]
        x = randn(5, 8)
        same(fast(x, w), layer(x, w))
    assert machine.captures == 2 and machine.replays == 9


def test_each_size_and_number_is_a_case(machine):
    def f(x, scale, n):
        return torch.softmax(x * scale, -1).repeat(n, 1) @ x.t()

    fast = framefuse.compile(f, mode=MODE)
    for _ in range(3):
        for rows, scale, n in ((4, 0.5, 2), (6, 0.5, 2), (4, 1.5, 2), (4, 0.5, 3), (1, 0.5, 2)):
            x = randn(rows, 8)
            same(fast(x, scale, n), f(x, scale, n))
    assert machine.replays >= 4
    assert sum(region.captures.count for region in regions(fast)) == machine.captures


def test_the_number_of_graphs_is_bounded(machine):
    fast = framefuse.compile(layer, mode=MODE, options={"graph_limit": 2})
    w = randn(8, 8)
    for _ in range(4):
        for rows in (2, 3, 4, 5):
            x = randn(rows, 8)
            same(fast(x, w), layer(x, w))
    assert machine.captures == 2 and machine.replays > 2
    assert "2 graphs are captured, the limit" in str(framefuse.explain(fast))


def test_a_capture_that_fails_is_not_seen(machine):
    machine.fails = RuntimeError("operation not permitted when stream is capturing\nmore")
    fast = framefuse.compile(layer, mode=MODE)
    w = randn(8, 8)
    for _ in range(5):
        x = randn(5, 8)
        same(fast(x, w), layer(x, w))
    state = compiled_function(fast)
    assert machine.replays == 0 and state.dispatch.hits == 4 and state.dispatch.declines == 0
    said = str(framefuse.explain(fast))
    assert "not replayed: capturing failed: RuntimeError: operation not permitted when stream is capturing" in said


def test_a_call_that_waits_is_not_captured(machine):
    machine.waits = "called a synchronizing CUDA operation"
    fast = framefuse.compile(layer, mode=MODE)
    w = randn(8, 8)
    for _ in range(5):
        x = randn(5, 8)
        same(fast(x, w), layer(x, w))
    assert machine.captures == 0 and compiled_function(fast).dispatch.hits == 4
    assert "a library call waits for the device" in only(fast).why


def test_an_error_before_a_replay_is_left_to_the_steps(machine, monkeypatch):
    fast = framefuse.compile(layer, mode=MODE)
    w = randn(8, 8)
    for _ in range(3):
        fast(randn(5, 8), w)

    def fails(tensor):
        raise torch.OutOfMemoryError("no memory")

    before = machine.replays
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty_like", fails)
        x = randn(5, 8)
        same(fast(x, w), layer(x, w))
    assert machine.replays == before
    same(fast(x, w), layer(x, w))
    assert machine.replays == before + 1


def test_many_inputs_of_several_dtypes(machine):
    def f(a, b, c, d, i):
        return (a + b).softmax(0) @ (a + b).t(), (c.double() + d).sum(0), i + 1, c * 2, d > 0

    fast = framefuse.compile(f, mode=MODE)
    for _ in range(5):
        args = (randn(4, 3), randn(4, 3), randn(4).half(), randn(4).double(), torch.arange(4))
        same(fast(*args), f(*args))
    assert machine.replays == 2  # so many that move might lie still from then on


def test_while_the_user_captures_nothing_is_replayed(machine):
    fast = framefuse.compile(layer, mode=MODE)
    w = randn(8, 8)
    for turn in range(9):
        machine.users = turn in (2, 5, 6)
        x = randn(5, 8)
        same(fast(x, w), layer(x, w))
    assert machine.captures == 1 and machine.replays == 4
    assert compiled_function(fast).dispatch.declines == 0


def test_writes_to_inputs_happen_once_a_call(machine):
    def f(x, total, count):
        y = torch.tanh(x) * 2
        total.add_(y.sum(0))
        count.add_(1)
        return y @ y.t()

    fast = framefuse.compile(f, mode=MODE)
    ours = [torch.zeros(8), torch.zeros(())]
    theirs = [torch.zeros(8), torch.zeros(())]
    for _ in range(6):
        x = randn(5, 8)
        same(fast(x, *ours), f(x, *theirs))
        same(ours, theirs)
        assert [t._version for t in ours] == [t._version for t in theirs]
    assert machine.replays == 4


def test_what_is_written_in_an_input_that_moves_is_copied_back(machine):
    def f(x, y, whole):
        x[2] = y[0] * 2
        x[:, 3].add_(y[:, 1])
        whole.mul_(2)
        return (x @ y.t()).softmax(-1), y.sum(0)

    fast = framefuse.compile(f, mode=MODE)
    for _ in range(6):
        ours = (randn(5, 8)[:, ::2], randn(5, 4), randn(6).half())
        theirs = tuple(part.clone() for part in ours)
        same(fast(*ours), f(*theirs))
        same(ours, theirs)
        assert [t._version for t in ours] == [2, 0, 1]
    assert machine.replays >= 3


def test_leaves_that_are_written_under_no_grad_are_copied_back(machine):
    def f(p, x):
        with torch.no_grad():
            p.add_(x.softmax(0) @ x.t() @ x)
        return (x @ x.t()).softmax(-1)

    fast = framefuse.compile(f, mode=MODE)
    for _ in range(6):
        x, ours = randn(5, 4), randn(5, 4, requires_grad=True)
        theirs = ours.detach().clone().requires_grad_()
        same(fast(ours, x), f(theirs, x))
        same(ours.detach(), theirs.detach())
        assert ours._version == theirs._version and ours.is_leaf and ours.requires_grad
    assert machine.replays >= 3


def test_kernels_that_write_inputs_write_them_where_they_lie(machine):
    parameters = [[torch.nn.Parameter(torch.full((7, 3), 2.0)), torch.nn.Parameter(torch.ones(5))] for _ in range(2)]
    optimizers = [torch.optim.Adam(group, lr=0.05, foreach=True) for group in parameters]
    fast = framefuse.compile(optimizers[0].step, mode=MODE)
    for _ in range(6):
        for group in parameters:
            torch.manual_seed(len(optimizers[0].state))
            for parameter in group:
                parameter.grad = torch.randn_like(parameter)
        fast()
        optimizers[1].step()
        same([p.detach() for p in parameters[0]], [p.detach() for p in parameters[1]])
        assert [p._version for p in parameters[0]] == [p._version for p in parameters[1]]


def test_running_statistics(machine):
    torch.manual_seed(0)
    eager = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    model.load_state_dict(eager.state_dict())
    fast = framefuse.compile(model, mode=MODE)
    with torch.no_grad():
        for _ in range(6):
            x = randn(2, 3, 6, 6)
            same(fast(x), eager(x))
            for ours, theirs in zip(model.buffers(), eager.buffers(), strict=True):
                same(ours, theirs)
    assert machine.replays == 4


def test_random_numbers_go_on(machine):
    def f(x):
        return F.dropout(x, 0.4).sin() * 2, torch.rand(3) + x.mean(), torch.randn_like(x) @ x.t()

    fast = framefuse.compile(f, mode=MODE)
    for number in range(6):
        x = randn(5, 8)
        torch.manual_seed(number)
        found = fast(x)
        after = torch.rand(2)
        torch.manual_seed(number)
        same(found, f(x))
        same(torch.rand(2), after)
    assert machine.replays == 4


def test_results_that_share_memory_share_it_again(machine):
    def f(x, w):
        first, second = torch.cumsum(x @ w, 1).split(3, 1)
        return first, second, (x @ w).expand(2, -1, -1), (x @ w).t()

    fast = framefuse.compile(f, mode=MODE)
    w = randn(6, 6)
    kept = []
    for _ in range(6):
        x = randn(4, 6)
        kept.append((fast(x, w), f(x, w)))
        for found, expected in kept:
            same(found, expected)
            assert [t.stride() for t in found] == [t.stride() for t in expected]
    first, second = kept[-1][0][:2]
    shared = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    first, second = kept[-1][1][:2]

    assert shared == (first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr())
    assert machine.replays == 4


def test_a_result_that_is_a_view_of_an_input(machine):
    def f(x, w):
        return x[1:], torch.softmax(x @ w, -1)

    fast = framefuse.compile(f, mode=MODE)
    w = randn(8, 8)
    for _ in range(5):
        x = randn(5, 8)
        found = fast(x, w)
        same(found, f(x, w))
        found[0].zero_()
        assert x[1:].abs().sum() == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: randn(1, 8).expand(5, 8),
        lambda: randn(8, 5).t(),
        lambda: randn(12, 17)[::2, 1::2][:5],
        lambda: randn(41)[1:].view(5, 8),
    ],
)
def test_inputs_are_copied_as_they_lie(machine, make):
    fast = framefuse.compile(layer, mode=MODE)
    w, kept = randn(8, 8), []
    for _ in range(6):
        kept.append(make())
        same(fast(kept[-1], w), layer(kept[-1], w))
    assert machine.replays == 4 and only(fast).copied == 1


def test_settings_that_change_are_another_case(machine):
    fast = framefuse.compile(layer, mode=MODE)
    w = randn(8, 8)
    for turn in range(12):
        machine.told = ("tf32",) if turn >= 6 else ()
        x = randn(5, 8)
        same(fast(x, w), layer(x, w))
    assert machine.captures == 2 and machine.replays == 10


def test_another_stream_waits_for_the_last_replay(machine):
    fast = framefuse.compile(layer, mode=MODE)
    w = randn(8, 8)
    for turn in range(8):
        machine.now = (turn // 3, 0, 1)
        x = randn(5, 8)
        same(fast(x, w), layer(x, w))
    assert machine.followed == [(0, 0, 1), (1, 0, 1)] and machine.replays == 6


def test_threads_do_not_meet_in_the_memory_of_a_graph(machine):
    fast = framefuse.compile(layer, mode=MODE)
    w, failures = randn(8, 8), []
    for _ in range(3):
        fast(randn(5, 8), w)

    def work():
        for _ in range(60):
            x = randn(5, 8)
            try:
                same(fast(x, w), layer(x, w))
            except AssertionError as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and machine.replays > 60
    pool = captures.pool_of("cpu")
    before = machine.replays
    with pool.lock:  # as if another thread were replaying
        x = randn(5, 8)
        same(fast(x, w), layer(x, w))
    assert machine.replays == before and compiled_function(fast).dispatch.declines == 0


def test_few_launches_are_not_captured():
    with on_cpu() as machine, pytest.MonkeyPatch.context() as patch:
        patch.setattr(captures, "REPLAY", 30000)
        fast = framefuse.compile(layer, mode=MODE)
        w = randn(8, 8)
        for _ in range(4):
            x = randn(5, 8)
            same(fast(x, w), layer(x, w))
    assert machine.captures == 0 and compiled_function(fast).dispatch.hits == 3
    assert "2 launches and 1 library calls cost no more than a replay" in str(framefuse.explain(fast))


def test_sizes_that_never_come_again_end_the_attempts(machine, monkeypatch):
    monkeypatch.setattr(captures, "PATIENCE", 5)
    fast = framefuse.compile(layer, mode=MODE, dynamic=True)
    w = randn(8, 8)
    for rows in range(2, 14):
        x = randn(rows, 8)
        same(fast(x, w), layer(x, w))
    assert machine.captures == 0
    assert any("differed from those before them" in region.captures.why for region in regions(fast))


@pytest.mark.parametrize(
    ("mode", "captured"), [(None, 0), ("default", 0), ("max-autotune", 1), ("max-autotune-no-cudagraphs", 0)]
)
def test_modes(machine, mode, captured):
    fast = framefuse.compile(layer, mode=mode)
    for _ in range(4):
        fast(randn(5, 8), randn(8, 8))
    assert machine.captures == captured
    assert ("replayed" in str(framefuse.explain(fast))) == bool(captured)


def test_around_a_break(machine):
    def f(x, w):
        y = torch.softmax(x @ w, -1)
        z = y * 3 if y.sum().item() > 1 else y
        return y, (z @ w).tanh()

    fast = framefuse.compile(f, mode=MODE)
    w = randn(8, 8)
    for _ in range(6):
        x = randn(5, 8)
        results = fast(x, w)
        same(results, f(x, w))
        made.extend(results)  # what crosses the break lies elsewhere in each call, whatever the allocator does
    assert machine.captures == 2 and machine.replays >= 6


def test_what_is_not_only_computing_is_not_captured(machine):
    def found(x):
        return x[x > 0] * 2

    fast = framefuse.compile(found, mode=MODE)
    for _ in range(4):
        x = randn(50)
        same(fast(x), found(x))
    assert machine.captures == 0
    assert any("known only when it has run" in text for text in regions(fast) if isinstance(text, str)), regions(fast)


def test_an_error_of_the_program_is_its_own(machine):
    def f(x, i):
        return (x * 2)[i] @ x.t()

    fast = framefuse.compile(f, mode=MODE)
    x = randn(5, 8)
    for turn in range(6):
        i = torch.tensor([turn % 5, 1])
        same(fast(x, i), f(x, i))
    with pytest.raises(IndexError):
        f(x, torch.tensor([7, 1]))


def test_graphs_end_with_their_function(machine):
    fast = framefuse.compile(layer, mode=MODE)
    w = randn(8, 8)
    for _ in range(4):
        fast(randn(5, 8), w)
    (replay,) = captures.pool_of("cpu").graphs
    replay = weakref.ref(replay)
    framefuse.reset()
    gc.collect()
    assert replay() is None and not len(machine.graphs)
    for _ in range(4):
        x = randn(5, 8)
        same(fast(x, w), layer(x, w))
    assert machine.captures == 2 and len(machine.graphs) == 1
    del fast
    gc.collect()
    assert not len(machine.graphs)


def test_explain_tells_the_price(machine):
    fast = framefuse.compile(layer, mode=MODE)
    for _ in range(4):
        fast(randn(5, 8), randn(8, 8))
    said = str(framefuse.explain(fast))
    assert "replayed  1 CUDA graph: " in said and "2 inputs and 2 results copied in each call" in said
    assert framefuse.explain(fast).graphs[0].replays.graphs == 1


class Weighed(torch.nn.Module):
    """What is computed of its weights alone can be kept."""

    def __init__(self):
        super().__init__()
        self.scale, self.rows = torch.nn.Parameter(randn(8)), torch.nn.Parameter(randn(8, 8))
        self.register_buffer("shift", randn(8))

    def forward(self, x):
        return torch.relu(x * self.scale.sin() + self.shift.exp()).softmax(-1) * self.rows.cos().sum(0)


def change(model, way):
    with torch.no_grad():
        if way == "write":
            for each in (*model.parameters(), model.shift):
                each.add_(1)
        elif way == "data":
            model.scale.data = randn(8)
        elif way == "parameter":
            model.rows = torch.nn.Parameter(randn(8, 8))
        elif way == "state":
            model.load_state_dict(Weighed().state_dict())
        else:
            model.scale.data.mul_(2)
            framefuse.refresh(model)


@torch.no_grad()
@pytest.mark.parametrize("ways", [("write", "write"), ("state", "data"), ("parameter", "write"), ("refresh", "state")])
def test_kept_values_of_weights_are_compared_before_a_replay(machine, ways):
    model = Weighed()
    fast = framefuse.compile(model, mode=MODE, options={"freeze": True})
    for way in (None, *ways):
        if way is not None:
            change(model, way)
        for _ in range(6):
            x = randn(5, 8)
            same(fast(x), model(x))
    region = regions(fast)[-1]
    assert region.lead == 1 and machine.replays > 6
    (graph,) = framefuse.explain(fast).graphs[-1:]
    assert graph.derived.times <= 3 and graph.derived.spared > 12


@torch.no_grad()
def test_kept_values_that_change_where_they_lie_need_no_other_graph(machine):
    model = Weighed()
    fast = framefuse.compile(model, mode=MODE, options={"freeze": True})
    x = randn(5, 8)
    for _ in range(5):
        fast(x)
    before = machine.captures
    assert before == 1
    for _ in range(20):
        change(model, "write")
        same(fast(x), model(x))
    assert machine.captures == before and machine.replays >= 20
