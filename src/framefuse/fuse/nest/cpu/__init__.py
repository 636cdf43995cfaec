"""The forms of loop nests for a CPU: vector loops in threads, with running results in the caches."""

from framefuse.fuse.nest.cpu.kernels import build_kernels

__all__ = ["build_kernels"]
