"""Runs the models that the command line names, twice in evaluation and twice in training, compares what they give with
eager's, and prints which of them were recorded, and which stages of the compiler this process has imported.
"""

import sys
from functools import partial

import torch
from torch import nn

import framefuse
from benchmarks.zoo.transformers_models import CLASSES
from benchmarks.zoo.zoo import MODELS
from framefuse.driver import tree
from framefuse.driver.programs import later

STAGES = ("lower", "autodiff", "fuse", "capture.interp", "capture.opcodes", "capture.callables", "capture.exits")
SAMPLES = {sample.name: sample for sample in CLASSES}


def main(names):
    torch.set_num_threads(1)
    recorded = []
    record = tree.record
    for name in names:

        def counted(*args, name=name, **kwargs):
            recorded.append(name)
            return record(*args, **kwargs)

        tree.record = counted
        for training in (False, True):
            compare(name, training)
    imported = [name for name in STAGES if f"framefuse.{name}" in sys.modules]
    print("recorded", *dict.fromkeys(recorded))
    print("imported", *imported)


def compare(name, training):
    module, arguments = made(name)
    module.train(training)
    fast = framefuse.compile(module)
    for seed in (1, 2):
        pairs = zip(results(fast, module, arguments, seed), results(module, module, arguments, seed), strict=True)
        for ours, theirs in pairs:
            # assert_close would import torch.distributed, most of the time of a process
            assert torch.allclose(ours, theirs, 2e-3, 1e-4, equal_nan=True), (name, training, seed)
    assert framefuse.explain(fast).graphs, name
    later.PROCESS.finish()


def results(call, module, arguments, seed):
    """What a call gives, and in training the gradients of some parameters."""
    args, kwargs = arguments(seed)
    torch.manual_seed(seed)
    with torch.set_grad_enabled(module.training):
        found = torch.utils._pytree.tree_leaves(call(*args, **kwargs))
    tensors = [value for value in found if isinstance(value, torch.Tensor)]
    if not module.training:
        return tensors
    loss = sum(value.square().mean() for value in tensors if value.requires_grad)
    every = [parameter for parameter in module.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss, every, allow_unused=True)
    return [*tensors, *(torch.zeros(()) if each is None else each for each in found)]


def made(name):
    if name in SAMPLES:
        return SAMPLES[name].build(), lambda seed: ((), SAMPLES[name].arguments(seed, 2))
    if name in MODELS:
        module, inputs = MODELS[name].build()
        return module, lambda seed: (inputs(seed, batch=8, length=64), {})
    return LAYERS[name](), lambda seed: (drawn(seed, name == "transformer"), {})


def drawn(seed, two):
    generator = torch.Generator().manual_seed(seed)
    return tuple([torch.randn(2, 5, 16, generator=generator) for _ in range(1 + two)])


LAYERS = {
    "lstm": partial(nn.LSTM, 16, 8, 2, batch_first=True),
    "gru": partial(nn.GRU, 16, 8, bidirectional=True),
    "transformer": partial(nn.Transformer, 16, 2, 1, 1, 32, batch_first=True),
}

if __name__ == "__main__":
    main(sys.argv[1:])
