"""Captured graphs on a GPU: eager's results, which stay; random numbers, writes, sizes, streams, and what is refused.

Small programs are captured here too, which a user's are not: the prices of a replay are set to nothing.
"""

import copy
import gc
import threading

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.kernels import NEEDS_GPU
from tests.gpu.programs import FUNCTIONS, MODELS, loss_of
from tests.gpu.test_programs import close, seed

import framefuse
from framefuse.api import compiled_function
from framefuse.runtime import captures
from framefuse.runtime.cuda_graphs import CudaGraphs

pytestmark = [*NEEDS_GPU, pytest.mark.filterwarnings("ignore::UserWarning")]
MODE = "reduce-overhead"
UNCAPTURED = ("chosen", "moved")  # sizes that are known when a call has run; work on the CPU
UNSURE = ("scalar",)  # may be read on the CPU


class Counting(CudaGraphs):
    """Counts captures and replays."""

    captures = replays = 0

    def capture(self, pool, run):
        graph, result = super().capture(pool, run)
        self.captures += 1

        def counted():
            self.replays += 1
            graph()

        return counted, result


@pytest.fixture
def machine(monkeypatch):
    machine = Counting(0)
    monkeypatch.setattr(captures, "MACHINES", {"cuda": lambda index: machine})
    monkeypatch.setattr(captures, "_pools", {})
    for name in ("REPLAY", "COPY", "FRESH", "NODE"):
        monkeypatch.setattr(captures, name, 0)
    monkeypatch.setattr(captures, "BANDWIDTH", 1 << 40)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield machine
        torch.cuda.synchronize()


def regions(fast):
    return [product.stages.plan.region for product in compiled_function(fast).products]


def why(fast):
    return [region if isinstance(region, str) else region.captures.why for region in regions(fast)]


def program(x, w):
    y = torch.softmax(x.sin() * 2 + 1, -1)
    return F.gelu(y @ w) + x.sum(-1, keepdim=True), y


def inputs(rows=64):
    return torch.randn(rows, 128, device="cuda"), torch.randn(128, 96, device="cuda")


def precise(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
def test_function(machine, function):
    fast = framefuse.compile(function.function, mode=MODE)
    kept = []
    with torch.no_grad():
        for number, rows in enumerate((5, 5, 5, 5, 8, 8, 8, 5, 5)):
            seed(number)
            ours = function.inputs(rows, "cuda")
            seed(number)
            theirs = function.inputs(rows, "cuda")
            seed(number)
            found = fast(*ours)
            after = torch.rand(3, device="cuda")
            seed(number)
            kept.append((found, function.function(*theirs)))
            assert torch.equal(after, torch.rand(3, device="cuda")), "the generator went another way"
            close(ours, theirs, function.scale)
            for found, expected in kept:
                close(found, expected, function.scale)
    assert compiled_function(fast).dispatch.declines == 0
    if function.name in UNCAPTURED:
        assert machine.replays == 0 and all(why(fast))
    elif function.name not in UNSURE:
        assert machine.replays >= 3, why(fast)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_model(machine, name, training):
    make, arguments = MODELS[name]
    seed(0)
    eager = make().to("cuda").train(training)
    model = copy.deepcopy(eager)
    fast, kept = framefuse.compile(model, mode=MODE), []
    with torch.no_grad():
        for number in range(7):
            args = arguments(6, "cuda")
            seed(number)
            found = fast(*args)
            seed(number)
            kept.append((found, eager(*args)))
            for found, expected in kept:
                close(found, expected, 4)
            for ours, theirs in zip(model.buffers(), eager.buffers(), strict=True):
                close(ours, theirs, 4)
            if number == 4:  # in place, where the graph reads them
                for module in (model, eager):
                    for parameter in module.parameters():
                        parameter.mul_(0.9)
    assert machine.replays == 5 and machine.captures <= 2, why(fast)


def test_writes(machine):
    def f(x, total, count):
        y = torch.tanh(x) * 2
        total.add_(y.sum(0))
        count.add_(1)
        return y @ y.t()

    fast = framefuse.compile(f, mode=MODE)
    ours, theirs = ([torch.zeros(128, device="cuda"), torch.zeros((), device="cuda")] for _ in range(2))
    for _ in range(6):
        x = inputs()[0]
        precise(fast(x, *ours), f(x, *theirs))
        precise(ours, theirs)
        assert [t._version for t in ours] == [t._version for t in theirs]
    assert machine.replays == 4, why(fast)


def test_a_step_of_an_optimizer(machine):
    seed(0)
    first = [torch.randn(7, 3, device="cuda"), torch.randn(5, device="cuda")]
    groups = [[torch.nn.Parameter(value.clone()) for value in first] for _ in range(2)]
    optimizers = [torch.optim.SGD(group, lr=0.05, momentum=0.9, foreach=True) for group in groups]
    fast = framefuse.compile(optimizers[0].step, mode=MODE)
    for group in groups:
        for parameter in group:
            parameter.grad = torch.zeros_like(parameter)
    for _ in range(8):
        for parameter, other in zip(*groups, strict=True):
            parameter.grad.normal_()
            other.grad.copy_(parameter.grad)
        fast()
        optimizers[1].step()
        precise([p.detach() for p in groups[0]], [p.detach() for p in groups[1]])
    assert machine.replays >= 3, why(fast)


def test_parameters_that_move(machine):
    seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.GELU(), torch.nn.Linear(32, 5)).to("cuda")
    fast = framefuse.compile(model, mode=MODE)
    with torch.no_grad():
        for number in range(9):
            x = torch.randn(4, 24, device="cuda")
            precise(fast(x), model(x))
            if number in (3, 6):
                for parameter in model.parameters():
                    parameter.data = torch.randn_like(parameter)
    assert machine.replays >= 5


def test_autocast(machine):
    seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.GELU(), torch.nn.Linear(32, 5)).to("cuda")

    def run(x):
        with torch.autocast("cuda", torch.bfloat16):
            return model(x)

    fast = framefuse.compile(run, mode=MODE)
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(4, 24, device="cuda")
            found, expected = fast(x), run(x)
            assert found.dtype is expected.dtype
            torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
    assert machine.replays == 3, why(fast)


def test_inference_mode(machine):
    fast = framefuse.compile(program, mode=MODE)
    with torch.inference_mode():
        for _ in range(5):
            given = inputs()
            found, expected = fast(*given), program(*given)
            precise(found, expected)
            assert [t.is_inference() for t in found] == [t.is_inference() for t in expected]
    assert machine.replays == 3, why(fast)


def test_the_number_of_graphs_is_bounded(machine):
    fast = framefuse.compile(program, mode=MODE, dynamic=True, options={"graph_limit": 2})
    for _ in range(3):
        for rows in (16, 32, 48, 64):
            given = inputs(rows)
            precise(fast(*given), program(*given))
    assert machine.captures == 2 and machine.replays >= 2
    assert "2 graphs are captured, the limit" in str(framefuse.explain(fast))


def waits(x, w):
    return torch.linalg.eigvalsh(x @ x.t()).sum() + (x @ w).sum(-1), torch.linalg.matrix_rank(w)


def test_what_waits_for_the_device(machine):
    """Whether its capture is refused or fails: the result is right, and the stream and the generator are usable."""
    fast = framefuse.compile(waits, mode=MODE)
    for number in range(5):
        given = inputs(16)
        seed(number)
        found = fast(*given)
        torch.testing.assert_close(found, waits(*given), rtol=1e-3, atol=1e-3)
        assert not torch.cuda.is_current_stream_capturing()
    assert compiled_function(fast).dispatch.declines == 0


def test_a_capture_that_fails(machine, monkeypatch):
    """The device is waited for inside, which ends the capture; everything goes on as if it had not begun."""
    whole = CudaGraphs.capture

    def failing(self, pool, run):
        def with_wait():
            result = run()
            torch.cuda.current_stream().synchronize()
            return result

        return whole(self, pool, with_wait)

    def f(x, w):
        return F.dropout(x, 0.5) @ w + torch.rand_like(x[:, :1])

    fast = framefuse.compile(f, mode=MODE)
    with monkeypatch.context() as patch:
        patch.setattr(CudaGraphs, "capture", failing)
        for number in range(5):
            given = inputs()
            seed(number)
            found = fast(*given)
            after = torch.rand(4, device="cuda")
            seed(number)
            precise(found, f(*given))
            assert torch.equal(after, torch.rand(4, device="cuda"))
            assert not torch.cuda.is_current_stream_capturing()
    assert machine.replays == 0 and "capturing failed" in str(framefuse.explain(fast))
    torch.cuda.empty_cache()


def test_graphs_are_captured_after_one_has_failed(machine, monkeypatch):
    test_a_capture_that_fails(machine, monkeypatch)
    test_random_numbers_of_a_model(machine)


def test_random_numbers_of_a_model(machine):
    seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.Dropout(0.4), torch.nn.Linear(32, 5)).to("cuda")
    plain, fast = framefuse.compile(model), framefuse.compile(model, mode=MODE)
    before = machine.replays
    with torch.no_grad():
        for call in (plain, fast):
            for _ in range(3):
                call(torch.randn(4, 24, device="cuda"))
        x = torch.randn(4, 24, device="cuda")
        results = []
        for call in (plain, fast, model):
            seed(7)
            results.append([call(x) for _ in range(4)] + [torch.rand(3, device="cuda")])
        for other in results[1:]:
            for found, expected in zip(other, results[0], strict=True):
                precise(found, expected)
        assert not torch.equal(results[0][0], results[0][1])
    assert machine.replays >= before + 3


class Trained(torch.nn.Module):
    """What saves inputs, outputs and values of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = torch.nn.Linear(24, 32), torch.nn.Linear(32, 24), torch.nn.LayerNorm(24)

    def forward(self, x):
        return torch.softmax(x + self.second(torch.tanh(F.gelu(self.first(self.norm(x))))), -1)


def trained(make):
    seed(0)
    eager = make().to("cuda")
    model = copy.deepcopy(eager)
    return eager, model, framefuse.compile(model, mode=MODE)


def same_gradients(model, eager):
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        close(ours.grad, theirs.grad, 10)
    for ours, theirs in zip(model.buffers(), eager.buffers(), strict=True):
        close(ours, theirs, 4)


def all_regions(fast):
    """The regions of forwards and of backwards."""
    derivatives = [d for product in compiled_function(fast).products for d in product.stages.derivatives]
    return [*regions(fast), *(case.stages.plan.region for d in derivatives for case in d.cases)]


@pytest.mark.parametrize("name", ["trained", *MODELS])
def test_training(machine, name):
    make, arguments = MODELS.get(name, (Trained, lambda rows, device: (torch.randn(rows, 24, device=device),)))
    eager, model, fast = trained(make)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.05) for module in (model, eager)]
    kept = []
    for number in range(8):
        args = arguments(6, "cuda")
        losses = []
        for call, optimizer in zip((fast, eager), optimizers, strict=True):
            optimizer.zero_grad()
            seed(number)
            loss = loss_of(call(*args))
            loss.backward()
            losses.append(loss.detach())
        same_gradients(model, eager)
        kept.append(losses)
        for found, expected in kept:
            close(found, expected, 10)
        for optimizer in optimizers:
            optimizer.step()
    told = [region if isinstance(region, str) else region.captures.why for region in all_regions(fast)]
    print(f"{name}: {machine.captures} captures, {machine.replays} replays, {told}")
    assert machine.replays >= 9 or name in ("pictures", "words"), told


def test_training_that_keeps_values(machine):
    """Two forwards before a backward, gradients that add up, a graph that is kept, gradients that are kept."""
    eager, model, fast = trained(Trained)
    kept = []
    for number in range(14):
        x, y = torch.randn(6, 24, device="cuda"), torch.randn(6, 24, device="cuda")
        for call, module in ((fast, model), (eager, eager)):
            if number % 3 == 0:
                module.zero_grad()
            if number < 5 or number > 11:
                (call(x) * y).sum().backward()
            elif number < 8:
                first, second, third = call(x), call(y), call(x + y)
                (first * y).sum().backward()
                (second * third * x).sum().backward()
            else:
                loss = (call(x) * y).sum()
                loss.backward(retain_graph=True)
                call(y)
                loss.backward()
                del loss
        same_gradients(model, eager)
        kept.append([[p.grad.clone() for p in module.parameters()] for module in (model, eager)])
        found = [torch.autograd.grad((call(x) * x).sum(), list(module.parameters()))
                 for call, module in ((fast, model), (eager, eager))]  # fmt: skip
        kept.append(found)
        for ours, theirs in kept:
            for a, b in zip(ours, theirs, strict=True):
                close(a, b, 10)
    assert machine.replays >= 14


def test_the_user_captures(machine):
    fast = framefuse.compile(program, mode=MODE)
    x, w = inputs()
    for _ in range(4):
        fast(x, w)
    before = machine.replays
    assert before >= 2, why(fast)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        fast(x, w)
    torch.cuda.current_stream().wait_stream(side)
    before = machine.replays
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fast(x, w)
    assert machine.replays == before, "a graph was replayed inside of a capture"
    for _ in range(3):
        x.normal_()
        graph.replay()
        precise(result, program(x, w))
        precise(fast(x, w), program(x, w))


def test_streams(machine):
    fast = framefuse.compile(program, mode=MODE)
    _, w = inputs()
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    kept = []
    for number in range(12):
        stream = streams[number % 3] if number > 3 else streams[0]
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)
            x = inputs()[0]
            kept.append((fast(x, w), x))
    torch.cuda.synchronize()
    for found, x in kept:
        precise(found, program(x, w))
    assert machine.replays >= 9


def test_two_graphs_share_memory_and_not_results(machine):
    other = framefuse.compile(lambda x, w: (torch.relu(x) @ w).softmax(-1).cumsum(0), mode=MODE)
    fast = framefuse.compile(program, mode=MODE)
    kept = []
    for _ in range(6):
        given = inputs()
        kept.append((fast(*given), program(*given)))
        other(*given)
        for found, expected in kept:
            precise(found, expected)
    assert machine.captures >= 2 and machine.replays == 8


def test_threads(machine):
    fast = framefuse.compile(program, mode=MODE)
    given = [inputs() for _ in range(3)]
    for _ in range(3):
        fast(*given[0])
    torch.cuda.synchronize()
    wrong = []

    def work(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(30):
                found = fast(*given[number])
                torch.cuda.current_stream().synchronize()
                expected = program(*given[number])
                wrong.extend(not torch.allclose(a, b, 1e-4, 1e-4) for a, b in zip(found, expected, strict=True))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(wrong) and len(wrong) == 180
    assert machine.replays > 10


def test_settings_are_heeded(machine):
    def f(x, y):
        return (x @ y).relu()

    fast = framefuse.compile(f, mode=MODE)
    x, y = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for turn in range(12):
            torch.backends.cuda.matmul.allow_tf32 = turn // 3 % 2 == 1
            assert torch.equal(fast(x, y), f(x, y)), turn
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert machine.captures == 2 and machine.replays >= 9


def test_memory_is_given_back(machine):
    held = []
    for _ in range(4):  # each ends with a pool that nobody uses any more
        fast = framefuse.compile(program, mode=MODE)
        for _ in range(4):
            given = inputs(4096)
            precise(fast(*given), program(*given))
        del fast, given
        framefuse.reset()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        held.append(torch.cuda.memory_reserved())
    assert machine.replays == 8
    assert held[-1] <= held[0] + (2 << 20), held


def test_explain(machine):
    fast = framefuse.compile(program, mode=MODE)
    for _ in range(4):
        fast(*inputs())
    said = str(framefuse.explain(fast))
    assert "replayed  " in said and "CUDA graph" in said and "of memory" in said and "copied in each call" in said
