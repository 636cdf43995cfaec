"""Draws programs about memory and history: views, detached aliases and writes in every gradient mode."""

from __future__ import annotations

from tests.fuzz.choice import Choice
from tests.fuzz.definitions import HEAD
from tests.fuzz.expressions import atom, view
from tests.fuzz.program import Program
from tests.fuzz.scope import Kind, Scope, define
from tests.fuzz.statements import other

# How an argument comes: what it is made of is a leaf that requires grad, in programs that train.
GIVEN = (
    "plain({seed}, {sizes})",
    "tracked({seed}, {sizes})",
    "tracked({seed}, {sizes})",
    "leaf({seed}, {sizes})",
    "tracked({seed}, {turned}).t()",
    "tracked({seed}, {larger})[1:]",
    "plain({seed}, {turned}).t()",
)
SCRIPT = """
LEAVES = []

def leaf(*shape):
    LEAVES.append(data(*shape).requires_grad_(torch.is_grad_enabled()))
    return LEAVES[-1]

def tracked(*shape):
    return leaf(*shape) * 1

def plain(*shape):
    return data(*shape)
"""
WRITES = (
    "{a}.add_({n})",
    "{a}.mul_({n})",
    "{a}.mul_({b})",
    "{a}.sub_({b})",
    "{a} += {b}",
    "{a}.copy_({b})",
    "{a}.copy_({b}.sum())",
    "{a}.zero_()",
    "{a}.fill_({n})",
    "{a}.neg_()",
    "{a}.relu_()",
    "{a}.clamp_(-1, 1)",
    "{a}[0] = {n}",
    "{a}[-1:] = {b}[-1:]",
    "{a}[...] = {b}",
    "{a}[{a} > 0] = {n}",
    "{a}.masked_fill_({a} > 0, {n})",
    "{a}.data.mul_({n})",
    "{a}.detach().sub_({b})",
    "{a}.data = {b}",
    "torch.mul({a}, {n}, out={a})",
    "torch._foreach_mul_([{a}], {n})",
    "{a}.index_put_((torch.tensor([0, -1]),), {a}[:1] * 2)",
    "{a}.addcmul_({a}, {b})",
    "{a}.lerp_({b}, 0.5)",
    "{a}.t_()",
    "{a}.unsqueeze_(0)",
    "{a}.requires_grad_()",
    "{a}.detach_()",
    "{a}.set_({b})",
    "{a}.normal_()",
)
FRESH = (
    "{a} * 2",
    "{a} + {b}",
    "{a}.clone()",
    "{a}.clone().detach()",
    "torch.empty_like({a}).copy_({a})",
    "torch.zeros_like({b})",
    "{a}.t().contiguous()",
    "{a}.t().clone()",
    "{a} @ {b}.t()",
    "{a}.sum(0)",
    "{a}.contiguous()",
    "{a}.relu()",
    "torch.nn.functional.linear({a}[None], {b})",
    "{a}.clone(memory_format=torch.contiguous_format)",
    "{a}.to(torch.float64)",
    "{a}.exp().log_()",
)
ALIASES = ("{a}.detach()", "{a}.data", "{a}.view(-1)", "{a}.t()", "{a}[0]", "{a}.unbind(0)[0]", "{a}.chunk(2)[1]",
           "{a}.split(1)[-1]", "{a}.expand(2, *{a}.shape)", "{a}.detach().t()", "{a}.view_as({b})", "{a}.diagonal()",
           "{a}.unsqueeze(0)", "{a}.reshape(-1)", "{a}.contiguous()", "{a}.narrow(0, 0, 1)", "{a}[None]",
           "{a}[:, ::2]", "{a}.flatten()", "{a}.requires_grad_()")  # fmt: skip
MODES = ("torch.no_grad()", "torch.no_grad()", "torch.enable_grad()", "torch.inference_mode()",
         "torch.set_grad_enabled(False)")  # fmt: skip


def fresh(scope: Scope) -> None:
    a = atom(scope, "T")
    assert a is not None
    define(scope, scope.choice.pick(FRESH).format(a=a, b=other(scope, a)), Kind("T", None))


def alias(scope: Scope) -> None:
    choice = scope.choice
    a = atom(scope, "T")
    assert a is not None
    kind = scope.variables[a]
    if choice.chance(40):
        define(scope, *view(scope, a, kind))
        return
    text = choice.pick(ALIASES)
    same = text in ("{a}.detach()", "{a}.data")
    define(scope, text.format(a=a, b=other(scope, a)), kind if same else Kind("T", None))


def write(scope: Scope) -> None:
    choice = scope.choice
    a = atom(scope, "T")
    assert a is not None
    number = choice.pick(["2", "0.5", "-1", "k"])
    scope.emit(choice.pick(WRITES).format(a=a, b=other(scope, a), n=number))


def mode(scope: Scope) -> None:
    scope.emit(f"with {scope.choice.pick(MODES)}:")
    if scope.choice.chance(50):
        scope.level += 1  # what is made inside stays known behind it
        steps(scope, 2)
        scope.emit("pass")
        scope.level -= 1
    else:
        with scope.block():
            steps(scope, 2)


def steps(scope: Scope, most: int) -> None:
    for _ in scope.choice.several(1, most):
        step = scope.choice.pick([write, write, alias, alias, fresh, *([mode] if scope.level < 3 else [])])
        step(scope)


def arguments(choice: Choice, names: str, seed: int, first: dict[str, str]) -> list[str]:
    """The lines of one call: other numbers and sizes, arguments that come as they came or otherwise."""
    n, m = choice.pick([(2, 3), (3, 2), (2, 2), (4, 3), (1, 2)])
    lines = ["    LEAVES.clear()"]
    for place, name in enumerate(names):
        form = first[name] if choice.chance(80) else choice.pick(GIVEN)
        number = seed + place
        text = form.format(seed=number, sizes=f"{n}, {m}", turned=f"{m}, {n}", larger=f"{n + 1}, {m}")
        lines.append(f"    {name} = {text}")
    return [*lines, f"    yield call({', '.join(names)}, {choice.pick([2, 3, 0.5])})"]


def writing(choice: Choice) -> Program:
    """A program of some six statements over one to three tensors, with four calls."""
    names = "xyz"[: choice.between(1, 3)]
    scope = Scope(choice, frozenset(("views", "in-place")))
    scope.variables = {name: Kind("T", ("n", "m")) for name in names}
    for _ in range(choice.pick([2, 3, 1])):
        steps(scope, 3)
    known = scope.of("T")
    given = [choice.pick(known) for _ in choice.several(1, 4)]
    scope.emit(f"return [{', '.join(given)}]")
    forms = {name: choice.pick(GIVEN) for name in names}
    script = [line for call in range(4) for line in arguments(choice, names, 1 + 3 * call, forms)]
    head = [f"def target({', '.join(names)}, k):", *scope.lines, "", "def calls():", *script]
    grad = choice.chance(75)
    return Program(HEAD + SCRIPT + "\n" + "\n".join(head) + "\n", grad, None, "native", False)
