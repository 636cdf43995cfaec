"""Draws statements on lists, dicts, objects, globals and the module's own state."""

from __future__ import annotations

from tests.fuzz.expressions import IN_PLACE, atom, condition, number, tensor
from tests.fuzz.scope import Kind, Scope, define


def of_list(scope: Scope) -> None:
    choice = scope.choice
    name = atom(scope, "list", "ints")
    if name is None or choice.chance(20):
        made = choice.pick(["list", "ints", "comprehension", "range", "copy"])
        if made == "list":
            parts = [tensor(scope, 1)[0] for _ in choice.several(0, 2)]
            return define(scope, f"[{', '.join(parts)}]", Kind("list"))
        if made == "comprehension":
            return comprehension(scope)
        if made == "copy" and name is not None:
            return define(
                scope,
                choice.pick([f"{name}[:]", f"list({name})", f"{name} + {name}", f"{name}[1:]", f"{name}.copy()"]),
                scope.variables[name],
            )
        text = (
            f"[{number(scope, 0)}, {number(scope, 0)}]" if made == "ints" else f"list(range({number(scope, 0)} % 5))"
        )
        return define(scope, text, Kind("ints"))
    whole = scope.variables[name].name == "ints"
    value = number(scope, 0) if whole else tensor(scope, 1)[0]
    if not scope.growing:
        scope.emit(choice.pick((f"{name}[0] = {value}", f"{name}[-1] = {value}")))
        return None
    forms = [
        f"{name}.append({value})",
        f"{name}[0] = {value}",
        f"{name}.insert(0, {value})",
        f"{name}.extend([{value}])",
        f"{name}.pop()",
        f"del {name}[0]",
        f"{name}.clear()",
        f"{name}.reverse()",
        f"{name}[:1] = [{value}]",
        f"{name} += ({value},)",
        f"{name}.pop(0)",
        f"{name} *= 2",
        f"del {name}[1:]",
    ]
    forms += (
        [f"{name}.sort()", f"{name}.remove({value})", f"{name}.sort(key=lambda i: -i)", f"{name}[0] += 1"]
        if whole
        else []
    )
    text = choice.pick(forms)
    if text.endswith(("pop()", "pop(0)")):
        return define(scope, text, Kind("int") if whole else Kind("T"))
    scope.emit(text)
    return None


def of_dict(scope: Scope) -> None:
    choice = scope.choice
    name = atom(scope, "dict")
    value = tensor(scope, 1)[0]
    if name is None or choice.chance(20):
        key = choice.pick(["'a'", "'b'", "f'k{" + number(scope, 0) + "}'"])
        extra = f", **{name}" if name is not None and choice.chance(50) else ""
        return define(scope, choice.pick([f"{{{key}: {value}{extra}}}", f"dict(a={value})", "{}"]), Kind("dict"))
    key = choice.pick(["'a'", "'b'", "'c'", f"str({number(scope, 0)})"])
    form = choice.pick(
        ["read", "get", "write", "write", "pop", "setdefault", "update", "del", "augment", "values", "view"]
    )
    if form == "read":
        return define(scope, f"{name}[{key}]", Kind("T"))
    if form == "get":
        return define(scope, f"{name}.get({key}, {value})", Kind("T"))
    if form == "values":
        return define(scope, f"list({name}.values())", Kind("list"))
    if form == "view":
        return define(
            scope,
            choice.pick(
                [f"dict({name})", f"{name}.copy()", f"{{**{name}}}", f"{{k: v + 1 for k, v in {name}.items()}}"]
            ),
            Kind("dict"),
        )
    if form in ("write", "augment") and not scope.growing:
        key = "'a'"
    if form == "write":
        scope.emit(f"{name}[{key}] = {value}")
    elif form == "augment":
        scope.emit(f"{name}[{key}] += 1")
    elif scope.growing:
        if form == "pop":
            return define(scope, f"{name}.pop({key}, {value})", Kind("T"))
        if form == "setdefault":
            return define(scope, f"{name}.setdefault({key}, {value})", Kind("T"))
        scope.emit(
            f"{name}.update({choice.pick(['a', 'b', 'c'])}={value})" if form == "update" else f"del {name}[{key}]"
        )
    return None


def of_box(scope: Scope) -> None:
    choice = scope.choice
    name = atom(scope, "box")
    if name is None or choice.chance(15):
        if choice.chance(30):
            define(scope, f"Point({tensor(scope, 1)[0]}, {number(scope, 0)})", Kind("point"))
            return None
        return define(scope, f"Box({number(scope, 0)})", Kind("box"))
    form = choice.pick(
        [
            "number",
            "count",
            "tensor",
            "write",
            "items",
            "method",
            "property",
            "flag",
            "delete",
            "in-place",
            "class",
            "store",
        ]
    )
    if form == "number":
        define(scope, f"{name}.n", Kind("int"))
    elif form == "count":
        scope.emit(f"{name}.n {choice.pick(['+=', '='])} {number(scope, 0)}")
    elif form == "tensor":
        define(scope, f"{name}.w", Kind("T"))
    elif form == "write":
        scope.emit(f"{name}.w = {tensor(scope, 1)[0]}")
    elif form == "items":
        define(scope, f"{name}.items", Kind("ints"))
    elif form == "method":
        define(scope, f"{name}.scaled({tensor(scope, 1)[0]})", Kind("T"))
    elif form == "property":
        define(scope, f"{name}.twice", Kind("int"))
    elif form == "flag":
        scope.emit(
            f"{name}.flag = {condition(scope, 0)}" if not scope.has("items") else f"{name}.flag = not {name}.flag"
        )
    elif form == "delete":
        scope.emit(f"if hasattr({name}, 'extra'):")
        scope.emit(f"    del {name}.extra")
        scope.emit("else:")
        scope.emit(f"    {name}.extra = {number(scope, 0)}")
    elif form == "in-place":
        scope.emit(choice.pick(IN_PLACE).format(a=f"{name}.w", n=number(scope, 0)))
    elif form == "class":
        define(scope, f"{name}.kind", Kind("int"))
    else:
        held = atom(scope, "list", "ints", "box", "dict")
        scope.emit(f"{name}.held = {held or 'None'}")
    return None


def of_global(scope: Scope) -> None:
    choice = scope.choice
    form = choice.pick(["count", "log", "table", "weight", "scale", "read"])
    if form == "count":
        scope.emit(f"COUNT[0] += {number(scope, 0)}" if choice.chance(40) else f"bump({number(scope, 0)})")
    elif form == "log":
        scope.emit(f"LOG.append({choice.pick([number(scope, 0), repr('x')])})")
    elif form == "table":
        scope.emit(f"TABLE[{choice.pick([repr('a'), repr('z'), 'len(TABLE)'])}] = {tensor(scope, 1)[0]}")
    elif form == "weight":
        define(scope, "WEIGHT * 2", Kind("T", ()))
    elif form == "scale":
        define(scope, f"{tensor(scope, 1)[0]} * SCALE", Kind("T"))
    else:
        define(scope, "TABLE['a']", Kind("T"))


def of_module(scope: Scope) -> None:
    choice = scope.choice
    if not scope.module:
        return of_box(scope)
    form = choice.pick(["linear", "buffer", "write", "count", "in-place", "training", "list", "modules"])
    if form == "linear":
        define(scope, f"{tensor(scope, 1)[0]} * self.w", Kind("T"))
    elif form == "buffer":
        define(scope, "self.b + 1", Kind("T", (2,)))
    elif form == "write":
        scope.emit("self.b = self.b + 1")
    elif form == "count":
        scope.emit(f"self.n += {number(scope, 0)}")
    elif form == "in-place":
        scope.emit(f"self.b.add_({number(scope, 0)})")
    elif form == "training":
        scope.emit("if self.training:")
        scope.emit("    self.n += 1")
    elif form == "list":
        scope.emit("self.seen.append(len(self.seen))")
    else:
        define(scope, f"sum([p.sum() for p in self.parameters()], {tensor(scope, 1)[0]})", Kind("T"))
    return None


def comprehension(scope: Scope) -> None:
    choice = scope.choice
    a = atom(scope, "list")
    n = number(scope, 0)
    forms = [
        (f"[i * {n} for i in range(3)]", "ints"),
        (f"[i for i in range({n} % 5) if i % 2]", "ints"),
        (f"list(map(lambda i: i + {n}, [1, 2]))", "ints"),
        (f"sorted([{n}, 1, 0], reverse=True)", "ints"),
        (f"list(count_to({n}))", "ints"),
    ]
    if a is not None:
        forms += [
            (f"[t * 2 for t in {a}]", "list"),
            (f"[t + i for i, t in enumerate({a})]", "list"),
            (f"list(doubled({a}))", "list"),
            (f"{{str(i): t for i, t in enumerate({a})}}", "dict"),
            (f"[t for t in {a} if t.dim() > 1]", "list"),
            (f"sum(t.sum() for t in {a})", "T"),
            (f"list(reversed({a}))", "list"),
            (f"[*{a}, *{a}]", "list"),
            (f"[p - q for p, q in zip({a}, {a}[1:])]", "list"),
            (f"next(iter({a}))", "T"),
            (f"max({a}, key=lambda t: t.numel())", "T"),
        ]
    text, kind = choice.pick(forms)
    define(scope, text, Kind(kind))
