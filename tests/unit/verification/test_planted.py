"""Faults are planted in each stage of the compiler: `verify` names stage and call, and gives a program of few lines."""

from __future__ import annotations

import dataclasses
import itertools
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import framefuse
from framefuse.autodiff import registry, reverse
from framefuse.capture.facts import effects
from framefuse.capture.recording.call_arguments import CallArguments
from framefuse.codegen.llvm import integers, pointwise, reductions
from framefuse.codegen.llvm.builder import Builder
from framefuse.driver import passes as driver_passes
from framefuse.fuse import passes as fuse_passes
from framefuse.fuse.memory import in_place
from framefuse.guards import fact_checks
from framefuse.guards import program as guards
from framefuse.guards.registers import Builder as GuardBuilder
from framefuse.ir import ops
from framefuse.ir.numbers import Symbol
from framefuse.ir.passes import Pass
from framefuse.lower import aliases, diagonals, indexing, rules, values
from framefuse.lower import element as e

Patch = pytest.MonkeyPatch
SETTINGS = types.SimpleNamespace(turns=2, count=0)
STEPPED = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
OPTIMIZER = torch.optim.Adam(STEPPED.parameters(), lr=0.1)


class _Moody(torch.nn.Module):
    """A module whose mode decides."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sin() * 2 if self.training else x.sin()


NET = _Moody()


@dataclass(frozen=True)
class Fault:
    """What is broken, the program that meets it, and what is to be said of it."""

    plant: Callable[[Patch], None]
    program: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    stage: str
    call: str
    training: bool = field(default=False)


def _x(*shape: int, grad: bool = False) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)).add_(0.5).requires_grad_(grad)


def _row(name: str, **changed: Any) -> Callable[[Patch], None]:
    """Another row of the table of primitives."""
    return lambda patch: patch.setitem(ops.TABLE, name, dataclasses.replace(ops.TABLE[name], **changed))


def _rule(target: Any, function: Callable[..., Any]) -> Callable[[Patch], None]:
    """Another lowering."""
    entry = dataclasses.replace(rules._BY_TARGET[target], function=function)
    return lambda patch: patch.setitem(rules._BY_TARGET, target, entry)


def _code(name: str, function: Callable[..., Any], table: dict[str, Any] = pointwise.FLOAT) -> Callable[[Patch], None]:
    """Other instructions."""
    return lambda patch: patch.setitem(table, name, function)


def _unguarded(kind: str) -> Callable[[Patch], None]:
    """A kind of fact that no guard checks."""
    return lambda patch: patch.setitem(fact_checks.RULES, kind, lambda builder, fact, node: None)


def _in_fuse(change: Callable[[Any, Any], Any]) -> Callable[[Patch], None]:
    """A pass of fuse that gives other nodes: ``change(builder, node)`` makes one, or None for what stays."""

    def plant(patch: Patch) -> None:
        planted = Pass("planted", "graph", lambda graph, setting: framefuse.rewritten(graph, change))
        patch.setattr(fuse_passes, "PASSES", (planted, *fuse_passes.PASSES))

    return plant


def _recorded(change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """Arguments of torch calls are recorded as others."""
    argument = CallArguments.of
    return lambda patch: patch.setattr(CallArguments, "of", lambda self, value: change(argument(self, value)))


def _dropped_term(b: Builder, op: str, dtype: Any, groups: list[Any]) -> Any:
    """The fold of accumulators, without the last one."""
    return _tree(b, op, dtype, groups[:-1] if len(groups) > 1 else groups)


_tree = reductions.tree


FAULTS = {
    # ---- derivatives ----
    "the derivative of sin is -cos": Fault(
        _row("sin", derivative=("neg(mul(g, cos(a)))",)),
        lambda x: (x * 2).sin().sum(), lambda: (_x(3, 4, grad=True),), "autodiff", "sin", True,
    ),
    "the derivative of a product forgets an operand": Fault(
        _row("mul", derivative=("mul(g, b)", "g")),
        lambda x, y: (x.exp() * y.cos()).tanh(), lambda: (_x(5, grad=True), _x(5, grad=True)), "autodiff", "mul", True,
    ),
    "no gradient flows through cos": Fault(
        _row("cos", derivative=("zero",)),
        lambda x: (x.exp().cos() + x).sum(0), lambda: (_x(4, 3, grad=True),), "autodiff", "cos", True,
    ),
    "the gradient of a sum is doubled": Fault(
        lambda patch: patch.setitem(registry.ROWS, "sum", _doubled(registry.ROWS["sum"])),
        lambda x: x.sin().sum(1).exp(), lambda: (_x(4, 3, grad=True),), "autodiff", "sum", True,
    ),
    "a gradient is not transposed back": Fault(
        lambda patch: patch.setitem(registry.ROWS, "permute", lambda builder, node, g, need: (g,)),
        lambda x: (x.transpose(0, 1) * x.exp()).sum(0).cos(), lambda: (_x(6, 6, grad=True),),
        "autodiff", "transpose", True,
    ),
    "the gradient of a part is doubled": Fault(
        lambda patch: patch.setitem(registry.ROWS, "slice", _doubled(registry.ROWS["slice"])),
        lambda x: (x[:, 1:] * x[:, :-1]).cos(), lambda: (_x(4, 6, grad=True),), "autodiff", "getitem", True,
    ),
    "both gradients of where go one way": Fault(
        _row("where", derivative=(None, "where(a, zero, g)", "where(a, zero, g)")),
        lambda x: torch.where(x > 1, x * 2, x.exp()).sum(), lambda: (_x(4, 6, grad=True),), "autodiff", "where", True,
    ),
    "a derivative inside of a step of training": Fault(
        _row("tanh", derivative=("g",)), lambda x: _trained(x), lambda: (_x(4, 3),), "autodiff", "tanh", True,
    ),
    "gradients of one value are not added": Fault(
        lambda patch: patch.setattr(reverse, "total", lambda builder, parts: parts[0]),
        lambda x: x.exp() * x.exp().sin(), lambda: (_x(4, 6, grad=True),), "autodiff", "mul", True,
    ),
    # ---- lowering ----
    "relu is leaky": Fault(
        _rule(torch.relu, lambda lo, input: lo.compute(lambda a: e.maximum(a * 0.01, a), input)),
        lambda x: torch.relu(x - 1).sum(1) * 2, lambda: (_x(4, 5),), "lower", "relu",
    ),
    "softmax is not shifted": Fault(
        _rule(torch.softmax, lambda lo, input, dim, dtype=None: _unshifted(lo, input, dim)),
        lambda x: torch.softmax(x * 400, 1) + 1, lambda: (_x(4, 5),), "lower", "softmax",
    ),
    "the mean divides by one less": Fault(
        _rule(Tensor.mean, lambda lo, input, dim, keepdim=False: lo.compute(
            lambda a: a / 4.0, lo.reduce("sum", input, (1,), keepdim))),
        lambda x: x.exp().mean(1).log(), lambda: (_x(4, 5),), "lower", "mean",
    ),
    "a roll goes one further": Fault(
        _rule(torch.roll, lambda lo, input, shifts, dims: lo.cat(
            (lo.slice(input, (1,), (1,), (5,)), lo.slice(input, (0,), (1,), (1,))), 0)),
        lambda x: torch.roll(x.cos(), 1, 0) * 3, lambda: (_x(6),), "lower", "roll",
    ),
    "a write is not seen in what it is a part of": Fault(
        lambda patch: [patch.setattr(room, "scatter", lambda builder, path, contents, new, given: contents)
                       for room in (aliases, indexing, values, diagonals)],
        lambda x: _written_in_part(x) * 2, lambda: (_x(3, 4),), "lower", "add_",
    ),
    # ---- fusion ----
    "fuse writes over what is still to be read": Fault(
        lambda patch: patch.setattr(in_place, "_precedes", lambda *given: True),
        lambda x, y: ((x @ y).t() + x @ y).tanh(), lambda: (_x(300, 5) - 1, _x(5, 300) - 1), "fuse", "add",
    ),
    "fuse swaps the operands of a difference": Fault(
        _in_fuse(lambda node, operands, build: build.pointwise("sub", *reversed(operands))
                 if node.op == "sub" else None),
        lambda x, y: (x.exp() - y).tanh() * 2, lambda: (_x(7), _x(7)), "fuse", "sub",
    ),
    "fuse takes a minimum for a maximum": Fault(
        _in_fuse(lambda node, operands, build: build.pointwise("minimum", *operands)
                 if node.op == "maximum" else None),
        lambda x, y: torch.maximum(x, y * y).cos(), lambda: (_x(7), _x(7)), "fuse", "maximum",
    ),
    "fuse forgets a cosine": Fault(
        _in_fuse(lambda node, operands, build: operands[0] if node.op == "cos" else None),
        lambda x: (x.cos() * 3).sum(), lambda: (_x(5, 5),), "fuse", "cos",
    ),
    "fuse forgets a root inside of a norm": Fault(
        _in_fuse(lambda node, operands, build: operands[0] if node.op in ("sqrt", "rsqrt") else None),
        lambda x: torch.nn.functional.layer_norm(x, (6,)).exp(), lambda: (_x(4, 6),), "fuse", "layer_norm",
    ),
    # ---- code ----
    "code adds for bits": Fault(
        _code("bit_and", Builder.add, integers.ROWS),
        lambda x: (torch.arange(20) * 3 & 5) * x, lambda: (_x(20),), "codegen", "and_",
    ),
    "code has one digit of erf": Fault(
        _code("erf", lambda b, x: b.mul(x, b.like(0.9, x)), pointwise.FLOAT32),
        lambda x: torch.nn.functional.gelu(x.cos()).sum(1), lambda: (_x(5, 6),), "codegen", "gelu",
    ),
    "code adds for a subtraction": Fault(
        _code("sub", Builder.add),
        lambda x, y: (x - y).exp(), lambda: (_x(40), _x(40)), "codegen", "sub",
    ),
    "code rounds half away": Fault(
        _code("round", lambda b, x: b.intrinsic("round", x)),
        lambda x: (x * 0 + 2.5).round() * 2, lambda: (_x(9),), "codegen", "round",
    ),
    "code has three digits of exp": Fault(
        _code("exp", lambda b, x: b.mul(_exp(b, x), b.like(1.001, x)), pointwise.FLOAT32),
        lambda x: (x * 2).exp().sqrt(), lambda: (_x(33),), "codegen", "exp",
    ),
    "code forgets accumulators of a sum": Fault(
        lambda patch: patch.setattr(reductions, "tree", _dropped_term),
        lambda x: x.cos().sum(1) * 2, lambda: (_x(3, 517),), "codegen", "sum",
    ),
    # ---- capture and guards ----
    "numbers are recorded as others": Fault(
        _recorded(lambda found: 2.5 if found == 2.0 and type(found) is float else found),
        lambda x: x.sin() * 2.0 + 1, lambda: (_x(4),), "capture", "mul",
    ),
    "axes are recorded as others": Fault(
        _recorded(lambda found: 0 if found == 1 and type(found) is int else found),
        lambda x: x.sin().cumsum(1) + 0.5, lambda: (_x(4, 4),), "capture", "cumsum",
    ),
    "no guard holds a flag": Fault(
        _unguarded("is"),
        lambda x, flag: x.sin() if flag else x.cos(), lambda: (_x(4), True), "guards", "flag was True, is False",
    ),
    "no guard holds a text": Fault(
        _unguarded("str"),
        lambda x, kind: x.sin() if kind == "sine" else x.cos() if kind == "cosine" else x,
        lambda: (_x(4), "sine"), "guards", "kind was 'sine', is 'cosine'",
    ),
    "no guard holds that an argument is missing": Fault(
        _unguarded("is"),
        lambda x, mask: x.sin() if mask is None else x.cos() * mask,
        lambda: (_x(4), None), "guards", "mask was None, is a tensor",
    ),
    "no guard holds a length": Fault(
        _unguarded("length"),
        lambda x, given: x.sin() * len(given), lambda: (_x(4), [1.0, 2.0]),
        "guards", "given was list of length 2, is list of length 3",
    ),
    "no guard holds a key": Fault(
        lambda patch: [_unguarded(kind)(patch) for kind in ("present", "absent", "keys", "length")],
        lambda x, given: x.sin() if "a" in given else x.cos(), lambda: (_x(4), {"a": 1.0}),
        "guards", "given was a dict of 'a', is an empty dict",
    ),
    "no guard holds a relation": Fault(
        lambda patch: patch.setattr(driver_passes, "build", lambda assumptions, **rest: guards.build(
            dataclasses.replace(assumptions, relations=()), **rest)),
        lambda x, n: x.sin() if n > 2 else x.cos(), lambda: (_x(4), 2), "guards", "n was 2, is 3",
    ),
    "no guard holds a relation that one more keeps": Fault(
        lambda patch: patch.setattr(driver_passes, "build", lambda assumptions, **rest: guards.build(
            dataclasses.replace(assumptions, relations=()), **rest)),
        lambda x, n: x.sin() * 2 if n > 4 else x.cos(), lambda: (_x(4), 7), "guards", "n was 7, is 3",
    ),
    "no guard holds a number that an object has": Fault(
        _unguarded("int"), lambda x: x.sin() if SETTINGS.turns == 2 else x.cos(), lambda: (_x(4),),
        "guards", "SETTINGS.turns was 2, is 3",
    ),
    "no guard holds the mode of a module": Fault(
        _unguarded("is"), NET, lambda: (_x(4, 3),), "guards", "training was True, is False",
    ),
    "no guard tells two tensors from one": Fault(
        lambda patch: [_unguarded(kind)(patch) for kind in ("apart", "disjoint", "distinct", "different", "same")],
        lambda x, y: x.add_(1) * y, lambda: (_x(4), _x(4) + 1), "guards", "y is x",
    ),
    "writes to objects are not recorded": Fault(
        lambda patch: patch.setattr(effects.Journal, "effects", lambda self, build: ()),
        lambda x: _counted(x), lambda: (_x(4),), "capture", "SETTINGS.count",
    ),
    "no guard holds the type of a container": Fault(
        _unguarded("type"),
        lambda x, given: x.sin() * 2 if isinstance(given, list) else x.cos(), lambda: (_x(4), [1.0]),
        "guards", "given was a list, is a tuple",
    ),
    "no guard holds how a matrix lies": Fault(
        lambda patch: patch.setattr(GuardBuilder, "tensor", lambda self, source, spec: _tensor(
            self, source, dataclasses.replace(spec, order=None, strides=tuple(map(_free, spec.sizes))))),
        lambda x: x.sin() * 2 if x.is_contiguous() else x.cos(), lambda: (_x(4, 3),),
        "guards", "matrices lie by columns",
    ),
    "code fails for exp": Fault(
        _code("exp", lambda b, x: {}[x], pointwise.FLOAT32),
        lambda x: (x * 2).exp().sqrt(), lambda: (_x(4),), "codegen", "exp",
    ),
    "flags of calls are recorded as others": Fault(
        _recorded(lambda found: False if found is True else found),
        lambda x: x.exp().var(1, unbiased=True) * 2, lambda: (_x(4, 4),), "capture", "var",
    ),
}  # fmt: skip
_exp, _tensor = pointwise.FLOAT32["exp"], GuardBuilder.tensor
_names = itertools.count()


def _free(size: Any) -> Symbol:
    return Symbol(f"free{next(_names)}")


def _doubled(rule: registry.Vjp) -> registry.Vjp:
    def doubled(builder: Any, node: Any, g: Any, need: Any) -> Any:
        return rule(builder, node, builder.pointwise("add", g, g), need)

    return doubled


def _counted(x: Tensor) -> Tensor:
    SETTINGS.count += 1
    return x.sin() * 2


def _trained(x: Tensor) -> Tensor:
    OPTIMIZER.zero_grad()
    loss = STEPPED(x).square().mean()
    loss.backward()
    OPTIMIZER.step()
    return loss


def _written_in_part(x: Tensor) -> Tensor:
    y = x.exp()
    y[1:].add_(1)
    return y


def _unshifted(lo: Any, input: Any, dim: int) -> Any:
    powers = lo.compute(e.exp, input)
    return lo.compute(lambda a, s: a / s, powers, lo.reduce("sum", powers, (dim,), True))


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: Patch) -> None:
    fault = FAULTS[name]
    fault.plant(monkeypatch)
    found = framefuse.verify(fault.program, *fault.inputs(), training=fault.training)
    assert not found.ok
    assert (found.stage, found.call) == (fault.stage, fault.call), str(found)
    assert len([line for line in found.text.splitlines() if line]) <= 15, found.text
    space: dict[str, Any] = {}
    exec(compile(found.text, name, "exec"), space)
    test = next(value for key, value in space.items() if key.startswith("test_"))
    with pytest.raises(AssertionError):
        test()
    monkeypatch.undo()


@pytest.mark.parametrize("name", ["numbers are recorded as others", "no guard holds a flag"])
def test_what_no_captured_stretch_shows_is_made_smaller_too(name: str, monkeypatch: Patch) -> None:
    fault = FAULTS[name]
    fault.plant(monkeypatch)
    found = framefuse.minify(fault.program, *fault.inputs())
    assert found.call == fault.call and len([line for line in found.text.splitlines() if line]) <= 15
    monkeypatch.undo()


def _sized(x: Tensor) -> Tensor:
    return x.sin() * x.shape[0] if x.shape[1] <= 4 else x.cos()


def test_a_size_that_no_guard_holds_is_shown_by_a_program_of_its_own(monkeypatch: Patch) -> None:
    monkeypatch.setattr(
        driver_passes, "build",
        lambda assumptions, **rest: guards.build(dataclasses.replace(assumptions, relations=()), **rest),
    )  # fmt: skip
    found = framefuse.verify(_sized, _x(3, 4))
    assert found.stage == "guards" and "x.shape[0] <= 4" in found.text, str(found)
    monkeypatch.undo()
