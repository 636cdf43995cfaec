"""torch.compile(backend="framefuse") uses framefuse's fusion and code generation."""

import warnings

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.runtime.function import live_functions


def f(x, y):
    z = torch.sin(x) * 2 + y
    return torch.softmax(z.relu(), -1)


@pytest.fixture(autouse=True)
def fresh_compiler():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()


def test_the_backend_is_registered():
    assert "framefuse" in torch._dynamo.list_backends()


@pytest.mark.parametrize("dynamic", [None, True])
def test_results_and_hits(dynamic):
    before = set(live_functions())
    compiled = torch.compile(f, backend="framefuse", dynamic=dynamic)
    with torch.no_grad():
        for rows in (3, 5, 5, 7, 7):
            x, y = torch.randn(rows, 8), torch.randn(8)
            torch.testing.assert_close(compiled(x, y), f(x, y))
    made = [state for state in live_functions() if state not in before]
    assert made
    assert sum(state.dispatch.hits for state in made) >= 2, [state.reasons for state in made]


@pytest.mark.parametrize(
    "given", [{"mode": "max-autotune-no-cudagraphs"}, {"mode": "reduce-overhead"}, {"options": {"numerics": "eager"}}]
)
def test_modes_and_options_of_torch_compile_are_those_of_framefuse(given):
    before = set(live_functions())
    compiled = torch.compile(f, backend="framefuse", **given)
    with torch.no_grad():
        for seed in range(4):
            x, y = torch.randn(3, 8) + seed, torch.randn(8)
            torch.testing.assert_close(compiled(x, y), f(x, y))
    (state,) = (state for state in live_functions() if state not in before)
    assert state.dispatch.hits >= 2
    assert state.options.mode == given.get("mode", "default")
    assert state.options.numerics == given.get("options", {}).get("numerics", "default")


def test_an_option_that_framefuse_lacks_is_named():
    with pytest.raises(Exception, match=r"unknown option 'triton\.cudagraphs'"):
        torch.compile(f, backend="framefuse", options={"triton.cudagraphs": True})(torch.ones(2, 8), torch.ones(8))


def test_training_through_it_is_eagers():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    compiled = torch.compile(model, backend="framefuse")
    x = torch.randn(5, 8)
    for _ in range(3):
        model.zero_grad()
        model(x).sum().backward()
        expected = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        compiled(x).sum().backward()
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)


def test_modules_made_while_recording_after_torch_compile_was_used():
    torch.compile(f, backend="eager")(torch.randn(2, 3), torch.randn(3))
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(4))

    @framefuse.compile
    def first(x, count):
        for layer in layers[:count]:  # a slice of a ModuleList is a new module
            x = torch.relu(layer(x))
        return x

    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(first(x, 2), torch.relu(layers[1](torch.relu(layers[0](x)))))
    state = compiled_function(first)
    assert state.dispatch.hits == 2, state.reasons
