"""explain runs nothing unless asked, puts back what timed calls change, and says what it would change for good."""

import collections
import contextlib
import functools
import logging
import random
import sys
import warnings

import numpy
import pytest
import torch

import framefuse
from framefuse.explain import timing
from framefuse.explain.left import left_of
from framefuse.runtime.function import compiled_function

calls = []
told = None


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop = torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(x))


def state(net):
    buffers = [(value.clone(), value._version) for value in net.buffers()]
    return buffers, torch.get_rng_state(), random.getstate()


def same(left, right):
    versions = [version for _, version in left[0]] == [version for _, version in right[0]]
    values = all(torch.equal(a, b) for (a, _), (b, _) in zip(left[0], right[0], strict=True))
    return versions and values and torch.equal(left[1], right[1]) and left[2] == right[2]


@pytest.mark.parametrize("time", [False, True])
def test_training_state_is_what_it_was(time):
    net = Net().train()
    compiled, x = framefuse.compile(net), torch.randn(8, 4)
    compiled(x), compiled(x)
    counters = compiled_function(compiled).dispatch
    before, counted = state(net), (counters.calls, counters.hits)
    report = framefuse.explain(compiled, x, time=time)
    assert same(before, state(net))
    assert (counters.calls, counters.hits) == counted == (report.calls, report.hits)
    assert (report.timing is not None) == time
    assert "graph 1" in str(report)
    want, got = torch.manual_seed(0) and net(x), torch.manual_seed(0) and compiled(x)
    torch.testing.assert_close(got, want)


def test_a_written_argument_is_put_back():
    @framefuse.compile
    def halve(x):
        return x.mul_(0.5)

    halve(torch.ones(3)), halve(torch.ones(3))
    x = torch.ones(3)
    assert framefuse.explain(halve, x, time=True).timing.compiled > 0
    assert x.tolist() == [1.0, 1.0, 1.0] and x._version == 0


def test_what_cannot_be_put_back_is_said_and_not_done():
    @framefuse.compile
    def logs(x):
        calls.append(1)
        warnings.warn("often", stacklevel=1)
        return x * 2

    @framefuse.compile
    def breaks(x):
        y = x * 2
        sys.stderr.write(f"{y.sum():.2f}\n")
        return y.sin()

    @framefuse.compile
    def tracked(x):
        return x.mul_(2)

    calls.clear()
    x = torch.ones(3)
    leaf = torch.ones(3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            logs(x), breaks(x), tracked(leaf * 1)
        y = leaf * 1
        node = y.grad_fn
        said = [str(framefuse.explain(f, arg, time=True)) for f, arg in ((logs, x), (breaks, x), (tracked, y))]
    assert "not timed: " in said[0] and "calls warnings.warn" in said[0] and "test_timing.py" in said[0]
    assert "not timed: " in said[1] and "may change anything" in said[1]
    assert "not timed: mul_ changes the history" in said[2]
    assert len(calls) == 2 and y.grad_fn is node


class Parted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.seen = torch.nn.BatchNorm1d(4), torch.nn.Buffer(torch.zeros(4))

    def forward(self, x, slow, late):
        y = self.norm(x).relu()
        self.seen.add_(y.detach().mean(0))
        if y.sum() > 1e6:
            y = y + 1
        print("mean", f"{y.mean():.2f}")
        z = (y * slow.tolist()[0]).sin()
        x.add_(1)
        late["here"][0].mul_(2)
        return z.sort(dim=0).values.cos()


def test_breaks_are_timed_on_state_that_is_put_back_and_the_dearest_comes_first(capsys):
    net = Parted().train()
    compiled, x, slow = framefuse.compile(net), torch.randn(8, 4), torch.ones(200_000)
    late = {"here": [torch.ones(2)]}
    for _ in range(4):
        compiled(x.clone(), slow, {"here": [torch.ones(2)]})
    counters = compiled_function(compiled).dispatch
    before, counted, given = state(net), (counters.calls, counters.hits), x.clone()
    compiled_before = len(compiled_function(compiled).products)
    capsys.readouterr()
    report = framefuse.explain(compiled, x, slow, late, time=True)
    assert capsys.readouterr().out == ""
    assert same(before, state(net)) and torch.equal(x, given) and x._version == 0
    assert late["here"][0].tolist() == [1.0, 1.0]
    assert (counters.calls, counters.hits) == counted and len(compiled_function(compiled).products) == compiled_before
    codes = [why.line.text for why in report.prices]
    assert len(codes) == 3 and "slow.tolist" in codes[0]
    assert all(0 < price.seconds < 1 and price.runs == 1 for price in report.prices.values())
    text = str(report)
    assert "us of a call's" in text or "ms of a call's" in text
    assert text.index("slow.tolist()") < text.index("if y.sum()")
    left = left_of(report)
    assert len(left) == 3 and "slow.tolist" not in left[1].fact and " a call: " in left[0].fact


def test_a_loop_of_breaks_counts_its_runs_and_another_functions_code_is_no_piece():
    @framefuse.compile
    def inner(x):
        return x.cos() * 2

    @framefuse.compile
    def outer(x, n):
        for _ in range(n):
            x = x.sin() + 1
            if x.sum() > 1e6:
                x = x - 1
        return x

    x = torch.randn(8)
    for n in (3, 3, 3, 3):
        outer(x, n), inner(x)
    (price,) = framefuse.explain(outer, x, 3, time=True).prices.values()
    assert price.runs == 3
    rows = [row for row in framefuse.profile(lambda: inner(outer(x, 3))).rows if row.kind == "break"]
    assert [(row.count, row.title) for row in rows] == [(3, "a branch on a tensor")]
    assert abs(sum(row.share for row in framefuse.profile(outer, x, 3).rows) - 1) < 0.05


def test_time_without_arguments_asks_for_them():
    compiled = framefuse.compile(Net().eval())
    compiled(torch.ones(2, 4)), compiled(torch.ones(2, 4))
    assert "Give its arguments too" in str(framefuse.explain(compiled, time=True))


def test_what_a_call_would_change_has_the_programs_names():
    def tells(x):
        global told
        told = x.shape
        return x * 2

    def warns(x):
        warnings.warn("often", stacklevel=1)
        return x * 2

    x, said = torch.ones(3), []
    for f in (tells, warns):
        fast = framefuse.compile(f)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fast(x), fast(x)
            before = told
            said.append(str(framefuse.explain(fast, x[:2], time=True)))
            assert told is before
    assert " us -> " in said[0]
    assert "not timed: the call calls warnings.warn, which may" in said[1]


@functools.lru_cache(None)
def warn_once(text):
    calls.append(text)


def test_what_is_said_once_is_no_reason_not_to_time():
    def warns(x):
        warn_once("often")
        return x * 2

    fast, x = framefuse.compile(warns), torch.ones(3)
    fast(x), fast(x)
    calls.clear()
    assert framefuse.explain(fast, x, time=True).timing.compiled > 0 and not calls


def test_arguments_that_no_graph_takes_compile_nothing():
    compiled = framefuse.compile(lambda x, flag: x * 2 if flag else x + 1)
    x = torch.ones(3)
    assert "nothing is compiled yet" in str(framefuse.explain(compiled, x, True))
    compiled(x, True)
    said = str(framefuse.explain(compiled, x.double(), True, time=True))
    assert "compiles once more: x.dtype was float32, is float64" in said and "not timed" in said
    assert "flag was True, is False" in str(framefuse.explain(compiled, x, flag=False))
    assert "do not fit" in str(framefuse.explain(compiled, 1, 2, 3, 4))
    assert len(compiled_function(compiled).products) == 1


class Options:
    k = 1.5


def test_each_recompilation_names_place_and_both_values(caplog):
    options = Options()
    options.k = 2.5

    @framefuse.compile
    def scaled(x, deep):
        return x * options.k if deep else x + 1

    x = torch.ones(3)
    with caplog.at_level(logging.INFO, "framefuse"):
        scaled(x, True), scaled(x, False)
        options.k = 3.5
        scaled(x, True), scaled(torch.ones(3, 1), True)
    text = str(framefuse.explain(scaled))
    for said in (text, caplog.text):
        assert "deep was True, is False (asked at test_timing.py:" in said
        assert "options.k was 2.5, is 3.5 (asked at test_timing.py:" in said and "any value from now on" in said
        assert "x.shape was (s1), is (3, 1)" in said
    assert text.count("compiled because") == 3


def test_a_modules_place_and_parameters_are_its_forwards():
    net = Net().eval()
    compiled, x = framefuse.compile(net), torch.ones(2, 4)
    with torch.no_grad():
        compiled(x), compiled(x=x), compiled(x.double()[:, :0].float().new_ones(3, 4))
        said = str(framefuse.explain(compiled))
        assert "module.py" not in said.split("compile  ")[0].replace("asked at module.py", "")
        assert "graph 1  test_timing.py:" in said
        assert "x.dtype was float32, is float64" in str(framefuse.explain(compiled, x.double()))


def test_a_call_that_raises_has_its_line_and_arguments_that_do_not_fit_are_an_error():
    def f(x):
        y = x.clone()
        assert y.sum() > 0, "none"
        return y * 2

    fast = framefuse.compile(f)
    for x in (torch.ones(3), torch.ones(3)):
        fast(x)
    with pytest.raises(AssertionError, match="none"):
        fast(torch.zeros(3, dtype=torch.float64))  # a case that is recorded
    ((reason, _),) = framefuse.explain(fast).stops
    assert reason.code == "raises" and reason.line.text.startswith("assert y.sum() > 0")
    assert framefuse.explain(fast, x, x).answer.startswith("is an error: these arguments do not fit")


class Learner:
    """A step of training as programs have it, that keeps account of itself in all kinds of places."""

    steps = 0

    def __init__(self):
        torch.manual_seed(0)
        nn = torch.nn
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-2)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        self.losses, self.last, self.best, self.seen = [], collections.deque(maxlen=3), {}, set()
        self.count, self.array = 0, numpy.zeros(2)

    def step(self, x):
        self.optimizer.zero_grad()
        y = self.net(x)
        if y.sum() > 1e6:
            y = y * 2
        loss = y.square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.detach())
        self.last.append(self.count)
        self.best["loss"] = loss.detach()
        self.count += 1
        return loss

    def all(self):
        tensors = [*self.net.parameters(), *self.net.buffers(), *(p.grad for p in self.net.parameters())]
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        held = [(value, value.clone(), value._version) for value in (*tensors, *states, *self.losses)]
        plain = (self.count, list(self.last), len(self.losses), self.best["loss"], self.schedule.state_dict())
        return held, plain, torch.get_rng_state().tolist()


def test_a_step_of_training_with_breaks_is_timed_and_the_next_steps_are_those_of_one_that_was_not():
    xs = [torch.randn(6, 4, generator=torch.Generator().manual_seed(n)) for n in range(8)]
    one, twin = Learner(), Learner()
    fast, other = framefuse.compile(one.step), framefuse.compile(twin.step)
    for x in xs[:5]:
        fast(x), other(x)
    before, held, compiled = one.all(), xs[5].clone(), len(compiled_function(fast).products)
    report = framefuse.explain(fast, xs[5], time=True)
    after = one.all()
    assert report.timing.compiled > 0 and len(report.prices) == 2 and all(p.runs == 1 for p in report.prices.values())
    assert [(id(value), version) for value, _, version in before[0]] == [(id(v), n) for v, _, n in after[0]]
    assert all(torch.equal(mine, now) for (_, mine, _), (_, now, _) in zip(before[0], after[0], strict=True))
    assert before[1:] == after[1:] and torch.equal(held, xs[5])
    assert len(compiled_function(fast).products) == compiled
    for x in xs[5:]:
        assert torch.equal(fast(x), other(x))
    assert all(torch.equal(p, q) for p, q in zip(one.net.parameters(), twin.net.parameters(), strict=True))


def test_a_hook_that_may_do_anything_forbids_to_time_a_step():
    weight = torch.ones(3, requires_grad=True)
    heard = []
    weight.register_hook(lambda grad: heard.append(1))

    @framefuse.compile
    def step(x):
        loss = (weight * x).sum()
        loss.backward()
        return loss.detach() * 2

    for _ in range(4):
        step(torch.ones(3))
    count, grad = len(heard), weight.grad.clone()
    said = str(framefuse.explain(step, torch.ones(3), time=True))
    assert "not timed: a hook of a tensor runs at the break" in said
    assert len(heard) == count and torch.equal(weight.grad, grad)


def test_what_takes_long_tells_how_far_it_is(monkeypatch):
    told = []

    @contextlib.contextmanager
    def telling(what, stage):
        told.append((what(), stage()))
        yield

    monkeypatch.setattr(timing, "telling", telling)
    compiled = framefuse.compile(Net().eval())
    compiled(torch.ones(2, 4)), compiled(torch.ones(2, 4))
    framefuse.explain(compiled, torch.ones(2, 4), time=True)
    assert told == [("timing Net", "call 1")]
