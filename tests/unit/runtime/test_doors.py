"""framefuse.install compiles a function or module in place: every door leads to the compiled code, and back."""

import copy
import functools
import gc
import itertools
import pickle
import subprocess
import sys
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import framefuse
from framefuse.capture.program.versions import CURRENT
from framefuse.runtime.function import compiled_function

captures = pytest.mark.skipif(CURRENT is None, reason="this CPython has no tables of capture yet")


def score(x, shift=0.5):
    return torch.tanh(x) * 2 + shift


def dispatch_of(target):
    return compiled_function(target).dispatch


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def hits():
    """Checks that `call()` equals eager, and that it ran the compiled code of `target` a number of times."""

    def check(target, call, times):
        with_door = framefuse.install(target)
        call()  # compiles
        before = dispatch_of(target).hits
        compiled = call()
        assert dispatch_of(target).hits - before == times
        with_door.remove()
        eager = call()
        assert compiled_function(target) is None
        torch.testing.assert_close(compiled, eager)

    return check


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return torch.relu(self.inner(x)) + 1


class Trainer:
    """A library's loop that knows the model's `forward` only."""

    def __init__(self, model):
        self.model = model

    def run(self, data):
        return [self.model.forward(x) for x in data]


def collate(items):
    return torch.stack(items) * 2


DATA = [torch.full((3,), float(i)) for i in range(4)]
DOORS = {
    "a plain call": (score, lambda: [score(x) for x in DATA], 4),
    "keywords": (score, lambda: [score(x=x) for x in DATA], 4),
    "map": (score, lambda: list(map(score, DATA)), 4),
    "sorted": (score, lambda: sorted(DATA, key=lambda x: -score(x).sum().item()), 4),
    "max": (score, lambda: max([DATA[0][:1], DATA[1][:1]], key=score), 2),
    "reduce": (score, lambda: functools.reduce(lambda a, b: a + score(b), DATA), 3),
    "starmap": (score, lambda: list(itertools.starmap(score, [(x, 0.5) for x in DATA])), 4),
    "partial": (score, lambda: functools.partial(score, DATA[0])(), 1),
    "a loader": (collate, lambda: list(DataLoader(DATA, batch_size=2, collate_fn=collate)), 2),
    "apply_": (score, lambda: DATA[1].clone().apply_(lambda v: score(torch.tensor(v)).item()), 3),
}


@captures
@pytest.mark.parametrize("name", list(DOORS))
def test_doors(name, hits):
    hits(*DOORS[name])


@captures
def test_a_method_that_a_library_calls(hits):
    trainer = Trainer(Net().eval())
    hits(Net.forward, lambda: trainer.run(DATA), 4)
    hits(Net.forward, lambda: [trainer.model(x) for x in DATA], 4)
    hits(trainer.model, lambda: [trainer.model(x) for x in DATA], 4)


@captures
def test_an_autograd_hook():
    def hook(gradient):
        return torch.tanh(gradient) * 3 + 1

    w = torch.ones(3, requires_grad=True)
    results = []
    for door in (None, framefuse.install(hook)):
        for _ in range(4):
            with torch.enable_grad():
                y = w * 2
                y.register_hook(hook)
                total = y.sum()
            results.append(torch.autograd.grad(total, w)[0])
        if door is not None:
            assert dispatch_of(hook).hits >= 2
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


@captures
def test_a_module_stays_what_it_is(hits):
    net = Net().eval()
    keys, attributes, x = list(net.state_dict()), set(vars(net)), torch.randn(2, 3)
    with framefuse.install(net) as door:
        want = Net.forward(net, x)
        for _ in range(3):
            torch.testing.assert_close(net(x), want)
        assert dispatch_of(net).hits == 2 and compiled_function(net) is door.state()
        assert framefuse.explain(net).name == "Net" and len(framefuse.explain(net).graphs) == 1
        for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert compiled_function(other) is None
            torch.testing.assert_close(other(x), want)
        assert list(net.state_dict()) == keys and type(net) is Net
        timing = framefuse.explain(net, x, time=True).timing
        assert timing.eager > 1.5 * timing.compiled  # eager is eager, though the module is installed
        net.inner.weight.data.mul_(2)
        torch.testing.assert_close(net(x), Net.forward(net, x))
        seen = []
        handle = net.register_forward_hook(lambda *args: seen.append(1))
        net(x)
        handle.remove()
        assert seen == [1]
        with torch.enable_grad():
            net(x).sum().backward()
        assert net.inner.weight.grad is not None
    assert compiled_function(net) is None and set(vars(net)) == attributes


@captures
def test_a_compiled_part_is_part_of_a_compiled_whole():
    net, x = Net().eval(), torch.randn(2, 3)

    def whole(x):
        return score(net(x)) + twin(x) + fast(x)

    twin, fast = framefuse.compile(Net().eval()), framefuse.compile(score)
    want = whole(x)
    with framefuse.install(net), framefuse.install(score):
        compiled = framefuse.compile(whole)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), want)
        assert dispatch_of(compiled).hits == 2
        (graph,) = framefuse.explain(compiled).graphs
        assert graph.count("call") == 0
        twin.inner = nn.Linear(3, 3)  # what is below a compiled part is guarded too
        torch.testing.assert_close(compiled(x), whole(x))
        net.inner.bias = nn.Parameter(torch.ones(3))
        torch.testing.assert_close(compiled(x), whole(x))


@captures
@pytest.mark.filterwarnings("ignore:Guards may run slower")
def test_other_users_of_a_module_see_the_module():
    """What copies, scripts, traces or transforms an installed module meets the module's own code."""
    net, x, fresh = Net().eval(), torch.randn(2, 3), torch.randn(2, 3)
    want, zero = net(fresh), {"inner.weight": torch.zeros(3, 3), "inner.bias": torch.zeros(3)}
    door = framefuse.install(net)
    net(x), net(x)
    assert dispatch_of(net).hits == 1
    replica = net._replicate_for_data_parallel()  # shares the attribute dict's contents
    replica._modules = {"inner": nn.Linear(3, 3)}
    replica.load_state_dict(zero)
    ones = torch.ones(2, 3)
    for _ in range(2):
        assert torch.equal(replica(fresh), ones)
        assert torch.equal(torch.func.functional_call(net, zero, (fresh,)), ones)
        torch.testing.assert_close(net(fresh), want)
    users = {
        "script": lambda: torch.jit.script(net)(fresh),
        "trace": lambda: torch.jit.trace(net, x)(fresh),
        "symbolic trace": lambda: torch.fx.symbolic_trace(net)(fresh),
        "vmap": lambda: torch.vmap(net)(fresh[None])[0],
        "torch.compile": lambda: torch.compile(net, backend="eager")(fresh),
        "torch.compile of a caller": lambda: torch.compile(lambda x: net(x), backend="eager")(fresh),
    }
    for name, use in users.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.testing.assert_close(use(), want, msg=name)
    door.remove()  # torch.compile keeps the module
    fast = framefuse.compile(score)
    for _ in range(2):
        torch.testing.assert_close(torch.compile(lambda x: fast(x) + 1, backend="eager")(x), score(x) + 1)


def test_settings_and_replacement():
    seen = []

    def backend(graph, examples):
        seen.append(graph)
        return graph.forward

    def f(x):
        return x + 1

    with pytest.raises(framefuse.UserError, match="backend"):
        framefuse.install(f, backend="nonsense")
    first = framefuse.install(f)
    second = framefuse.install(f, backend=backend)
    first.remove()  # not its own any more
    assert compiled_function(f) is second.state()
    for _ in range(3):
        assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0))
    assert len(seen) == (1 if CURRENT is not None else 0)
    second.remove()
    second.remove()
    assert compiled_function(f) is None and not vars(f)


def test_what_cannot_be_installed():
    def generator():
        yield 1

    for wrong in (generator, len, Net, Trainer(None).run, 3):
        with pytest.raises(framefuse.UserError):
            framefuse.install(wrong)


@captures
def test_wraps_copies_no_compiled_code():
    def f(x):
        return x + 1

    def wrapping(inner):
        @functools.wraps(inner)
        def g(x):
            return inner(x) * 10

        return g

    x = torch.ones(2)
    for inner in (framefuse.compile(f), f):
        door = framefuse.install(f)
        g = wrapping(inner)
        assert compiled_function(g) is None
        compiled = framefuse.compile(g)
        for _ in range(3):
            assert torch.equal(compiled(x), torch.full((2,), 20.0))
        door.remove()


@captures
def test_recursion_and_threads():
    def power(x, n):
        return x if n == 0 else power(torch.sin(x), n - 1) * 2

    x, results = torch.ones(3), []
    want = power(x, 3)
    with framefuse.install(power):
        for _ in range(3):
            torch.testing.assert_close(power(x, 3), want)
        assert dispatch_of(power).hits == 2
        threads = [threading.Thread(target=lambda: results.append(no_grad(power)(x, 3))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 4 and all(torch.equal(result, results[0]) for result in results)
        assert dispatch_of(power).hits == 6


def no_grad(function):
    @functools.wraps(function)
    def inside(*args):
        with torch.no_grad():
            return function(*args)

    return inside


def test_lifetime():
    def f(x):
        return x + 1

    net = Net()
    framefuse.install(f)
    framefuse.install(net)
    for _ in range(3):
        f(torch.ones(2)), net(torch.ones(2, 3))
    gone = [weakref.ref(net), weakref.ref(dispatch_of(net)), weakref.ref(compiled_function(net))]
    gone += [weakref.ref(f), weakref.ref(dispatch_of(f)), weakref.ref(net.inner.weight)]
    del net, f
    gc.collect()
    assert [ref() for ref in gone] == [None] * 6


@captures
def test_tracers_see_the_callers_and_nothing_breaks():
    lines = []
    with framefuse.install(score):
        score(DATA[0])
        for put in (sys.settrace, sys.setprofile):
            before = (sys.gettrace, sys.getprofile)[put is sys.setprofile]()
            put(lambda *event: lines.append(event[0].f_code.co_name))
            try:
                results = list(map(score, DATA))
            finally:
                put(before)
        assert dispatch_of(score).hits == 4  # a profiler sees callers of compiled code; a tracer gets eager calls
    torch.testing.assert_close(results, list(map(score, DATA)))


@captures
@pytest.mark.filterwarnings("ignore:Guards may run slower")
def test_torch_compile_above_and_below():
    def f(x):
        return torch.cos(x) + 1

    def outer(x):
        torch._dynamo.graph_break()
        return sum(map(f, [x, x])) * 2

    x = torch.ones(3)
    want = outer(x)
    theirs = torch.compile(outer, backend="eager")
    door = framefuse.install(f)  # ours below theirs
    for _ in range(3):
        torch.testing.assert_close(theirs(x), want)
    before = dispatch_of(f).hits
    f(x), f(x)
    assert dispatch_of(f).hits >= before + 1  # theirs gave the evaluator back
    door.remove()

    def opens(x):
        torch._dynamo.graph_break()
        door = framefuse.install(f)  # while theirs is on
        torch._dynamo.graph_break()
        return theirs(x), list(map(f, [x] * 3)), door

    for _ in range(2):
        first, rest, door = torch.compile(opens, backend="eager")(x)
        torch.testing.assert_close(first, want)
        torch.testing.assert_close(rest, [torch.cos(x) + 1] * 3)
        door.remove()
    again = framefuse.install(f)
    f(x), f(x), f(x)
    assert dispatch_of(f).hits >= 1
    again.remove()
    torch.testing.assert_close(theirs(x), want)


ALONE = """
import gc, sys, framefuse

def score(x):
    return x * 2 + 1

def depth(n):
    return n if n == 0 else depth(n - 1)

framefuse.install(score).remove()
gc.collect()
sys.setrecursionlimit(120_000)
assert depth(100_000) == 0  # 40 MB of C stack under an evaluator
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="an evaluator is used on 3.11 only")
def test_no_evaluator_is_left_on():
    """An evaluator takes C stack for each Python call; without one a deep recursion takes none. In its own process:
    what other tests installed may be alive in this one.
    """
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


# As torch's compiler does, which leaves something of its own on the code of Module.__call__ before we ever ask for a
# place there.
AFTERWARDS = """
import ctypes, torch
api = ctypes.pythonapi
older = not hasattr(api, "PyUnstable_Eval_RequestCodeExtraIndex")
ask = api._PyEval_RequestCodeExtraIndex if older else api.PyUnstable_Eval_RequestCodeExtraIndex
put = api._PyCode_SetExtra if older else api.PyUnstable_Code_SetExtra
ask.restype, ask.argtypes = ctypes.c_ssize_t, [ctypes.c_void_p]
put.argtypes = [ctypes.py_object, ctypes.c_ssize_t, ctypes.c_void_p]
kept = ctypes.create_string_buffer(64)
assert put(torch.nn.Module.__call__.__code__, ask(None), ctypes.addressof(kept)) == 0

import framefuse
net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
fast, x = framefuse.compile(net), torch.randn(2, 3)
for _ in range(3):
    torch.testing.assert_close(fast(x), net(x))
assert framefuse.explain(fast).hits >= 1
print("fine")
"""


def test_modules_are_compiled_where_others_have_marked_their_call_before():
    done = subprocess.run([sys.executable, "-c", AFTERWARDS], capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr
