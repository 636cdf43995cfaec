"""Measures one contestant's steps of training a vision transformer, in a process that answers commands.

Run as `python -m benchmarks.training.vit_steps CONTESTANT --settings JSON` by `benchmarks.training.vit`. The
commands: `first` takes the first steps, `turn` times some more, `peak` measures the memory of one.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from benchmarks.harness.compilers import cold_caches
from benchmarks.harness.processes import serve
from benchmarks.harness.report import Row
from benchmarks.harness.timing import finish, no_collection, timed
from benchmarks.training.contestants import BATCHES, contestant, drop_gradients
from benchmarks.training.training_peak import peak_of
from benchmarks.training.training_steps import DISTURBED, Curve, curve, disturbed, how
from benchmarks.zoo.training_zoo import CLASSES, Batch, Training, generator
from benchmarks.zoo.zoo import image, optional

RATE = 1e-4  # of Adam
LOSSES, FIRST = 5, 10  # steps whose losses are compared; steps from a cold start, of which the last ones are steady
WATCHED = 2  # the step whose gradients are compared, from 0: the first one is eager's own, the next compiles backward
STEADY = 1.25  # parts of a steady step's time that a step may take to be one
WARM, ROWS = 2, 2  # steps of a turn that are not timed; pictures that wake the libraries before the first step
GIB = 2**30


@dataclass(frozen=True)
class Settings:
    """What one process trains, and how its contestant is compiled."""

    model: str = "vit_base_patch16_224"
    batch: int = 64
    device: str = "cpu"
    dtype: str = "float32"
    mode: str = "default"
    threads: int = 1


def training(settings: Settings) -> Training:
    """ViT of timm: cross entropy over a thousand classes, Adam; bfloat16 by autocast around model and loss."""

    kind = torch.device(settings.device).type

    def make() -> nn.Module:
        with torch.device(settings.device):
            module: nn.Module = optional("timm").create_model(settings.model, pretrained=False, num_classes=CLASSES)
        return module

    def loss(model: nn.Module, pictures: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(pictures), labels)

    def loss_in_bfloat16(model: nn.Module, pictures: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(kind, dtype=torch.bfloat16):
            return F.cross_entropy(model(pictures), labels)

    def batches(seed: int = 0, batch: int | None = None, length: int | None = None) -> Batch:
        (pictures,) = image(seed, batch, length)
        labels = torch.randint(0, CLASSES, (len(pictures),), generator=generator(seed))
        return pictures.to(settings.device), labels.to(settings.device)

    chosen = loss if settings.dtype == "float32" else loss_in_bfloat16
    return Training(settings.model, settings.model, make, batches, chosen, lambda parameters: Adam(parameters, lr=RATE))


def side_of(model: nn.Module) -> int:
    """The side of the pictures that a model of timm takes, pixels."""
    settings = getattr(model, "default_cfg", None) or {}
    return int(settings.get("input_size", (3, 224, 224))[-1])


def steady_after(seconds: list[float]) -> int:
    """How many steps pass before all take about the time of the last ones."""
    bound = STEADY * statistics.median(seconds[-LOSSES:])
    return max((place + 1 for place, taken in enumerate(seconds[:-LOSSES]) if taken > bound), default=0)


def norms(steps: Curve) -> list[float | None]:
    """Of the gradients of the step watched, one for each parameter."""
    return [None if gradient is None else float(gradient.norm()) for gradient in steps.gradients]


class Steps:
    """One contestant and what it is asked."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name, self.settings = name, settings
        self.training = training(settings)
        self.model = self.training.build()
        side = side_of(self.model)
        self.batches = [self.training.batches(seed, settings.batch, side) for seed in range(BATCHES)]
        self.start = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        for _ in range(2):  # what the device and its libraries do once is not a compiler's
            few = tuple(tensor[:ROWS] for tensor in self.batches[0])
            self.training.loss(self.model, *few).backward()
        drop_gradients(self.model)
        self.contestant = contestant(name, self.training, self.model, settings.mode)
        self.turns = 0
        self.let_go()

    def let_go(self) -> None:
        """Gives what is free of the device's memory back, for the other contestants."""
        if self.settings.device != "cpu":
            finish(self.settings.device)
            torch.accelerator.empty_cache()

    def first(self) -> Row:
        """Seconds, losses and norms of gradients of the first steps; of eager also how far they are from its own after
        a rounding of the weights.
        """
        steps = curve(self.contestant.step, self.model, self.start, self.batches, FIRST, WATCHED)
        seconds = steps.seconds
        row = {
            "seconds": seconds,
            "step_s": statistics.median(seconds[-LOSSES:]),
            "steady_s": sum(seconds[: steady_after(seconds)]),
            "losses": steps.losses[:LOSSES],
            "norms": norms(steps),
            "runs": None,
        }
        if self.name.startswith("framefuse") and self.contestant.compiled is not None:
            row["runs"] = how(self.contestant.compiled)
        if self.name == "eager":
            row["disturbed"] = [self.rounded(seed) for seed in range(DISTURBED)]
        self.start.clear()
        self.let_go()
        return row  # type: ignore[return-value]  # lists go to JSON, not into a table

    def rounded(self, seed: int) -> dict[str, object]:
        """Losses and norms of eager's steps from weights that were rounded otherwise."""
        rounding = None if self.settings.dtype == "float32" else torch.bfloat16
        step = contestant("eager", self.training, self.model).step
        steps = curve(step, self.model, disturbed(self.start, seed, rounding), self.batches, LOSSES, WATCHED)
        return {"losses": steps.losses, "norms": norms(steps)}

    def next(self) -> Batch:
        """The batches in turn."""
        self.turns += 1
        return self.batches[self.turns % BATCHES]

    def turn(self, count: int) -> list[float]:
        """Seconds of ``count`` steps, each waited for, after some that are not timed."""
        step, device = self.contestant.step, self.settings.device
        for _ in range(WARM):
            step(*self.next())
        with no_collection():
            seconds = [timed(step, self.next(), device) for _ in range(count)]
        self.let_go()
        return seconds

    def peak(self) -> dict[str, float]:
        """GiB of a steady step: on a GPU all that is allocated at its peak, weights and optimizer too, and what the
        allocator holds for it; on a CPU what the step takes above weights and optimizer.
        """
        step, device = self.contestant.step, self.settings.device
        for _ in range(WARM):
            step(*self.next())
        if device == "cpu":
            return {"peak_gib": peak_of(step, self.model, self.batches[0], self.name.startswith("framefuse")) / GIB}
        self.let_go()
        torch.accelerator.reset_peak_memory_stats(device)
        step(*self.next())
        finish(device)
        held = torch.accelerator.max_memory_reserved(device)
        return {"peak_gib": torch.accelerator.max_memory_allocated(device) / GIB, "held_gib": held / GIB}


def prepare(name: str, settings: Settings) -> Mapping[str, Callable[..., object]]:
    """Imports and makes all that is there before the first step."""
    if name.startswith("torch"):
        for module in ("torch._dynamo", "torch._inductor.compile_fx"):
            importlib.import_module(module)
    if settings.device != "cpu":
        for module in ("triton", "triton.compiler", "triton.language"):
            importlib.import_module(module)
    steps = Steps(name, settings)
    return {"first": steps.first, "turn": steps.turn, "peak": steps.peak}


def arguments(name: str, settings: Settings) -> list[str]:
    """The command line of a process."""
    return [name, "--settings", json.dumps(asdict(settings))]


def main() -> None:
    """Serves the contestant that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contestant")
    parser.add_argument("--settings", type=json.loads, default={}, help="fields of Settings as JSON")
    options = parser.parse_args()
    settings = Settings(**options.settings)
    torch.set_num_threads(settings.threads)
    with cold_caches():
        serve(lambda: prepare(options.contestant, settings))


if __name__ == "__main__":
    main()
