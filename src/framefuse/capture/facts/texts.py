"""Turns a string that may differ at the next call into a subclass that is handed on unread, or says what was read."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from framefuse.capture.facts.owner import Owner
from framefuse.ir.trace import Build
from framefuse.ir.values import Function, Value


class Text(str):
    """A string with the ``recipe`` that makes it at each call; behaves as its value.

    Whatever looks at it makes the value a fact: of its place, or of the run-time values ``made_of`` which it is made.
    """

    recipe: Build
    made_of: tuple[Value, ...]
    owner: Owner

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return str

    def plain(self) -> str:
        """The value, with the fact that it is this one."""
        value = bare_text(self)
        if self.owner.alive:
            if self.recipe.kind == "source":
                self.owner.pinned(frozenset((str(self.recipe.value),)))
                self.owner.places.fact(self.recipe.value, "str", value, (str, value))
            for part in self.made_of:
                part.plain()
        return value

    def answers(self, function: Function, before: tuple[Value, ...], behind: tuple[Value, ...], answer: Value) -> bool:
        """States what a function of C gives for this string; False where its value is to be the fact."""
        if not self.owner.alive:
            return True
        if type(answer) not in (bool, int) or self.recipe.kind != "source":
            return False
        return self.owner.places.answer(self.recipe.value, (function, before, behind, answer))

    def method(self, name: str) -> Function | None:
        """A method that asks little of the string, for the call that comes next; None for any other."""
        return getattr(self, name) if name in ASKING else None

    def lacking(self, keys: list[Value]) -> bool:
        """Whether this string is known to be none of the keys of a dict or set."""
        if not all(type(key) is str for key in keys) or bare_text(self) in keys:
            return False
        return self.answers(frozenset.__contains__, (frozenset(keys),), (), False)

    def __bool__(self) -> bool:
        return self != ""

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type, tuple[str]]:
        return (str, (self.plain(),))


def bare_text(value: Text) -> str:
    """The plain string, without any fact."""
    return str.__getitem__(value, slice(None)) if str.__len__(value) else ""


def text(value: str, recipe: Build, made_of: tuple[Value, ...], owner: Owner) -> str:
    """``value`` as a run-time string; a plain one when nobody records."""
    if not owner.alive:
        return value
    tracked = Text(value)
    tracked.recipe, tracked.made_of, tracked.owner = recipe, made_of, owner
    return tracked


def _reading(name: str) -> Function:
    # What is wrong with the other operand is told by the operator, not by the method behind it.
    method = operator.mul if name in ("__mul__", "__rmul__") else getattr(str, name)

    def read(self: Text, *args: Value, **kwargs: Value) -> Value:
        plain = [part.plain() if type(part) is Text else part for part in args]
        return method(self.plain(), *plain, **kwargs)

    read.__name__ = name
    return read


def _asking(name: str) -> Function:
    """A method that tells little of the string: what it answers is the fact, where the arguments are known."""
    method, read = getattr(str, name), _reading(name)

    def ask(self: Text, *args: Value, **kwargs: Value) -> Value:
        plain = tuple([part.plain() if type(part) is Text else part for part in args])
        if kwargs or len(plain) > ARGUMENTS or not all(map(_is_known, plain)):
            return read(self, *plain, **kwargs)
        try:
            answer = method(bare_text(self), *plain)
        except Exception:
            return read(self, *plain)
        return answer if self.answers(method, (), plain, answer) else read(self, *plain)

    ask.__name__ = name
    return ask


ARGUMENTS = 4


def _is_known(argument: Value) -> bool:
    """Whether an argument of a method is the same at each call."""
    kind = type(argument)
    return kind in (str, int, type(None)) or (kind is tuple and all(type(part) is str for part in argument))


# Methods that tell little of a string.
ASKING = frozenset(
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __contains__ startswith endswith find rfind count isalnum isalpha "
    "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper".split()
)
for _name in dir(str):
    if _name not in vars(Text) and _name not in (
        "__class__", "__new__", "__init__", "__getattribute__", "__setattr__", "__delattr__", "__dir__", "__doc__",
        "__init_subclass__", "__subclasshook__", "__reduce__", "__sizeof__", "maketrans", "__getstate__",
    ):  # fmt: skip
        setattr(Text, _name, _asking(_name) if _name in ASKING else _reading(_name))
