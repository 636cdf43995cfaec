"""Turns the items of a schedule into steps of a plan: kernels, products and calls of a library."""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING

import torch

from framefuse import _native
from framefuse.ir.facts import Source
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.graph import Arg, Node
from framefuse.ir.late_imports import later
from framefuse.ir.native_code import NativeCode
from framefuse.ir.numbers import Expr
from framefuse.ir.plan import (
    AllocStep,
    CallStep,
    KernelStep,
    MatmulStep,
    ReleaseStep,
    Step,
    Template,
)
from framefuse.ir.schedule import (
    Allocate,
    Commit,
    Item,
    Positions,
    Release,
    RunCall,
    RunKernel,
    RunMatmul,
)
from framefuse.ir.values import Function, Value
from framefuse.runtime.plan_steps import Steps
from framefuse.runtime.raised_once import RaisedOnce
from framefuse.runtime.templates import RunTime, argument_template

if TYPE_CHECKING:
    from framefuse.ir.code import KernelCode
    from framefuse.runtime.device_steps import step_of
else:  # most programs have kernels of this CPU alone
    step_of = later("framefuse.runtime.device_steps", "step_of")

WORTH_DROPPING = 1 << 12  # bytes: a smaller tensor lives to the end of the call
SPECIAL_TARGETS: dict[str, Function] = {"setitem": operator.setitem, "getitem": operator.getitem}

Outs = tuple[tuple[tuple[int, ...], int], ...]


def writes_itself(target: Value) -> bool:
    """Whether a call is a method of tensors that runs on a copy of its own tensor and gives that back."""
    inside = getattr(target, "target", None)
    name = getattr(inside, "__name__", "")
    method = isinstance(inside, types.MethodDescriptorType) and name.endswith("_") and not name.startswith("_")
    return method and getattr(target, "places", ()) == (0,)


@dataclass(frozen=True, slots=True)
class ByLibrary:
    """The product of a ``step`` on a device whose library no plan knows; sizes and strides are as there."""

    step: MatmulStep

    def __call__(
        self, out: torch.Tensor, a: torch.Tensor, c: torch.Tensor, sizes: tuple[int, ...], *strides: tuple[int, ...]
    ) -> None:
        batch, m, n, k = sizes
        of_a, of_c, of_out = strides
        shown = out.as_strided((batch, m, n), of_out)
        left, right = a.as_strided((batch, m, k), of_a), c.as_strided((batch, k, n), of_c)
        shown.copy_(torch.bmm(left.to(out.dtype), right.to(out.dtype)))


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class Items:
    """Adds the steps of one item after the other. ``written``: the slots of inputs that they write."""

    def __init__(self, steps: Steps, keep: Function | None = None) -> None:
        self.steps = steps
        self.keep = keep
        self.written: set[int] = set()

    def add(self, item: Item, compiled: KernelCode | None) -> None:
        if isinstance(item, RunKernel):
            assert compiled is not None, "every kernel was compiled"
            self.steps.add(self._kernel(item, compiled))
        elif isinstance(item, RunMatmul):
            self.steps.add(self._matmul(item))
        elif isinstance(item, RunCall):
            self._call(item)
        elif isinstance(item, Allocate):
            self.steps.add(AllocStep(self.steps.slot(item.memory)))
        elif isinstance(item, Commit):
            self._commit(item)
        elif isinstance(item, Release):
            self._release(item)
        else:
            raise AssertionError(f"unknown schedule item {type(item).__name__}")

    def _kernel(self, item: RunKernel, compiled: KernelCode) -> Step:
        if not isinstance(compiled, NativeCode):
            return step_of(item, compiled, self.steps)
        return KernelStep(
            name=item.kernel.title,
            address=compiled.address,
            buffers=tuple(self.steps.slot(memory) for memory in item.buffers),
            numbers=tuple(self.steps.numbers.slot_of(value) for value in item.numbers),
            extent=self.steps.numbers.slot_of(item.extent),
            work=self.steps.numbers.slot_of(item.work),
            parallel=item.parallel,
            keep=compiled.keep,
        )

    def _matmul(self, item: RunMatmul) -> Step:
        batch, m, n, k = self.steps.all_of(item.sizes)
        a, c, out = (self._three(strides) for strides in (item.a_strides, item.c_strides, item.out_strides))
        result, left, right = (self.steps.slot(memory) for memory in (item.out, item.a, item.c))
        step = MatmulStep(result, left, right, batch, m, n, k, a, c, out)
        if self.steps.schedule.memories[item.out].device == "cpu":
            return step
        tensors = tuple(("tensor", slot) for slot in (result, left, right))
        numbers = (("tuple", *(("int", number) for number in each)) for each in ((batch, m, n, k), a, c, out))
        return CallStep("product", ByLibrary(step), (*tensors, *numbers), (), (), inside=True)

    def _three(self, strides: tuple[Expr, Expr, Expr]) -> tuple[int, int, int]:
        first, second, third = self.steps.all_of(strides)
        return first, second, third

    def _call(self, item: RunCall) -> None:
        def leaf(value: RunTime) -> Template:
            if isinstance(value, Arg):
                return ("tensor", self.steps.slot(item.operands[value.index]))
            if isinstance(value, Source):
                return ("register", self.steps.register_of[value])
            return self.steps.number_leaf(value)

        node = item.node
        target = node.attr("target")
        args = tuple(argument_template(value, leaf) for value in node.attr("args"))
        if self.keep is not None:
            target, counters = self.keep(target, self.steps.trace.assumptions.inputs)
            args += tuple(("tuple", *(("register", self.steps.register_of[each]) for each in few)) for few in counters)
        kwargs = tuple((name, argument_template(value, leaf)) for name, value in node.attr("kwargs").items())
        if item.checks is not None:
            self._check_positions(item, item.checks)
        self.steps.flush()  # numbers among the arguments come before the step, those over what it binds after it
        bound = [(out, dimension, self.steps.numbers.bind(symbol)) for out, dimension, symbol in item.binds]
        normal = tuple(self.steps.slot(memory) for memory in item.normal)
        self.written.update(self.steps.slot(memory) for memory in item.over)
        # The results' sizes and strides may be sums over symbols that this very step binds: those instructions follow
        # it, and only after them can a result be brought into the layout that its slot promises.
        late = bool(bound)
        outs = tuple((path, self.steps.slot(memory)) for path, memory in item.outs)
        if writes_itself(target) and not late:
            target, args, outs = self._in_place(item, target, args, outs)
        step = CallStep(
            name=node.attr("name"),
            function=SPECIAL_TARGETS[target] if isinstance(target, str) else target,
            args=args,
            kwargs=kwargs,
            outs=outs,
            binds=tuple((self.steps.slot(out), dimension, number) for out, dimension, number in bound),
            normal=() if late else normal,
            inside=item.inside,
            commits=getattr(target, "commits", False),
            once=RaisedOnce if "::" in node.attr("name") else None,
        )
        if not late:
            self.steps.add(step)
            return
        self.steps.made.append(step)
        self.steps.flush()
        for slot in normal:
            self.steps.add(CallStep("layout", _same, (("tensor", slot),), (), (((), slot),), normal=(slot,)))

    def _in_place(
        self, item: RunCall, target: Value, args: tuple[Template, ...], outs: Outs
    ) -> tuple[Value, tuple[Template, ...], Outs]:
        """A method that writes to a copy of its tensor, as a step that copies and one that writes; Python runs between
        them if they are one.
        """
        copied = args[0]
        if not target.spared:
            slot = next((slot for path, slot in outs if path == (1,)), -1)
            if slot < 0:
                slot = self.steps.further(item.node.inputs[item.node.attr("args")[0].index].dtype.name)
            clone = CallStep("clone", torch.Tensor.clone, (copied,), (), (((), slot),), inside=item.inside)
            self.steps.add(clone)
            copied = ("tensor", slot)
        return target.target, (copied, *args[1:]), tuple((path[1:], slot) for path, slot in outs)

    def _check_positions(self, item: RunCall, checks: Positions) -> None:
        """Looks at the positions at which a call writes: it raises for none of them when it has written others."""
        size = self.steps.numbers.slot_of(self.steps.schedule.memories[item.over[0]].sizes[checks.dimension])
        args = (("tensor", self.steps.slot(item.operands[checks.operand])), ("int", size), ("const", checks.wraps))
        self.steps.add(CallStep("positions", _native.positions_within, args, (), (), inside=True))

    def _commit(self, item: Commit) -> None:
        """Raises the versions of inputs that kernels are about to write; the plan does not decline after it."""
        self.written.update(self.steps.slot(number) for number, _ in item.inputs)
        bumped = tuple(("tensor", self.steps.slot(number)) for number, bumps in item.inputs for _ in range(bumps))
        self.steps.add(CallStep("versions", _native.raise_versions, bumped, (), (), commits=True))

    def _release(self, item: Release) -> None:
        """Drops tensors; consumed inputs also leave the list that they came in, unless they are small."""
        self.steps.add(ReleaseStep(tuple(self.steps.slot(memory) for memory in item.memories)))
        dropped: dict[Source, list[Template]] = {}
        for memory in item.memories:
            place = self.steps.schedule.memories[memory].input
            if place < 0 or self._recorded_bytes(self.steps.graph.inputs[place]) < WORTH_DROPPING:
                continue
            source = self.steps.trace.assumptions.inputs[place].source
            assert source.kind == "item" and source.base is not None, "consumed inputs come in a list"
            dropped.setdefault(source.base, []).append(("const", source.key))
        for saved, places in dropped.items():
            args = (("register", self.steps.register_of[saved]), *places)
            self.steps.add(CallStep("drop", _native.saved_drop, args, (), (), commits=True))

    def _recorded_bytes(self, node: Node) -> int:
        hints = self.steps.graph.hints
        count = node.dtype.size
        for size in node.shape:
            count *= size.evaluate({symbol: hints.get(symbol, 1) for symbol in size.symbols})
        return count
