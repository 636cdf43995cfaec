"""Draws statements: each function adds one kind to the scope; TABLE gives its weight and its feature."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.containers import comprehension, of_box, of_dict, of_global, of_list, of_module
from tests.fuzz.expressions import (
    IN_PLACE,
    atom,
    broadcast,
    condition,
    fits,
    integers,
    number,
    numeric,
    rounded,
    tensor,
    view,
)
from tests.fuzz.idioms import idiom
from tests.fuzz.scope import Kind, Scope, define

Statement = Callable[[Scope], None]


def assign(scope: Scope) -> None:
    choice = scope.choice
    form = choice.pick(
        ["tensor", "tensor", "tensor", "rounded", "integers", "number", "float", "flag", "alias", "rebind", "text"]
    )
    if form == "tensor":
        text, kind = tensor(scope)
        define(scope, text, kind)
    elif form == "rounded":
        define(scope, *rounded(scope))
    elif form == "integers":
        define(scope, *integers(scope))
    elif form == "number":
        define(scope, number(scope), Kind("int"))
    elif form == "float":
        define(scope, f"{numeric(scope)} + 0.5", Kind("float"))
    elif form == "flag":
        define(scope, f"bool({condition(scope)})", Kind("bool"))
    elif form == "alias":
        name = choice.pick(list(scope.variables))
        define(scope, name, scope.variables[name])
    elif form == "text":
        value = number(scope, 0)
        define(
            scope,
            choice.pick(
                [f'f"n{{{value}}}"', f'"a" * ({value} % 5)', f"str({value})", f"'-'.join(['a', str({value})])"]
            ),
            Kind("str"),
        )
    else:
        name = atom(scope, "T")
        if name is not None:
            scope.emit(f"{name} = {tensor(scope, 2, scope.variables[name].shape)[0]}")


def augment(scope: Scope) -> None:
    choice = scope.choice
    name = atom(scope, "T", "T", "int", "float", "ints" if scope.growing else "int")
    if name is None:
        return assign(scope)
    kind = scope.variables[name]
    if kind.name == "int":
        scope.emit(f"{name} {choice.pick(['+=', '-=', '*=', '%=', '//='])} {number(scope, 0)}")
    elif kind.name == "float":
        scope.emit(f"{name} {choice.pick(['+=', '-=', '*='])} {numeric(scope, 0)}")
    elif kind.name == "ints":
        scope.emit(f"{name} += [{number(scope, 0)}]")
    elif choice.chance(40):
        scope.emit(f"{name} {choice.pick(['+=', '-=', '*='])} {numeric(scope, 0)}")
    else:
        scope.emit(f"{name} {choice.pick(['+=', '-='])} {other(scope, name)}")
    return None


def other(scope: Scope, name: str) -> str:
    """A tensor whose shape broadcasts to that of ``name``."""
    shape = scope.variables[name].shape
    found = [
        v
        for v in scope.of("T")
        if v == name
        or (fits(shape, scope.variables[v].shape) and broadcast(shape, scope.variables[v].shape) == shape)
    ]
    return scope.choice.pick(found)


def in_place(scope: Scope) -> None:
    choice = scope.choice
    name = atom(scope, "T")
    if name is None:
        return assign(scope)
    kind = scope.variables[name]
    form = choice.pick(["method", "method", "view", "item", "copy", "masked", "out"])
    if form == "view":
        text, _ = view(scope, name, kind)
        scope.emit(choice.pick(IN_PLACE).format(a=text, n=number(scope, 0)))
    elif form == "item" and kind.shape:
        place = choice.pick(["0", "-1", "1:", "..., 0", ":1", number(scope, 0), "..., ::2"])
        scope.emit(f"{name}[{place}] {choice.pick(['=', '+=', '*='])} {numeric(scope, 0)}")
    elif form == "copy":
        scope.emit(f"{name}.copy_({other(scope, name)})")
    elif form == "masked":
        scope.emit(
            choice.pick(
                (
                    "{a}.masked_fill_({a} > 0, 0.5)",
                    "{a}.add_({b}, alpha=2)",
                    "{a}.mul_({a} > 0)",
                    "{a}.clamp_(min={n})",
                )
            ).format(a=name, b=other(scope, name), n=number(scope, 0))
        )
    elif form == "out":
        scope.emit(f"torch.add({name}, {other(scope, name)}, out={name})")
    else:
        scope.emit(choice.pick(IN_PLACE).format(a=name, n=numeric(scope, 0)))
    return None


def branch(scope: Scope) -> None:
    scope.emit(f"if {condition(scope)}:")
    body(scope, 2)
    while scope.choice.chance(20):
        scope.emit(f"elif {condition(scope)}:")
        body(scope, 1)
    if scope.choice.chance(50):
        scope.emit("else:")
        body(scope, 2)


def loop(scope: Scope) -> None:
    choice = scope.choice
    forms = ["range", "list", "enumerate", "while", "tensor", "ints", "zip", "dict", "size"]
    form = choice.pick(forms + (["data"] if scope.has("items") else []))
    bound: dict[str, Kind] = {}
    index = scope.name("i")
    growing = scope.growing
    stop = ""
    if form == "range":
        head, bound = f"for {index} in range({choice.pick([2, 3, 1])}):", {index: Kind("int")}
    elif form == "size" and (a := atom(scope, "T")) and scope.variables[a].shape:
        head, bound = f"for {index} in range({a}.shape[0]):", {index: Kind("int")}
    elif form in ("list", "enumerate", "zip") and (a := atom(scope, "list")):
        value = scope.name()
        scope.growing = False
        if form == "list":
            head, bound = f"for {value} in {a}:", {value: Kind("T")}
        elif form == "enumerate":
            head, bound = f"for {index}, {value} in enumerate({a}):", {value: Kind("T"), index: Kind("int")}
        else:
            b = atom(scope, "ints") or f"range(len({a}))"
            head, bound = f"for {value}, {index} in zip({a}, {b}):", {value: Kind("T"), index: Kind("int")}
    elif form == "dict" and (a := atom(scope, "dict")):
        scope.growing = False
        if choice.chance(30):
            head, bound = f"for {index} in sorted({a}):", {index: Kind("str")}
        else:
            value = scope.name()
            head, bound = f"for {index}, {value} in {a}.items():", {value: Kind("T"), index: Kind("str")}
    elif form == "ints" and (a := atom(scope, "ints")):
        scope.growing = False
        head, bound = f"for {index} in {a}:", {index: Kind("int")}
    elif form == "tensor" and (a := atom(scope, "T")) and scope.variables[a].shape:
        value = scope.name()
        head, bound = f"for {value} in {a}:", {value: Kind("T", scope.variables[a].shape[1:])}
    elif form == "data" and (a := atom(scope, "T")):
        scope.emit(f"{index} = 0")
        head, stop = f"while {a}.abs().sum() > 2 and {index} < 6:", f"{index} += 1"
        with_half = f"{a} = {a} / 2"
        return _loop(scope, head, {index: Kind("int")}, [stop, with_half], growing)
    elif form == "while":
        start = choice.pick(["3", "2", *(f"min({n}, 4)" for n in scope.of("int"))])
        scope.emit(f"{index} = {start}")
        head, stop = f"while {index} > 0:", f"{index} -= 1"
        bound = {index: Kind("int")}
    else:
        head, bound = f"for {index} in range({number(scope, 0)} % 4):", {index: Kind("int")}
    return _loop(scope, head, bound, [stop] if stop else [], growing)


def _loop(scope: Scope, head: str, bound: dict[str, Kind], first: list[str], growing: bool) -> None:
    choice = scope.choice
    scope.emit(head)
    fixed = {name: kind for name, kind in bound.items() if first}  # a counter that the body must not touch
    with scope.block():
        scope.variables.update({name: Kind("counter") if name in fixed else kind for name, kind in bound.items()})
        for line in first:
            scope.emit(line)
        statements(scope, 2)
        if choice.chance(15):
            scope.emit(f"if {condition(scope)}:")
            scope.emit(f"    {choice.pick(['break', 'continue'])}")
            statements(scope, 1)
    scope.growing = growing
    if choice.chance(10):
        scope.emit("else:")
        body(scope, 1)


def attempt(scope: Scope) -> None:
    choice = scope.choice
    scope.emit("try:")
    with scope.block():
        statements(scope, 2)
        if choice.chance(50):
            risky(scope)
    handlers = choice.several(0, 2)
    for _ in handlers:
        error = choice.pick(
            ["ValueError", "(IndexError, KeyError)", "ZeroDivisionError", "RuntimeError", "Exception", "Trouble"]
        )
        name = scope.name("e")
        scope.emit(f"except {error} as {name}:")
        with scope.block():
            form = choice.pick(["text", "text", "raise", "from", "body"])
            if form == "text":
                scope.emit(f"LOG.append(type({name}).__name__ + str({name}.args[:1]))")
            elif form == "raise":
                scope.emit("raise")
            elif form == "from":
                scope.emit(f"raise Trouble('again') from {name}")
            statements(scope, 1)
    if handlers and choice.chance(20):
        scope.emit("else:")
        body(scope, 1)
    if not handlers or choice.chance(30):
        scope.emit("finally:")
        body(scope, 1)


def risky(scope: Scope) -> None:
    """Something that may raise at run time."""
    choice = scope.choice
    forms = [
        f"1 // {number(scope, 0)}",
        f"{{'a': 1}}[{choice.pick(['str(1)', repr('a')])}]",
        f"[1, 2][{number(scope, 0)}]",
        f"raise_if({condition(scope)})",
    ]
    for a in scope.of("T")[-1:]:
        forms += [f"{a}[3]", f"{a} + torch.ones(4)", f"{a}.view(-1, 2)", f"{a}.nothing"]
    for a in scope.of("dict")[-1:]:
        forms += [f"{a}['b']"]
    for a in scope.of("list", "ints")[-1:]:
        forms += [f"{a}[2]"]
    scope.emit(choice.pick(forms))


def within(scope: Scope) -> None:
    choice = scope.choice
    name = scope.name("k")
    forms = [
        "with torch.no_grad():",
        "with Guard():",
        f"with Guard() as {name}:",
        f"with scaled({number(scope, 0)}) as {name}:",
        "with contextlib.suppress(Trouble, IndexError):",
        "with torch.enable_grad():",
        "with Guard(), torch.no_grad():",
        f"with torch.set_grad_enabled({condition(scope, 0)}):",
    ]
    head = choice.pick(forms)
    scope.emit(head)
    with scope.block():
        if "scaled" in head:
            scope.variables[name] = Kind("int")
        statements(scope, 2)
        if choice.chance(30):
            risky(scope)


def call_helper(scope: Scope) -> None:
    choice = scope.choice
    a, kind = tensor(scope, 1)
    b = tensor(scope, 0)[0]
    n, s = number(scope, 0), numeric(scope, 0)
    known = [name for name in ("first", "second") if name in scope.outer]
    forms = [
        f"star({a}, *[{n}, {s}], k={s})",
        f"star({a})",
        f"star(*({a}, {n}))",
        f"star(**{{'a': {a}, 'k': {s}}})",
        f"keep({a}, memo={{}})",
        f"pair({a}, {b})[1]",
    ]
    for name in known:
        forms += [f"{name}({a}, {n})", f"{name}({a}, {n}, k={s})", f"{name}({a}, n={n})"] * 2
    if choice.chance(20):
        left, right = scope.name(), scope.name()
        scope.emit(f"{left}, {right} = pair({a}, {b})")
        scope.variables[left] = kind
        scope.variables[right] = Kind("T")
        return
    define(scope, choice.pick(forms), Kind("T", None))


def early(scope: Scope) -> None:
    scope.emit(f"if {condition(scope)}:")
    scope.emit(f"    return {result(scope)}")


def throw(scope: Scope) -> None:
    choice = scope.choice
    what = choice.pick(
        [
            f"raise Trouble({number(scope, 0)})",
            "raise ValueError('bad')",
            "raise KeyError('k')",
            f"assert {condition(scope, 0)}, 'told'",
        ]
    )
    if what.startswith("assert"):
        scope.emit(what)
    else:
        scope.emit(f"if {condition(scope)}:")
        scope.emit(f"    {what}")


def show(scope: Scope) -> None:
    choice = scope.choice
    value = choice.pick([number(scope, 0), "'here'", *scope.of("str", "bool", "float", "ints")])
    scope.emit(
        choice.pick([f"print({value})", f"print('n', {value}, sep='-', end=';')", f"print('%s' % ({value},))"])
    )


def matching(scope: Scope) -> None:
    choice = scope.choice
    subject = choice.pick([number(scope, 0), *scope.of("ints", "str", "maybe", "point", "dict")])
    scope.emit(f"match {subject}:")
    cases = [
        "case 1:",
        "case [a0, *_]:",
        "case 'a' | 'b':",
        "case None:",
        "case Point(x=p0, k=1):",
        "case {'a': d0}:",
        "case int():",
        "case str() as s0:",
    ]
    scope.level += 1
    for _ in choice.several(1, 2):
        scope.emit(choice.pick(cases))
        body(scope, 1)
    scope.emit("case _:")
    body(scope, 1)
    scope.level -= 1


def closure(scope: Scope) -> None:
    choice = scope.choice
    name, cell = scope.name("g"), atom(scope, "int", "float")
    captured = atom(scope, "T") or "1.0"
    if cell is not None and choice.chance(50):
        scope.emit(f"def {name}(a):")
        scope.emit(f"    nonlocal {cell}")
        scope.emit(f"    {cell} += 1")
        scope.emit(f"    return a * {cell}")
    else:
        scope.emit(f"{name} = lambda a, k={number(scope, 0)}: a + {captured} * k")
    define(scope, f"{name}({tensor(scope, 1)[0]})", Kind("T"))


def swap(scope: Scope) -> None:
    names = scope.of("T")
    if len(names) < 2:
        return assign(scope)
    a, b = scope.choice.pick(names), scope.choice.pick(names)
    if a != b:
        scope.emit(f"{a}, {b} = {b}, {a}")
        scope.variables[a], scope.variables[b] = scope.variables[b], scope.variables[a]
    return None


def walrus(scope: Scope) -> None:
    name = scope.name()
    scope.emit(f"if ({name} := {number(scope)}) > 1:")
    with scope.block():
        scope.variables[name] = Kind("int")
        statements(scope, 1)


def result(scope: Scope) -> str:
    """What a function returns."""
    choice = scope.choice
    if scope.outer == ("plain",):
        return tensor(scope, 1)[0]
    names = [name for name, kind in scope.variables.items() if kind.name not in ("counter", "function")]
    form = choice.pick(["tensor", "tuple", "list", "dict", "name", "rounded", "nested", "point", "view"])
    if form == "tensor":
        return tensor(scope, 1)[0]
    if form == "rounded":
        return rounded(scope)[0]
    if form == "name":
        return choice.pick(names)
    if form == "view":
        name = atom(scope, "T")
        return view(scope, name, scope.variables[name])[0] if name else "None"
    parts = [choice.pick(names) if choice.chance(60) else tensor(scope, 1)[0] for _ in choice.several(1, 4)]
    if form == "list":
        return f"[{', '.join(parts)}]"
    if form == "dict":
        return "{" + ", ".join(f"{n!r}: {part}" for n, part in zip("abcd", parts, strict=False)) + "}"
    if form == "nested":
        return f"[({parts[0]},), {{'k': [{', '.join(parts)}]}}]"
    if form == "point":
        return f"Point({parts[0]}, ({', '.join(parts)},))"
    return f"({', '.join(parts)},)"


# What may be drawn: the statement, its weight, and the feature that a program must have.
TABLE: tuple[tuple[Statement, int, str], ...] = (
    (assign, 6, ""),
    (in_place, 3, "in-place"),
    (augment, 2, "in-place"),
    (branch, 3, "branch"),
    (loop, 3, "loop"),
    (of_list, 3, "lists"),
    (of_dict, 3, "dicts"),
    (of_box, 4, "objects"),
    (of_global, 3, "globals"),
    (of_module, 4, "module"),
    (call_helper, 3, "calls"),
    (attempt, 2, "errors"),
    (throw, 1, "errors"),
    (risky, 1, "risk"),
    (within, 2, "with"),
    (early, 2, "early"),
    (show, 2, "print"),
    (matching, 2, "match"),
    (comprehension, 3, "comprehension"),
    (closure, 3, "closures"),
    (swap, 1, ""),
    (walrus, 1, "branch"),
    (idiom, 8, ""),
)


def table_of(features: frozenset[str]) -> list[Statement]:
    """The statements that a program of these features draws from."""
    return [row for row, weight, feature in TABLE if not feature or feature in features for _ in range(weight)]


def statements(scope: Scope, most: int) -> None:
    """Adds up to ``most`` statements, as far as the fuel lasts."""
    options = table_of(scope.features)
    for _ in scope.choice.several(0 if scope.level > 1 else 1, most):
        if scope.fuel <= 0:
            return
        scope.fuel -= 1
        statement = scope.choice.pick(options)
        if scope.level > 3 and statement in (branch, loop, attempt, within, matching, walrus):
            statement = assign
        statement(scope)


def body(scope: Scope, most: int) -> None:
    """An indented block of up to ``most`` statements."""
    with scope.block():
        statements(scope, most)
