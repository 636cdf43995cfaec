"""Runs one benchmark as the command line asks: measures with progress, shows a table, saves CSV, Markdown and plot."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.breadth import breadth, capture
from benchmarks.calls import curve, gradients, guards, models
from benchmarks.drawn import random_times
from benchmarks.drawn.random_table import TABLE as FAMILIES
from benchmarks.harness.compilers import cold_caches, warm_up
from benchmarks.harness.report import Field, Row, Say, hardware, markdown, progress, save, show, told
from benchmarks.large import convs, costs, kernels, matrix
from benchmarks.programs import measuring as programs
from benchmarks.starting import memory, start
from benchmarks.training import optimizers, train, vit
from benchmarks.training import vit_turns as turns
from benchmarks.training.contestants import SECONDS, STEPS, Settings
from benchmarks.training.vit_steps import Settings as StepSettings
from benchmarks.zoo.training_zoo import TRAININGS
from benchmarks.zoo.zoo import MODELS
from framefuse.options import MODES

Options = argparse.Namespace


@dataclass(frozen=True)
class Bench:
    """One row of the table below.

    `add_options` declares what only this benchmark has; `steps` and `measure` take the options and the names of the
    compilers, and rows that `measure` gives one by one are saved as they come, and printed where no bar is shown;
    `findings` says in words what the rows show; `plot` draws them. `rest` has the title and the fields of a second
    table, where one has not the room; ``shown`` are the rows for the screen.
    """

    name: str
    summary: str
    title: str
    fields: Sequence[Field]
    add_options: Callable[[argparse.ArgumentParser], None]
    steps: Callable[[Options, Sequence[str]], int]
    measure: Callable[[Say, Options, Sequence[str]], Iterable[Row]]
    findings: Callable[[Sequence[Row]], list[str]] = lambda rows: []
    plot: Callable[[Sequence[Row], Path, str], None] | None = None
    rest: tuple[str, Sequence[Field]] | None = None
    shown: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows


def curve_options(parser: argparse.ArgumentParser) -> None:
    """What `python -m benchmarks curve` takes."""
    parser.add_argument("--device", default="cpu", help="where the tensors are: cpu, cuda (cpu)")
    counts = " ".join(map(str, curve.COUNTS))
    parser.add_argument(
        "--statements", type=int, nargs="+", metavar="N", default=curve.COUNTS, help=f"numbers of statements ({counts})"
    )
    parser.add_argument("--inputs", type=int, default=curve.INPUTS, help=f"different tensors ({curve.INPUTS})")
    parser.add_argument("--passes", type=int, default=curve.PASSES, help=f"rounds over them ({curve.PASSES})")
    parser.add_argument("--fresh", action="store_true", help="also take first calls in processes of their own")


def models_options(parser: argparse.ArgumentParser) -> None:
    """What `python -m benchmarks models` takes."""
    parser.add_argument("--device", default="cpu", help="where the models run: cpu, cuda (cpu)")
    parser.add_argument(
        "--dtype", default="float32", choices=("float32", "bfloat16", "float16"), help="of weights and inputs (float32)"
    )
    parser.add_argument("--mode", choices=MODES, help="of the compilers (default)")
    parser.add_argument("--only", nargs="+", choices=list(MODELS), metavar="MODEL", help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--seconds", type=float, default=models.SECONDS, help=f"for each model ({models.SECONDS:g})")
    parser.add_argument("--fresh", action="store_true", help="take first calls in processes of their own")


def train_options(parser: argparse.ArgumentParser) -> None:
    """What `python -m benchmarks train` takes."""
    names = ", ".join(TRAININGS)
    parser.add_argument("--only", nargs="+", choices=list(TRAININGS), metavar="MODEL", help=f"some of {names}")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of the loss curves ({STEPS})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of timing for each model ({SECONDS:g})")
    parser.add_argument("--batch", type=int, help="rows, texts or pictures in a batch (32, 4, 4)")
    parser.add_argument("--length", type=int, help="tokens of a text (32)")
    parser.add_argument("--whole", action="store_true", help="whole steps by torch.compile too: ten minutes more")


def vit_options(parser: argparse.ArgumentParser) -> None:
    """What `python -m benchmarks vit` takes."""
    dtypes, modes, names, usual = turns.DTYPES, MODES, turns.NAMES, StepSettings()
    parser.add_argument("--device", help="where it is trained: cpu, cuda (cuda if there is one)")
    parser.add_argument("--batch", type=int, default=usual.batch, help=f"pictures in a batch ({usual.batch})")
    parser.add_argument("--model", default=usual.model, help=f"any classifier of timm ({usual.model})")
    parser.add_argument("--dtype", nargs="+", choices=dtypes, default=dtypes, help="bfloat16 is by autocast (both)")
    parser.add_argument("--modes", nargs="+", choices=modes, default=modes, metavar="MODE", help="of compile (all)")
    parser.add_argument("--only", nargs="+", choices=names, default=(), metavar="NAME", help=f"{', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=turns.SECONDS, help=f"for dtype and mode ({turns.SECONDS:g})")
    parser.add_argument("--whole", action="store_true", help="whole steps by torch.compile too")


def memory_options(parser: argparse.ArgumentParser) -> None:
    """What `python -m benchmarks memory` takes."""
    parser.add_argument("--count", type=int, default=memory.COUNT, help=f"compilations ({memory.COUNT})")


def capture_options(parser: argparse.ArgumentParser) -> None:
    """What `python -m benchmarks capture` takes."""
    named = f"some models, or all of a library: {', '.join(capture.LIBRARIES)}"
    parser.add_argument("--only", nargs="+", choices=capture.NAMES, metavar="MODEL", help=named)
    every = "every N-th, from the K-th on, of all classes of transformers and all models of timm"
    parser.add_argument("--part", metavar="K/N", help=every)
    parser.add_argument("--gradients", action="store_true", help="with --part: gradients, beside float64's")
    parser.add_argument("--speed", action="store_true", help="only what recording costs, nothing compiled")


def kernels_options(parser: argparse.ArgumentParser) -> None:
    """What `python -m benchmarks kernels` takes."""
    parser.add_argument("--device", default="cpu", help="where the tensors are: cpu, cuda (cpu)")
    parser.add_argument("--matrix", action="store_true", help="the whole matrix: axis x size x dtype x operation")
    parser.add_argument("--costs", action="store_true", help="the sizes of ir/costs.py, each beside others")
    parser.add_argument("--part", metavar="K/N", help="of the matrix: every N-th case, from the K-th on")
    parser.add_argument("--only", nargs="+", default=(), metavar="OPERATION", help="of the matrix: some operations")


def convs_options(parser: argparse.ArgumentParser) -> None:
    """What `python -m benchmarks convs` takes."""
    ways, precisions = convs.WAYS, convs.PRECISIONS
    parser.add_argument("--device", default="cpu", help="where the programs run: cpu, cuda (cpu)")
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways, help="with or without gradients (both)")
    parser.add_argument("--precisions", nargs="+", choices=precisions, default=precisions, help="bfloat16: autocast")
    parser.add_argument("--batches", nargs="+", type=int, default=(), metavar="N", help="1, 16, 128; on a CPU 2")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="programs whose names begin so")
    parser.add_argument("--part", metavar="K/N", help="every N-th case, from the K-th on")


def programs_options(parser: argparse.ArgumentParser) -> None:
    """What `python -m benchmarks programs` takes."""
    parser.add_argument("--device", default="cpu", help="where the programs run: cpu, cuda (cpu)")
    parser.add_argument("--level", nargs="+", type=int, choices=programs.LEVELS, default=programs.LEVELS, help="(all)")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="programs whose names begin so")
    parser.add_argument("--part", metavar="K/N", help="every N-th program, from the K-th on")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that compile side by side (1)")


def random_options(parser: argparse.ArgumentParser) -> None:
    """What `python -m benchmarks random` takes."""
    seed, count = random_times.SEED, random_times.COUNT
    parser.add_argument("--seed", type=int, default=seed, help=f"of the first program; the next has the next ({seed})")
    parser.add_argument("--count", type=int, default=count, help=f"programs ({count})")
    parser.add_argument("--only", nargs="+", choices=list(FAMILIES), default=(), metavar="FAMILY", help="of operations")


def start_options(parser: argparse.ArgumentParser) -> None:
    """What `python -m benchmarks start` takes."""
    names = ", ".join(start.TARGETS)
    parser.add_argument("--only", nargs="+", choices=start.TARGETS, metavar="MODEL", help=f"some of {names}")


def no_options(parser: argparse.ArgumentParser) -> None:
    """For benchmarks with the common options only."""


def measure_curve(say: Say, options: Options, compilers: Sequence[str]) -> list[Row]:
    """The rows of the curve for the options given."""
    return curve.curve(say, options.statements, compilers, options.inputs, options.passes, options.device)


def measure_models(say: Say, options: Options, compilers: Sequence[str]) -> list[Row]:
    """The rows of the models for the options given."""
    place = models.Place(options.device, options.dtype, getattr(options, "mode", None))
    return models.models(say, options.only or tuple(MODELS), compilers, options.seconds, options.fresh, place)


def convs_chosen(options: Options) -> convs.Chosen:
    """What the options say of programs of convolutions."""
    return convs.Chosen(options.device, options.ways, options.precisions, options.batches, options.only, options.part)


def programs_chosen(options: Options) -> programs.Chosen:
    """What the options say of programs by hand."""
    return programs.Chosen(options.device, tuple(options.level), options.only, options.part, options.jobs)


def train_settings(options: Options, compilers: Sequence[str]) -> Settings:
    """What the options say of training."""
    sizes = {"steps": options.steps, "seconds": options.seconds, "batch": options.batch, "length": options.length}
    return Settings(tuple(compilers), options.whole, **sizes)


def measure_train(say: Say, options: Options, compilers: Sequence[str]) -> list[Row]:
    """The rows of training for the options given."""
    return train.train(say, options.only or tuple(TRAININGS), train_settings(options, compilers))


def vit_settings(options: Options, compilers: Sequence[str]) -> turns.Settings:
    """What the options say of the vision transformer."""
    steps = StepSettings(options.model, options.batch, options.device)
    chosen = (tuple(options.dtype), tuple(options.modes), tuple(options.only))
    return turns.Settings(tuple(compilers), *chosen, options.whole, steps, options.seconds)


def measure_capture(say: Say, options: Options, compilers: Sequence[str]) -> list[Row]:
    """The rows of capture for the options given."""
    if options.part is not None:
        return breadth.breadth(say, options.part, options.gradients)
    return capture.speed(say) if options.speed else capture.capture(say, options.only)


def capture_steps(options: Options) -> int:
    """How many models, or speeds, capture measures."""
    if options.part is not None:
        return len(breadth.part_of(breadth.names(), options.part))
    return capture.SPEED_STEPS if options.speed else len(capture.names_of(options.only))


def capture_findings(rows: Sequence[Row]) -> list[str]:
    """What the rows of capture, or of a part of everything, say in words."""
    everything = any(":" in str(row["model"]) for row in rows)
    return breadth.findings(rows) if everything else capture.findings(rows)


BENCHES = (
    Bench(
        "curve",
        "a chain of 1 to 30 statements, static and dynamic",
        curve.TITLE,
        curve.FIELDS,
        curve_options,
        lambda options, compilers: curve.steps(options.statements, compilers),
        measure_curve,
        curve.findings,
        curve.plot,
    ),
    Bench(
        "models",
        "nine models, inference: equal results, milliseconds, first calls",
        models.TITLE,
        models.FIELDS,
        models_options,
        lambda options, compilers: models.steps(options.only or tuple(MODELS), compilers, options.fresh),
        measure_models,
        models.findings,
        models.plot,
    ),
    Bench(
        "train",
        "twelve models, training: steps, memory, first steps, losses",
        train.TITLE,
        train.FIELDS,
        train_options,
        lambda options, compilers: train.steps(options.only or tuple(TRAININGS), train_settings(options, compilers)),
        measure_train,
        train.findings,
        train.plot,
        (train.REST_TITLE, train.REST),
    ),
    Bench(
        "vit",
        "ViT-base, training: each mode and dtype, model, loss and step",
        vit.TITLE,
        vit.FIELDS,
        vit_options,
        lambda options, compilers: turns.steps(vit_settings(options, compilers)),
        lambda say, options, compilers: turns.vit(say, vit_settings(options, compilers)),
        vit.findings,
        vit.plot,
        (vit.REST_TITLE, vit.REST),
    ),
    Bench(
        "capture",
        "models of transformers and timm: captured whole, hit, equal",
        capture.TITLE,
        (*capture.FIELDS, *breadth.FIELDS),
        capture_options,
        lambda options, compilers: capture_steps(options),
        measure_capture,
        capture_findings,
    ),
    Bench(
        "kernels",
        "single kernels on large tensors: chains, sums, softmax, norms",
        kernels.TITLE,
        kernels.FIELDS,
        kernels_options,
        lambda options, compilers: kernels.steps(compilers, options.device),
        lambda say, options, compilers: kernels.kernels(say, compilers, device=options.device),
    ),
    Bench(
        "convs",
        "a convolution with 1 to 6 operations behind it, and whole nets",
        convs.TITLE,
        convs.FIELDS,
        convs_options,
        lambda options, compilers: convs.steps(compilers, convs_chosen(options)),
        lambda say, options, compilers: convs.convs(say, compilers, convs_chosen(options)),
        convs.findings,
        convs.plot,
    ),
    Bench(
        "programs",
        "programs by hand: single operators, short chains, whole nets",
        programs.TITLE,
        programs.FIELDS,
        programs_options,
        lambda options, compilers: programs.steps(compilers, programs_chosen(options)),
        lambda say, options, compilers: programs.programs(say, compilers, programs_chosen(options)),
        programs.findings,
    ),
    Bench(
        "gradients",
        "small functions that require grad: forward, and both ways",
        gradients.TITLE,
        gradients.FIELDS,
        no_options,
        lambda options, compilers: gradients.steps(compilers),
        lambda say, options, compilers: gradients.gradients(say, compilers),
    ),
    Bench(
        "guards",
        "dispatch and guards alone, on BERT and on 100 linear layers",
        guards.TITLE,
        guards.FIELDS,
        no_options,
        lambda options, compilers: guards.steps(compilers),
        lambda say, options, compilers: guards.guards(say, compilers),
    ),
    Bench(
        "optimizers",
        "steps of SGD, Adam and AdamW over 200 parameters",
        optimizers.TITLE,
        optimizers.FIELDS,
        no_options,
        lambda options, compilers: optimizers.steps(),
        lambda say, options, compilers: optimizers.optimizers(say),
        optimizers.findings,
    ),
    Bench(
        "memory",
        "memory of a process that compiles 10,000 fresh functions",
        memory.TITLE,
        memory.FIELDS,
        memory_options,
        lambda options, compilers: memory.SAMPLES,
        lambda say, options, compilers: memory.memory(say, options.count),
        memory.findings,
        memory.plot,
    ),
    Bench(
        "random",
        "random programs of all sizes, dtypes and layouts: each loss",
        random_times.TITLE,
        random_times.FIELDS,
        random_options,
        lambda options, compilers: options.count,
        lambda say, options, compilers: random_times.programs(say, options.seed, options.count, options.only),
        random_times.findings,
        shown=random_times.losses,
    ),
    Bench(
        "start",
        "how a process starts: imports, first calls, exported programs",
        start.TITLE,
        start.FIELDS,
        start_options,
        lambda options, compilers: start.steps(options.only or start.USUAL, compilers),
        lambda say, options, compilers: start.start(say, options.only or start.USUAL, compilers, options.threads),
        start.findings,
        rest=(start.SHIPPED_TITLE, start.SHIPPED),
    ),
)
ALONE = ("memory", "capture", "optimizers", "costs", "random")  # measured without torch.compile beside them
APART = ("vit", "start")  # each contestant imports and starts in a process of its own
# What `kernels --matrix` measures.
MATRIX = Bench(
    "matrix",
    "large kernels: operation x axis x size x dtype, each loss named",
    matrix.TITLE,
    matrix.FIELDS,
    kernels_options,
    lambda options, compilers: matrix.steps(compilers, options.device, options.part, options.only),
    lambda say, options, compilers: matrix.matrix(say, compilers, options.device, options.part, options.only),
    matrix.findings,
    matrix.plot,
)
# What `kernels --costs` measures.
COSTS = Bench(
    "costs",
    "sizes by which fuse decides, each beside others",
    costs.TITLE,
    costs.FIELDS,
    kernels_options,
    lambda options, compilers: costs.steps(),
    lambda say, options, compilers: costs.costs(say),
)
BY_NAME = {bench.name: bench for bench in (*BENCHES, MATRIX, COSTS)}


def add_common_options(parser: argparse.ArgumentParser, out: str = "bench-out") -> None:
    """What every benchmark takes."""
    parser.add_argument("--out", type=Path, default=Path(out), help=f"folder for tables and plots ({out})")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1)")
    parser.add_argument("--no-torch", action="store_true", help="leave torch.compile out")


def contestants(options: Options, console: Console) -> list[str]:
    """The compilers to measure, each warmed up; says so where torch.compile cannot run here."""
    device = getattr(options, "device", "cpu")
    warm_up("framefuse", device)
    if options.no_torch:
        return ["framefuse"]
    with console.status("torch.compile starts up (not measured)"):
        reason = warm_up("torch", device)
    if reason is None:
        return ["framefuse", "torch"]
    said = f"torch.compile is left out, since it does not run here: {reason}"
    console.print(said, markup=False, highlight=False, soft_wrap=True)
    return ["framefuse"]


def compilers_of(name: str, options: Options, console: Console) -> list[str]:
    """The compilers that a benchmark measures, ready for it."""
    if name in ALONE or (name in APART and options.no_torch):
        return ["framefuse"]
    return ["framefuse", "torch"] if name in APART else contestants(options, console)


def present(bench: Bench, options: Options, compilers: Sequence[str], console: Console) -> tuple[list[Row], list[Path]]:
    """Measures, shows and saves one benchmark; returns its rows and the files written, the plot last."""
    caption, rows = hardware(getattr(options, "device", "cpu")), list[Row]()
    with progress(console, bench.steps(options, compilers)) as say:
        measured = bench.measure(say, options, compilers)
        for row in measured:
            rows.append(row)
            if not isinstance(measured, Sequence):  # hours of measuring may end early
                save(options.out, bench.name, bench.title, bench.fields, rows, caption)
                if not console.is_terminal:
                    console.print(told(bench.fields, row), markup=False, highlight=False, soft_wrap=True)
    show(console, bench.title, bench.fields, bench.shown(rows))
    if bench.rest is not None:
        console.print()
        show(console, *bench.rest, rows)
    for line in bench.findings(rows):
        console.print(line, markup=False, highlight=False)
    files = save(options.out, bench.name, bench.title, bench.fields, rows, caption)
    if bench.rest is not None:
        with files[-1].open("a") as text:
            text.write("\n" + markdown(*bench.rest, rows, caption))
    if bench.plot is not None:
        files.append(options.out / f"{bench.name}.png")
        bench.plot(rows, files[-1], caption)
    return rows, files


PAGE = 120  # columns of a table that goes into a file or a pipe, where rich would cut it at 80


def wrong(rows: Sequence[Row]) -> bool:
    """Whether a model gave other results than eager, compiled by framefuse."""
    return any(str(row.get("equal", "")).startswith("no:") and row.get("compiler") != "torch" for row in rows)


def run(name: str, options: Options) -> int:
    """The whole of `python -m benchmarks NAME`; the exit status is 1 where results were wrong."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, PAGE)
    name = next((other for other in ("matrix", "costs") if getattr(options, other, False)), name)
    torch.set_num_threads(options.threads)
    if getattr(options, "device", "cpu") is None:
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    with cold_caches():
        compilers = compilers_of(name, options, console)
        rows, files = present(BY_NAME[name], options, compilers, console)
        if name == "curve" and options.fresh:
            for line in curve.fresh_findings(compilers):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(hardware(getattr(options, "device", "cpu")), highlight=False, soft_wrap=True)
    console.print("written:", *files, highlight=False, soft_wrap=True)
    return int(wrong(rows))
