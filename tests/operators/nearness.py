"""Says whether a compiled result is as near to the exact one as eager's is, or else how it differs."""

from __future__ import annotations

from typing import Any

import torch

FACTOR = 4.0  # times eager's own largest distance from the exact result
ULPS = 4.0  # and this many units in the last place of the largest element
DOUBLE, TINY = 32.0, 1e-13  # of float64, where eager itself stands for the exact result, and this much of any value


def unlike(found: Any, expected: Any, exact: Any, values: bool = True, flow: float = 0.0) -> str:
    """How nested results differ; empty where they do not. ``exact`` is None where nothing is more exact than eager,
    ``flow`` the size of terms that cancel in them.
    """
    if type(found) is not type(expected):
        return f"{_short(found)}, eager {_short(expected)}"
    if isinstance(expected, torch.Tensor):
        return _tensors(found, expected, exact if isinstance(exact, torch.Tensor) else None, values, flow)
    if isinstance(expected, dict):
        if list(found) != list(expected):
            return f"keys {list(found)}, eager {list(expected)}"
        known = list(exact.values()) if isinstance(exact, dict) else None
        return unlike(list(found.values()), list(expected.values()), known, values, flow)
    if isinstance(expected, (list, tuple)):
        if len(found) != len(expected):
            return f"length {len(found)}, eager {len(expected)}"
        fits = isinstance(exact, (list, tuple)) and len(exact) == len(expected)
        known = exact if fits else [None] * len(expected)
        parts = enumerate(zip(found, expected, known, strict=True))
        return next((f"part {n}: {text}" for n, trio in parts if (text := unlike(*trio, values, flow))), "")
    same = found == expected or (found != found and expected != expected) or not values
    return "" if same else f"{found!r}, eager {expected!r}"


def _short(value: Any) -> str:
    return f"tensor {value.detach().flatten()[:4].tolist()}" if isinstance(value, torch.Tensor) else f"{value!r:.80}"


def _tensors(found: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor | None, values: bool, flow: float) -> str:
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
        return numbers(torch.view_as_real(mine), torch.view_as_real(eager), truth, flow)
    if not eager.is_floating_point():
        wrong = mine != eager
        return f"{mine[wrong][:4].tolist()}, eager {eager[wrong][:4].tolist()}" if wrong.any() else ""
    return numbers(mine, eager, exact.detach() if exact is not None and exact.is_floating_point() else None, flow)


def numbers(mine: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor | None, flow: float = 0.0) -> str:
    """How real tensors of equal shape differ."""
    finite = eager.isfinite()
    odd = ~finite & ~((mine == eager) | (mine.isnan() & eager.isnan()))
    odd |= finite & ~mine.isfinite()
    if odd.any():
        return f"{mine[odd][:4].tolist()}, eager {eager[odd][:4].tolist()}"
    if not finite.any():
        return ""
    eps = torch.finfo(eager.dtype).eps
    mine, eager = mine[finite].double(), eager[finite].double()
    largest = eager.abs().max()
    largest = max(largest, torch.tensor(flow, dtype=torch.float64))
    allowed = ULPS * eps * largest if eps > 1e-15 else DOUBLE * eps * largest + TINY
    if truth is not None and truth.shape == finite.shape and truth[finite].isfinite().all():
        there = truth[finite].double()
        own = (eager - there).abs().max()
        distance = (mine - there).abs().max()
        if distance <= FACTOR * own + allowed:
            return ""
        if own <= max(1e-2, 8 * eps) * max(there.abs().max(), eager.abs().max()):  # else it is about another
            return f"{distance:.2e} from the exact result, eager {own:.2e}, of {there.abs().max():.2e}"
    distance = (mine - eager).abs().max()
    return "" if distance <= FACTOR * allowed else f"{distance:.2e} from eager's result, of {eager.abs().max():.2e}"
