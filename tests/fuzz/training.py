"""Draws programs that train: several results, backward passes over parts of them, hooks, tied weights, every dtype."""

from __future__ import annotations

import traceback
from typing import Any

import torch
from tests.fuzz.choice import Choice
from tests.fuzz.definitions import HEAD
from tests.fuzz.program import Program

DTYPES = ("float32", "float32", "float32", "float64", "bfloat16", "float16", "complex64")
OTHERS = ("int64", "int32", "uint8", "bool", "float32", "float64")
# What the script between the calls may use: `got` is what the last call gave, None where it raised.
SCRIPT = '''
NOTES, HANDLES, NET, GOT, COUNT, BROKEN, MADE = [], [], None, [], [0], [], []

def of(seed, *shape, dtype=DTYPE):
    """Small whole numbers and halves, which every dtype holds."""
    found = data(seed, *shape)
    return (found > 0).to(dtype) if dtype is torch.bool else (found.abs() if dtype is torch.uint8 else found).to(dtype)

def given(seed, *shape):
    MADE.append(of(seed, *shape).requires_grad_())
    return MADE[-1]

def parameter(seed, *shape):
    MADE.append(torch.nn.Parameter(of(seed, *shape)))
    return MADE[-1]

def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    value = list(value.values()) if isinstance(value, dict) else value
    return [t for part in value for t in tensors(part)] if isinstance(value, (list, tuple)) else []

def differentiable(value):
    return [t for t in tensors(value) if t.requires_grad and can(t)]

def note(function, *args, **kwargs):
    """What a step between the calls gave, or its error: the rest of its text may name nodes."""
    try:
        found = function(*args, **kwargs)
        found = [t if t is None else t.detach().contiguous().clone() for t in found] if type(found) is tuple else found
        NOTES.append(found)
    except RuntimeError as error:
        NOTES.append((type(error).__name__, str(error)[:40]))

def walk(function):
    """A pass. What one that fails has freed and given by then depends on eager's order: no other of the call follows,
    and nothing stays of it.
    """
    before = len(NOTES)
    if BROKEN:
        return
    note(function)
    if len(NOTES) > before and type(NOTES[-1]) is tuple:
        del NOTES[before:-1]
        BROKEN.append(1)
        GOT.clear()
        for tensor in MADE:
            tensor.grad = None

def total(parts):
    return sum((t * of(3, *t.shape, dtype=t.dtype)).sum().abs() for t in parts)

def back(parts, keep=False, again=False):
    if parts:
        walk(lambda: total(parts).backward(retain_graph=keep, create_graph=again))

def asked(parts, wanted, keep=False, again=False):
    if parts and wanted:
        how = dict(retain_graph=keep, create_graph=again, allow_unused=True)
        walk(lambda: torch.autograd.grad(total(parts), wanted, **how))

def leaves(*more):
    return [p for p in [*NET.parameters(), *more] if can(p) and p.requires_grad and p.is_leaf]

def can(tensor):
    """Whether autograd lets anybody ask what made a view."""
    try:
        return tensor.grad_fn is None or True
    except RuntimeError:
        return False

def hooked(tensor, how, hook):
    if tensor.requires_grad:
        HANDLES.append(getattr(tensor, how)(hook))

def write(tensor, how):
    def change():
        with torch.no_grad():
            getattr(tensor, how)(2)
    note(change)

class Half(torch.nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.weight, self.bias = parameter(1, *sizes), parameter(2, sizes[0])
        self.calls = 0

    def forward(self, a):
        self.calls += 1
        return torch.nn.functional.linear(a, self.weight, self.bias)

class Louder(Half):
    def forward(self, a):
        return super().forward(a) * 2 if self.training else super().forward(a)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = Half(3, 3), Louder(3, 3)
        self.scale = parameter(5, 3)
        self.register_buffer("seen", of(6, 3))

    def forward(self, x, y, z, k):
'''
FRESH = (
    "{a} + {b}", "{a} * {b}", "{a} * 2", "{a} - {b}", "{a} * k", "self.one({a})", "self.two({a})", "{a} * self.scale",
    "self.one(self.one({a}))", "{a} @ self.one.weight.t()", "{a} + self.seen", "{a}.clone()", "{a}.detach()",
    "{a}.sum(0)", "{a}.sum()", "{a}.mean(-1, keepdim=True)", "{a}.t().clone().t()", "{a}[:1]", "{a}[1:]",
    "{a}.reshape(-1)", "{a}[..., [0, 2]]", "torch.cat([{a}, {b}])", "torch.stack([{a}, {a}]).sum(0)", "{a} / 2",
    "{a}.unsqueeze(0)", "{a}.chunk(2)[0]", "torch.zeros_like({a})", "{a}.abs()", "{a} * {a}.detach()",
    "sum(p.sum() for p in self.parameters()) * {a}", "sum(set([self.one.weight, self.two.weight, {a}[:1].sum()]))",
    "len({{self.one.weight, self.two.weight, self.scale}}) * {a}", "{{self.one: 2, self.two: 3}}[self.one] * {a}",
    "{a} * dict(self.named_parameters()).get('two.weight', self.scale).sum()", "z.to({a}.dtype) * {a}[:1]",
    "torch.where(z > 0, {a}, {b})", "{a} * (z > 0)", "{a}.index_select(0, torch.tensor([0]))", "{a}.square()",
    "{a}.expand(2, *{a}.shape)", "torch.addmm(self.scale, {a}, self.one.weight)", "{a}.view_as({b})",
)  # fmt: skip
REAL = (
    "{a}.relu()", "{a}.clamp(-1, 1)", "{a}.tanh()", "torch.sigmoid({a})", "{a}.softmax(-1)", "{a}.exp().clamp(max=9)",
    "torch.nn.functional.layer_norm({a}, {a}.shape[-1:])", "torch.nn.functional.gelu({a})", "torch.maximum({a}, {b})",
    "{a}.amax(-1)", "{a}.max(0)[0]", "{a}.norm()", "torch.nn.functional.mse_loss({a}, {b})", "{a}.cumsum(0)",
    "torch.nn.functional.dropout({a}, 0.5, self.training)", "torch.nn.functional.huber_loss({a}, {b})", "{a}.std(-1)",
    "torch.nn.functional.cross_entropy({a}, torch.zeros({a}.shape[0], dtype=torch.long))", "{a}.sort(-1)[0]",
    "torch.nn.functional.hinge_embedding_loss({a}, {b}.sign())", "{a}.prod(-1)", "torch.lerp({a}, {b}, 0.5)",
    "{a} * (z + {a})", "{a} // 2 + z", "{a}.sign() + {a}",
)  # fmt: skip
WRITES = (
    "{a}.add_({b})", "{a}.mul_(2)", "{a}.mul_({b})", "{a}.mul_(self.scale)", "{a}[0] = 1", "{a}[:1] += {b}[:1]",
    "{a} += 1", "{a}.zero_()", "{a}.neg_()", "{a}.copy_({b})", "{a}.detach().mul_(2)", "{a}.data.add_(1)",
    "with torch.no_grad(): {a}.add_(1)", "with torch.no_grad(): self.seen.add_({a}.sum().to(self.seen.dtype))",
    "self.seen = self.seen + 1", "{a}.square_()", "self.scale.data.mul_(2)",
)  # fmt: skip
# Kernels keep 16-bit floats in float32 between calls: the exponential of a large one tells the two roundings apart.
REAL_WRITES = ("{a}.relu_()", "{a}.tanh_()", "{a}.clamp_(max=2).exp_()", "{a}.clamp_(-1, 1)", "{a}.sigmoid_()")
# Torch itself may crash where a view gets a hook whose memory was written: these are for results of arithmetic.
HOOKS = (
    "{h}.register_hook(lambda g: g * 2)", "{h}.register_hook(lambda g: NOTES.append(tuple(g.shape)))",
    "{h}.retain_grad()", "COUNT[0] += 1", "GOT.append({a})", "NOTES.append({a}.requires_grad)",
)  # fmt: skip
BETWEEN = (
    "NET.two.weight = NET.one.weight", "NET.two = NET.one", "NET.two = Louder(3, 3)", "NET.one.bias = NET.scale",
    "NET.two.weight = parameter({s}, 3, 3)", "NET.one.bias = parameter({s}, 3)",
    "NET.scale.requires_grad_(not NET.scale.requires_grad)", "NET.one.requires_grad_(False)",
    "NET.requires_grad_(True)",
    "NET.one.weight.data = of({s}, 3, 3)", "NET.one.weight.data.mul_(2)", "NET.zero_grad()", "NET.eval()",
    "NET.train()",
    "NET.zero_grad(set_to_none=False)", "GOT.clear()", "write(NET.one.weight, 'mul_')", "write(NET.scale, 'add_')",
    "HANDLES.append(NET.one.register_forward_hook(lambda m, a, out: out * 2))",
    "HANDLES.append(NET.two.register_forward_pre_hook(lambda m, a: (a[0] + 1,)))",
    "HANDLES.append(NET.one.register_full_backward_hook(lambda m, gi, go: NOTES.append(len(go))))",
    "hooked(NET.one.weight, 'register_hook', lambda g: g * 2)",

    "hooked(NET.scale, 'register_post_accumulate_grad_hook', lambda p: NOTES.append(p.grad.clone()))",
    "hooked(NET.scale, 'register_hook', lambda g: NOTES.append(g.clone()))",
    "HANDLES and HANDLES.pop().remove()",
    "HANDLES.append(NET.register_forward_hook(lambda m, a, out: NOTES.append(len(out))))", "NET.seen = of({s}, 3)",
    "leaves() and torch.optim.SGD(leaves(), 0.5).step()",
)  # fmt: skip
PASSES = (
    "back(found)", "back(found, keep=True)", "back(found[:1])", "back(found[1:])", "back(found[-1:])",
    "back(found[:2])",
    "for part in found: back([part])", "for part in reversed(found): back([part])", "back(found[:1], keep=True)",
    "for part in found: back([part], keep=True)", "asked(found, leaves(x, y))",
    "asked(found[:1], leaves(x), keep=True)",
    "asked(found[-1:], leaves()[:1], keep=True)", "asked(found, [y] if y.requires_grad else [])",
    "asked(found, leaves(x, y), again=True)",
    "write(x, 'mul_')", "write(found[0], 'add_')", "write(found[-1], 'mul_')", "write(NET.one.weight, 'mul_')",
    "write(NET.scale, 'add_')", "back([*found, *differentiable((x, y))])",
    "leaves() and torch.optim.SGD(leaves(), 0.5).step()",
    "note(lambda: found.append(found[0] * 2))",
    "note(lambda: found[0]._is_view() or found[0].register_hook(lambda g: g * 2) and 0)",
    "back(differentiable(GOT)[:1])",
    "note(lambda: [t.grad_fn is None for t in tensors(got)])", "NET.zero_grad()", "x.grad = y.grad = None",
    "note(lambda: found[0].add_(1))", "back(found, again=True)",
)  # fmt: skip
SOURCES = (
    "given({seed}, {n}, 3)", "given({seed}, {n}, 3)", "given({seed}, {n}, 3) * 1", "of({seed}, {n}, 3)",
    "given({seed}, 3, {n}).t()", "given({seed}, {n}, 6)[:, ::2]", "given({seed}, 1, 3).expand({n}, 3)",
)  # fmt: skip


def training(choice: Choice) -> Program:
    """A program of some six statements over a model and three tensors, with four calls and what follows each."""
    dtype = choice.pick(DTYPES)
    other = choice.pick(OTHERS)
    lines, names = _statements(choice, dtype != "complex64")
    forms = {name: choice.pick(SOURCES) for name in "xy"}
    script: list[str] = []
    for number in range(1 + choice.between(2, 4)):
        script += _call(choice, number, forms, other)
    results = [choice.pick(names) for _ in choice.several(1, 4)]
    form = choice.pick(["({},)", "[{}]", "[({},), x]"])
    grad, backend = choice.chance(85), choice.pick(["native"] * 4 + ["eager"])
    head = "\n".join([HEAD, f"DTYPE = torch.{dtype}\n{SCRIPT}".rstrip("\n"), ""])
    tail = "\n".join(["", "target = NET = Net()", "", "def calls():", *script]) + "\n"

    def text() -> str:
        known = [name for name in results if name in "xy" or any(line.startswith(f"{name} = ") for line in lines)]
        body = [*lines, f"return {form.format(', '.join(known or ['x']))}"]
        return head + "".join(f"        {line}\n" for line in body) + tail

    while (wrong := _failing(text(), grad, head.count("\n"))) is not None and wrong < len(lines):
        del lines[wrong]
    return Program(text(), grad, None, backend, False)


def _failing(text: str, grad: bool, first: int) -> int | None:
    """The statement of the forward pass at which the first call raises: programs that only fail test little."""
    space: dict[str, Any] = {"__name__": "program"}
    exec(compile(text, "<drawn>", "exec", dont_inherit=True), space)
    state = torch.get_rng_state()
    with torch.set_grad_enabled(grad):
        args, kwargs = next(space["calls"]())
        try:
            space["target"](*args, **kwargs)
        except Exception as error:
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<drawn>"]
            return next(frame.lineno for frame in frames if (frame.lineno or 0) > first) - first - 1
        finally:
            torch.set_rng_state(state)
    return None


def _statements(choice: Choice, real: bool) -> tuple[list[str], list[str]]:
    """The lines of the forward pass, and the tensors that it knows."""
    lines, names, arithmetic = [], ["x", "y"], {}
    for number in choice.several(3, 9):
        further = [REAL, REAL_WRITES] if real else [FRESH, WRITES]
        rows = choice.pick([FRESH, FRESH, FRESH, *further, WRITES, HOOKS])
        hooked = [name for name in names if arithmetic.get(name)]
        if rows is HOOKS and not hooked:
            continue
        row = choice.pick(rows)
        text = row.format(a=choice.pick(names), b=choice.pick(names), h=choice.pick(hooked or names))
        if rows in (FRESH, REAL):
            text = f"v{number} = {text}"
            names.append(f"v{number}")
            arithmetic[f"v{number}"] = row in FRESH[:8]
        lines.append(text)
    return lines, names


def _call(choice: Choice, number: int, forms: dict[str, str], other: str) -> list[str]:
    """The lines of one call: what changed before it, its arguments, and what is done with what it gave."""
    seed, n = 3 * number + 1, choice.pick([2, 3, 4, 2, 1, 0] if number else [3, 2])
    lines = [choice.pick(BETWEEN).format(s=seed) for _ in choice.several(0, 2 if number else 0)]
    for name in "xy":
        form = forms[name] if choice.chance(85) else choice.pick(SOURCES)
        lines.append(f"{name} = {form.format(seed=seed + len(name), n=n)}")
    if choice.chance(10):
        lines.append("y = x")
    lines.append(f"z = of({seed + 2}, 3, dtype=torch.{other})")
    lines.append(f"got = yield call(x, y, z, {choice.pick([2, 3, 1])})")
    passes = [choice.pick(PASSES) for _ in choice.several(1, 4)]
    lines += ["BROKEN.clear()", "found = differentiable(got)", "if found:", *(f"    {each}" for each in passes)]
    return [f"    {line}" for line in lines]
