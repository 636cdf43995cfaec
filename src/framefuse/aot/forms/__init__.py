"""Functions of torch in terms of simpler ones, for programs that run where torch's library is not.

Each form gives what torch's function gives, to rounding, and is recorded as the program's own code: sizes are run-time
values as there.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from framefuse.aot.forms import (  # noqa: F401 - each fills the table
    arrangements,
    bags,
    convolutions,
    convolutions_on_gpus,
    decompositions,
    found,
    fourier,
    grouped_products,
    linear_equations,
    masked_writes,
    ordering,
    pooling,
    products,
    recurrent_layers,
    resampling,
    special_functions,
    statistics,
    weight_norms,
    window_columns,
    writes_at_positions,
)
from framefuse.aot.forms.registry import ON_GPU, TABLE
from framefuse.capture.interp.registry import Form


def forms(on_gpu: bool = False) -> Mapping[Hashable, Form]:
    """All forms by the functions that they stand for."""
    known = {**TABLE, **dict(grouped_products.of_transformers())}
    return {**known, **ON_GPU} if on_gpu else known
