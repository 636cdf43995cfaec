"""Every model of the zoo, compiled, gives eager's results on inputs and sizes that it was not compiled for."""

import pytest
import torch

import framefuse
from benchmarks.zoo.zoo import ROWS, Model
from framefuse.api import compiled_function


def tensors(value) -> list[torch.Tensor]:
    """All tensors of a model's output, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [found for part in value for found in tensors(part)] if isinstance(value, (list, tuple)) else []


PICTURES = ("resnet18", "mobilenetv3", "convnext")
TEXT = ("bert", "gpt2", "llama", "t5")


def sizes(model: Model) -> list[dict[str, int]]:
    """Other batches; other lengths of text or sides of pictures where the model takes them."""
    if model.name in TEXT:
        return [{"batch": 3, "length": 17}, {"batch": 5, "length": 100}]
    return [{"batch": 3, "length": 96}] if model.name in PICTURES else [{"batch": 3}, {"batch": 4}]


@pytest.mark.parametrize("model", ROWS, ids=lambda model: model.name)
@torch.no_grad()
def test_results_are_eagers_on_other_inputs_and_sizes(model):
    module, inputs = model.build()
    fast = framefuse.compile(module)
    state = compiled_function(fast)

    def check(arguments):
        expected, got = module(*arguments), fast(*arguments)
        assert type(got) is type(expected)
        torch.testing.assert_close(tensors(got), tensors(expected))

    check(inputs(0, batch=2))
    check(inputs(1, batch=2))
    assert state.dispatch.hits == 1, state.reasons
    for other in sizes(model):
        check(inputs(2, **other))
    assert state.dispatch.declines == 0
    assert len(state.products) == 1, "a new size compiles nothing"
    # A size of 1 may be another case for the model's own code (transformers asks for it), never another result.
    for seed in range(2):
        check(inputs(seed, batch=1, length=1 if model.name in TEXT else None))
    assert len(state.products) <= 2


@pytest.mark.parametrize(
    "model", [row for row in ROWS if row.name in ("bert", "resnet18")], ids=lambda model: model.name
)
@torch.no_grad()
def test_constant_sizes_compile_once_a_size(model):
    module, inputs = model.build()
    fast = framefuse.compile(module, dynamic=False)
    for batch in (1, 2, 1, 2):
        arguments = inputs(batch, batch=batch)
        torch.testing.assert_close(tensors(fast(*arguments)), tensors(module(*arguments)))
    assert len(compiled_function(fast).products) == 2


@pytest.mark.parametrize("model", ROWS, ids=lambda model: model.name)
@torch.no_grad()
def test_the_captured_graph_alone_gives_eagers_results(model):
    module, inputs = model.build()
    fast = framefuse.compile(module, backend="eager")
    for seed in range(2):
        arguments = inputs(seed)
        for got, expected in zip(tensors(fast(*arguments)), tensors(module(*arguments)), strict=True):
            assert torch.equal(got, expected)
    assert compiled_function(fast).dispatch.hits == 1
