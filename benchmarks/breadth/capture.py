"""Measures what is captured of many models: whole or not, hits of later calls, equal results, cost of recording."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import framefuse
from benchmarks.harness.report import Field, Row, Say, Value
from benchmarks.harness.timing import no_collection
from benchmarks.training.training_steps import disturbed
from benchmarks.zoo import timm_models
from benchmarks.zoo.transformers_models import CLASSES, SAMPLES, WORDS
from benchmarks.zoo.zoo import MissingLibrary, optional
from framefuse.capture.record import record
from framefuse.driver.wiring import load_stages
from framefuse.runtime.function import compiled_function

FAR = "no: the floats of"  # differ, which may be rounding that the model spreads
LIBRARIES = {"transformers": tuple(SAMPLES), "timm": timm_models.NAMES}
NAMES = (*LIBRARIES, *SAMPLES, *timm_models.NAMES)
ROUNDINGS, FARTHER = 16, 2  # of the weights of a model that spreads them; how much farther than they ours may be
PASSES = 15  # recordings of which the median is shown, under --speed

TITLE = "Capture of whole models, inference; recording and the whole first call in milliseconds above an eager call"
FIELDS = (
    Field("model", "model"),
    Field("graphs", "graphs"),
    Field("nodes", "nodes"),
    Field("opcodes", "opcodes"),
    Field("recording_ms", "recording", "{:.1f}"),
    Field("first_ms", "first call", "{:.0f}"),
    Field("hit", "second hits"),
    Field("other", "other batch"),
    Field("equal", "equal"),
    Field("reason", "reason"),
)


@dataclass(frozen=True)
class Subject:
    """A model and the maker of its arguments: positional and by name, for a seed and a batch."""

    name: str
    module: nn.Module
    arguments: Callable[[int, int], tuple[tuple[Any, ...], dict[str, Any]]]


def subject(name: str) -> Subject:
    """The model of that name, always with the same weights. Raises MissingLibrary."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name in SAMPLES:
            sample = SAMPLES[name]
            module = sample.build()
            model = Subject(name, module, lambda seed, batch: ((), sample.arguments(seed, batch)))
        else:
            module = timm_models.build(name)
            side = timm_models.side_of(name, module)
            model = Subject(name, module, lambda seed, batch: ((timm_models.picture(side, seed, batch),), {}))
        stir(module)
    return model


@torch.no_grad()
def stir(module: nn.Module) -> None:
    """Adds noise to the weights: many are made as zeros or ones, under which a wrong result would look right."""
    for weight in module.parameters():
        if weight.is_floating_point():
            weight.add_(torch.randn(weight.shape, dtype=weight.dtype), alpha=0.02)


def leaves(value: Any, path: str = "result", met: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Each tensor and atom of a result with its path, through containers and the library's own objects."""
    met = set() if met is None else met
    if isinstance(value, (Tensor, str, int, float, bool, type(None))):
        yield path, value
    elif id(value) not in met:
        met.add(id(value))
        if isinstance(value, Mapping):
            parts = [(f"{path}[{key!r}]", part) for key, part in value.items()]
        elif isinstance(value, (list, tuple)):
            parts = [(f"{path}[{number}]", part) for number, part in enumerate(value)]
        else:
            parts = [(f"{path}.{key}", part) for key, part in getattr(value, "__dict__", {}).items()]
        for name, part in parts:
            yield from leaves(part, name, met)


def difference(actual: Any, expected: Any) -> str:
    """ "yes" where two results have the same structure and tensors that differ by rounding only, else "no: " and why.

    Rounding grows with the depth of a network: the bound is 1e-4 of the largest magnitude of each float tensor (1e-2
    for 16-bit floats); other tensors must be equal.
    """
    left, right = list(leaves(actual)), list(leaves(expected))
    if [path for path, _ in left] != [path for path, _ in right]:
        return f"no: {len(left)} values instead of {len(right)}, or of other names"
    for (path, value), (_, wanted) in zip(left, right, strict=True):
        if not isinstance(wanted, Tensor):
            if type(value) is not type(wanted) or value != wanted:
                return f"no: {path} is {value!r} instead of {wanted!r}"
            continue
        wide = wanted.is_floating_point() or wanted.is_complex()
        if wide and not wanted.isfinite().all() and not wanted.isinf().any():
            return f"no: eager gives NaN in {path}, which shows nothing"
        scale = float(wanted[wanted.isfinite()].abs().max()) if wide and wanted.isfinite().any() else 0.0
        share = 1e-2 if wanted.element_size() == 2 else 1e-4
        try:
            torch.testing.assert_close(value, wanted, rtol=0, atol=share * scale if wide else 0)
        except AssertionError as error:
            return f"{FAR if wide else 'no:'} {path}: " + " ".join(str(error).split())[:90]
    return "yes"


def distance(actual: Any, expected: Any) -> float:
    """The largest difference between the float tensors of two results of one structure, in parts of the largest
    magnitude in each; infinite where anything else differs.
    """
    worst = 0.0
    for (_, value), (_, wanted) in zip(leaves(actual), leaves(expected), strict=True):
        if not isinstance(wanted, Tensor) or not (wanted.is_floating_point() or wanted.is_complex()):
            same = torch.equal(value, wanted) if isinstance(wanted, Tensor) else value == wanted
            worst = worst if same else math.inf
        elif wanted.numel():
            scale = wanted.abs().max().clamp(min=torch.finfo(wanted.dtype).tiny)
            worst = max(worst, float((value - wanted).abs().max() / scale))
    return worst


def own_distance(model: Subject, seed: int, batch: int) -> float:
    """How far eager's results are from its own where the model's weights were rounded differently."""
    runs = []
    weights = {name: weight.detach() for name, weight in model.module.named_parameters()}
    if not weights:
        return 0.0
    for rounding in [None, *range(ROUNDINGS)]:
        arguments = model.arguments(seed, batch)
        moved = weights if rounding is None else disturbed(weights, rounding)
        runs.append((torch.func.functional_call(model.module, moved, *arguments), arguments))
    return max(distance(run, runs[0]) for run in runs[1:])


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """How long one call took, and what it gave."""
    start = time.perf_counter()
    value = call()
    return time.perf_counter() - start, value


def measure(name: str) -> Row:
    """One row: the first call is recorded, the second comes with new data, the third with another batch."""
    model = subject(name)
    module, compiled = model.module, framefuse.compile(model.module)
    state = compiled_function(compiled)
    assert state is not None
    answers: list[str] = []
    spread: list[float] = []
    hits: list[bool] = []
    took: list[tuple[float, float]] = []

    def compare(seed: int, batch: int) -> None:
        ours, theirs = model.arguments(seed, batch), model.arguments(seed, batch)
        eager, expected = seconds_of(lambda: module(*theirs[0], **theirs[1]))
        before = state.dispatch.hits
        spent, result = seconds_of(lambda: compiled(*ours[0], **ours[1]))
        hits.append(state.dispatch.hits == before + 1)
        took.append((spent, eager))
        answer = difference((result, ours), (expected, theirs))
        if answer.startswith(FAR):
            off, own = distance((result, ours), (expected, theirs)), own_distance(model, seed, batch)
            if off <= FARTHER * own:
                spread.append(own)
                answer = "yes"
        answers.append(answer)

    arguments = model.arguments(9, 1)
    module(*arguments[0], **arguments[1])  # lazy set-up is not what is measured
    compare(0, 1)
    graphs = len(state.products)
    compare(1, 1)
    compare(2, 2)
    row: dict[str, Value] = {"model": name, "graphs": graphs, "first_ms": (took[0][0] - took[0][1]) * 1e3}
    if graphs:
        product = state.products[0]
        row["nodes"] = len(product.stages.trace.calls)
        row["opcodes"] = product.stages.trace.opcodes
        row["recording_ms"] = (product.seconds["capture"] - took[0][1]) * 1e3
    row["hit"], row["other"] = ("yes" if hit else "no" for hit in hits[1:])
    row["equal"] = max(answers, key=lambda answer: (answer != "yes", len(answer)))
    why = next(iter(state.reasons), None)
    row["spread"] = max(spread, default=None)
    row["reason"], row["why"] = (None, None) if why is None else (why.code, " ".join(str(why).split()))
    return row


def whole(row: Row) -> bool:
    """One graph without a break, and the second call hit."""
    return row.get("graphs") == 1 and row.get("reason") is None and row.get("hit") == "yes"


def measured_or_missing(name: str) -> Row:
    """The row of `measure`, or one that says which library the model needs."""
    try:
        return measure(name)
    except MissingLibrary as error:
        return {"model": name, "equal": f"not run: {error}"}


def names_of(only: Sequence[str] | None) -> tuple[str, ...]:
    """The models that a command line names; the name of a library stands for all of its models."""
    asked = only or tuple(LIBRARIES)
    return tuple(dict.fromkeys(name for part in asked for name in LIBRARIES.get(part, (part,))))


def capture(say: Say, only: Sequence[str] | None = None) -> list[Row]:
    """One row for each model."""
    rows = []
    with torch.no_grad():
        for name in names_of(only):
            say(name)
            rows.append(measured_or_missing(name))
            framefuse.reset()
            gc.collect()
    return rows


def findings(rows: Sequence[Row]) -> list[str]:
    """What the table says in words."""
    said = []
    classes = {sample.name for sample in CLASSES}
    groups = (
        ("classes of transformers", classes),
        ("of the same classes in other ways of use and of more classes", set(SAMPLES) - classes),
        ("models of timm", set(timm_models.NAMES)),
    )
    for title, names in groups:
        measured = [row for row in rows if row["model"] in names and "graphs" in row]
        if measured:
            equal = sum(row["equal"] == "yes" for row in measured)
            good = sum(map(whole, measured))
            said.append(f"{good} of {len(measured)} {title} are captured whole and hit at once, {equal} equal eager")
    said += [f"  {row['model']}: {row['equal']}" for row in rows if row.get("equal", "yes") != "yes"]
    said += [
        f"  {row['model']}: rounding its weights moves eager's own result by {row['spread']:.0e}; ours is as near"
        for row in rows
        if row.get("spread") is not None
    ]
    said += [f"  {row['model']}: {row['why']}" for row in rows if row.get("why") is not None]
    return said


# The cost of recording alone -----------------------------------------------------------------------------------------


def small(x: Tensor, y: Tensor) -> Tensor:
    """Three torch operations."""
    return torch.relu(x * y) + 1.0


def bert_base() -> tuple[nn.Module, tuple[Any, ...]]:
    """BERT-base: 12 layers, hidden size 768, with a text of 16 tokens."""
    library = optional("transformers")
    model = torch.Generator().manual_seed(0)
    return library.BertModel(library.BertConfig()).eval(), (torch.randint(0, WORDS, (1, 16), generator=model),)


def recording(title: str, function: Any, arguments: tuple[Any, ...], passes: int = PASSES) -> Row:
    """One row: the median of recordings, above the median of eager calls between them."""
    load_stages()  # as the first compiled call does
    owner = function if isinstance(function, nn.Module) else None
    eager, recorded = [], []
    for _ in range(passes):
        with no_collection():
            eager.append(seconds_of(lambda: function(*arguments))[0])
            spent, capture = seconds_of(lambda: record(function, arguments, {}, owner=owner))
            recorded.append(spent)
    row: dict[str, Value] = {"model": title, "graphs": int(capture.trace is not None)}
    row["recording_ms"] = (statistics.median(recorded) - statistics.median(eager)) * 1e3
    if capture.trace is None:
        row["reason"] = None if capture.reason is None else capture.reason.code
    else:
        row["nodes"], row["opcodes"] = len(capture.trace.calls), capture.trace.opcodes
    return row


SPEED_STEPS = 2


def speed(say: Say, passes: int = PASSES) -> list[Row]:
    """The cost of recording BERT-base and a function of three operations; nothing is compiled."""
    with torch.no_grad():
        say("three operations")
        rows = [recording("three operations", small, (torch.randn(8, 8), torch.randn(8, 8)), 10 * passes)]
        say("BERT-base")
        try:
            rows.append(recording("BERT-base", *bert_base(), passes))
        except MissingLibrary as error:
            rows.append({"model": "BERT-base", "equal": f"not run: {error}"})
    return rows
