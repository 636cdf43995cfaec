"""Makes dataclasses that are frozen to the type checker alone: their methods and objects are made in half the time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        *, frozen: bool = False, eq: bool = True, unsafe_hash: bool = False, **rest: bool
    ) -> Callable[[type], type]:
        """As the standard decorator, without the checks at run time that nobody writes a field: a warm start makes
        some seventy such classes, and each check is compiled for each.
        """

        def make(cls: type) -> type:
            hashed = unsafe_hash or (frozen and eq and "__hash__" not in vars(cls))
            return dataclasses.dataclass(eq=eq, unsafe_hash=hashed, **rest)(cls)

        return make
