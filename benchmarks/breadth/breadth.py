"""Measures every class of transformers' model mapping, small, and every model of timm: each in a process of its own."""

from __future__ import annotations

import copy
import json
import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import framefuse
from benchmarks.breadth import capture
from benchmarks.harness.report import Field, Row, Say, Value
from benchmarks.training.training_steps import disturbed
from benchmarks.zoo import timm_models, tiny_models
from benchmarks.zoo.zoo import optional
from framefuse.runtime.function import compiled_function

FIELDS = (Field("breaks", "breaks"), Field("ratio", "times eager", "{:.2f}"))
LIMIT = 150  # seconds for one model
CALLS, TURNS = 6, 15  # calls after which a model is to hit; calls of each kind that are timed in turns
LARGEST = 90_000_000  # parameters of a model of timm that builds in the memory at hand
STEPS, NEAR = 3, 4  # steps of training; how much farther from float64 than eager's a gradient may be
FEW = 3  # breaks
ROUNDINGS = 8  # of weights whose gradients spread


def names() -> tuple[str, ...]:
    """All models: ``transformers:CLASS`` and ``timm:NAME``. Raises MissingLibrary."""
    classes = [f"transformers:{name}" for name in sorted(tiny_models.classes())]
    return (*classes, *(f"timm:{name}" for name in optional("timm").list_models()))


def part_of(everything: Sequence[str], part: str) -> tuple[str, ...]:
    """The part ``2/8`` of the names: every eighth, from the second on."""
    number, of = map(int, part.split("/"))
    return tuple(everything[number - 1 :: of])


def breadth(say: Say, part: str, gradients: bool = False) -> list[Row]:
    """One row for each model of a part; those that eager cannot run say why."""
    rows = []
    for name in part_of(names(), part):
        say(name)
        rows.append(apart(lambda name=name: measure(name, gradients), name))  # type: ignore[misc]
    return rows


def apart(work: Callable[[], Row], name: str) -> Row:
    """What ``work`` gives in a child of this process: it may crash, and takes its memory along."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT)
        try:
            row = work()
        except Exception as error:
            row = {"model": name, "equal": f"not run: {type(error).__name__}: {' '.join(str(error).split())[:200]}"}
        os.write(writing, json.dumps(row).encode()[:60_000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read()
    _, status = os.waitpid(child, 0)
    return json.loads(said) if said else {"model": name, "equal": f"not run: ended with status {status}"}


def subject(name: str) -> capture.Subject:
    """The model of that name, with stirred weights. Raises NotMade, MissingLibrary, ValueError."""
    library, _, rest = name.partition(":")
    with torch.random.fork_rng(devices=[]):
        if library == "transformers":
            tiny = tiny_models.tiny(rest)
            model = capture.Subject(name, tiny.module, lambda seed, batch: ((), tiny.arguments(seed, batch)))
        else:
            with torch.device("meta"):
                count = sum(weight.numel() for weight in timm_models.build(rest).parameters())
            if count > LARGEST:
                raise ValueError(f"{count} parameters")
            torch.manual_seed(0)
            module = timm_models.build(rest)
            side = timm_models.side_of(rest, module)
            model = capture.Subject(name, module, lambda seed, batch: ((timm_models.picture(side, seed, batch),), {}))
        capture.stir(model.module)
    return model


def measure(name: str, gradients: bool) -> Row:
    """One row: breaks, hits after some calls, results or gradients beside eager's, time in parts of eager's."""
    model = subject(name)
    compiled = framefuse.compile(model.module)
    state = compiled_function(compiled)
    assert state is not None
    row: dict[str, Value] = {"model": name}
    row["equal"] = trained(model, compiled) if gradients else inferred(model, compiled)
    before = state.dispatch.hits
    with torch.set_grad_enabled(gradients):
        theirs, ours = [], []
        for _ in range(TURNS):
            theirs.append(seconds_of(model.module, model.arguments(0, 1), gradients))
            ours.append(seconds_of(compiled, model.arguments(0, 1), gradients))
    row["hit"] = "yes" if state.dispatch.hits == before + TURNS else "no"
    row["ratio"] = statistics.median(theirs) / statistics.median(ours)
    row["graphs"], row["breaks"] = len(state.products), len(state.breaks)
    why = next(iter(state.reasons), next(iter(state.breaks), None))
    row["reason"], row["why"] = (None, None) if why is None else (why.code, " ".join(str(why).split()))
    return row


def seconds_of(call: Any, arguments: tuple[tuple[Any, ...], dict[str, Any]], gradients: bool) -> float:
    """How long the call takes, with ``gradients`` that and backward from every result."""

    def work() -> None:
        result = call(*arguments[0], **arguments[1])
        if gradients and (roots := differentiable(result)):
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])

    start = time.process_time()  # small models, and other processes at work: what the call itself takes
    work()
    return time.process_time() - start


def differentiable(result: Any) -> list[Tensor]:
    """The float tensors of a result that require grad."""
    parts = (part for _, part in capture.leaves(result) if isinstance(part, Tensor))
    return [part for part in parts if part.requires_grad and part.is_floating_point()]


@torch.no_grad()
def inferred(model: capture.Subject, compiled: Any) -> str:
    """Whether all calls gave what eager gives, "yes" or what differs."""
    for seed in range(CALLS):
        ours, theirs = model.arguments(seed, 1), model.arguments(seed, 1)
        torch.manual_seed(seed)
        expected = model.module(*theirs[0], **theirs[1])
        torch.manual_seed(seed)
        answer = capture.difference((compiled(*ours[0], **ours[1]), ours), (expected, theirs))
        if answer.startswith(capture.FAR):
            off = capture.distance((compiled(*ours[0], **ours[1]), ours), (expected, theirs))
            answer = "yes" if off <= capture.FARTHER * capture.own_distance(model, seed, 1) else answer
        if answer != "yes":
            return answer
    return "yes"


def trained(model: capture.Subject, compiled: Any) -> str:
    """Whether the gradients of some steps are as near to those of float64 as eager's, "yes" or which are not."""
    exact = in_float64(model)
    weights = {name: weight.detach() for name, weight in model.module.named_parameters()}
    for seed in range(STEPS + 2):  # the first ones record
        ours = gradients(compiled, model.module, model.arguments(seed, 1), seed, torch.float32)
        eager = gradients(model.module, model.module, model.arguments(seed, 1), seed, torch.float32)
        wide = eager if exact is None else exact_gradients(exact, model, seed)
        rounding = 1e-6 if exact is not None else 1e-4
        if ours.keys() != eager.keys():
            return f"no: gradients of {sorted(ours.keys() ^ eager.keys())[:3]}"
        scale = max([float(part.abs().max()) for part in wide.values() if part.numel()], default=0.0)
        apart: dict[str, float] = {}
        for name, part in ours.items():
            if name in wide and part.numel():
                off, own = (float((each.double() - wide[name]).abs().max()) for each in (part, eager[name]))
                if off <= NEAR * own + rounding * scale:
                    continue
                apart = apart or spread(model, weights, seed, wide)
                if off > capture.FARTHER * apart[name]:
                    return f"no: the gradient of {name} is {off:.1e} from float64's, eager's {own:.1e}"
        step(model.module, eager)
        if exact is not None:
            for weight, source in zip(exact.parameters(), model.module.parameters(), strict=True):
                weight.data.copy_(source)
    return "yes"


def spread(model: capture.Subject, weights: dict[str, Tensor], seed: int, wide: dict[str, Tensor]) -> dict[str, float]:
    """How far from float64's the gradients of eager's are where the weights were rounded differently: a relu at zero or
    a norm over few elements may turn either way.
    """
    farthest, start = dict.fromkeys(wide, 0.0), {key: weight.clone() for key, weight in weights.items()}
    for rounding in range(ROUNDINGS):
        for key, moved in disturbed(start, rounding).items():
            weights[key].copy_(moved)
        found = gradients(model.module, model.module, model.arguments(seed, 1), seed, torch.float32)
        for name in found.keys() & wide.keys():
            if found[name].numel():
                farthest[name] = max(farthest[name], float((found[name].double() - wide[name]).abs().max()))
    for key, weight in start.items():
        weights[key].copy_(weight)
    return farthest


def exact_gradients(exact: nn.Module, model: capture.Subject, seed: int) -> dict[str, Tensor]:
    """The gradients in float64. Torch's own of batch_norm without training are wrong on a CPU where the gradient lies
    with channels last and the input does not: here the formula takes its place.
    """
    own = functional.batch_norm

    def by_formula(
        x: Tensor, mean: Any, variance: Any, weight: Any = None, bias: Any = None, *rest: Any, **named: Any
    ) -> Any:
        if (rest[0] if rest else named.get("training", False)) or mean is None:
            return own(x, mean, variance, weight, bias, *rest, **named)
        eps = rest[2] if len(rest) > 2 else named.get("eps", 1e-5)
        scale = (variance + eps).rsqrt() * (1 if weight is None else weight)
        shape = (1, -1) + (1,) * (x.ndim - 2)
        return (x - mean.view(shape)) * scale.view(shape) + (0 if bias is None else bias.view(shape))

    functional.batch_norm = by_formula  # type: ignore[assignment]
    try:
        return gradients(exact, exact, model.arguments(seed, 1), seed, torch.float64)
    finally:
        functional.batch_norm = own


def in_float64(model: capture.Subject) -> nn.Module | None:
    """The model in float64, with experts one by one as grouped products have no such numbers; None where it makes
    tensors of other types itself.
    """
    exact = copy.deepcopy(model.module).double()
    choose: Any = getattr(exact, "set_experts_implementation", None)
    if choose is not None:
        choose("eager")
    try:
        exact_gradients(exact, model, 0)
    except RuntimeError:
        return None
    return exact


def gradients(call: Any, module: nn.Module, arguments: Any, seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """The gradients of a weighted sum of all results, by parameter."""
    positional, named = ([widened(part, dtype) for part in arguments[0]], arguments[1])
    torch.manual_seed(seed)
    module.zero_grad()
    result = call(*positional, **{key: widened(part, dtype) for key, part in named.items()})
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros((), dtype=dtype)
    for part in differentiable(result):
        total = total + (part * torch.rand(part.shape, generator=generator).to(part.dtype)).mean()
    if total.requires_grad:
        total.backward()
    return {name: weight.grad.clone() for name, weight in module.named_parameters() if weight.grad is not None}


def widened(value: Any, dtype: torch.dtype) -> Any:
    """A float tensor in ``dtype``; anything else as it is."""
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


@torch.no_grad()
def step(module: nn.Module, gradient_of: dict[str, Tensor], rate: float = 1e-3) -> None:
    """A step of gradient descent."""
    for name, weight in module.named_parameters():
        if name in gradient_of:
            weight.sub_(gradient_of[name], alpha=rate)


def findings(rows: Sequence[Row]) -> list[str]:
    """What the table says in words."""
    ran = [row for row in rows if "graphs" in row]
    whole = sum(row["graphs"] == 1 and not row["breaks"] and row["hit"] == "yes" for row in ran)
    few = sum(row["hit"] == "yes" and row["breaks"] <= FEW for row in ran)  # type: ignore[operator]
    equal = sum(row["equal"] == "yes" for row in ran)
    said = [
        f"{len(ran)} of {len(rows)} models run under eager as they are made here: {whole} are whole, {few} have at "
        f"most {FEW} breaks, {equal} are equal"
    ]
    said += [f"  {row['model']}: {row['equal']}" for row in rows if row.get("equal") != "yes"]
    said += [f"  {row['model']}: {row['why']}" for row in ran if row.get("why") is not None]
    return said
