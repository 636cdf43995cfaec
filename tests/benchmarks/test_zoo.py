import sys

import pytest
import torch
from torch.utils._pytree import tree_leaves

from benchmarks.zoo import zoo


@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_model_runs_and_is_the_same_each_time(name):
    module, inputs = zoo.MODELS[name].build()
    again, _ = zoo.MODELS[name].build()
    assert not module.training
    with torch.no_grad():
        first, second = (tree_leaves(m(*inputs(seed=1))) for m in (module, again))
    tensors = [leaf for leaf in first if isinstance(leaf, torch.Tensor)]
    assert tensors and all(torch.isfinite(tensor).all() for tensor in tensors)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_building_leaves_the_random_state_alone():
    state = torch.get_rng_state()
    zoo.MODELS["mlp"].build()
    assert torch.equal(state, torch.get_rng_state())


def test_inputs_follow_seed_and_sizes():
    (same,), (again,), (other,) = zoo.text(seed=3), zoo.text(seed=3), zoo.text(seed=4)
    assert torch.equal(same, again) and not torch.equal(same, other)
    assert zoo.text()[0].shape == (1, 64) and zoo.text(batch=3, length=7)[0].shape == (3, 7)
    assert zoo.image(batch=2)[0].shape == (2, 3, 224, 224) and zoo.image(length=64)[0].shape == (1, 3, 64, 64)
    assert zoo.features(batch=5)[0].shape == (5, 256)


def test_a_missing_library_is_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(zoo.MissingLibrary, match=r"^this model needs timm: pip install timm .*$"):
        zoo.MODELS["vit"].build()


def test_the_guard_benchmark_has_the_stated_number_of_modules():
    module = zoo.bert(layers=24, hidden=64)()
    assert sum(1 for _ in module.modules()) == 444
