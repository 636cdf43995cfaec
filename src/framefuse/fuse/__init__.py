"""Turns a graph of primitives into a schedule: loop nests, matrix products and library calls, with a memory plan."""

from framefuse.fuse.passes import fuse

__all__ = ["fuse"]
