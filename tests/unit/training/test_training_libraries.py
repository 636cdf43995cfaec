"""Training loops of libraries take a compiled model: Trainer, accelerate and Lightning, each where it is installed."""

import pytest
import torch

import framefuse
from benchmarks.zoo.torchvision_ops import declare_torchvision_operators
from framefuse.runtime.function import compiled_function

pytestmark = pytest.mark.filterwarnings("ignore")
declare_torchvision_operators()


class Net(torch.nn.Module):
    """Gives its own loss, as Trainer asks of a model."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))

    def forward(self, x):
        return {"loss": self.inner(x).square().mean()}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, place):
        return {"x": torch.randn(6, generator=torch.Generator().manual_seed(place))}


def trained(loop) -> None:
    """``loop`` leaves a compiled model with the weights that it leaves an eager one with."""
    eager, model = Net(), Net()
    fast = framefuse.compile(model)
    loop(eager)
    loop(fast)
    torch.testing.assert_close(dict(model.named_parameters()), dict(eager.named_parameters()))
    assert compiled_function(fast).dispatch.hits >= 3


def test_trainer(tmp_path):
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")

    def loop(model):
        args = transformers.TrainingArguments(
            str(tmp_path), max_steps=4, per_device_train_batch_size=2, use_cpu=True, report_to=[], save_strategy="no"
        )
        transformers.Trainer(model=model, args=args, train_dataset=Rows()).train()

    trained(loop)


def test_accelerate():
    accelerate = pytest.importorskip("accelerate")

    def loop(model):
        accelerator = accelerate.Accelerator(cpu=True)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        for n in range(1, 5):
            accelerator.backward(model(torch.randn(n, 6, generator=torch.Generator().manual_seed(n)))["loss"])
            optimizer.step()
            optimizer.zero_grad()

    trained(loop)


def test_lightning(tmp_path):
    lightning = pytest.importorskip("pytorch_lightning")

    class Loop(lightning.LightningModule):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def training_step(self, batch, place):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    def loop(model):
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(Loop(model), torch.utils.data.DataLoader(Rows(), batch_size=2))

    trained(loop)
