"""Says whether a compiled result is as near to the exact one as eager's is, or else how it differs."""

from __future__ import annotations

import math

import torch

from framefuse.ir.values import Value

FACTOR = 4.0  # times eager's own largest distance from the exact result
ULPS = 4.0  # and this many units in the last place of the largest element
SPREAD = 8.0  # times how far eager moves with one rounding of its arguments
DOUBLE, TINY = 32.0, 1e-13  # of float64, where eager itself stands for the exact result, and this much of any value


def unlike(
    found: Value,
    expected: Value,
    exact: Value,
    values: bool = True,
    flow: float = 0.0,
    nudged: Value = None,
    factor: float = FACTOR,
) -> str:
    """How nested results differ; empty where they do not. ``exact`` is None where nothing is more exact than eager,
    ``flow`` the size of terms that cancel in them, ``nudged`` what eager gives for arguments one rounding away,
    ``factor`` how many times more than a rounding they may differ where there is no ``exact``.
    """
    if type(found) is not type(expected):
        return f"{_short(found)}, eager {_short(expected)}"
    if isinstance(expected, torch.Tensor):
        return _tensors(found, expected, _tensor(exact), values, flow, _tensor(nudged), factor)
    if isinstance(expected, dict):
        if list(found) != list(expected):
            return f"keys {list(found)}, eager {list(expected)}"
        for key, theirs in expected.items():
            there, beside = (part.get(key) if isinstance(part, dict) else None for part in (exact, nudged))
            text = unlike(found[key], theirs, there, values, flow, beside, factor)
            if text:
                return f"{key}: {text}"
        return ""
    if isinstance(expected, (list, tuple)):
        if len(found) != len(expected):
            return f"length {len(found)}, eager {len(expected)}"
        known, moved = (_parts(part, len(expected)) for part in (exact, nudged))
        for number, (mine, theirs, there, beside) in enumerate(zip(found, expected, known, moved, strict=True)):
            text = unlike(mine, theirs, there, values, flow, beside, factor)
            if text:
                return f"part {number}: {text}"
        return ""
    if isinstance(expected, float) and found != expected and values:  # the item of a tensor, most likely
        known, moved = (torch.tensor(part) if isinstance(part, float) else None for part in (exact, nudged))
        return _tensors(torch.tensor(found), torch.tensor(expected), known, values, flow, moved, factor)
    same = found == expected or (found != found and expected != expected) or not values
    return "" if same else f"{found!r}, eager {expected!r}"


def _tensor(value: Value) -> torch.Tensor | None:
    return value if isinstance(value, torch.Tensor) else None


def _parts(value: Value, count: int) -> Value:
    return value if isinstance(value, (list, tuple)) and len(value) == count else [None] * count


def _short(value: Value) -> str:
    return f"tensor {value.detach().flatten()[:4].tolist()}" if isinstance(value, torch.Tensor) else f"{value!r:.80}"


def _tensors(
    found: torch.Tensor,
    expected: torch.Tensor,
    exact: torch.Tensor | None,
    values: bool,
    flow: float,
    nudged: torch.Tensor | None,
    factor: float,
) -> str:
    if found.dtype is not expected.dtype or found.shape != expected.shape or found.layout is not expected.layout:
        return f"{found.dtype}{list(found.shape)}, eager {expected.dtype}{list(expected.shape)}"
    if found.requires_grad != expected.requires_grad:
        return f"requires grad {found.requires_grad}"
    if not values or not expected.numel():
        return ""
    if expected.layout is not torch.strided:
        found, expected, exact = found.to_dense(), expected.to_dense(), None
    mine, eager = found.detach().resolve_conj().resolve_neg(), expected.detach().resolve_conj().resolve_neg()
    if eager.is_complex():
        truth = torch.view_as_real(exact.detach().resolve_conj()) if exact is not None and exact.is_complex() else None
        mine, eager = torch.view_as_real(mine), torch.view_as_real(eager)
        return "" if torch.equal(mine, eager) else numbers(mine, eager, truth, flow, factor)
    if torch.equal(mine, eager):
        return ""
    if not eager.is_floating_point():
        wrong = mine != eager
        return f"{mine[wrong][:4].tolist()}, eager {eager[wrong][:4].tolist()}"
    truth = exact.detach() if exact is not None and exact.is_floating_point() else None
    return numbers(mine, eager, truth, max(flow, _moved(eager, nudged)), factor)


def _moved(eager: torch.Tensor, nudged: torch.Tensor | None) -> float:
    """The size of terms that cancel in a result, by how far it moves with a rounding of the arguments. One that moves
    far stands at a step, and says nothing.
    """
    nudged = None if nudged is None else nudged.detach()
    if nudged is None or nudged.shape != eager.shape or nudged.dtype is not eager.dtype:
        return 0.0
    both = eager.isfinite() & nudged.isfinite()
    if not both.any():
        return 0.0
    step, eps = _apart(nudged[both], eager[both]), torch.finfo(eager.dtype).eps
    return SPREAD * step / eps if step <= eps**0.5 * max(1.0, _size(eager[both])) else 0.0


def numbers(
    mine: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor | None, flow: float = 0.0, factor: float = FACTOR
) -> str:
    """How real tensors of equal shape differ."""
    finite: Value = ...
    if not (math.isfinite(_size(eager)) and math.isfinite(_size(mine))):
        finite = eager.isfinite()
        odd = ~finite & ~((mine == eager) | (mine.isnan() & eager.isnan()))
        odd |= finite & ~mine.isfinite()
        if odd.any():
            return f"{mine[odd][:4].tolist()}, eager {eager[odd][:4].tolist()}"
        if not finite.any():
            return ""
    there = truth[finite] if truth is not None and truth.shape == eager.shape else None
    return _distances(mine[finite], eager[finite], there, flow, factor)


def _distances(mine: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor | None, flow: float, factor: float) -> str:
    """How finite numbers differ."""
    eps, size = torch.finfo(eager.dtype).eps, _size(eager)
    allowed = ULPS * eps * max(size, flow) if eps > 1e-15 else DOUBLE * eps * max(size, flow) + TINY
    apart = _apart(mine, eager)
    if apart <= allowed:  # then it is no farther than this from any number that eager is near to
        return ""
    if truth is not None and math.isfinite(_size(truth)):
        own, distance = _apart(eager, truth), _apart(mine, truth)
        if distance <= FACTOR * own + allowed:
            return ""
        if own <= max(1e-2, 8 * eps) * max(_size(truth), size):  # else it is about another
            return f"{distance:.2e} from the exact result, eager {own:.2e}, of {_size(truth):.2e}"
    return "" if apart <= factor * allowed else f"{apart:.2e} from eager's result, of {size:.2e}"


def _size(numbers: torch.Tensor) -> float:
    """The largest magnitude; infinite or NaN where some number is."""
    low, high = (abs(float(end)) for end in numbers.aminmax())
    return max(low, high) if low == low else low


def _apart(here: torch.Tensor, there: torch.Tensor) -> float:
    """The largest distance of two tensors, in at least 32 bits."""
    wide = torch.promote_types(torch.promote_types(here.dtype, there.dtype), torch.float32)
    return float(torch.linalg.vector_norm(here.to(wide) - there.to(wide), math.inf))
