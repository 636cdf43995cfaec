"""The models of the zoo, lowered from one recording, equal eager on the recorded and on other sizes."""

import time

import pytest
import torch
from tests.unit.lower.recording import outputs

from benchmarks.zoo.zoo import MODELS, MissingLibrary
from framefuse.capture.record import record
from framefuse.ir.verify import verify
from framefuse.lower import lower

TEXT = {"batch": 1, "length": 37}
# What may stay with the library.
CALLS = {"conv2d", "scaled_dot_product_attention", "max_pool2d", "cumsum", "__getitem__", "clone"}
SLOWEST = 0.12  # seconds: five times what lowering takes on an idle machine


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_lowered_whole(name):
    try:
        module, inputs = MODELS[name].build()
    except MissingLibrary as missing:
        pytest.skip(str(missing))
    args = inputs()
    with torch.no_grad():
        recording = record(type(module).__call__, (module, *args), {}, owner=module)
    assert recording.trace is not None, recording.reason
    notes: list[tuple[str, str]] = []
    spent = []
    for _ in range(3):
        notes.clear()
        start = time.process_time()
        graph = lower(recording.trace, notes=notes)
        spent.append(time.process_time() - start)
    assert min(spent) < SLOWEST
    verify(graph)
    assert not notes
    assert {node.attr("name") for node in graph.nodes if node.op == "library"} <= CALLS
    other = TEXT if args[0].dtype is torch.int64 else {"batch": 2}
    for sizes in ({}, other):
        args = inputs(seed=1, **sizes)
        found, _ = outputs(recording.trace, graph, (module, args, {}))
        with torch.no_grad():
            expected = module(*args)
        wanted = [expected] if isinstance(expected, torch.Tensor) else list(expected.values())
        for tensor in (value for value in wanted if isinstance(value, torch.Tensor)):
            equal = [value for value in found.values() if value.shape == tensor.shape]
            assert any(torch.allclose(value, tensor, rtol=1e-4, atol=1e-4) for value in equal), name
