"""Names what belongs to the program that is recorded: its objects, or tracked numbers in their place."""

from __future__ import annotations

from typing import TypeAlias

from framefuse.ir.values import Arguments, Function, Keywords, Value

Memo: TypeAlias = dict[int, tuple[Value, Value]]  # by id: the object, kept alive, and what stands for it

__all__ = ["Arguments", "Function", "Keywords", "Memo", "Value"]
