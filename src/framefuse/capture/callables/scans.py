"""Scans by a function of the user, written in Python so that the interpreter records each step."""

from __future__ import annotations

import torch

from framefuse.capture.interp.registry import NAMED_EQUIVALENTS
from framefuse.ir.values import Arguments, Function, Keywords, Value

LONGEST = 64  # steps; torch's own way takes fewer, larger ones, which pays where there are more
PLACE = ("torch._higher_order_ops.associative_scan", "associative_scan")


def associative_scan(
    combine_fn: Function, xs: Value, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Value:
    """All results of ``combine_fn`` over the elements from the first on, in their order."""
    single = isinstance(xs, torch.Tensor)
    parts = [torch.movedim(part, dim, 0).unbind(0) for part in ([xs] if single else xs)]
    steps = list(zip(*parts, strict=True))
    if reverse:
        steps.reverse()
    scanned = [steps[0]]
    for step in steps[1:]:
        if single:
            scanned.append((combine_fn(scanned[-1][0], step[0]),))
        else:
            scanned.append(tuple(combine_fn(type(xs)(scanned[-1]), type(xs)(step))))
    if reverse:
        scanned.reverse()
    results = [torch.movedim(torch.stack(column), 0, dim) for column in zip(*scanned, strict=True)]
    return results[0] if single else type(xs)(results)


def is_short(args: Arguments, kwargs: Keywords) -> bool:
    """Whether the function above makes a scan in few enough steps."""
    given = dict(zip(("combine_fn", "xs", "dim"), args, strict=False)) | kwargs
    xs, dim = given.get("xs"), given.get("dim")
    parts = (xs,) if isinstance(xs, torch.Tensor) else xs
    if len(args) > 3 or not isinstance(parts, (tuple, list)) or type(parts) not in (tuple, list) or not parts:
        return False
    if not isinstance(dim, int) or not all(isinstance(part, torch.Tensor) and 0 <= dim < part.ndim for part in parts):
        return False
    with torch._C.DisableTorchFunction():
        lengths = {part.shape[dim] for part in parts}
        return len(lengths) == 1 and 0 < lengths.pop() <= LONGEST


NAMED_EQUIVALENTS[PLACE] = (is_short, associative_scan)
