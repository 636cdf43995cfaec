"""Picks the bytecode tables of the running CPython, or none where the interpreter does not know them."""

from __future__ import annotations

import sys
from types import ModuleType

from framefuse.capture.program.versions import py311, py312, py313

TABLES: dict[tuple[int, int], ModuleType] = {(3, 11): py311, (3, 12): py312, (3, 13): py313}

CURRENT: ModuleType | None = TABLES.get(sys.version_info[:2])
