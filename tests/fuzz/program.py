"""Puts a whole program together: definitions, the entry function, its calls; as text that runs on its own."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.fuzz.calls import Parameters, Script, parameters
from tests.fuzz.choice import Choice
from tests.fuzz.definitions import DEFINITIONS, HEAD, NET
from tests.fuzz.scope import Kind, Scope
from tests.fuzz.statements import TABLE, result, statements

# Features that are in fewer programs than the others, which are in three of five.
RARE = {
    "supers": 30, "keyed": 30, "items": 45, "print": 40, "errors": 35, "risk": 15, "with": 45, "wild": 15, "random": 20,
}  # fmt: skip
OTHERS = {"views", "shapes", "items", "wild", "random", "numbers", "supers", "keyed"}  # beside those of statements

# What stands before the entry function, its first line, and what stands after it.
ENTRIES: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "function": ((), "def target({}):", ()),
    "module": ((NET,), "    def forward(self, {}):", ("", "target = NET = Net()")),
    "object": (("class Runner(Box):",), "    def __call__(self, {}):", ("", "target = RUNNER = Runner(2)")),
    "method": (("class Runner(Box):",), "    def run(self, {}):", ("", "RUNNER = Runner(2)", "target = RUNNER.run")),
    "closure": (("def make(cell):",), "    def target({}):", ("", "    return target", "", "target = make(2)")),
}


@dataclass(frozen=True)
class Program:
    """``source`` defines ``target``, the function or module to compile, and ``calls``, which yields its arguments.

    ``grad`` is the gradient mode of the calls; in a program that ``trains`` their arguments require grad; ``dynamic``
    and ``backend`` go to ``framefuse.compile``.
    """

    source: str
    grad: bool = False
    dynamic: bool | None = None
    backend: str = "native"
    trains: bool = False

    def __str__(self) -> str:
        trains = ", trains" if self.trains else ""
        settings = f"grad mode {self.grad}{trains}, dynamic={self.dynamic}, backend={self.backend!r}"
        return f"# {settings}\n{self.source}"


def written(choice: Choice) -> Program:
    """A program of some ten statements with three to six calls."""
    backend = choice.pick(["native", "eager"])
    features = frozenset(
        name
        for name in sorted({row[2] for row in TABLE} - {""} | OTHERS)
        if choice.chance(RARE.get(name, 60))
    )
    entry = "module" if "module" in features else choice.pick(("function",) * 4 + ("closure", "object", "method"))
    given = parameters(choice)
    lines, helpers = _definition(choice, features, given, entry)
    script = Script(choice, given, entry).write()
    grad = choice.chance(30)
    trains = grad and choice.chance(70)
    dynamic = choice.pick([None] * 8 + [False])
    return Program(_assemble(helpers, lines, script), grad, dynamic, backend, trains)


def _definition(
    choice: Choice, features: frozenset[str], given: Parameters, entry: str
) -> tuple[list[str], list[str]]:
    """The entry function's lines, and the lines of the helpers that it may call."""
    helpers: list[str] = []
    names: tuple[str, ...] = ()
    if "calls" in features:
        for name in ("first", "second")[: choice.between(0, 2)]:
            scope = Scope(choice, features - {"module", "closures", "calls"}, fuel=4)
            scope.variables = {"a": Kind("T", ("n", "m")), "n": Kind("int"), "k": Kind("float")}
            scope.outer = ("plain",)
            statements(scope, 3)
            helpers += [f"def {name}(a, n=1, *, k=0.5):", *scope.lines, f"    return {result(scope)}", ""]
            names += (name,)
    before, head, after = ENTRIES[entry]
    scope = Scope(choice, features, fuel=18, module=entry == "module", outer=names, level=2 if before else 1)
    scope.variables = dict(given.kinds)
    if choice.chance(50):
        scope.variables["BOX"] = Kind("box")
    if choice.chance(30):
        scope.variables["TABLE"] = Kind("dict")
    if entry in ("object", "method"):
        scope.variables["self"] = Kind("box")
    if entry == "closure":
        scope.variables["cell"] = Kind("int")
        scope.emit("nonlocal cell")
    for _ in range(choice.pick([1, 4, 2, 3])):  # a drawn count, mostly several
        statements(scope, 5)
    scope.emit(f"return {result(scope)}")
    return [*before, head.format(given.signature()), *scope.lines, *after], helpers


def _assemble(helpers: list[str], lines: list[str], script: list[str]) -> str:
    body = "\n".join(helpers + lines + script)
    used: set[str] = set()
    pending = _named(body)
    while pending - used:
        used |= pending
        pending = {name for defined in pending for name in NEEDS[defined]}
    parts = [HEAD] + [f"{text}\n" for name, text in DEFINITIONS.items() if name in used]
    parts += ["\n".join(helpers)] if helpers else []
    parts += ["\n".join(lines) + "\n"]
    names = ("SCALE", "WEIGHT", "total", "pair", "first", "BOX", "LOG", "TABLE", "RATES", "twice")
    changed = [name for name in names if any(line.strip().startswith(f"{name} = ") for line in script)]
    globals_ = [f"    global {', '.join(changed)}"] if changed else []
    return "\n".join([*parts, "\n".join(["def calls():", *globals_, *script])]) + "\n"


def _named(text: str) -> set[str]:
    """The definitions that a text names, rather than makes."""
    return set(re.findall(r"(?<![\w.])(?<!def )[A-Za-z]\w*", text)) & DEFINITIONS.keys()


NEEDS = {name: _named(text) for name, text in DEFINITIONS.items()}
