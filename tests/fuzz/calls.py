"""Draws the calls of a program: the text of its arguments, and what changes from one call to the next."""

from __future__ import annotations

from dataclasses import dataclass

from tests.fuzz.choice import Choice
from tests.fuzz.scope import Kind

SHAPES: tuple[tuple[object, ...], ...] = (
    ("n", "m"),
    ("n", "m"),
    ("n",),
    ("m",),
    (),
    (1, "m"),
    ("n", 1),
    ("n", "m", 2),
)
PLAIN = ("int", "float", "bool", "str", "maybe", "list", "ints", "dict", "box", "point")
STATE = (
    "COUNT[0] = {n}",
    "COUNT.append({n})",
    "LOG.clear()",
    "LOG.append('between')",
    "TABLE['a'] = data({s}, 2)",
    "TABLE.pop('a', None)",
    "TABLE['q'] = data({s})",
    "SCALE = {f}",
    "WEIGHT = data({s})",
    "WEIGHT.add_(1)",
    "BOX.n = {n}",
    "BOX.w = data({s}, 2)",
    "BOX.w.mul_(2)",
    "BOX.items.append({n})",
    "BOX.items = [{n}]",
    "BOX.flag = not BOX.flag",
    "BOX.extra = {n}",
    "BOX.held = BOX",
    "Box.kind = {n}",
    "Box.scaled = lambda self, a: a - self.n",
    "BOX.w = WEIGHT",
    "TABLE['a'] = WEIGHT",
    "total = {n}",
    "BOX.n = {f}",
    "BOX.scaled = lambda a: a * {n}",
    "BOX.__class__ = Other",
    "pair = lambda a, b: (b, a)",
    "keep.__defaults__ = ({n}, None)",
    "WEIGHT = WEIGHT.double()",
    "BOX.items = COUNT",
    "SCALE = int(SCALE)",
    "BOX.w = BOX.w.clone()",
    "first = star",
    "ORDERED.move_to_end('a')",
    "GROUPS.clear()",
    "RATES['a'] = {f}",
    "RATES['b'] = {n}",
    "RATES['c'] = {f}",
    "RATES = dict(reversed(RATES.items()))",
    "GROUPS[{n}] = [1]",
    "SEEN.add({n})",
    "QUEUE.append({n})",
    "VARIABLE.set({n})",
    "os.environ['FRAMEFUSE_FUZZ'] = '{n}'",
    "HELD[1] = HELD[0]",
    "HELD[0] = data({s}, 2)",
    "HELD.append(HELD[0])",
    "NAMES.clear()",
    "NAMES[HELD[0]] = {n}",
    "BAG.append({n})",
    "list.append(BAG, {n})",
    "STORE.pop('a', None)",
    "STORE['z'] = {n}",
    "MARKS.discard({n})",
    "Bag.append = list.append",
    "Store.__missing__ = lambda self, key: {n}",
    "Louder.times = lambda self, a: a - {n}",
    "Loudest.__bases__ = (Scaler,)",
    "Key.__hash__ = lambda self: 1",
    "cached.cache_clear()",
    "Vector.__len__ = lambda self: {n}",
    "SLOTS.n = {n}",
    "LAZY._level = {n}",
    "adder.calls = {n}",
    "Louder.times = Scaler.times",
    "LAZY.anything = {n}",
    "adder.add = lambda a, n: a - n",
    "del SLOTS.w",
    "Point.k = {n}",
    "Box.__bool__ = lambda self: False",
    "Box.extra = {n}",
    "BOX = Box({n})",
    "LOG = [1]",
    "TABLE = dict(TABLE)",
    "math.floor = math.floor",
    "Guard.__exit__ = lambda self, *a: True",
    "twice = keep",
    "Scaler.of = lambda n: Louder(n)",
)
# What takes an argument's place, of another type.
OTHER_TYPES = (
    "None",
    "2",
    "True",
    "1.5",
    "data(3, 2).long()",
    "data(4, 2, 2).double()",
    "data(5)",
    "[]",
    "data(6, 3) > 0",
    "'a'",
    "-0.0",
    "float(repr(1e30))",
    "2**70",
    "torch.nn.Parameter(data(1, 2, 3))",
)
# The same for what the kind of entry has beside it.
ENTRY_STATE: dict[str, tuple[str, ...]] = {
    "object": (
        "RUNNER.n = {n}",
        "RUNNER.w = data({s}, 2)",
        "RUNNER.extra = {n}",
        "Runner.kind = {n}",
        "RUNNER.items = COUNT",
    ),
    "method": (
        "RUNNER.n = {n}",
        "RUNNER.w = data({s}, 2)",
        "RUNNER.flag = True",
        "Runner.kind = {n}",
        "del RUNNER.items[0]",
    ),
    "closure": ("target.__closure__[0].cell_contents = {n}",),
    "module": (
        "NET.n = {n}",
        "NET.train(False)",
        "NET.train()",
        "NET.b.zero_()",
        "NET.b = data({s}, 2)",
        "NET.w.data = data({s}, 2)",
        "NET.w = torch.nn.Parameter(data({s}, 2))",
        "NET.seen = []",
        "NET.seen.append(7)",
        "NET.b = NET.w.detach()",
        "NET.w.requires_grad_(False)",
        "NET.w.data.add_(1)",
        "del NET.seen[:]",
        "NET.extra = torch.nn.Parameter(data({s}, 2))",
        "NET._forward_hooks[1] = lambda m, a, out: LOG.append('hook')",
        "NET.blocks[0].calls = {n}",
        "NET.blocks.append(Block())",
        "NET.linear.weight.data = data({s}, 2, 2)",
        "NET.parts[0] = torch.nn.Identity()",
        "NET.cache.clear()",
        "NET.last = data({s})",
        "NET.total = NET.total + 1",
        "NET.blocks[1].eval()",
        "NET.linear.bias = None",
        "NET.linear.weight = NET.linear.weight",
        "NET.__dict__['forward'] = lambda *a, **k: a[0]",
        "Block.forward = lambda self, a: a - {n}",
        "NET.blocks[1] = NET.blocks[0]",
        "NET.linear.bias = NET.w",
        "NET.w = NET.linear.bias",
        "NET.linear.bias = torch.nn.Parameter(data({s}, 2))",
        "NET.register_buffer('b2', NET.b)",
        "NET.b2 = data({s}, 2)",
        "NET.blocks[0]._forward_pre_hooks[1] = lambda m, a: (a[0] + 1,)",
        "NET.w.tag = {n}",
        "NET.double()",
        "NET.__class__.n = 5",
    ),
}


@dataclass
class Parameters:
    """The parameters of the entry function, by name, with what they hold; ``keywords`` are given by name."""

    kinds: dict[str, Kind]
    keywords: tuple[str, ...]

    def signature(self) -> str:
        plain = [name for name in self.kinds if name not in self.keywords]
        star = ["*", *self.keywords] if self.keywords else []
        return ", ".join(plain + star)


def parameters(choice: Choice) -> Parameters:
    """One to three tensors, and up to four other arguments."""
    kinds: dict[str, Kind] = {}
    for number in choice.several(1, 3):
        kinds["xyz"[number]] = Kind("T", choice.pick(SHAPES))
    for number in choice.several(0, 4):
        kinds[f"{'pqrs'[number]}"] = Kind(choice.pick(PLAIN))
    keywords = tuple(name for name, kind in kinds.items() if kind.name != "T" and choice.chance(20))
    return Parameters(kinds, keywords)


class Script:
    """Writes the generator function ``calls`` of a program: it changes state and yields arguments, call by call."""

    def __init__(self, choice: Choice, parameters: Parameters, entry: str) -> None:
        self.choice = choice
        self.parameters = parameters
        self.entry = entry
        self.sizes = {"n": 2, "m": 3}
        self.seed = 0
        self.lines: list[str] = []

    def write(self) -> list[str]:
        choice = self.choice
        for name, kind in self.parameters.kinds.items():
            self._set(name, kind)
        self._call()
        for _ in choice.several(2, 5):
            for _ in choice.several(0, 2):
                self._change()
            self._call()
        return self.lines

    def _set(self, name: str, kind: Kind) -> None:
        self.lines.append(f"    {name} = {self._value(kind, name)}")

    def _call(self) -> None:
        keywords = self.parameters.keywords
        given = [name for name in self.parameters.kinds if name not in keywords]
        self.lines.append(f"    yield call({', '.join(given + [f'{name}={name}' for name in keywords])})")

    def _change(self) -> None:
        choice, kinds = self.choice, self.parameters.kinds
        form = choice.pick(
            [
                "data",
                "data",
                "sizes",
                "number",
                "number",
                "alias",
                "type",
                "state",
                "state",
                "state",
                "inside",
                "layout",
                "entry",
            ]
        )
        tensors = [name for name, kind in kinds.items() if kind.name == "T"]
        others = [name for name in kinds if name not in tensors]
        if form == "sizes":
            self.sizes = {"n": choice.pick([2, 3, 5, 1, 0]), "m": choice.pick([3, 2, 5, 1, 0])}
        if form in ("data", "sizes"):
            for name in tensors:
                self._set(name, kinds[name])
        elif form == "layout":
            name = choice.pick(tensors)
            self._set(name, kinds[name])
        elif form == "number" and others:
            name = choice.pick(others)
            self._set(name, kinds[name])
        elif form == "alias":
            a = choice.pick(tensors)
            b = choice.pick([name for name, kind in kinds.items() if kind == kinds[a]])
            self._carefully(
                f"{a} = {choice.pick([b, f'{b}[...]', f'{b}.detach()', f'{b}[:1]', f'{b}.clone()', 'BOX.w', 'WEIGHT'])}"
            )
        elif form == "type":
            name = choice.pick(list(kinds))
            self.lines.append(f"    {name} = {choice.pick(OTHER_TYPES)}")
        elif form == "inside" and others:
            name = choice.pick(others)
            self._inside(name, kinds[name].name)
        elif form == "entry" and self.entry in ENTRY_STATE:
            self._state(ENTRY_STATE[self.entry])
        else:
            self._state(STATE)

    def _state(self, rows: tuple[str, ...]) -> None:
        self.seed += 1
        choice = self.choice
        text = choice.pick(rows).format(n=choice.pick([1, 2, 0, 3, 300]), f=choice.pick([0.5, 1.0, 2.5]), s=self.seed)
        self._carefully(text)

    def _inside(self, name: str, kind: str) -> None:
        """Changes an argument without making a new one."""
        choice = self.choice
        a = next(iter(self.parameters.kinds))
        forms = {
            "list": [
                f"{name}.append({a})",
                f"{name}.reverse()",
                f"{name}[:] = {name}[:1]",
                f"{name} = {name} + {name}",
                f"{name}.append({name}[0])",
            ],
            "ints": [f"{name}.append(2)", f"{name}.clear()", f"{name}[:] = [3, 1]"],
            "dict": [
                f"{name}['b'] = {a}",
                f"{name}['a'] = {name}.pop('a')",
                f"{name}.clear()",
                f"{name}['a'] = 2.5",
                f"{name} = TABLE",
            ],
            "box": [
                f"{name}.n = 5",
                f"{name}.w = {a}",
                f"{name}.extra = 1",
                f"{name}.flag = True",
                f"{name} = BOX",
                f"{name}.items = BOX.items",
            ],
            "point": [f"{name}.k = 1", f"{name}.x = {a}", f"{name} = Point({name}.x, 2)"],
        }.get(kind, [f"{name} = {self._value(Kind(kind), name)}"])
        text = choice.pick(forms)
        self._carefully(text)

    def _carefully(self, text: str) -> None:
        """A change that an earlier one may have made impossible."""
        self.lines += ["    with contextlib.suppress(Exception):", f"        {text}"]

    def _value(self, kind: Kind, name: str) -> str:
        choice = self.choice
        self.seed += 1
        if kind.name == "T":
            return self._tensor(
                [size if isinstance(size, int) else self.sizes[str(size)] for size in kind.shape or ()]
            )
        forms = {
            "int": ["2", "3", "1", "0", "-1", "5", "7"],
            "float": ["0.5", "2.0", "1.5", "0.0", "-1.5", "1.0"],
            "bool": ["True", "False"],
            "str": ["'a'", "'b'", "'ab'", "''"],
            "maybe": ["None", "2", "0"],
            "ints": ["[1, 2]", "[]", "[3, 1, 2]", "[0]"],
            "box": ["Box(2)", "BOX", "Box(3)"],
            "point": ["Point(data(8, 2))", "Point(data(9, 2), 3)", "Point(x, 2)"],
            "list": [
                "[x, data(7, 2)]",
                "[data(1, 2), data(2, 2)]",
                "[x]",
                "[x, x]",
                "[]",
                "[data(1, 3), x, data(2)]",
            ],
            "dict": ["{'a': x}", "{'b': data(4, 2), 'a': x}", "{}", "{'a': data(5)}", "{'a': x, 'c': x}"],
        }[kind.name]
        return choice.pick(forms)

    def _tensor(self, sizes: list[int]) -> str:
        choice, seed = self.choice, self.seed
        text = ", ".join(map(str, [seed, *sizes]))
        forms = [f"data({text})"] * 4
        if sizes:
            first, rest = sizes[0], sizes[1:]
            larger = ", ".join(map(str, [seed, first + 1, *rest]))
            spread = ", ".join(map(str, [seed, *sizes[:-1], sizes[-1] * 2]))
            forms += [f"data({larger})[1:]", f"data({spread})[..., ::2]", f"data({text}).flip(0)"]
            if rest:
                turned = ", ".join(map(str, [seed, *sizes[::-1]]))
                forms += [f"data({turned}).permute({', '.join(map(str, range(len(sizes) - 1, -1, -1)))})"]
            one = ", ".join(map(str, [seed, 1, *rest]))
            forms += [f"data({one}).expand({', '.join(map(str, sizes))})"]
        return choice.pick(forms)
