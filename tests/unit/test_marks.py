"""What the user says of sizes and functions is obeyed: sizes vary or not, functions stay whole, break or are eager."""

import threading

import numpy as np
import pytest
import torch

import framefuse
from framefuse.api import compiled_function


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def traces(compiled):
    return len(compiled_function(compiled).products)


def test_a_dynamic_size_compiles_once_where_sizes_are_constants():
    compiled = framefuse.compile(lambda x: torch.softmax(x * 2, -1), dynamic=False)
    for size in (3, 4, 5):
        x = torch.randn(size, 7)
        framefuse.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), torch.softmax(x * 2, -1))
    assert traces(compiled) == 1
    x = torch.randn(3, 8)
    framefuse.mark_dynamic(x, -2)
    torch.testing.assert_close(compiled(x), torch.softmax(x * 2, -1))
    assert traces(compiled) == 2  # the other size is a constant still


def test_a_static_size_is_a_constant_of_the_code():
    compiled = framefuse.compile(lambda x: x.sum(1) * 2)
    for size in (3, 4, 3):
        x = torch.randn(2, size)
        framefuse.mark_static(x, 1)
        torch.testing.assert_close(compiled(x), x.sum(1) * 2)
    assert traces(compiled) == 2
    everything = framefuse.compile(lambda x: x + 1)
    for size in (3, 4):
        x = torch.randn(size, size)
        framefuse.mark_static(x)
        torch.testing.assert_close(everything(x), x + 1)
    assert traces(everything) == 2


def test_marks_of_what_is_no_dimension():
    with pytest.raises(framefuse.UserError, match="dimension 3"):
        framefuse.mark_dynamic(torch.randn(2), 3)
    with pytest.raises(framefuse.UserError, match="no dimensions"):
        framefuse.mark_static([1, 2])


def test_an_allowed_function_is_one_call_of_the_graph():
    seen = []

    @framefuse.allow_in_graph
    def odd(x, scale):
        seen.append(type(x))
        table = {round(v): v for v in (0.5, 2.0)}  # whatever Python it has
        return x * scale + table[2]

    def f(x, n):
        return torch.relu(odd(x + 1, n * 2.0)) * 2

    compiled = framefuse.compile(f, fullgraph=True)
    for n in (1.0, 2.0, -3.0):
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x, n), f(x, n))
    assert traces(compiled) == 1
    assert "kept odd()" in [work.title for work in framefuse.explain(compiled).graphs[0].work]
    assert len(seen) == 6  # it runs at each call, ours and eager's
    assert set(seen) == {torch.Tensor}


@pytest.mark.parametrize("mark", [framefuse.allow_in_graph, framefuse.nonstrict_trace])
def test_marked_functions_of_one_code_are_several(mark):
    def scaled(factor):
        return mark(lambda x: x * factor)

    def f(x, function):
        return function(x) * 2

    compiled = framefuse.compile(f)
    functions = [scaled(factor) for factor in (2.0, 3.0, 4.0)]
    for function in (*functions, *functions):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, function), f(x, function))
    framefuse.reset()
    one = mark(functions[0])
    alone = framefuse.compile(lambda x: one(x))
    for _ in range(2):
        torch.testing.assert_close(alone(x), functions[0](x))


class Simulator:
    """A library that computes by torch behind Python that no recording looks into."""

    def __init__(self, wires):
        self.wires, self.runs, self.lock = wires, 0, threading.Lock()

    def __call__(self, angles, layers):
        self.runs += 1
        with self.lock:
            state = np.zeros((2,) * self.wires, dtype=complex)
            state[(0,) * self.wires] = 1
            state = torch.as_tensor(state)
        for layer in range(layers):
            for wire in {str(wire): wire for wire in range(self.wires)}.values():
                state = torch.movedim(torch.tensordot(gate(angles[layer, wire]), state, dims=([1], [wire])), 0, wire)
        return {"chances": state.reshape(-1).abs().square(), "state": (state.conj(), None)}


def gate(angle):
    cos, sin = torch.cos(angle / 2), torch.sin(angle / 2)
    rows = torch.stack([torch.stack([cos, -sin]), torch.stack([sin, cos])])
    return rows.to(torch.complex128) * torch.tensor(np.eye(2)[0] + 0.5)


@pytest.mark.parametrize("wires", [2, 7])  # the first state of seven has more than 64 numbers
@pytest.mark.parametrize("gradients", [False, True])
def test_of_a_traced_function_later_calls_run_what_torch_computed(wires, gradients):
    simulator = Simulator(wires)
    node = framefuse.nonstrict_trace(simulator)

    def f(w, layers):
        found = node(w.sin(), layers)
        return found["chances"].cos().sum() + found["state"][0].real.sum()

    def derived(function, w, layers):
        w = w.detach().requires_grad_()
        value = function(w, layers)
        return value.detach(), torch.autograd.grad(value, w)[0]

    compiled = framefuse.compile(f, fullgraph=True)
    runs = []
    for layers in (2, 2, 1, 2, 1):
        w = torch.randn(2, wires, dtype=torch.float64)
        before = simulator.runs
        with torch.set_grad_enabled(gradients):
            found = derived(compiled, w, layers) if gradients else compiled(w, layers)
            runs.append(simulator.runs - before)
            torch.testing.assert_close(found, derived(f, w, layers) if gradients else f(w, layers))
    assert runs == [1, 0, 1, 0, 0]  # a number is a constant of the code


def test_a_large_constant_of_a_traced_function_is_copied():
    start = np.arange(100.0)
    start[3] = -0.0

    @framefuse.nonstrict_trace
    def fill(x):
        first = torch.as_tensor(start)
        zeros = torch.as_tensor(np.where(start > 90, -1.0, -0.0))
        first += x
        return first, zeros

    compiled = framefuse.compile(fill, fullgraph=True)
    for _ in range(3):
        x, before = torch.randn(100, dtype=torch.float64), start.copy()
        found = compiled(x)
        start[:] = before
        for one, other in zip(found, fill(x), strict=True):
            torch.testing.assert_close(one, other)
            assert torch.equal(one.signbit(), other.signbit())
        start[:] = before


def test_a_traced_function_that_looks_at_values_is_a_step():
    layer = torch.nn.Linear(3, 3)
    calls = []

    def branches(x):
        calls.append(None)
        return x * 2 if x.sum() > 0 else x * 3

    for function in (branches, lambda x: layer(x), lambda x: torch.from_numpy(x.numpy() * 2)):
        node = framefuse.nonstrict_trace(function)
        compiled = framefuse.compile(lambda x, node=node: node(x.sin()) * 2)
        for sign in (1, -1, 1, -1):
            x = torch.rand(2, 3) * sign
            torch.testing.assert_close(compiled(x), function(x.sin()) * 2)
        assert len(framefuse.explain(compiled).breaks) == 1
    assert len(calls) == 8


def test_errors_of_a_traced_function_are_the_programs():
    @framefuse.nonstrict_trace
    def refuses(x):
        raise ValueError(f"{x.ndim} dimensions")

    compiled = framefuse.compile(lambda x: refuses(x + 1))
    for _ in range(3):
        with pytest.raises(ValueError, match="2 dimensions"):
            compiled(torch.randn(2, 3))
    with pytest.raises(framefuse.UserError, match="not callable"):
        framefuse.nonstrict_trace(3)


def test_a_quantum_node_of_pennylane_is_a_graph():
    pennylane = pytest.importorskip("pennylane")
    observable = pennylane.PauliZ(0) @ pennylane.PauliX(1)

    @framefuse.nonstrict_trace
    @pennylane.qnode(pennylane.device("default.qubit", wires=3), interface="torch")
    def node(w):
        for wire in range(3):
            pennylane.RX(w[wire], wires=wire)
        pennylane.QFT(wires=range(3))
        pennylane.CRZ(w[0], wires=[0, 2])
        return pennylane.expval(observable)

    compiled = framefuse.compile(lambda w: node(w) * 2, fullgraph=True)
    for _ in range(3):
        w = torch.randn(3, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            torch.testing.assert_close(
                torch.autograd.grad(compiled(w), w), torch.autograd.grad(node(w) * 2, w)
            )


def test_a_constant_result_is_taken_once():
    calls = []

    @framefuse.assume_constant_result
    def settings(name):
        calls.append(name)
        return {"scale": 3.0, "shift": torch.ones(2)}

    def f(x):
        return x * settings("a")["scale"] + settings("a")["shift"]

    compiled = framefuse.compile(f, fullgraph=True)
    x = torch.randn(2)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x * 3 + 1)
    assert len(calls) == 2  # both while the first call was recorded


def test_a_break_that_is_asked_for():
    def f(x):
        y = x + 1
        framefuse.graph_break()
        return y * 2

    framefuse.graph_break()  # nothing, here
    compiled = framefuse.compile(f)
    for _ in range(3):
        x = torch.randn(2)
        torch.testing.assert_close(compiled(x), f(x))
    assert traces(compiled) == 2
    assert "graph-break" in str(framefuse.explain(compiled))
    with pytest.raises(framefuse.UserError, match="graph_break"):
        framefuse.compile(f, fullgraph=True)(torch.randn(2))


def test_a_disabled_function_runs_eagerly_between_two_graphs():
    seen = []

    @framefuse.disable
    def eager(x):
        seen.append(framefuse.is_compiling())
        return x * 3

    def f(x):
        return torch.sin(eager(x + 1)) - 1

    compiled = framefuse.compile(f)
    for _ in range(3):
        x = torch.randn(2)
        torch.testing.assert_close(compiled(x), torch.sin((x + 1) * 3) - 1)
    assert traces(compiled) == 2
    assert seen == [False] * 3
    assert "eager runs eagerly: it is marked so" in str(framefuse.explain(compiled))
