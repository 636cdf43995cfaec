"""The forms of loop nests for a GPU: programs that hold a tile each."""

from framefuse.fuse.nest.gpu.kernels import build_kernels
from framefuse.fuse.nest.gpu.products import build_product

__all__ = ["build_kernels", "build_product"]
