"""Tells the class of a value without asking the value, as ``isinstance`` does where the class itself does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builtins import isinstance as is_a  # mypy narrows by this function alone
else:

    def is_a(value, kinds):
        """Whether the class of ``value`` is one of ``kinds`` or derived from one, whatever class the value names as its
        ``__class__``: proxies and mocks name the one that they stand for.
        """
        return issubclass(type(value), kinds)


__all__ = ["is_a"]
