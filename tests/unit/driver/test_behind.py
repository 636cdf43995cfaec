"""With ``wait=False`` calls run eagerly while another thread compiles, and run compiled code from then on."""

import logging
import os
import subprocess
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import framefuse
from framefuse.driver import behind, passes
from framefuse.ir import progress
from framefuse.ir.source import Line
from framefuse.options import resolve
from framefuse.runtime.function import compiled_function

GAIN = 2.0


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    behind.PROCESS.finish()


class Held:
    """Keeps code generation waiting until the test goes on; then it may ``fail``."""

    def __init__(self, monkeypatch):
        self.go, self.begun, self.fail = threading.Event(), threading.Event(), None
        self.threads = []
        compile_kernels = passes.compile_kernels

        def held(*given):
            self.threads.append(threading.current_thread())
            self.begun.set()
            assert self.go.wait(60)
            if self.fail is not None:
                raise self.fail
            return compile_kernels(*given)

        monkeypatch.setattr(passes, "compile_kernels", held)

    def finish(self):
        self.go.set()
        behind.PROCESS.finish()


@pytest.fixture
def held(monkeypatch):
    found = Held(monkeypatch)
    yield found
    found.go.set()


def never(function, **options):
    return framefuse.compile(function, options={"wait": False, "cache": False, **options})


def scaled(x, by):
    return torch.relu(x) * by + x.sin()


def assert_compiled(fast, function, *args):
    """A call with these arguments runs compiled code and gives eager's result."""
    before = compiled_function(fast).dispatch.hits
    torch.testing.assert_close(fast(*args), function(*args))
    assert compiled_function(fast).dispatch.hits == before + 1


def test_calls_are_eager_until_the_code_is_there(held):
    fast = never(scaled)
    for size in (4, 4, 5):
        x = torch.randn(size)
        torch.testing.assert_close(fast(x, 0.5), scaled(x, 0.5), rtol=0, atol=0)
    state = compiled_function(fast)
    assert state.pending is not None and fast.hits == 0 and not state.products
    held.finish()
    assert state.pending is None and len(state.products) == 1 and not state.reasons
    assert held.threads != [] and threading.main_thread() not in held.threads
    assert_compiled(fast, scaled, torch.randn(7), 0.25)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("mode", ["plain", "autocast", "inference"])
def test_the_state_of_torch_is_that_of_the_call(mode, grad):
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    fast = framefuse.compile(model, options={"wait": 60_000, "cache": False})
    ways = {"plain": torch.no_grad, "autocast": lambda: torch.autocast("cpu"), "inference": torch.inference_mode}
    with ways[mode](), torch.set_grad_enabled(grad):
        fast(torch.randn(3, 8))
        assert not compiled_function(fast).together
        assert_compiled(fast, model, torch.randn(5, 8))
    if grad and mode == "autocast":
        with torch.autocast("cpu"):
            fast(torch.randn(3, 8)).float().sum().backward()
        assert model[0].weight.grad is not None


def test_a_call_waits_for_so_many_milliseconds(held):
    fast, begun = never(scaled, wait=30), time.perf_counter()
    fast(torch.randn(4), 0.5)
    assert 0.03 <= time.perf_counter() - begun < 20
    assert compiled_function(fast).pending is not None
    held.go.set()
    patient = never(lambda x: scaled(x, 2.0), wait=60_000)
    patient(torch.randn(4))
    assert compiled_function(patient).pending is None
    assert_compiled(patient, lambda x: scaled(x, 2.0), torch.randn(6))


@pytest.mark.parametrize("wrong", [-1, "soon", None, [1]])
def test_what_is_no_time_is_told(wrong):
    with pytest.raises(framefuse.UserError, match="True or False, or a number from 0 on"):
        framefuse.compile(scaled, options={"wait": wrong})


def test_the_setting_has_no_part_in_what_is_kept(monkeypatch):
    monkeypatch.setenv("FRAMEFUSE_WAIT", "50")
    assert resolve(None).patience == 0.05
    assert repr(resolve(None)) == repr(resolve({"wait": False})) == repr(resolve({"wait": True}))
    assert [resolve({"wait": each}).patience for each in (True, False, 2000)] == [None, 0.0, 2.0]


class Gained(nn.Module):
    gain = 2.0
    kinds = ("a",)

    def forward(self, x):
        return torch.relu(x) * self.gain + len(self.kinds)


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_class_that_changes_meanwhile(held, when, monkeypatch):
    model = Gained()
    fast = never(model)
    x = torch.randn(4)
    fast(x)
    assert held.begun.wait(60)
    if when == "before":
        monkeypatch.setattr(Gained, "kinds", ("a", "b"))
    held.finish()
    if when == "behind":
        monkeypatch.setattr(Gained, "kinds", ("a", "b"))
    for _ in range(3):
        torch.testing.assert_close(fast(x), torch.relu(x) * 2 + 2)
        behind.PROCESS.finish()
    assert bool(compiled_function(fast).reasons) == (when == "before")


def test_what_facts_tell_may_change_meanwhile(held, monkeypatch):
    def globally(x):
        return torch.relu(x) * GAIN

    fast = never(globally)
    x = torch.randn(4)
    fast(x)
    assert held.begun.wait(60)
    monkeypatch.setattr(sys.modules[__name__], "GAIN", 3.0)
    torch.testing.assert_close(fast(x), torch.relu(x) * 3)
    held.finish()
    for _ in range(3):
        torch.testing.assert_close(fast(x), torch.relu(x) * 3)
        behind.PROCESS.finish()
    assert fast.hits > 0


def test_a_module_that_changes_meanwhile(held):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    fast = never(model)
    x = torch.randn(3, 4)
    fast(x)
    assert held.begun.wait(60)
    model[1] = nn.Tanh()
    model[0].weight = nn.Parameter(torch.ones(4, 4))
    held.finish()
    for _ in range(3):
        torch.testing.assert_close(fast(x), model(x))
        behind.PROCESS.finish()
    assert_compiled(fast, model, torch.randn(5, 4))


def test_a_default_dtype_that_changes_meanwhile_has_calls_wait(monkeypatch):
    begun = threading.Event()
    put = behind.PROCESS.put

    def later(job):
        return put(lambda: (begun.wait(60), job()))

    monkeypatch.setattr(behind.PROCESS, "put", later)
    fast = never(lambda x: torch.relu(x) + torch.ones(3))
    fast(torch.randn(3))
    torch.set_default_dtype(torch.float64)
    begun.set()
    behind.PROCESS.finish()
    torch.set_default_dtype(torch.float32)
    state = compiled_function(fast)
    assert state.together and not state.products
    fast(torch.randn(3))
    assert_compiled(fast, lambda x: torch.relu(x) + torch.ones(3), torch.randn(3))


def test_a_fault_leaves_the_function_eager(held, caplog):
    fast = never(scaled, check=False)
    held.fail = ArithmeticError("broken")
    x = torch.randn(4)
    fast(x, 0.5)
    with caplog.at_level(logging.WARNING):
        held.finish()
    assert "framefuse failed on it: ArithmeticError: broken" in caplog.text
    torch.testing.assert_close(fast(x, 0.5), scaled(x, 0.5))
    state = compiled_function(fast)
    assert [each.code for each in state.reasons] == ["fault"] and state.pending is None and fast.hits == 0


def test_a_fault_under_check_is_raised_by_the_next_call(held):
    fast = never(scaled, check=True)
    held.fail = ArithmeticError("broken")
    fast(torch.randn(4), 0.5)
    held.finish()
    with pytest.raises(framefuse.CompilerBug, match="broken"):
        fast(torch.randn(4), 0.5)


def test_a_stretch_before_a_break_and_a_loop_over_it():
    def broken(x):
        total = 0.0
        for _ in range(3):
            x = torch.relu(x) + 1
            total += sum(x.tolist())
        return x.sin() * total

    fast = never(broken)
    for size in range(2, 12):
        x = torch.randn(size)
        torch.testing.assert_close(fast(x), broken(x))
        behind.PROCESS.finish()
    state = compiled_function(fast)
    assert state.dispatch.hits > 3 and sum(point.dispatch.hits for point in state.resume_dispatches) > 3


def test_arguments_are_let_go_while_code_is_made(held):
    fast, x = never(scaled), torch.randn(4)
    gone = weakref.ref(x)
    fast(x, 0.5)
    assert held.begun.wait(60)
    del x
    assert gone() is None


def test_what_is_reset_meanwhile_is_dropped(held):
    fast = never(scaled)
    fast(torch.randn(4), 0.5)
    assert held.begun.wait(60)
    framefuse.reset()
    held.finish()
    assert not compiled_function(fast).products
    fast(torch.randn(4), 0.5)
    behind.PROCESS.finish()
    assert_compiled(fast, scaled, torch.randn(7), 0.25)


def test_explain_waits(held):
    fast = never(scaled)
    fast(torch.randn(4), 0.5)
    threading.Timer(0.2, held.go.set).start()
    assert len(framefuse.explain(fast).graphs) == 1


def gradients(function, model, x):
    model.zero_grad()
    function(x).sin().sum().backward()  # squares of a norm's rows have no gradient but of rounding
    return [parameter.grad for parameter in model.parameters()]


class Training:
    """A compiled model of which the forward code is there; the code of its backward is kept waiting."""

    def __init__(self, held, **options):
        self.model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8))
        self.fast = never(self.model, **options)
        held.go.set()
        self.fast(torch.randn(3, 4))
        held.finish()
        held.go.clear(), held.begun.clear()

    @property
    def side(self):
        (derivative,) = compiled_function(self.fast).derivatives()
        return derivative.backward

    def step(self, rows):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(gradients(self.fast, self.model, x), gradients(self.model, self.model, x))


def test_no_backward_waits_for_its_code(held):
    training = Training(held)
    for rows in (3, 5, 5):
        training.step(rows)
    assert training.side.pending is not None and training.side.dispatch.hits == 0
    held.finish()
    assert threading.main_thread() not in held.threads and len(training.side.derivative.cases) == 1
    for rows in (2, 7):
        before = training.side.dispatch.hits
        training.step(rows)
        assert training.side.dispatch.hits == before + 1
    assert training.side.pending.done.is_set() and not training.side.derivative.reasons


def test_a_backward_waits_for_so_many_milliseconds(held):
    training = Training(held, wait=60_000)
    held.go.set()
    training.step(3)
    assert training.side.dispatch.hits == 1 and threading.main_thread() not in held.threads


def test_a_backward_that_fails_behind_stays_uncompiled(held, caplog):
    training = Training(held, check=False)
    held.fail = ArithmeticError("broken backward")
    training.step(3)
    with caplog.at_level(logging.WARNING):
        held.finish()
    training.step(5)
    assert "ArithmeticError: broken backward" in caplog.text and training.side.dispatch.hits == 0
    assert "fault" in [each.code for each in training.side.derivative.reasons]


def test_explain_waits_for_a_backward(held):
    training = Training(held)
    training.step(3)
    threading.Timer(0.2, held.go.set).start()
    assert framefuse.explain(training.fast).graphs and len(training.side.derivative.cases) == 1


def test_several_threads_call():
    fasts = [never(lambda x, by=float(number): scaled(x, by)) for number in range(4)]
    wrong = []

    def work():
        for step in range(60):
            for number, fast in enumerate(fasts):
                x = torch.randn(2 + step % 5)
                if not torch.allclose(fast(x), scaled(x, float(number)), atol=1e-6):
                    wrong.append((number, step))

    threads = [threading.Thread(target=work) for _ in range(4)]
    [each.start() for each in threads], [each.join() for each in threads]
    behind.PROCESS.finish()
    assert not wrong
    for number, fast in enumerate(fasts):
        assert_compiled(fast, lambda x, by=float(number): scaled(x, by), torch.randn(9))


PROGRAM = """
import os, sys, time, torch, framefuse
torch.set_num_threads(1)
def heavy(x):
    for n in range(60):
        x = (torch.relu(x) * n).tanh() + x.sin().softmax(-1).cumsum(-1)
    return x
fast = framefuse.compile(heavy, options={"wait": False, "cache": False, "check": False})
x = torch.randn(8, 16)
fast(x)
"""
FORKS = """
from framefuse.runtime.function import compiled_function
from framefuse.driver import behind
def right():
    state = compiled_function(fast)
    for _ in range(3):
        assert torch.allclose(fast(x), heavy(x), 1e-4, 1e-4)
        behind.PROCESS.finish()
    assert state.dispatch.hits and len(state.products) == 1, (state.dispatch.hits, state.reasons)
children = []
assert compiled_function(fast).pending is not None
for _ in range(3):
    time.sleep(0.02)
    child = os.fork()
    if not child:
        right()
        os._exit(0)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
right()
print("right")
"""


TRAINS = """
from framefuse.runtime.function import compiled_function
from framefuse.driver import behind
def grown():
    weight = torch.ones(16, requires_grad=True)
    fast(x * weight).sum().backward()
    return weight.grad
def expected():
    weight = torch.ones(16, requires_grad=True)
    heavy(x * weight).sum().backward()
    return weight.grad
grown()
behind.PROCESS.finish()
"""
FORKS_IN_BACKWARD = """
def right():
    for _ in range(3):
        assert torch.allclose(grown(), expected(), 1e-3, 1e-3)
        behind.PROCESS.finish()
    (derivative,) = compiled_function(fast).products[-1].stages.derivatives
    assert derivative.backward.dispatch.hits, derivative.reasons
grown()
child = os.fork()
if not child:
    right()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
right()
print("right")
"""


def run(more, seconds=60, statements=60):
    program = PROGRAM.replace("range(60)", f"range({statements})") + more
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=seconds, env=dict(os.environ)
    )


def test_a_process_that_forks_meanwhile_goes_on_and_so_do_its_children():
    done = run(FORKS, 240, statements=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


def test_a_process_forks_and_ends_while_a_backward_is_made():
    done = run(TRAINS + FORKS_IN_BACKWARD, 240, statements=8)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")
    done = run(TRAINS + "grown()", 240, statements=8)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("after", ["", "time.sleep(0.1)", "sys.exit(3)", "raise SystemExit(3)", "time.sleep(0.4)"])
def test_a_process_ends_while_code_is_made(after):
    done = run(after)
    assert done.stderr == "" and done.returncode == (3 if "3" in after else 0)


def test_what_takes_long_is_shown_on_a_terminal_alone(monkeypatch, capsys, held):
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    monkeypatch.setattr(progress, "PACE", 0.01)
    trace = SimpleNamespace(line=Line("model.py", 12, "forward"))
    with progress.shown(trace):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "_is_terminal", lambda: True)
    with progress.shown(trace):
        progress.at("fuse")
        time.sleep(0.2)
    told = capsys.readouterr().err
    assert f"{progress.CLEAR}framefuse: compiling forward (model.py:12), 0 s: fuse" in told
    assert told.endswith(progress.CLEAR)
    with progress.telling(lambda: "minifying f", lambda: "3 tried"):  # parts of it are shown by it alone
        time.sleep(0.1)
        with progress.shown(trace):
            time.sleep(0.1)
    told = capsys.readouterr().err
    assert "framefuse: minifying f, 0 s: 3 tried" in told and "compiling" not in told
    monkeypatch.setattr(progress, "PATIENCE", 30)
    with progress.shown(trace):
        pass
    assert capsys.readouterr().err == ""


def test_calls_need_not_wait_long_for_python_while_something_is_compiled(monkeypatch):
    held, before = Held(monkeypatch), sys.getswitchinterval()
    fast = framefuse.compile(lambda x: x.sin() * 2 + 1, options={"wait": False})
    fast(torch.randn(4))
    assert held.begun.wait(60)
    assert sys.getswitchinterval() == pytest.approx(behind.TURN)
    held.finish()
    behind.PROCESS.finish()
    assert sys.getswitchinterval() == before


def test_an_interval_that_the_program_sets_meanwhile_stays(monkeypatch):
    held, before = Held(monkeypatch), sys.getswitchinterval()
    fast = framefuse.compile(lambda x: x.cos() * 2 + 1, options={"wait": False})
    try:
        fast(torch.randn(4))
        assert held.begun.wait(60)
        sys.setswitchinterval(0.002)
        held.finish()
        behind.PROCESS.finish()
        assert sys.getswitchinterval() == pytest.approx(0.002)
    finally:
        sys.setswitchinterval(before)
