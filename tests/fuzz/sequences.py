"""Draws programs whose arguments are sizes, dimensions and numbers in sequences and in what holds them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.fuzz.choice import Choice
from tests.fuzz.definitions import HEAD
from tests.fuzz.program import Program

CLASSES = """
@dataclasses.dataclass
class Config:
    a: object = (2, 3)
    b: object = 0
    c: object = None

@dataclasses.dataclass(frozen=True)
class Frozen:
    a: object = (2, 3)
    b: object = 0
    c: object = None

Row = collections.namedtuple('Row', 'a b c', defaults=((2, 3), 0, None))

class Holder:
    def __init__(self, a=(2, 3), b=0, c=None):
        self.a, self.b, self.c = a, b, c

class Sizes(tuple):
    pass

class Listed(list):
    pass

HELD = Holder()

def either(s, other):
    return other if s is None else s

def one(s):
    return s if isinstance(s, (int, float)) else s[0]
"""
# What a program does with a value of a role: {x} is a tensor of the program, {s} the value, as the program reaches it.
USES: dict[str, tuple[str, ...]] = {
    "shape": (
        "{x}.view({s})", "{x}.reshape({s})", "{x}.reshape(*{s})", "torch.reshape({x}, {s})", "{x}.view(*{s}) * 2",
        "{x}.reshape(tuple({s}))", "{x}.reshape(list({s}))", "{x}.reshape(torch.Size({s}))",
        "{x}.reshape(-1, {s}[-1])", "{x}.reshape([{s}[0], -1])", "{x}.reshape((1, *{s}))", "{x}.reshape({s}[::-1])",
        "{x}.reshape(shape={s})", "{x}.reshape([i for i in {s}])", "{x}.flatten().view({s})",
        "{x}.flatten().unflatten(0, {s})", "torch.ops.aten.view.default({x}.contiguous(), {s})",
        "{x}.as_strided({s}, [1] * len({s}))", "{x}.new_empty({s}).copy_({x}.reshape({s}))",
    ),
    "sizes": (
        "torch.zeros({s}) + {x}.sum()", "torch.zeros(*{s}) + {x}.sum()", "torch.ones(size={s}) * {x}.sum()",
        "{x}.new_full({s}, 2)", "{x}.new_zeros({s}) + {x}.amax()", "torch.full({s}, {x}.numel()) * 0.5",
        "torch.empty({s}).fill_(2) + {x}.sum()", "{x}.sum().expand({s})", "{x}.sum().repeat({s})",
        "{x}.sum().expand(*{s})", "{x}.sum().broadcast_to({s})", "torch.broadcast_to({x}.sum(), {s})",
        "{x} * len({s})", "{x} * sum({s})", "{x} * math.prod({s})", "{x} * {s}[0]", "{x} + {s}[-1]",
        "{x} + max({s}) - min({s})", "{x} * ({s}[0] > 2)", "{x} if {s}[0] > 2 else -{x}", "{x} + (2 in {s})",
        "{x} * ({s} == (2, 3))", "{x} * ({s} == [2, 3])", "{x} + (tuple({s}) > (2, 2))", "{x} + sorted({s})[0]",
        "{x} + torch.tensor({s}).sum()", "{x} + torch.tensor(sum(i * j for j, i in enumerate({s}, 1)))",
        "{x}.flatten().repeat({s})", "torch.tile({x}.flatten(), {s})", "{x}.sum().expand(({s}[0], *{s}))",
        "torch.nn.functional.interpolate({x}.flatten()[None, None, None], {s}[:2])", "{x} + dict(enumerate({s}))[0]",
        "torch.randint(0, 3, {s}) + {x}.sum()", "torch.rand({s}).round() + {x}.sum()",
        "torch.eye(*{s}[:2]) + {x}.sum()",
        "torch.nn.functional.adaptive_avg_pool2d({x}.flatten()[None, None], {s}[:2]).round()",
        "{x} + functools.reduce(lambda p, q: p * q, {s})", "{x} * (lambda p, q, *r: p - q)(*{s})",
        "{x} * hash(tuple({s}))", "{x} * len({{{s}[0], 2}})", "{x} + {{2: 1, 3: 5}}.get({s}[0], 7)",
        "{x} + isinstance({s}, tuple) + 2 * isinstance({s}, list) + 4 * isinstance({s}, torch.Size)",
        "{x} + len(str({s}))", "{x} + any(i > 2 for i in {s})", "{x} + {s}.count(2)", "{x} * {s}.index({s}[1])",
        "torch.stack([{x} * i for i in {s}])", "torch.zeros({s}).new_ones({s}).sum() * {x}",
        "torch.arange(math.prod({s})).view({s}) + {x}.sum()",
        "torch.empty_strided({s}, [1] * len({s})).zero_() + {x}.sum()",
        "torch.linspace(0, {s}[0], {s}[1] + 1) + {x}.sum()", "torch.zeros({s}[0], {s}[1]) + {x}.sum()",
        "torch.zeros(({s}[0],) + tuple({s}[1:])) + {x}.sum()", "{x}[:{s}[0]]", "{x}[..., :{s}[-1]]",
        "{x}.narrow(0, 0, min({s}[0], {x}.shape[0]))", "{x}.unfold(0, min({s}[0], {x}.shape[0]), 1)",
        "torch.nn.functional.one_hot(torch.arange({s}[0]), {s}[0] + 1) + {x}.sum()",
        "torch.nn.functional.layer_norm(torch.ones({s}), {s}) + {x}.sum()", "torch.normal({x}.sum(), 1.0, {s}) * 0",
        "torch.zeros({s}).index_fill_(0, torch.tensor([0]), 2) + {x}.sum()", "{x} + torch.Size({s}).numel()",
        "{x}.new_tensor({s}).sum() + {x}", "{x} + torch.tensor([{s}, {s}]).sum()", "{x} * len({s})",
        "{x} + torch.zeros({s}).shape[0]", "{x} * (torch.zeros({s}).shape == torch.Size({s}))",
        "{x} * torch.broadcast_shapes({s}, (1,))[0]",
    ),
    "dims": (
        "{x}.permute({s})", "{x}.permute(*{s})", "torch.permute({x}, {s})", "{x}.permute(dims={s})",
        "{x}.movedim({s}, {s}[::-1])", "{x}.transpose({s}[0], {s}[-1])", "{x}.permute([*{s}]).contiguous()",
        "{x}.permute(tuple(reversed({s})))", "{x}.permute({s}).reshape(-1)", "{x}.sum({s}[0])",
        "{x}.unsqueeze({s}[0])", "{x}.flip({s})", "torch.moveaxis({x}, {s}, tuple(range(len({s}))))",
        "{x}.permute([sorted({s}).index(i) for i in {s}])", "torch.stack([{x}, {x}], {s}[0])",
        "torch.cat([{x}, {x}], dim={s}[-1])",
    ),
    "axes": (
        "{x}.sum({s})", "{x}.sum(dim={s})", "{x}.sum({s}, keepdim=True)", "torch.sum({x}, {s})", "{x}.mean({s})",
        "{x}.amax({s})", "{x}.amin({s}, True)", "{x}.flip({s})", "torch.flip({x}, {s})", "{x}.std({s}, correction=0)",
        "{x}.var(dim={s}, unbiased=False)", "torch.logsumexp({x}, {s})", "{x}.norm(dim={s})", "{x}.sum(axis={s})",
        "torch.linalg.vector_norm({x}, dim={s})", "{x}.squeeze({s})", "{x}.roll([1] * len({s}), {s})",
        "torch.count_nonzero({x}, {s})", "torch.var_mean({x}, {s}, correction=0)[1]", "{x}.nansum({s})",
        "{x} - {x}.mean({s}, keepdim=True)", "{x}.sum([*{s}])", "sum({x}.sum(d) for d in {s}).sum()",
        "{x}.softmax({s}[0])", "{x}.cumsum({s}[-1])", "{x}.all({s})", "{x}.sum({s}[0], dtype=torch.float64)",
        "torch.fft.fftn({x}, dim={s}).abs()", "torch.rot90({x}, 1, [0, 1]) + len({s})",
        "torch.nn.functional.normalize({x}, dim={s}[0])", "torch.amax({x}, dim={s})",
        "{x}.index_select({s}[0], torch.tensor([0]))", "torch.tensordot({x}, {x}, dims=({s}, {s}))",
    ),
    "pad": (
        "torch.nn.functional.pad({x}, {s})", "torch.nn.functional.pad({x}, pad={s}, value=2)",
        "torch.nn.functional.pad({x}, {s}[:2])", "torch.nn.functional.pad({x}, [*{s}])",
        "torch.nn.functional.pad({x}[None], {s}[:2], mode='replicate')", "torch.constant_pad_nd({x}, {s}, 1.5)",
        "{x}.roll({s}[0])", "{x}.roll({s}[:2], (0, 1))", "{x} + sum({s})",
        "torch.nn.functional.avg_pool2d(torch.nn.functional.pad({x}[None], {s}), (1, 2), padding=(0, {s}[0] % 2))",
        "torch.nn.functional.conv2d({x}[None, None].flatten(2, -2), torch.ones(1, 1, 1, 1), padding={s}[:2])",
    ),
    "parts": (
        "{x}.split({s})[0]", "{x}.split({s})[-1]", "torch.split({x}, {s}, 0)[1]", "torch.split({x}, list({s}))[0]",
        "{x}.split_with_sizes({s})[0]", "torch.cat([p * 2 for p in {x}.split({s})])", "{x}.tensor_split({s}[:1])[0]",
        "torch.stack([p.sum() for p in torch.split({x}, {s})])", "{x}[{s}[0]:]", "{x}.split(split_size={s})[0]",
        "{x}.repeat_interleave(torch.tensor([1 + {s}[0]] * {x}.shape[0]), 0)",
        "{x}.tensor_split({s})[-1]",
    ),
    "index": (
        "{x}[{s}]", "{x}[list({s})]", "{x}[tuple({s})[:1]]", "{x}[{s}, :]", "{x}[:, {s}]", "{x}[..., {s}]",
        "{x}[{s}[0]]", "{x}[torch.tensor({s})]", "{x}.index_select(0, torch.tensor({s}))",
        "torch.stack([{x}[i] for i in {s}])", "{x}[{s}, {s}]", "{x}[{s}[0]:][:1]", "{x}[[*{s}]]",
        "{x}.select(0, {s}[0])", "{x}.index_fill(0, torch.tensor({s}), 2)", "{x}[min({s}):max({s}) + 1]",
        "{x}.take(torch.tensor({s}))", "{x}[slice(*{s})]", "{x}[slice(None, {s}[0]), ..., None]",
    ),
    "number": (
        "{x} * {s}", "{x} + {s}", "{x} / 2 - {s}", "{x}.clamp(max={s})", "{x}.add({x}, alpha={s})",
        "torch.where({x} > {s}, {x}, {s})", "torch.full_like({x}, {s})", "torch.full((2,), {s})",
        "torch.tensor({s}) * {x}", "torch.tensor([{s}, 1]).sum() + {x}", "{x} ** {s}",
        "{x}.masked_fill({x} > 0, {s})", "{x}.long() * {s}", "{x}.long() + {s}", "{x}.bool() * {s}",
        "{x} * (1 if {s} else 2)", "{x} + isinstance({s}, bool) + 2 * isinstance({s}, float)",
        "{x}.new_full((2,), {s})", "{x} * {s} if {s} > 1 else {x}", "{x} + (not {s})", "{x} * -{s}",
        "torch.arange(0, {s}, 1) + {x}.sum()", "{x} * round({s}) + int({s})", "torch.lerp({x}, {x} + 1, {s})",
        "{x} + len(str({s}))", "{x} * max({s}, 1)", "torch.add({x}, {s})", "{x}.fill_diagonal_({s}) * 1",
        "torch.nn.functional.dropout({x}, 0.5, bool({s}))", "{x} + {{0: 2, 1: 3}}.get({s}, 4)",
        "torch.nn.functional.leaky_relu({x}, {s})", "torch.result_type({x}, {s}) == {x}.dtype and {x}",
        "torch.scalar_tensor({s}) + {x}", "torch.zeros(2) + {s} + {x}.sum()", "torch.asarray({s}) * {x}",
    ),
    "numbers": (
        "{x} * {s}[0] + {s}[1]", "torch.tensor({s}) * {x}.sum()", "{x} * sum({s})", "sum({x} * f for f in {s})",
        "{x}.clamp(*sorted({s})[:2])", "{x}.clamp({s}[0], {s}[1])", "torch.stack([{x} * f for f in {s}])",
        "{x} * max({s})", "torch.as_tensor({s}).sum() + {x}", "{x}.new_tensor({s}).sum() * {x}",
        "torch._foreach_mul([{x}, {x} + 1], {s}[:2])[1]", "{x} * ({s}[0] == {s}[1])",
        "[{x} * f for f in {s} if f > 1][-1]", "{x} + {x}.new_tensor([[f, f] for f in {s}]).sum()",
        "torch.tensor([*{s}, 2]).sum() + {x}", "{x} + sum(isinstance(f, float) for f in {s})",
    ),
    "maybe": (
        "{x} if {s} is None else {x} + {s}", "{x} + (0 if {s} is None else 1)",
        "torch.nn.functional.linear({x}, {x}, {s})", "{x}.clamp(max={s})", "{x} * either({s}, 2)",
        "torch.nn.functional.layer_norm({x}, {x}.shape[-1:], {s})", "{x} + (2 if {s} is None else {s} * 3)",
        "{x} + (torch.is_tensor({s}) and 1 or 2)", "{x}.add({s} if {s} is not None else {x})",
        "torch.clamp({x}, {s}, {s})",
    ),
}  # fmt: skip
NUMBERS = ("2", "3", "2.0", "1.5", "True", "False", "0", "1", "0.5", "-1", "1.0", "4", "0.0")
SEQUENCES = ("({})", "({})", "[{}]", "[{}]", "torch.Size([{}])", "Sizes([{}])", "Listed([{}])")
ROLES = ("shape", "sizes", "sizes", "dims", "axes", "pad", "parts", "index", "number", "numbers", "maybe")
# How a value is given: the parameter, the argument, and what the program calls it. {p} is the place, {v} the value.
PLACES: tuple[tuple[str, str, str], ...] = (
    ("{p}", "{v}", "{p}"),
    ("{p}", "{v}", "{p}"),
    ("{p}={v}", "", "{p}"),
    ("{p}=None", "{p}={v}", "{p}"),
    ("*, {p}", "{p}={v}", "{p}"),
    ("**more", "{p}={v}", "more['{p}']"),
    ("*{p}", "*{v}", "{p}"),
    ("{p}", "{{'k': {v}}}", "{p}['k']"),
    ("{p}", "{{'k': [{v}, 2]}}", "{p}['k'][0]"),
    ("{p}", "[{v}, x]", "{p}[0]"),
    ("{p}", "({v}, 3)", "{p}[0]"),
    ("{p}", "(x, ({v},))", "{p}[1][0]"),
    ("{p}", "Config({v})", "{p}.a"),
    ("{p}", "Config(b={v})", "{p}.b"),
    ("{p}", "Frozen({v}, 2)", "{p}.a"),
    ("{p}", "Row({v}, c=x)", "{p}.a"),
    ("{p}", "Holder(c={v})", "{p}.c"),
    ("{p}", "Config(Row(1, {v}))", "{p}.a.b"),
    ("{p}", "iter([{v}])", "next({p})"),
    ("{p}", "lambda: {v}", "{p}()"),
    ("{p}", "functools.partial(Config, {v})", "{p}().a"),
    ("", "", "HELD.{p}"),
    ("", "", "{P}"),
    ("", "", "TABLE['{p}']"),
)
LISTS = ("{s}.reverse()", "{s}.append({s}[0])", "{s}[0] = {s}[-1]", "{s}[:] = {s}[:1]", "{s}.sort()", "{s} = {s}[::-1]")


@dataclass
class Given:
    """One argument: its role, its place, and how its sequences are written."""

    name: str
    role: str
    place: tuple[str, str, str]
    sequence: str

    def parameter(self, value: str) -> str:
        return self.place[0].format(p=self.name, v=value)

    def argument(self, value: str) -> str:
        return self.place[1].format(p=self.name, v=value)

    def access(self) -> str:
        return self.place[2].format(p=self.name, P=self.name.upper())


@dataclass
class Draft:
    """A program under construction."""

    choice: Choice
    shape: list[int] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def value(self, given: Given) -> str:
        """What the argument holds in the next call: mostly something that its uses take."""
        choice, shape, role = self.choice, self.shape, given.role
        if role == "number":
            return choice.pick(NUMBERS)
        if role == "maybe":
            last = shape[-1]
            return choice.pick(("None", "None", f"data(3, {last})", f"data(4, {last})", "1.5"))
        count = max(1, shape[0])
        if role == "numbers":
            parts = [choice.pick(NUMBERS) for _ in choice.several(2, 3)]
        elif role == "shape":
            whole = 1
            for size in shape:
                whole *= size
            factors = [size for size in (1, 2, 3, 4, 5, 6) if size and whole % size == 0] or [1]
            first = choice.pick(factors)
            forms = [shape, shape[::-1], [first, whole // first], [first, -1], [-1, first], [1, *shape], [whole, 1]]
            parts = [str(size) for size in choice.pick(forms)]
        elif role == "sizes":
            parts = [str(choice.pick((2, 3, 1, 4, 5, 2))) for _ in choice.several(2, 3)]
        elif role == "dims":
            order = list(range(len(shape)))
            turn = choice.below(len(shape))
            order = order[turn:] + order[:turn]
            order = order[::-1] if choice.chance(40) else order
            parts = [str(d - len(shape) if choice.chance(20) else d) for d in order]
        elif role == "axes":
            picked = [d for d in range(len(shape)) if choice.chance(60)] or [choice.below(len(shape))]
            parts = [str(d - len(shape) if choice.chance(30) else d) for d in picked]
        elif role == "pad":
            parts = [str(choice.pick((1, 0, 2, 1))) for _ in range(choice.pick((4, 4, 2)))]
        elif role == "parts":
            first = choice.between(0, shape[0])
            parts = [str(first), str(shape[0] - first)]
        else:
            parts = [str(choice.below(count) - (count if choice.chance(20) else 0)) for _ in choice.several(1, 3)]
        body = ", ".join(parts)
        sequence = given.sequence if choice.chance(85) else choice.pick(SEQUENCES)
        if "." in body or "True" in body or "False" in body:
            sequence = sequence.replace("torch.Size", "list")
        return sequence.format(f"{body}," if sequence == "({})" else body)

    def tensor(self, seed: int) -> str:
        sizes = ", ".join(map(str, self.shape))
        forms = [f"data({seed}, {sizes})"] * 5 + [f"data({seed}, {', '.join(map(str, self.shape[::-1]))}).permute("
                                                 f"{', '.join(map(str, range(len(self.shape) - 1, -1, -1)))})"]
        return self.choice.pick(forms)


def sequenced(choice: Choice) -> Program:
    """A program of one to five statements over a tensor and up to three other arguments, with four to six calls."""
    draft = Draft(choice)
    rank = choice.pick((2, 2, 3))
    draft.shape = [2, 3, 2][:rank]
    for place in "abc"[: choice.between(1, 3)]:
        row = choice.pick(PLACES)
        # One of each kind of star, and nothing that a signature would not take behind it.
        taken = [given.place[0][:1] for given in draft.given]
        if row[0].startswith("*") and "*" in taken:
            row = PLACES[0]
        draft.given.append(Given(place, choice.pick(ROLES), row, choice.pick(SEQUENCES)))
    for given in draft.given:  # a star spreads a sequence
        if given.place[0].startswith("*{") and given.role in ("number", "maybe"):
            given.role = "sizes"
    body = _body(choice, draft)
    script, defaults = _script(choice, draft)
    order = sorted(draft.given, key=lambda given: _rank(given.place[0]))
    signature = ["x", *(given.parameter(defaults[given.name]) for given in order if given.place[0])]
    names = sorted({given.name.upper() for given in draft.given if given.access() == given.name.upper()})
    state = [f"{name} = (2, 3)" for name in names]
    head = [*state, "TABLE = {}", "", f"def target({', '.join(signature)}):", *body, "", "def calls():"]
    head += [f"    global {', '.join(names)}"] if names else []
    grad = choice.chance(25)
    source = HEAD + CLASSES + "\n" + "\n".join([*head, *script]) + "\n"
    return Program(source, grad, choice.pick([None] * 8 + [False]), choice.pick(["native"] * 4 + ["eager"]), grad)


def _rank(parameter: str) -> int:
    """The place in a signature: plain ones, those with a default, a star, those by name, two stars."""
    if parameter.startswith("**"):
        return 4
    if parameter.startswith("*, "):
        return 3
    return 2 if parameter.startswith("*") else 1 if "=" in parameter else 0


def _body(choice: Choice, draft: Draft) -> list[str]:
    lines, names = [], ["x"]
    for number in choice.several(1, 4):
        given = choice.pick(draft.given)
        text = choice.pick(USES[given.role])
        access = given.access()
        if choice.chance(20) and not access.startswith("next("):
            lines.append(f"s{number} = {_kept(choice, given.role, access)}")
            access = f"s{number}"
        source = "x" if choice.chance(75) else choice.pick(names)
        lines.append(f"v{number} = {text.format(x=source, s=access)}")
        names.append(f"v{number}")
    results = [choice.pick(names[1:]) for _ in choice.several(1, 3)]
    if choice.chance(15):
        given = choice.pick(draft.given)
        results.append(given.access())
    return [f"    {line}" for line in [*lines, f"return [{', '.join(results)}]"]]


def _kept(choice: Choice, role: str, access: str) -> str:
    """The value in another form."""
    if role in ("number", "maybe"):
        return access
    return choice.pick((access, f"tuple({access})", f"list({access})", f"{access}[:]", f"[i for i in {access}]",
                        f"({access}[0], *{access}[1:])", f"[*{access}]", f"sorted({access})"))  # fmt: skip


def _script(choice: Choice, draft: Draft) -> tuple[list[str], dict[str, str]]:
    """The calls, and what the parameters have as defaults."""
    lines: list[str] = []
    defaults: dict[str, str] = {}
    for number in range(choice.between(3, 5)):
        if number and choice.chance(50):
            draft.shape = [choice.pick((2, 3, 4, 1, 5)) for _ in draft.shape]
        if not number or choice.chance(85):
            lines.append(f"x = {draft.tensor(number + 1)}")
        arguments: list[tuple[int, str]] = []
        for given in draft.given:
            value = draft.value(given) if number < 2 or choice.chance(70) else ""
            if not number:
                defaults[given.name] = value
                lines.append(f"{given.name} = {value}")
            elif value:
                lines.append(f"{given.name} = {value}")
            elif choice.chance(50) and given.role not in ("number", "maybe"):
                lines += ["with contextlib.suppress(Exception):", f"    {choice.pick(LISTS).format(s=given.name)}"]
            access, rank = given.access(), _rank(given.place[0])
            if not given.place[0]:
                lines.append(f"{access} = {given.name}")
            elif given.place[1] and not ("=" in given.place[0] and choice.chance(30)):
                arguments.append((2 if "=" in given.place[1][:4] else rank, given.argument(given.name)))
        ordered = [text for _, text in sorted(arguments, key=lambda row: row[0])]
        lines.append(f"yield call({', '.join(['x', *ordered])})")
        if choice.chance(50):  # the same again, of other numbers
            lines += [f"x = {draft.tensor(number + 7)}", lines[-1]]
    return [f"    {line}" for line in lines], defaults
