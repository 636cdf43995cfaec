"""Optimises loop nests before any emitter sees them: the same passes for every device."""

from framefuse.codegen.optimise.nest import Optimised
from framefuse.codegen.optimise.passes import PASSES, optimised

__all__ = ["PASSES", "Optimised", "optimised"]
