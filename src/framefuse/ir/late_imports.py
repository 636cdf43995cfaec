"""Stands for functions of modules that are imported when one of them is first needed.

A process that finds all its calls in the cache runs few of the stages, and importing one costs more than such a call.
"""

from __future__ import annotations

import importlib
from typing import Any

_waiting: set[str] = set()  # modules that stand-ins were made for and nobody has imported by one


class Later:
    """The function or class ``name`` of ``module``, which a call of it imports."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(self.module), self.name)(*args, **kwargs)


def later(module: str, name: str) -> Any:
    """Stands for ``name`` of ``module``. What type checkers read beside it is the import itself, under
    ``TYPE_CHECKING``.
    """
    _waiting.add(module)
    return Later(module, name)


def import_all() -> None:
    """Imports every module that something stands for, so that no stage waits for it."""
    while _waiting:
        for module in sorted(_waiting):
            importlib.import_module(module)
            _waiting.discard(module)
