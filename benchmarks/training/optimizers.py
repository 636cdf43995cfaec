"""Measures a step of an optimizer over the parameters of a transformer: eager's three variants against compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import framefuse
from benchmarks.harness.report import Field, Row, Say, Value
from benchmarks.harness.timing import Column, interleaved, timed

PASSES = 31
LAYERS, WORDS, LENGTH = 16, 512, 64
VARIANTS: dict[str, dict[str, bool]] = {
    "loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True},
}  # fmt: skip
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda p, **kw: torch.optim.SGD(p, lr=1e-3, **kw),
    "SGD, momentum": lambda p, **kw: torch.optim.SGD(p, lr=1e-3, momentum=0.9, **kw),
    "Adam": lambda p, **kw: torch.optim.Adam(p, lr=1e-3, **kw),
    "AdamW": lambda p, **kw: torch.optim.AdamW(p, lr=1e-3, **kw),
}
CASES = (("SGD", 128), ("SGD, momentum", 128), ("Adam", 64), ("Adam", 128), ("Adam", 256), ("AdamW", 128))

TITLE = "One step of an optimizer over 200 parameters, milliseconds"
FIELDS = (
    Field("optimizer", "optimizer"),
    Field("width", "width"),
    Field("loop_ms", "loop", "{:.2f}"),
    Field("foreach_ms", "foreach", "{:.2f}"),
    Field("fused_ms", "fused", "{:.2f}"),
    Field("framefuse_ms", "framefuse", "{:.2f}"),
    Field("times_loop", "times loop", "{:.2f}"),
    Field("times_fused", "times fused", "{:.2f}"),
    Field("overhead_ms", "size 1", "{:.3f}"),
    Field("compile_s", "compile s", "{:.2f}"),
)


def transformer(width: int, layers: int = LAYERS) -> list[tuple[int, ...]]:
    """Sizes of the parameters of an encoder (12 a layer) with its embeddings, a final norm, a head and a small gate."""
    inner = 4 * width
    norm = [(width,), (width,)]
    attention = [(3 * width, width), (3 * width,), (width, width), (width,)]
    layer = [*attention, *norm, (inner, width), (inner,), (width, inner), (width,), *norm]
    rest = [*norm, (WORDS, width), (WORDS,), (LENGTH, LENGTH), (LENGTH,)]
    return [(WORDS, width), (LENGTH, width), *layer * layers, *rest]


def parameters(sizes: Sequence[tuple[int, ...]]) -> list[torch.nn.Parameter]:
    """Parameters with gradients, the same at each call."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.nn.Parameter(0.1 * torch.randn(size, generator=generator)) for size in sizes]
    for each in drawn:
        each.grad = 0.01 * torch.randn(each.shape, generator=generator)
    return drawn


def stepping(optimizer: Any) -> Callable[[], None]:
    """A function that makes one step."""

    def step() -> None:
        optimizer.step()

    return step


def equal(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> str:
    """Whether two optimizers that made as many steps left the same parameters."""
    gap = max(float((a - b).detach().abs().max()) for a, b in zip(left, right, strict=True))
    return "yes" if gap <= 1e-6 else f"no: {gap:.1e}"


def measure(name: str, width: int, passes: int, say: Say, layers: int = LAYERS) -> Row:
    """One row: all columns step parameters of their own, as often. ``overhead_ms`` is a step of as many parameters of
    one element each: guards and the plan's own work.
    """
    make = OPTIMIZERS[name]
    sizes = transformer(width, layers)
    owned = {variant: parameters(sizes) for variant in (*VARIANTS, "framefuse")}
    columns = {
        variant: Column(stepping(make(owned[variant], **options)), [()] * 2) for variant, options in VARIANTS.items()
    }
    say(f"{name}: framefuse compiles")
    compiled = framefuse.compile(stepping(make(owned["framefuse"], foreach=False)))
    columns["framefuse"] = Column(compiled, [()] * 2)
    first = sum(timed(compiled, ()) for _ in range(2))  # the state is made in the first step of most
    for _ in range(2):
        for variant in VARIANTS:
            columns[variant].function()
    small = framefuse.compile(stepping(make(parameters([(1,)] * len(sizes)), foreach=False)))
    for _ in range(3):
        small()
    say(f"{name}: {len(columns)} columns in turn")
    interleaved(columns, 2)  # warm-up
    medians = interleaved(columns, passes)
    overhead = interleaved({"small": Column(small, [()] * 10)}, passes)["small"]
    elements = sum(each.numel() for each in owned["loop"])
    row: dict[str, Value] = {"optimizer": name, "width": width, "parameters": len(sizes), "elements": elements}
    row.update({f"{variant}_ms": seconds * 1e3 for variant, seconds in medians.items()})
    row["times_loop"] = medians["loop"] / medians["framefuse"]
    row["times_fused"] = medians["fused"] / medians["framefuse"]
    row["overhead_ms"] = overhead * 1e3
    row["compile_s"] = first
    row["equal"] = equal(owned["loop"], owned["framefuse"])
    return row


def steps() -> int:
    """How often `optimizers` reports progress."""
    return 2 * len(CASES)


def optimizers(say: Say, passes: int = PASSES) -> list[Row]:
    """One row for each case."""
    return [measure(name, width, passes, say) for name, width in CASES]


def findings(rows: Sequence[Row]) -> list[str]:
    """What the rows show, in words."""
    return [
        f"{row['optimizer']}, width {row['width']}: {row['times_loop']:.1f} times the for-loop, "
        f"{row['times_fused']:.2f} times fused; equal parameters: {row['equal']}"
        for row in rows
    ]
