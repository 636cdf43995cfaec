"""Turns a compiled call into a shared library that runs without Python, and such a library into a callable."""

from framefuse.aot.export import Exported, export
from framefuse.aot.loader import LoadedProgram, load

__all__ = ["Exported", "LoadedProgram", "export", "load"]
