"""Small models of timm and transformers on a GPU: results and gradients are eager's, for batches that change."""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, pytestmark  # noqa: F401

import framefuse
from benchmarks.breadth.breadth import differentiable
from benchmarks.breadth.capture import stir
from benchmarks.zoo import tiny_models
from benchmarks.zoo.torchvision_ops import declare_torchvision_operators
from framefuse.runtime.function import compiled_function

PICTURES = (
    "test_byobnet", "test_coatnet", "test_convnext", "test_convnext2", "test_convnext3", "test_efficientnet",
    "test_efficientnet_gn", "test_efficientnet_ln", "test_mambaout", "test_nfnet", "test_resnet", "test_vit",
    "test_vit2", "ghostnetv2_100", "mobilenetv3_small_050", "regnety_002", "ese_vovnet19b_slim_dw",
)  # fmt: skip
CLASSES = (
    "BertModel", "T5Model", "Glm4MoeLiteModel", "DeepseekV3ForCausalLM", "LlamaModel", "GPT2Model", "ViTModel",
    "SegformerModel", "MambaModel",
)  # fmt: skip


@pytest.fixture(autouse=True)
def exact_convolutions(monkeypatch):
    if DEVICE == "cpu":
        pytest.skip("the interpreter takes minutes for a model")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("name", PICTURES)
def test_of_timm(name):
    declare_torchvision_operators()
    timm = pytest.importorskip("timm")
    if not timm.is_model(name):
        pytest.skip("this timm does not have it")
    module = timm.create_model(name, pretrained=False).eval()
    side = module.default_cfg["input_size"][-1]
    follow(module, lambda seed, batch: {"x": picture(seed, batch, side)})


@pytest.mark.parametrize("name", CLASSES)
def test_of_transformers(name):
    declare_torchvision_operators()
    pytest.importorskip("transformers")
    model = tiny_models.tiny(name)
    follow(model.module, model.arguments)


def picture(seed, batch, side):
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(seed))


def follow(module, arguments):
    torch.manual_seed(0)
    stir(module)
    module.to(DEVICE)
    fast = framefuse.compile(module)
    for seed, batch in enumerate((1, 1, 2, 1, 2)):
        given = {name: value.to(DEVICE) for name, value in arguments(seed, batch).items()}
        found, expected = gradients(fast, module, given), gradients(module, module, given)
        assert found.keys() == expected.keys()
        for name, one in found.items():  # where a relu is near zero, one gradient may go the other way
            torch.testing.assert_close(
                one, expected[name], rtol=0, atol=0.05 * float(expected[name].abs().max()) + 1e-5
            )
    state = compiled_function(fast)
    assert state.dispatch.hits >= 2 and state.dispatch.declines == 0, framefuse.explain(fast)


def gradients(call, module, given):
    """The first result that trains, and the gradients of all such results, by name."""
    module.zero_grad()
    results = differentiable(call(**given))
    torch.autograd.backward(
        results, [torch.linspace(-1, 1, part.numel(), device=DEVICE).view_as(part) for part in results]
    )
    return {"": results[0].detach(), **{n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}}
