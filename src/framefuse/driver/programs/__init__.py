"""Keeps on disk what the stages make of a trace, so that a later process records and does nothing of it again."""

from framefuse.driver.programs.programs import PROCESS, Program, program

__all__ = ["PROCESS", "Program", "program"]
