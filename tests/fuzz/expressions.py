"""Draws expressions: the text of a tensor, number or condition over the variables in scope, and its kind."""

from __future__ import annotations

from tests.fuzz.scope import Kind, Scope, Shape

IN_PLACE = (
    "{a}.add_(1)",
    "{a}.mul_(2)",
    "{a}.neg_()",
    "{a}.clamp_(-2, 2)",
    "{a}.zero_()",
    "{a}.abs_()",
    "{a}.fill_(0.5)",
    "{a}.sub_({n})",
)
UNARY = (
    "{a} + 1",
    "{a} * 2",
    "-{a}",
    "{a}.abs()",
    "torch.relu({a})",
    "{a} - 0.5",
    "{a} / 2",
    "{a}.clamp(-2, 2)",
    "torch.where({a} > 0, {a}, 0.5)",
    "{a}.clone()",
    "{a}.sign()",
    "{a}.floor()",
    "torch.zeros_like({a})",
    "torch.ones_like({a}) + {a}",
    "{a}.masked_fill({a} > 1, 0.5)",
    "{a}.add(1.0, alpha=2)",
    "{a}.detach()",
    "{a}.contiguous()",
    "1 - {a}",
    "{a}.double().float()",
    "torch.square({a}).clamp(max=4)",
    "{a}.new_zeros(()) + {a}",
    "{a}[...]",
    "torch.full_like({a}, 2)",
    "{a}.view_as({a})",
    "{a}.float()",
    "{a}.nan_to_num()",
)
ROUNDED = (
    "torch.sin({a})",
    "torch.exp({a}.clamp(-4, 4))",
    "{a}.tanh()",
    "torch.sigmoid({a})",
    "{a} / ({a}.abs() + 1)",
    "{a}.abs().sqrt()",
    "{a} * 0.3",
    "torch.nn.functional.gelu({a})",
    "torch.nn.functional.softplus({a})",
)
INTEGERS = (
    "{a} + 1",
    "{a} * 2",
    "{a} % 3",
    "{a} // 2",
    "-{a}",
    "{a}.abs()",
    "{a} & 3",
    "{a}.clamp(0, 2)",
    "{a}.clone()",
)
BINARY = (
    "{a} + {b}",
    "{a} - {b}",
    "({a} * {b}).clamp(-8, 8)",
    "torch.minimum({a}, {b})",
    "torch.where({a} > {b}, {a}, {b})",
    "torch.add({a}, {b}, alpha=2)",
)


def atom(scope: Scope, *names: str) -> str | None:
    """A variable of one of these kinds, or None."""
    found = scope.of(*names)
    return found[-1 - scope.choice.below(len(found))] if found else None


def broadcast(a: Shape, b: Shape) -> Shape:
    """The shape of an elementwise operation, or None where it is not known."""
    if a is None or b is None:
        return a if b == () else b if a == () else None
    if len(a) < len(b):
        a, b = b, a
    sizes = []
    for one, other in zip(a, (1,) * (len(a) - len(b)) + b, strict=True):
        if one != other and 1 not in (one, other):
            return None
        sizes.append(other if one == 1 else one)
    return tuple(sizes)


def fits(a: Shape, b: Shape) -> bool:
    return a == b or a == () or b == () or broadcast(a, b) is not None


def tensor(scope: Scope, depth: int = 2, shape: Shape = None) -> tuple[str, Kind]:
    """An exact float tensor; of ``shape`` where that is given and something has it."""
    choice = scope.choice
    found = scope.of("T")
    if shape is not None:
        found = [name for name in found if scope.variables[name].shape == shape] or found
    if not found:
        return "torch.ones(2)", Kind("T", (2,))
    name = found[-1 - choice.below(len(found))]
    text, kind = name, scope.variables[name]
    for _ in choice.several(0, depth):
        text, kind = _step(scope, text, kind, shape is not None)
    return text, kind


def _step(scope: Scope, text: str, kind: Kind, keep: bool) -> tuple[str, Kind]:
    choice = scope.choice
    forms = ["unary", "unary", "binary", "binary", "number"]
    if not keep:
        forms += ["view", "view", "reduce"] if scope.has("views") else ["reduce"]
        if scope.has("shapes"):
            forms += ["join"]
    if scope.has("wild"):
        forms += ["wild"]
    form = choice.pick(forms)
    inner = text if _is_simple(text) else f"({text})"
    if form == "unary":
        return choice.pick(UNARY).format(a=inner), kind
    if form == "number":
        number = numeric(scope, 0)
        return f"{inner} {choice.pick('+*-')} {number}", kind
    if form == "binary" or (form == "join" and not kind.rank):
        others = [name for name in scope.of("T") if fits(kind.shape, scope.variables[name].shape)]
        if keep:
            others = [
                name for name in others if broadcast(kind.shape, scope.variables[name].shape) == kind.shape
            ] or others[:0]
        other = choice.pick(others) if others else inner
        shape = broadcast(kind.shape, scope.variables[other].shape) if others else kind.shape
        return choice.pick(BINARY).format(a=inner, b=other), Kind("T", shape)
    if form == "wild":
        other = atom(scope, "T") or inner
        return f"{inner} + {other}", Kind("T", None)
    if form == "view":
        return view(scope, inner, kind)
    if form == "join":
        other = atom(scope, "T") or inner
        same = other in scope.variables and scope.variables[other].shape == kind.shape
        other = other if same else inner
        axis = choice.pick([0, -1])
        forms = [
            (f"torch.cat([{inner}, {other}], {axis})", None),
            (f"torch.stack([{inner}, {other}])", (2, *kind.shape)),
            (f"torch.stack(({inner}, {inner}), -1)", (*kind.shape, 2)),
        ]
        if kind.rank == 2:
            forms.append((f"{inner}.clamp(-4, 4) @ {inner}.t()", (kind.shape[0], kind.shape[0])))
        made, shape = choice.pick(forms)
        return made, Kind("T", shape)
    return reduction(scope, inner, kind)


def _is_simple(text: str) -> bool:
    return text.replace("_", "").replace(".", "").isalnum()


def view(scope: Scope, a: str, kind: Kind) -> tuple[str, Kind]:
    """A tensor that may share the memory of ``a``."""
    shape = kind.shape
    forms: list[tuple[str, Shape]] = [
        (f"{a}.unsqueeze(0)", None if shape is None else (1, *shape)),
        (f"{a}.reshape(-1)", None),
    ]
    if shape:
        forms += [
            (f"{a}[0]", shape[1:]),
            (f"{a}[-1]", shape[1:]),
            (f"{a}[1:]", None),
            (f"{a}[:1]", None),
            (f"{a}.flip(0)", shape),
            (f"{a}[..., ::2]", None),
            (f"{a}.flatten()", None),
            (f"{a}[None]", (1, *shape)),
            (f"{a}.expand(2, *{a}.shape)", (2, *shape)),
            (f"{a}.narrow(0, 0, 1)", (1, *shape[1:])),
            (f"{a}.transpose(0, -1)", (*shape[-1:], *shape[1:-1], *shape[:1]) if len(shape) > 1 else shape),
            (f"{a}.chunk(2)[0]", None),
            (f"{a}.squeeze()", None),
            (f"{a}.view(-1)", None),
            (f"{a}.roll(1, 0)", shape),
            (f"{a}.view({a}.shape)", shape),
            (f"{a}[{numeric(scope, 0)}]", shape[1:]),
        ]
    if shape is not None and len(shape) == 2:
        forms += [
            (f"{a}.t()", shape[::-1]),
            (f"{a}[:, 0]", shape[:1]),
            (f"{a}.permute(1, 0)", shape[::-1]),
            (f"{a}.T", shape[::-1]),
        ]
    text, made = scope.choice.pick(forms)
    return text, Kind(kind.name, made)


def reduction(scope: Scope, a: str, kind: Kind) -> tuple[str, Kind]:
    """A sum or extreme of ``a``."""
    forms: list[tuple[str, Shape]] = [(f"{a}.sum()", ())]
    if kind.shape:
        rest, last = kind.shape[1:], kind.shape[:-1]
        forms += [
            (f"{a}.sum(0)", rest),
            (f"{a}.sum(-1, keepdim=True)", (*last, 1)),
            (f"{a}.amax()", ()),
            (f"{a}.cumsum(0)", kind.shape),
            (f"{a}.amin(-1)", last),
            (f"{a}.max(0).values", rest),
            (f"{a}.max(-1)[0]", last),
            (f"sum({a})", None),
            (f"{a}.sort(-1).values", kind.shape),
            (f"torch.sum({a}, dim=-1)", last),
        ]
    text, shape = scope.choice.pick(forms)
    return text, Kind("T", shape)


def rounded(scope: Scope) -> tuple[str, Kind]:
    """A float tensor whose last bits depend on the order of work."""
    choice = scope.choice
    name = atom(scope, "F", "T")
    if name is None:
        return "torch.ones(2) / 3", Kind("F", (2,))
    kind = scope.variables[name]
    text = choice.pick(ROUNDED).format(a=name)
    if kind.shape and choice.chance(30):
        text = choice.pick(("torch.softmax({a}, -1)", "{a}.mean(-1)", "{a} - {a}.mean()")).format(a=name)
        return text, Kind("F", None)
    other = atom(scope, "T", "F")
    if other is not None and fits(kind.shape, scope.variables[other].shape) and choice.chance(50):
        return f"{text} {choice.pick('+*-')} {other}", Kind("F", broadcast(kind.shape, scope.variables[other].shape))
    return text, Kind("F", kind.shape)


def integers(scope: Scope) -> tuple[str, Kind]:
    """An int64 tensor."""
    choice = scope.choice
    name = atom(scope, "I")
    if name is not None and choice.chance(60):
        return choice.pick(INTEGERS).format(a=name), scope.variables[name]
    name = atom(scope, "T") or "torch.ones(2)"
    kind = scope.variables.get(name, Kind("T", (2,)))
    forms = [(f"{name}.long()", kind.shape), (f"({name} > 0).sum()", ()), (f"({name} > 0).long()", kind.shape)]
    if kind.shape:
        forms += [
            (f"{name}.argmax()", ()),
            (f"{name}.argsort(-1, stable=True)", kind.shape),
            (f"torch.arange({name}.shape[0])", kind.shape[:1]),
        ]
    text, shape = choice.pick(forms)
    return text, Kind("I", shape)


def number(scope: Scope, depth: int = 2) -> str:
    """An int."""
    choice = scope.choice
    forms = ["literal", "name", "name", "name"]
    if depth:
        forms += ["arithmetic", "arithmetic", "size", "size", "length"]
        if scope.has("items"):
            forms += ["item"]
    form = choice.pick(forms)
    if form == "literal":
        return str(choice.pick([1, 2, 0, 3, -1]))
    if form == "arithmetic":
        forms = (
            "{a} + 1",
            "{a} * 2",
            "{a} % 3",
            "{a} + {b}",
            "{a} - {b}",
            "{a} // 2",
            "-{a}",
            "max({a}, 1)",
            "{a} // {b}",
            "min({a}, {b})",
            "{a} ** 2",
            "{a} % {b}",
            "abs({a})",
            "int({a} > {b})",
            "divmod({a}, 2)[0]",
        )
        a, b = number(scope, 0), number(scope, 0)
        return "(" + choice.pick(forms).format(a=a, b=b) + ")"
    if form == "size":
        a = atom(scope, "T", "F")
        if a is not None:
            forms = ["{a}.numel()", "{a}.dim()", "len({a}.shape)", "{a}.stride(0)"]
            if scope.variables[a].shape:
                forms += ["{a}.shape[0]", "{a}.size(-1)", "len({a})", "{a}.shape[-1]", "{a}.size()[0]"]
            return choice.pick(forms).format(a=a)
    if form == "length":
        a = atom(scope, "list", "dict", "ints")
        if a is not None:
            return f"len({a})"
    if form == "item":
        a = atom(scope, "T", "I")
        if a is not None:
            return choice.pick(("int({a}.sum())", "{a}.long().sum().item()", "({a} > 0).sum().item()")).format(a=a)
    return atom(scope, "int") or "2"


def numeric(scope: Scope, depth: int = 1) -> str:
    """An int or a float."""
    choice = scope.choice
    if choice.chance(60):
        return number(scope, depth)
    name = atom(scope, "float") or "0.5"
    if not depth:
        return name
    forms = (
        "{a}",
        "({a} * 2)",
        "({a} + {n})",
        "(-{a})",
        "float({n})",
        "({n} / 2)",
        "min({a}, 1.5)",
        "round({a})",
        "abs({a})",
        "({a} - 1.5)",
    )
    return choice.pick(forms).format(a=name, n=number(scope, 0))


def condition(scope: Scope, depth: int = 1) -> str:
    """A truth that Python decides."""
    choice = scope.choice
    forms = ["compare", "compare", "flag", "shape", "container", "kind"]
    if depth:
        forms += ["not", "both"]
    if scope.has("items"):
        forms += ["tensor", "tensor"]
    form = choice.pick(forms)
    if form == "not":
        return f"not ({condition(scope, 0)})"
    if form == "both":
        return f"{condition(scope, 0)} {choice.pick(['and', 'or'])} {condition(scope, 0)}"
    if form == "flag":
        name = atom(scope, "bool")
        if name is not None:
            return name
    if form == "shape":
        name = atom(scope, "T", "F")
        if name is not None:
            forms = (
                ["{a}.shape[0] > 1", "{a}.numel() > 3", "{a}.shape[-1] == 2"] if scope.variables[name].shape else []
            )
            forms += [
                "{a}.dim() == 2",
                "{a}.dtype == torch.float32",
                "{a}.is_contiguous()",
                "{a} is {b}",
                "{a}.shape == {b}.shape",
                "{a}.requires_grad",
                "torch.is_tensor({a})",
            ]
            return choice.pick(forms).format(a=name, b=atom(scope, "T"))
    if form == "container":
        name = atom(scope, "list", "dict", "ints")
        if name is not None:
            kind = scope.variables[name].name
            forms = ["{a}", "len({a}) > 1"]
            forms += ["'a' in {a}", "'c' not in {a}", "{a}.get('b') is None"] if kind == "dict" else []
            forms += ["{n} in {a}", "max({a}) > 2", "{a} == [1, 2]"] if kind == "ints" else []
            return choice.pick(forms).format(a=name, n=number(scope, 0))
    if form == "kind":
        forms = []
        for name in scope.of("maybe"):
            forms += [f"{name} is None", f"{name}"]
        for name in scope.of("str"):
            forms += [f"{name} == 'b'", f"{name}.startswith('a')"]
        for name in scope.of("int"):
            forms += [f"isinstance({name}, int)"]
        for name in scope.of("box"):
            forms += [f"hasattr({name}, 'extra')", f"{name}.n > 2", f"getattr({name}, 'flag', False)"]
        if scope.module:
            forms += ["self.training", "self.n > 2"]
        if forms:
            return choice.pick(forms)
    if form == "tensor":
        name = atom(scope, "T", "I")
        if name is not None:
            return choice.pick(
                (
                    "{a}.sum() > 0",
                    "({a} > 0).any()",
                    "({a} > 1).all()",
                    "{a}.sum().item() > 1",
                    "bool({a}.abs().sum() > 4)",
                )
            ).format(a=name)
    compare = choice.pick([">", "==", "<", "!=", ">="])
    if choice.chance(20):
        return f"0 < {number(scope)} < 3"
    return f"{number(scope)} {compare} {numeric(scope, 0)}"
