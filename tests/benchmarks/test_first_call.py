import torch

from benchmarks.harness import compilers
from benchmarks.starting import first_call


def test_a_chain_meets_a_hundred_shapes():
    function, inputs, dynamic = first_call.target("chain:30")
    assert function.__code__.co_filename == "<chain of 30 statements>" and dynamic is True
    assert len({tuple(x.shape) for (x,) in inputs}) == 100


def test_a_model_of_the_zoo_is_called_four_times():
    module, inputs, dynamic = first_call.target("mlp")
    assert isinstance(module, torch.nn.Module) and len(inputs) == 4 and dynamic is None


def test_only_the_first_call_compiles(monkeypatch):
    calls = []

    def plain(function, dynamic):
        return lambda x: calls.append(x) or function(x)

    monkeypatch.setitem(compilers.COMPILERS, "framefuse", plain)
    measured = first_call.first_call("chain:3", "framefuse")
    assert len(calls) == 100 and set(measured) == {"eager_s", "first_s", "later_max_s", "later_s", "bytes"}
    assert measured["later_s"] <= measured["later_max_s"]
