"""Turns a string that may differ at the next call into a subclass that is handed on unread, or says what was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framefuse.ir.trace import Build


class Text(str):
    """A string with the ``recipe`` that makes it at each call; behaves as its value.

    Whatever looks at it makes the value a fact: of its place, or of the run-time values ``made_of`` which it is made.
    """

    recipe: Build
    made_of: tuple[Any, ...]
    owner: Any

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return str

    def plain(self) -> str:
        """The value, with the fact that it is this one."""
        value = bare_text(self)
        if self.owner.alive:
            if self.recipe.kind == "source":
                self.owner.pinned(frozenset((str(self.recipe.value),)))
                self.owner.sources.fact(self.recipe.value, "str", value, (str, value))
            for part in self.made_of:
                part.plain()
        return value

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (str, (self.plain(),))


def bare_text(value: Text) -> str:
    """The plain string, without any fact."""
    return str.__getitem__(value, slice(None)) if str.__len__(value) else ""


def text(value: str, recipe: Build, made_of: tuple[Any, ...], owner: Any) -> str:
    """``value`` as a run-time string; a plain one when nobody records."""
    if not owner.alive:
        return value
    made = Text(value)
    made.recipe, made.made_of, made.owner = recipe, made_of, owner
    return made


def _reading(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def read(self: Text, *args: Any, **kwargs: Any) -> Any:
        plain = [part.plain() if type(part) is Text else part for part in args]
        return method(self.plain(), *plain, **kwargs)

    read.__name__ = name
    return read


for _name in dir(str):
    if _name not in vars(Text) and _name not in (
        "__class__", "__new__", "__init__", "__getattribute__", "__setattr__", "__delattr__", "__dir__", "__doc__",
        "__init_subclass__", "__subclasshook__", "__reduce__", "__sizeof__", "maketrans", "__getstate__",
    ):  # fmt: skip
        setattr(Text, _name, _reading(_name))
