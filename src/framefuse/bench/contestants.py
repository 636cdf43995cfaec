"""Makes the columns of the training benchmark: a step of training by eager torch, or with model or step compiled."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from framefuse.bench.compilers import COMPILERS, Function
from framefuse.bench.models import same_weights
from framefuse.bench.training_zoo import Step, Training

STEPS, SECONDS = 20, 4.0  # of the loss curve; of timing for each model, all columns together
BATCHES = 3  # different ones in one pass


@dataclass(frozen=True)
class Contestant:
    """One column: how a step is made of a model, and what was compiled of it, if framefuse did."""

    name: str
    step: Step
    compiled: Function | None = None


@dataclass(frozen=True)
class Settings:
    """What the command line says: the compilers, and whether torch.compile compiles whole steps too."""

    compilers: tuple[str, ...] = ("framefuse", "torch")
    whole: bool = False
    steps: int = STEPS
    seconds: float = SECONDS
    batch: int | None = None
    length: int | None = None

    def columns(self) -> list[str]:
        """The contestants: `X` compiles the model, `X_whole` the step with loss, backward and optimizer."""
        whole = [f"{name}_whole" for name in self.compilers if name == "framefuse" or self.whole]
        return ["eager", *sorted([*self.compilers, *whole])]


def contestant(name: str, training: Training, model: nn.Module) -> Contestant:
    """The column `name` for a copy of the model that shares its weights."""
    module = same_weights(model)
    compiler, _, whole = name.partition("_")
    if compiler == "eager":
        return Contestant(name, training.step(module))
    compiled = COMPILERS[compiler](training.step(module) if whole else module, None)
    return Contestant(name, compiled if whole else training.step(compiled), compiled)


def drop_gradients(model: nn.Module) -> None:
    """As optimizers do before a step."""
    for parameter in model.parameters():
        parameter.grad = None
