"""Draws idioms of Python and torch: rows of text with holes for tensors, numbers and containers of the program."""

from __future__ import annotations

from tests.fuzz.expressions import atom, condition, number, numeric, tensor
from tests.fuzz.scope import Kind, Scope, define

# The feature that a program must have, the kind of the new variable (or nothing), and the text. Holes: {T} a tensor
# expression, {x} a tensor variable, {n} an int, {s} an int or float, {c} a condition, {v} a new name, and {list},
# {ints}, {dict}, {box}, {point} a variable of that kind; without one, another row is drawn.
ROWS: tuple[tuple[str, str, str], ...] = (
    # attributes and objects
    ("objects", "int", "getattr({box}, 'n', 3)"),
    ("objects", "int", "getattr({box}, 'missing', {n})"),
    ("objects", "", "setattr({box}, 'n', {n})"),
    ("objects", "", "vars({box})['n'] = {n}"),
    ("objects", "int", "{box}.__dict__.get('n', 0)"),
    ("objects", "int", "len({box}.items) + {n}"),
    ("objects", "", "{box}.n, {box}.flag = {n}, {c}"),
    ("objects", "box", "copy.copy({box})"),
    ("objects", "point", "dataclasses.replace({point}, k={n})"),
    ("objects", "T", "{point}.x"),
    ("objects", "int", "{point}.k + 1"),
    ("objects", "", "{point}.k = {n}"),
    ("objects", "", "{point}.x = {T}"),
    ("objects", "bool", "{point} == {point}"),
    ("objects", "T", "Pair({T}, {n}).left"),
    ("objects", "pair", "Pair({T}, {n})"),
    ("objects", "pair", "Pair(right={T}, left={n})._replace(left={n})"),
    ("objects", "slots", "Slots({n})"),
    ("objects", "int", "SLOTS.n"),
    ("objects", "", "SLOTS.n += {n}"),
    ("objects", "T", "{T} * SLOTS.n"),
    ("objects", "", "SLOTS.w = {T}"),
    ("objects", "int", "LAZY.anything"),
    ("objects", "", "LAZY.level = {n}"),
    ("objects", "int", "LAZY.level"),
    ("objects", "T", "Vector({T}) + {n}"),
    ("objects", "int", "len(Vector({T}))"),
    ("objects", "T", "Vector({T})[{n}]"),
    ("objects", "T", "sum(Vector({T}))"),
    ("objects", "bool", "{n} in Vector([1, 2])"),
    ("objects", "bool", "bool(Vector([])) or Vector({x}) == {n}"),
    ("objects", "T", "Vector({T})({n})"),
    ("objects", "T", "Scaler.of({n}).times({T})"),
    ("objects", "int", "Scaler.double({n})"),
    ("objects", "T", "Louder({n}).times({T})"),
    ("objects", "str", "Mood.GOOD.name"),
    ("objects", "int", "Mood({n} % 2).value"),
    ("objects", "bool", "type({box}) is Box"),
    ("objects", "bool", "isinstance({box}, (Other, Point))"),
    ("objects", "", "if {box}.kind != {n}:\n    {box}.n = {box}.kind"),
    # functions
    ("calls", "T", "functools.partial(star, k={s})({T}, {n})"),
    ("calls", "T", "functools.reduce(lambda a, b: a + b, [{T}, {s}])"),
    ("calls", "int", "cached({n})"),
    ("calls", "T", "twice({T})"),
    ("calls", "T", "deep({T}, 3)"),
    ("calls", "T", "(lambda a, *b, **k: a + len(b) + len(k))({T}, 1, z={n})"),
    ("calls", "T", "outer({n})({T})"),
    ("calls", "T", "(first if {c} else star)({T}, {n})"),
    ("calls", "T", "max([{T}, {T}], key=lambda t: t.dim())"),
    ("calls", "int", "sum(map(abs, [{n}, -1]))"),
    ("calls", "T", "adder.add({T}, {n})"),
    # iteration
    ("comprehension", "ints", "list(itertools.chain([{n}], range(2)))"),
    ("comprehension", "ints", "list(itertools.islice(itertools.count({n}), 2))"),
    ("comprehension", "ints", "list(itertools.accumulate([1, {n}, 2]))"),
    ("comprehension", "list", "[a + b for a, b in itertools.product([{T}], [1, {n}])]"),
    ("comprehension", "bool", "all(i > {n} for i in [1, 2, 3])"),
    ("comprehension", "bool", "any(t.dim() for t in {list})"),
    ("comprehension", "dict", "dict(zip(['a', 'b'], {list}))"),
    ("comprehension", "list", "[t for row in [{list}, [{T}]] for t in row]"),
    ("comprehension", "", "{v} = doubled({list})\n{v}b = next({v}, None)\n{v}c = [t for t in {v}]"),
    ("comprehension", "", "{v} = count_to({n})\nfor {v}i in {v}:\n    if {v}i == 1:\n        break\n{v}c = list({v})"),
    ("comprehension", "ints", "list(relay({n}))"),
    ("comprehension", "int", "talk({n})"),
    ("comprehension", "", "first_, *rest_ = [{n}, {s}, 3]"),
    ("comprehension", "", "{v}, ({v}b, *{v}c) = {n}, ({T}, {s}, {n})"),
    ("comprehension", "ints", "sorted({ints}, key=lambda i: (i % 2, -i))"),
    ("comprehension", "int", "min({ints}, default={n})"),
    # containers of other kinds
    ("dicts", "", "ORDERED.move_to_end('a')"),
    ("dicts", "", "ORDERED['b'] = {n}"),
    ("dicts", "str", "'-'.join(ORDERED)"),
    ("dicts", "", "GROUPS[{n}].append({n})"),
    ("dicts", "int", "len(GROUPS)"),
    ("dicts", "int", "sum(map(len, GROUPS.values()))"),
    ("dicts", "", "{dict} |= {{'c': {T}}}"),
    ("dicts", "dict", "{dict} | {{'b': {T}}}"),
    ("dicts", "str", "next(iter({dict}), 'none')"),
    ("dicts", "bool", "list({dict}) == ['a', 'b']"),
    ("dicts", "", "{dict}.popitem()"),
    ("dicts", "", "for {v} in list({dict}):\n    {dict}[{v}] = {dict}[{v}] + 1"),
    ("dicts", "T", "{T} * sum(RATES.values())"),
    ("dicts", "float", "max(RATES.values())"),
    ("dicts", "float", "[*RATES.values()][-1] * 2"),
    ("dicts", "float", "sorted(RATES.items())[0][1]"),
    ("dicts", "float", "dict(RATES)['a'] + RATES.copy()['b'] - {{**RATES}}['a']"),
    ("dicts", "list", "[{T} * {v} for {v} in RATES.values()]"),
    ("dicts", "int", "len([{v} for {v} in RATES.values() if {v} > {s}])"),
    ("dicts", "", "for {v} in RATES:\n    RATES[{v}] = RATES[{v}] / 2 + {n}"),
    ("dicts", "", "for {v}, {v}b in RATES.items():\n    RATES[{v}] = {v}b - {s}"),
    ("dicts", "", "for {v}, {v}b in RATES.items():\n    if {v}b > {n}:\n        RATES[{v}] = {s}\n        break"),
    ("dicts", "", "{v} = RATES.values()\nRATES['a'] = {s}\nRATES['b'] = sum({v})"),
    ("dicts", "", "RATES['c'] = {s}"),
    ("dicts", "", "RATES.pop('c', None)"),
    ("dicts", "", "for {v} in RATES.values():\n    RATES['c'] = {v}"),
    ("dicts", "", "for {v}, {v}b in enumerate(RATES.values()):\n    {x} = {x} + {v}b * {v}"),
    ("dicts", "", "{v}, *{v}b = RATES.items()\nRATES['b'] = {v}[1]"),
    # functions of numbers
    ("numbers", "int", "int({s} * 2) + round({s}) + math.ceil({s} / 2)"),
    ("numbers", "int", "({n} & 3) + ({n} >> 1) - (~{n} | 4)"),
    ("numbers", "int", "2 ** ({n} % 6) + {n} ** 2"),
    ("numbers", "float", "{s} // 1.5 + {s} % 0.75"),
    ("numbers", "float", "math.fmod({s}, 2) + math.copysign(0.5, {s}) + math.fabs({s})"),
    ("numbers", "int", "round(math.sin({s}) * 4 + math.tanh({s}) + math.exp(-abs({s})))"),
    ("numbers", "int", "int(math.log2(abs({s}) + 1) + math.sqrt(abs({s})) * 3 + math.atan2({s}, 2))"),
    ("numbers", "bool", "{n} > {s} and math.cos({s}) > 0"),
    ("numbers", "bool", "{s} == {n} or math.isfinite({s})"),
    ("numbers", "float", "safe(lambda: {n} / {s}) + safe(lambda: {s} // {n})"),
    ("numbers", "float", "safe(math.log, {s}) + safe(math.sqrt, {s}) + safe(math.acos, {s})"),
    ("numbers", "float", "safe(pow, {s}, {n}) + safe(divmod(7, 2).__getitem__, {n} % 2)"),
    ("numbers", "T", "{x}[:max(1, int({x}.shape[0] * 0.5))]"),
    ("numbers", "T", "torch.ones(math.ceil(abs({s})) % 4, 2) + {n}"),
    ("lists", "", "QUEUE.append({n})"),
    ("lists", "", "QUEUE.appendleft({n})\nQUEUE.pop()"),
    ("lists", "int", "QUEUE[-1]"),
    ("lists", "", "SEEN.add({n})"),
    ("lists", "", "SEEN.discard({n})"),
    ("lists", "int", "len(SEEN)"),
    ("lists", "bool", "{n} in SEEN"),
    ("lists", "ints", "sorted(SEEN | {{{n}}})"),
    ("lists", "int", "{ints}.index({n})"),
    ("lists", "int", "{ints}.count(1) + {ints}[-1]"),
    ("lists", "ints", "{ints}[::-1]"),
    ("lists", "", "{v} = {list}\n{v} += [{T}]"),
    ("lists", "", "{v} = ({n}, {list})\n{v}[1].append({T})"),
    ("lists", "list", "[*{list}, {T}][:2]"),
    ("lists", "bool", "{list} is {list} and {list} == []"),
    # state of other kinds
    ("globals", "str", "os.environ.get('FRAMEFUSE_FUZZ', 'none')"),
    ("globals", "int", "VARIABLE.get()"),
    ("globals", "", "VARIABLE.set({n})"),
    ("globals", "", "{v} = VARIABLE.set({n})\nVARIABLE.reset({v})"),
    ("globals", "int", "globals()['total'] + {n}"),
    ("globals", "T", "WEIGHT + math.sqrt(abs({n}))"),
    ("globals", "int", "math.floor({s}) + math.gcd({n}, 4)"),
    ("globals", "", "bump({n})\n{v} = total"),
    ("globals", "", "Box.kind += 1"),
    ("globals", "T", "WEIGHT"),
    ("globals", "", "logging.getLogger('fuzz').debug('n %s', {n})"),
    # tensors
    ("shapes", "T", "torch.tensor([{n}, {s}], dtype=torch.float32)"),
    ("shapes", "T", "torch.zeros({n} % 3, 2) + {n}"),
    ("shapes", "T", "torch.arange({n} % 4).float()"),
    ("shapes", "T", "torch.full((2,), float({s}))"),
    ("shapes", "T", "{x}.new_ones({x}.shape)"),
    ("shapes", "T", "torch.cat([{x}, {x} + 1], dim=-1)"),
    ("shapes", "T", "torch.stack([{x}] * 2, dim={n} % 2)"),
    ("shapes", "T", "torch.where({x} > {s}, {x}, {s})"),
    ("shapes", "T", "torch.einsum('...i,...i->...', {x}, {x}).clamp(max=4)"),
    ("shapes", "T", "{x}[{x}.shape[0] // 2:]"),
    ("shapes", "T", "{x}[..., [0, 0]]"),
    ("shapes", "T", "{x}[torch.tensor([0, 0])]"),
    ("shapes", "T", "{x}.repeat_interleave(2, dim=0)"),
    ("shapes", "T", "torch.nn.functional.pad({x}, (1, {n} % 2))"),
    ("shapes", "T", "{x}.reshape({x}.shape[::-1])"),
    ("shapes", "T", "{x}.view(*{x}.shape[:-1], -1)"),
    ("shapes", "T", "torch.tril({x})"),
    ("shapes", "T", "{x}.index_select(0, torch.tensor([0]))"),
    ("shapes", "", "{v}, *{v}b = {x}.unbind(0)"),
    ("shapes", "", "{v}, {v}b = {x}.split([1, {x}.shape[0] - 1])"),
    ("shapes", "", "{v}, {v}b = torch.max({x}, 0)"),
    ("shapes", "", "{v}, {v}b = {x}.shape[0], {x}.size()"),
    ("in-place", "", "{x}.data.add_(1)"),
    ("in-place", "", "{x}.detach().mul_(2)"),
    ("in-place", "", "{x}.t_()"),
    ("in-place", "", "{x}.unsqueeze_(0)"),
    ("in-place", "", "{x}.data = {x}.data + 1"),
    ("in-place", "", "{v} = {x}[...]\n{v} += {n}\n{x}.mul_(2)"),
    ("in-place", "", "for {v} in {list}:\n    {v}.add_({n})"),
    ("in-place", "", "torch._foreach_add_([{x}], 1)"),
    ("in-place", "", "{x}.index_fill_(0, torch.tensor([0]), {s})"),
    ("in-place", "", "{x}.tag = {n}"),
    ("in-place", "int", "getattr({x}, 'tag', 0)"),
    ("in-place", "", "{x}[{x} > 1] = 0"),
    ("in-place", "", "{x}.resize_({x}.shape)"),
    ("in-place", "bool", "{x}._version > 0"),
    ("in-place", "bool", "{x}.data_ptr() == {x}[...].data_ptr()"),
    ("random", "T", "torch.rand_like({x}).round()"),
    ("random", "T", "torch.randint(0, 3, {x}.shape).float()"),
    ("random", "T", "torch.nn.functional.dropout({x}, 0.5, training={c})"),
    ("random", "T", "{T} + random.randint(0, 2)"),
    ("random", "", "{x}.bernoulli_(0.5)"),
    # values of tensors in Python
    ("items", "ints", "{x}.long().flatten().tolist()"),
    ("items", "float", "{x}.sum().item()"),
    ("items", "", "print({x}.sum())"),
    ("items", "str", "f'{{{x}.sum():.1f}}'"),
    ("items", "T", "{x}[{x} > 0]"),
    ("items", "T", "torch.nonzero({x}).float()"),
    ("items", "T", "torch.from_numpy({x}.numpy() + 1)"),
    ("items", "int", "[10, 20, 30][int({x}.sum()) % 3]"),
    ("items", "int", "len({x}[{x} > 0])"),
    ("items", "bool", "torch.equal({x}, {x} + 0)"),
    ("items", "bool", "torch.allclose({x}, {T})"),
    ("items", "", "assert {x}.sum() > -9, 'sum'"),
    ("items", "", "while {x}.abs().sum() > 4:\n    {x} = {x} / 2"),
    ("items", "", "for {v} in {x}.flatten().tolist():\n    LOG.append({v})"),
    ("items", "T", "{T} if {x}.sum() > 0 else {T}"),
    ("items", "T", "{T} * max(int({x}.abs().sum()), 1)"),
    ("items", "", "LOG.append({x}.sum().item())"),
    ("items", "", "{box}.n = int({x}.sum())"),
    # exceptions and printing
    ("errors", "", "try:\n    deep({T}, -1)\nexcept RecursionError:\n    LOG.append('deep')"),
    ("errors", "", "try:\n    {T}.sum({n})\nexcept IndexError as {v}:\n    LOG.append(len({v}.args))"),
    ("errors", "", "try:\n    raise Trouble({n}) from KeyError()\nexcept Trouble as {v}:\n    {v}b = {v}.__cause__"),
    ("errors", "", "try:\n    {v} = {{}}['k']\nexcept KeyError:\n    {v} = {T}\nfinally:\n    LOG.append('end')"),
    ("errors", "", "for {v} in 1, 2:\n    try:\n        if {v} == {n}: continue\n    finally:\n        bump({v})"),
    ("errors", "T", "finish({T}, {n})"),
    ("errors", "", "with contextlib.ExitStack() as {v}:\n    {v}.callback(LOG.append, {n})"),
    ("print", "", "print('n', {n}, {s})"),
    ("print", "", "print(f'{{{n}:>4}}', end='')"),
    ("print", "", "print({x}.shape, {x}.dtype)"),
    ("print", "", "sys.stdout.write('w')"),
    ("with", "", "with torch.no_grad():\n    {x}.add_(1)"),
    ("with", "", "with Guard():\n    if {c}:\n        raise Trouble('inside')"),
    ("with", "", "with scaled({n}):\n    LOG.append(COUNT[0])"),
    ("closures", "", "def {v}(a, n=[{n}]):\n    n.append(a)\n    return len(n)\nLOG.append({v}({n}) + {v}(2))"),
    ("closures", "T", "make_counter()({T})"),
    ("closures", "", "{v} = [lambda a, i=i: a + i for i in range(2)]\n{v}b = {v}[1]({T})"),
    ("closures", "", "class {v}:\n    n = {n}\n    def go(self, a):\n        return a + self.n\n{v}b = {v}().go({T})"),
    # modules
    ("module", "T", "self.linear({x}[..., :2])"),
    ("module", "T", "self.parts({x})"),
    ("module", "T", "self.blocks[0]({x})"),
    ("module", "", "for {v} in self.blocks:\n    {x} = {v}({x})"),
    ("module", "T", "self.linear.weight.sum() * {n}"),
    ("module", "int", "len(self.blocks) + self.blocks[1].calls"),
    ("module", "", "self.last = {T}"),
    ("module", "T", "self.last"),
    ("module", "", "self.total += {T}.sum()"),
    ("module", "T", "self.total * 2"),
    ("module", "", "self.cache['k'] = {T}"),
    ("module", "T", "self.cache.setdefault('k', {T})"),
    ("module", "bool", "hasattr(self, 'missing') or self.training"),
    ("module", "T", "torch.nn.functional.linear({x}[..., :2], self.linear.weight)"),
)  # fmt: skip
KINDS = ("list", "ints", "dict", "box", "point")


def idiom(scope: Scope) -> None:
    """One row, its holes filled."""
    rows = [row for row in ROWS if scope.has(row[0]) and (row[0] != "module" or scope.module)]
    for _ in range(4):
        if not rows:
            return
        _, kind, text = scope.choice.pick(rows)
        filled = fill(scope, text)
        if filled is None or ("first" in text and "first" not in scope.outer):
            continue
        if kind:
            define(scope, filled, Kind(kind))
        else:
            for line in filled.split("\n"):
                scope.emit(line)
        return


def fill(scope: Scope, text: str) -> str | None:
    """The text with its holes filled; None where the scope has nothing for one."""
    values: dict[str, str] = {}
    if "{x}" in text:
        values["x"] = atom(scope, "T") or "WEIGHT"
    for kind in KINDS:
        if f"{{{kind}}}" in text:
            found = atom(scope, kind)
            if found is None:
                return None
            values[kind] = found
    if "{v}" in text:
        values["v"] = scope.name("u")
    if "{T}" in text:
        values["T"] = f"({tensor(scope, 1)[0]})"
    if "{n}" in text:
        values["n"] = number(scope, 1)
    if "{s}" in text:
        values["s"] = numeric(scope, 0)
    if "{c}" in text:
        values["c"] = condition(scope, 0)
    return text.format(**values)
