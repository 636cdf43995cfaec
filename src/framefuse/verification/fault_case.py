"""Writes what was captured when the compiler failed as a program with drawn arguments, and reads such files again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch

from framefuse.errors import UserError
from framefuse.ir.trace import Ref, TensorMeta, Trace
from framefuse.ir.values import Arguments, Function, Keywords, Value
from framefuse.runtime.fx_graph import fx_graph
from framefuse.verification.case import Case
from framefuse.verification.case_text import program_text

FILE = "case.py"  # in the folder of a fault


def fault_text(trace: Trace, about: str) -> str:
    """The captured calls as a file that runs and is a test. No value of the user's is in it: tensors are drawn, sizes
    and numbers those of the recorded call. Raises Stop where the trace has no FX form.
    """
    captured = fx_graph(trace)
    inputs: list[Value] = []
    for place, feed in enumerate(captured.feeds):
        if isinstance(feed, Ref):
            inputs.append(_drawn(trace.metas[feed.value], place))
        else:
            inputs.append(feed.evaluate(trace.hints, trace.real_hints))  # type: ignore[call-arg]
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    training = trace.assumptions.state.grad_enabled and any(tensor.requires_grad for tensor in tensors)
    return program_text(Case(captured.module.graph, tuple(inputs), training), about)


def _drawn(meta: TensorMeta, place: int) -> torch.Tensor:
    """A tensor of the kind of one that was met, with the numbers that the text of a case draws."""
    if not meta.dtype.is_floating_point:
        return torch.zeros(meta.sizes, dtype=meta.dtype)
    drawn = torch.randn(meta.sizes, generator=torch.Generator().manual_seed(place)).to(meta.device, meta.dtype)
    return drawn.requires_grad_(meta.requires_grad)


def stored(path: Path) -> tuple[Function, Arguments, bool]:
    """The function of a file that a fault or :func:`framefuse.minify` wrote, its arguments, and whether it trains."""
    file = path / FILE if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error}. Give the folder of a fault, or a file of minify") from error
    space: dict[str, Value] = {}
    exec(compile(text, str(file), "exec"), space)
    found: list[tuple[Function, Arguments, bool]] = []

    def verify(function: Function, *args: Value, training: bool) -> Value:
        found.append((function, args, training))
        return SimpleNamespace(ok=True)

    tests: Keywords = {name: value for name, value in space.items() if name.startswith("test_")}
    space["framefuse"] = SimpleNamespace(verify=verify)  # the test hands over what it would have compared
    for test in tests.values():
        test()
    if not found:
        raise UserError(f"{file} compares nothing. Give the folder of a fault, or a file of minify")
    return found[0]
