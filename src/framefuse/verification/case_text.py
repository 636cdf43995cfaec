"""Writes a case as a program of a few lines that needs nothing but torch and framefuse, and as a test."""

from __future__ import annotations

import types
from collections.abc import Iterator

import torch

from framefuse.verification.case import Case
from framefuse.verification.shrink import outermost_first

FEW = 24  # elements of a tensor that are written out
SLOWER = 1.1  # times eager's time, from where a case counts as slow


def program_text(case: Case, about: str, slow: bool = False) -> str:
    """A test that shows the fault; ``about`` says in one line which. For a ``slow`` case it compares times."""
    lines = [f'"""{about}"""', *_head(case, slow), "", "", *case.body[0].splitlines(), "", "", *_tail(case, slow)]
    return "\n".join(lines) + "\n"


def _head(case: Case, slow: bool) -> Iterator[str]:
    modules = {value.__name__ for name, value in case.body[1].items() if isinstance(value, types.ModuleType)}
    yield from sorted(f"import {name}" for name in {*modules, "torch", *(("timeit",) if slow else ())})
    for name, value in case.body[1].items():
        if isinstance(value, float):
            yield f'{name} = float("{name}")'
        elif not isinstance(value, types.ModuleType):
            yield f"from {value.__module__} import {getattr(value, '__qualname__', name)} as {name}"
    yield ""
    yield "import framefuse"


def _tail(case: Case, slow: bool) -> Iterator[str]:
    yield "def test_it_is_as_fast_as_eager():" if slow else "def test_it_is_as_near_as_eager():"
    names = []
    for place, value in enumerate(case.inputs):
        if isinstance(value, torch.Tensor):
            names.append(f"x{place}")
            yield f"    x{place} = {_tensor(value, place)}"
        else:
            names.append(repr(value))
    if slow:
        yield f"    fast, given = framefuse.compile(f), ({', '.join(names)},)"
        if case.training:
            yield "    def run(g):"
            yield "        results = [part for part in g(*given) if part.requires_grad]"
            yield "        torch.autograd.backward(results, list(map(torch.ones_like, results)))"
        run = "run(g)" if case.training else "g(*given)"  # few calls: what is slow is given a rest behind more
        yield f"    eager, compiled = (min(timeit.repeat(lambda: {run}, number=3, repeat=4)) for g in (f, fast))"
        yield f"    assert compiled < {SLOWER} * eager, (compiled, eager)"
        return
    yield f"    found = framefuse.verify({', '.join(['f', *names])}, training={case.training})"
    yield "    assert found.ok, str(found)"


def _tensor(value: torch.Tensor, place: int) -> str:
    """An expression for a tensor: the draw that the shrinker tried, its elements, or random ones of its kind."""
    grad = ".requires_grad_()" if value.requires_grad else ""
    kind, sizes = str(value.dtype), tuple(value.shape)
    device = "" if value.device.type == "cpu" else f".to({str(value.device)!r})"
    seed = f"generator=torch.Generator().manual_seed({place})"
    drawn = None
    if value.is_floating_point():
        drawn = torch.randn(sizes, generator=torch.Generator().manual_seed(place)).to(value.device, value.dtype)
    if value.numel() <= FEW and (drawn is None or not torch.equal(drawn, value.detach())):
        text = f"torch.tensor({value.detach().flatten().tolist()}, dtype={kind}).reshape({sizes})"
    elif drawn is not None:
        text = f"torch.randn({sizes}, {seed})" + ("" if kind == "torch.float32" else f".to({kind})")
    elif value.is_complex():
        text = f"torch.randn({sizes}, dtype={kind}, {seed})"
    else:
        low, high = int(value.min()), int(value.max()) + 1
        text = f"torch.randint({low}, {high}, {sizes}, {seed}).to({kind})"
    return f"{text}{device}{_order(value)}{grad}"


def _order(value: torch.Tensor) -> str:
    """What lays a row-major tensor out as one lies."""
    if value.is_contiguous():
        return ""
    order = outermost_first(value)
    return f".permute({order}).contiguous().permute({[order.index(axis) for axis in range(value.ndim)]})"
