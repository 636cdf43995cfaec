"""What a program under construction knows: the kinds of its variables, its enabled features and its lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tests.fuzz.choice import Choice

Shape = tuple[object, ...] | None


@dataclass(frozen=True, slots=True)
class Kind:
    """What a variable holds.

    ``name``: T a float tensor whose values are exact in any order of summing, F one that is rounded (it decides
    nothing and is stored nowhere, so that a difference in the last bit stays one), I an int64 tensor, B a bool tensor;
    int, float, bool, str, maybe (None or an int), list, dict, ints, box, point, function. ``shape`` of a tensor holds
    names of sizes and constants, or is None where it is not known.
    """

    name: str
    shape: Shape = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)


@dataclass
class Scope:
    """The text so far of one function, its visible variables, and what the rest of it may use."""

    choice: Choice
    features: frozenset[str]
    variables: dict[str, Kind] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    level: int = 1
    fuel: int = 10
    growing: bool = True
    fresh: int = 0
    module: bool = False
    outer: tuple[str, ...] = ()

    def has(self, feature: str) -> bool:
        """Whether this program draws things of that feature."""
        return feature in self.features

    def emit(self, text: str) -> None:
        """Adds one line at the present indentation."""
        self.lines.append("    " * self.level + text)

    def name(self, prefix: str = "v") -> str:
        """A name that is not in use."""
        self.fresh += 1
        return f"{prefix}{self.fresh}"

    def of(self, *names: str) -> list[str]:
        """The variables of these kinds, newest last."""
        return [name for name, kind in self.variables.items() if kind.name in names]

    @contextmanager
    def block(self) -> Iterator[None]:
        """An indented block; what it defines is forgotten after it, and what it changed is known less well."""
        before = dict(self.variables)
        start = len(self.lines)
        self.level += 1
        yield
        if len(self.lines) == start:
            self.emit("pass")
        self.level -= 1
        for name, kind in before.items():
            after = self.variables.get(name)
            if after != kind:
                same = after is not None and after.name == kind.name
                before[name] = replace(kind, shape=None) if same else Kind("gone")
        self.variables = {name: kind for name, kind in before.items() if kind.name != "gone"}


def define(scope: Scope, text: str, kind: Kind) -> None:
    """Adds an assignment to a new variable."""
    name = scope.name()
    scope.emit(f"{name} = {text}")
    scope.variables[name] = kind
