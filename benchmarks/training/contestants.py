"""Makes the columns of training benchmarks: a step by eager torch, or with model, model and loss, or all compiled."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from benchmarks.calls.models import same_weights
from benchmarks.harness.compilers import COMPILERS, Function
from benchmarks.zoo.training_zoo import Step, Training

STEPS, SECONDS = 20, 4.0  # of the loss curve; of timing for each model, all columns together
BATCHES = 3  # different ones in one pass
GRAPHS = ("reduce-overhead", "max-autotune")  # modes of torch.compile that must be told where a step begins


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


def contestant(name: str, training: Training, model: nn.Module, mode: str | None = None) -> Contestant:
    """The column `name` for a copy of the model that shares its weights: `X` compiles the model, `X_loss` a function of
    model and loss, `X_whole` the step; `mode` as the compiler has it.
    """
    module = same_weights(model)
    compiler, _, part = name.partition("_")
    if compiler == "eager":
        return Contestant(name, training.step(module))
    chosen = (None,) if mode is None else (None, mode)
    if part == "whole":
        compiled = COMPILERS[compiler](training.step(module), *chosen)
        step: Step = compiled
    elif part == "loss":
        compiled = COMPILERS[compiler](with_loss(training, module), *chosen)
        step = replace(training, loss=lambda model, *batch: compiled(*batch)).step(module)
    else:
        compiled = COMPILERS[compiler](module, *chosen)
        step = training.step(compiled)
    return Contestant(name, marked(step) if compiler == "torch" and mode in GRAPHS else step, compiled)


def with_loss(training: Training, model: nn.Module) -> Step:
    """A function of model and loss: takes a batch, gives the loss."""
    loss = training.loss

    def model_and_loss(*batch: Tensor) -> Tensor:
        return loss(model, *batch)

    return model_and_loss


def marked(step: Step) -> Step:
    """The step, which first says that what the one before it gave is no longer needed."""

    def marked_step(*batch: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return step(*batch)

    return marked_step


def drop_gradients(model: nn.Module) -> None:
    """As optimizers do before a step."""
    for parameter in model.parameters():
        parameter.grad = None
