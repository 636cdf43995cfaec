"""Compares each new trace with eager on the call that it was made for: the option ``verify``."""

from __future__ import annotations

import logging

import torch.fx

from framefuse.ir.source import Line
from framefuse.ir.values import Arguments, Value
from framefuse.options import Options
from framefuse.verification.case import Case
from framefuse.verification.runs import copied, mapped, tensors
from framefuse.verification.verify import UNVERIFIED, Verification, located

logger = logging.getLogger("framefuse")


def check(graph: torch.fx.Graph, examples: Arguments, line: Line, options: Options) -> Verification | None:
    """Warns, with the smallest program that shows it, where compiled code of a captured graph is not as near to the
    exact results on these inputs as eager is; returns what was found, None where nothing was.
    """
    training = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors(examples))
    settings: dict[str, Value] = {**UNVERIFIED, "numerics": options.numerics, "cpu_target": options.cpu_target}
    case = Case(graph, tuple(mapped(examples, copied)), training)
    where, how = case.differs(settings)
    if not where:
        return None
    found = located(Verification(line.place, where, how), [case], settings)
    logger.warning("%s", found)
    return found
