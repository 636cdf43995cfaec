"""Puts a whole program together: definitions, the entry function, its calls; as text that runs on its own."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hypothesis import strategies as st
from tests.fuzz.calls import Parameters, Script, parameters
from tests.fuzz.choice import Choice
from tests.fuzz.scope import Kind, Scope
from tests.fuzz.statements import TABLE, result, statements

HEAD = '''import contextlib, dataclasses, math
import torch

def data(seed, *shape):
    """Halves from -2 to 2: sums and products of them are exact in any order."""
    return ((torch.arange(math.prod(shape)) * 5 + seed * 7) % 9 - 4).reshape(shape) / 2

def call(*args, **kwargs):
    return args, kwargs
'''
# Definitions that a program may use; only those that it names are printed.
STATE = {
    "COUNT": "COUNT = [0]",
    "LOG": "LOG = []",
    "TABLE": "TABLE = {'a': data(3, 2), 'z': data(4)}",
    "SCALE": "SCALE = 2.0",
    "WEIGHT": "WEIGHT = data(5)",
    "total": "total = 0",
    "BOX": "BOX = Box(2)",
    "NET": "NET = Net()",
}
DEFINITIONS = {
    "Trouble": "class Trouble(Exception):\n    pass",
    "Box": """class Box:
    kind = 2

    def __init__(self, n):
        self.n = n
        self.w = data(2, 2)
        self.items = [1, 2]
        self.flag = False

    def scaled(self, a):
        self.n += 1
        return a * self.n

    @property
    def twice(self):
        return self.n * 2""",
    "Other": "class Other(Box):\n    kind = 3\n\n    def scaled(self, a):\n        return a + self.kind",
    "Point": "@dataclasses.dataclass\nclass Point:\n    x: object\n    k: int = 1",
    "Guard": """class Guard:
    def __enter__(self):
        LOG.append("in")
        return len(LOG)

    def __exit__(self, kind, error, trace):
        LOG.append(kind.__name__ if kind else "out")
        return kind is Trouble""",
    "scaled": """@contextlib.contextmanager
def scaled(k):
    COUNT[0] += k
    try:
        yield k
    finally:
        COUNT[0] -= k""",
    "bump": "def bump(k):\n    global total\n    total += k\n    return total",
    "raise_if": "def raise_if(flag):\n    if flag:\n        raise Trouble('raised', flag)",
    "star": """def star(a, *rest, k=1, **more):
    for r in rest:
        a = a + r
    return a * k""",
    "keep": "def keep(a, n=2, memo=None):\n    if memo is not None:\n        memo['a'] = a\n    return a * n",
    "pair": "def pair(a, b):\n    return a, b",
    "count_to": "def count_to(n):\n    for i in range(min(n, 4)):\n        yield i\n    return n",
    "doubled": "def doubled(items):\n    for item in items:\n        yield item * 2",
}
# In the order in which they must be defined.
ORDER = (
    "Trouble",
    "Box",
    "Other",
    "Point",
    "COUNT",
    "LOG",
    "TABLE",
    "SCALE",
    "WEIGHT",
    "total",
    "BOX",
    "Guard",
    "scaled",
    "bump",
    "raise_if",
    "star",
    "keep",
    "pair",
    "count_to",
    "doubled",
)
NET = """class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(data(1, 2))
        self.register_buffer("b", data(2, 2))
        self.n = 0
        self.seen = []
"""
# Features that make a program run eagerly in part for now are rarer, so that most programs test compiled code.
RARE = {"items": 25, "print": 25, "errors": 35, "risk": 20, "with": 40, "wild": 20}


@dataclass(frozen=True)
class Program:
    """``source`` defines ``target``, the function or module to compile, and ``calls``, which yields its arguments.

    ``grad`` is the gradient mode of the calls; ``dynamic`` and ``backend`` go to ``framefuse.compile``.
    """

    source: str
    grad: bool = False
    dynamic: bool | None = None
    backend: str = "native"

    def __str__(self) -> str:
        settings = f"grad mode {self.grad}, dynamic={self.dynamic}, backend={self.backend!r}"
        return f"# {settings}\n{self.source}"


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs of some ten statements with three to six calls."""
    choice = Choice(draw)
    backend = choice.pick(["native", "eager"])
    features = frozenset(
        name
        for name in sorted({row[2] for row in TABLE} - {""} | {"views", "shapes", "items", "wild"})
        if choice.chance(RARE.get(name, 60))
    )
    module = "module" in features
    given = parameters(choice)
    lines, used = _definition(choice, features, given, module)
    script = Script(choice, given, module).write()
    grad = choice.chance(10)
    dynamic = choice.pick([None] * 8 + [False])
    return Program(_assemble(used, lines, script, module), grad, dynamic, backend)


def _definition(
    choice: Choice, features: frozenset[str], given: Parameters, module: bool
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
    scope = Scope(choice, features, fuel=14, module=module, outer=names, level=2 if module else 1)
    scope.variables = dict(given.kinds)
    if choice.chance(50):
        scope.variables["BOX"] = Kind("box")
    if choice.chance(30):
        scope.variables["TABLE"] = Kind("dict")
    head = f"    def forward({given.signature('self')}):" if module else f"def target({given.signature()}):"
    scope.level = 2 if module else 1
    for _ in range(choice.pick([1, 4, 2, 3])):  # a drawn count, mostly several
        statements(scope, 4)
    scope.emit(f"return {result(scope)}")
    return [head, *scope.lines], helpers


def _assemble(helpers: list[str], lines: list[str], script: list[str], module: bool) -> str:
    body = "\n".join(helpers + lines + script)
    used: set[str] = set()
    pending = {name for name in ORDER if _names(name, body)}
    while pending:
        used |= pending
        texts = [DEFINITIONS.get(name) or STATE[name] for name in pending]
        pending = {name for name in ORDER if any(_names(name, text) for text in texts)} - used
    parts = [HEAD] + [f"{DEFINITIONS.get(name) or STATE[name]}\n" for name in ORDER if name in used]
    parts += ["\n".join(helpers)] if helpers else []
    if module:
        parts += [NET + "\n" + "\n".join(lines) + "\n", "target = NET = Net()\n"]
    else:
        parts += ["\n".join(lines) + "\n"]
    changed = [
        name
        for name in ("SCALE", "WEIGHT", "total", "pair", "first")
        if any(line.strip().startswith(f"{name} = ") for line in script)
    ]
    globals_ = [f"    global {', '.join(changed)}"] if changed else []
    return "\n".join([*parts, "\n".join(["def calls():", *globals_, *script])]) + "\n"


def _names(name: str, text: str) -> bool:
    return re.search(rf"(?<![\w.])(?<!def ){name}\b", text) is not None
