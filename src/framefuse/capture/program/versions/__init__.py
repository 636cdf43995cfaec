"""Picks the bytecode tables of the running CPython, or none where the interpreter does not know them."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

TABLES = {(3, 11): "py311", (3, 12): "py312", (3, 13): "py313"}

NAME = TABLES.get(sys.version_info[:2])
CURRENT: ModuleType | None = None if NAME is None else importlib.import_module(f"{__name__}.{NAME}")
