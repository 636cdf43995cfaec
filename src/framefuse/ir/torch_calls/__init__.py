"""What is known of torch's functions: a row for each, and what follows from a row for the arguments of one call."""

from framefuse.ir.torch_calls.row import Statistics, TorchCall
from framefuse.ir.torch_calls.sizes import sizes_from_data
from framefuse.ir.torch_calls.table import TABLE
from framefuse.ir.torch_calls.writes import counts, declared, is_in_place, norm, statistics, uncounted

__all__ = [
    "TABLE", "Statistics", "TorchCall", "counts", "declared", "is_in_place", "norm", "sizes_from_data", "statistics",
    "uncounted",
]  # fmt: skip
