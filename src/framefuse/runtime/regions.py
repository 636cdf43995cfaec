"""Finds what of a plan a device can be asked to repeat at once: takes a plan, gives its region or a text why none."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from framefuse import _native
from framefuse.ir.plan import (
    AllocStep,
    CallStep,
    Captures,
    KernelStep,
    LaunchStep,
    MatmulStep,
    NumbersStep,
    Plan,
    Region,
    ReleaseStep,
    Step,
    Template,
)
from framefuse.ir.torch_calls import TABLE
from framefuse.ir.values import Value
from framefuse.runtime.kept_values import DerivedCall, PackedCall
from framefuse.runtime.written_inputs import refuse_unwritable

# What a call does to the objects, beside the work of the device.
HOST = (_native.raise_versions, _native.saved_drop, refuse_unwritable)


@dataclass(frozen=True, slots=True)
class Work:
    """What a region has to do: ``device`` as "cuda:0", kernel launches, library calls, the places among its inputs
    that it writes, and the places among its outs that autograd keeps for backward and nobody else sees. ``taped`` says
    that calls are recorded by torch to be differentiated; ``tapes`` are the places among the inputs that are such
    records: what torch keeps behind them is captured too. ``frees`` says that inputs are let go of on the way.
    """

    device: str
    launches: int
    calls: int
    written: tuple[int, ...]
    kept: tuple[int, ...] = ()
    taped: bool = False
    tapes: tuple[int, ...] = ()
    frees: bool = False


class Refused(Exception):
    """Why a plan has no region."""


def region_of(plan: Plan, kind: str, captures: Callable[[Work], Captures]) -> Region | str:
    """The region of ``plan`` on one device of type ``kind``; ``captures`` makes what decides about it."""
    try:
        return _region(plan, kind, captures)
    except Refused as why:
        return str(why)


@dataclass
class _Reader:
    """Collects the slots and numbers that steps name."""

    plan: Plan
    kind: str
    slots: set[int] = field(default_factory=set)
    numbers: set[int] = field(default_factory=set)
    made: set[int] = field(default_factory=set)
    taped: bool = False
    tapes: set[int] = field(default_factory=set)

    def slot(self, index: int) -> None:
        """Takes a slot with the numbers of its shape, and the memory that it is a view of."""
        if index in self.slots:
            return
        self.slots.add(index)
        slot = self.plan.slots[index]
        self.numbers.update((*slot.sizes, *slot.strides))
        if slot.offset >= 0:
            self.numbers.add(slot.offset)
        if slot.place == "arena":
            self.numbers.add(slot.base)
        if slot.place == "view":
            self.slot(slot.base)

    def template(self, template: Template) -> None:
        """Takes what a value is made of."""
        tag = template[0]
        if tag == "tensor":
            self.slot(template[1])
        elif tag in ("int", "real"):
            self.numbers.add(template[1])
        elif tag == "const":
            self.constant(template[1])
        elif tag in ("tuple", "list", "slice"):
            for part in template[1:]:
                self.template(part)
        elif tag == "dict":
            for pair in template[1:]:
                for part in pair:
                    self.template(part)
        else:
            raise Refused("a library call is given an object that may be another one in each call")

    def constant(self, value: Value) -> None:
        """A constant is no tensor: one could be changed, or lie elsewhere."""
        if isinstance(value, (torch.Tensor, torch.Generator)):
            raise Refused("a library call is given a tensor or generator that is no argument")
        if isinstance(value, (tuple, list)):
            for part in value:
                self.constant(part)

    def step(self, step: Step) -> None:
        """Takes a step that the device repeats."""
        if isinstance(step, LaunchStep):
            self.numbers.add(step.extent)
            for kind, index in step.arguments:
                self.slot(index) if kind == "pointer" else self.numbers.add(index)
        elif isinstance(step, (KernelStep, MatmulStep)):
            self.on_cpu(step)
        elif isinstance(step, AllocStep):
            self.slot(step.slot)
            self.made.add(step.slot)
        elif isinstance(step, CallStep):
            self.call(step)
        elif isinstance(step, NumbersStep):
            raise Refused("a size is known only when a step has run")

    def on_cpu(self, step: KernelStep | MatmulStep) -> None:
        """Takes a step of the CPU, which only a stand-in repeats."""
        if self.kind != "cpu":
            raise Refused("a part of it runs on the CPU")
        if isinstance(step, KernelStep):
            self.numbers.update((*step.numbers, step.extent, step.work))
            slots = step.buffers
        else:
            self.numbers.update((step.batch, step.m, step.n, step.k, *step.a_strides, *step.c_strides))
            self.numbers.update(step.out_strides)
            slots = (step.out, step.a, step.c)
        for slot in slots:
            self.slot(slot)

    def call(self, step: CallStep) -> None:
        """Takes a library call."""
        if step.binds:
            raise Refused(f"the size of what {step.name} gives is known only when it has run")
        if step.commits or step.grad:
            raise Refused(f"{step.name} does more than compute")
        if TABLE[step.name].generator:
            raise Refused(f"{step.name} concerns a generator, which a repetition leaves as it is")
        if isinstance(step.function, (DerivedCall, PackedCall)):
            raise Refused(f"{step.name} compares weights in each call")
        if getattr(step.function, "tape", ""):
            self.tape(step)
        if not is_torchs(step.function):
            raise Refused(f"what {step.name} does beside computing is not known")
        for part in (*step.args, *(part for _, part in step.kwargs)):
            self.template(part)
        for _, slot in step.outs:
            self.slot(slot)
            self.made.add(slot)

    def tape(self, step: CallStep) -> None:
        """Takes a call that makes or reads a tape: objects of torch's that are made once, in the capture, and whose
        memory a replay writes again.
        """
        operands = {slot for part in step.args[:1] for slot in _slots_in(part)}
        given = {slot for slot in operands if self.plan.slots[slot].place == "input"}
        if self.kind == "cpu" or getattr(step.function, "draws", False):
            raise Refused(f"{step.name} is differentiated by torch, in objects that each run makes anew")
        if getattr(step.function, "tape", "") == "made":
            self.taped = True
            if given:  # a write to them between forward and backward must be noticed
                raise Refused(f"{step.name} is differentiated by torch, which looks after its arguments")
        else:
            self.tapes |= given | {slot for slot in _slots_in(step.args[1]) if self.plan.slots[slot].place == "input"}


def is_torchs(function: Value) -> bool:
    """Whether a callable of a step is torch's own, or one of ours around it: it only computes."""
    kind = type(function)
    module = str(getattr(function, "__module__", None) or kind.__module__)
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(function).removeprefix("torch.ops.").startswith(("aten.", "prims."))
    if kind.__module__.startswith("framefuse.") or module.startswith("framefuse."):
        if getattr(function, "whole", False):
            return False  # a graph of any calls
        inner = getattr(function, "target", None)
        return inner is None or (not getattr(inner, "tape", "") and is_torchs(inner))
    if isinstance(function, types.BuiltinFunctionType):
        owner = type(getattr(function, "__self__", None)).__module__
        return module == "_operator" or owner in ("builtins", "torch", "torch._C") or module.startswith("torch")
    if isinstance(function, (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)):
        return True
    return isinstance(function, types.FunctionType) and module.partition(".")[0] == "torch"


def _region(plan: Plan, kind: str, captures: Callable[[Work], Captures]) -> Region:
    body, rest = plan.steps[: plan.body], plan.steps[plan.body :]
    if not body:
        raise Refused("it computes nothing")
    lead = next((place for place, step in enumerate(body) if not _compares(step)), len(body))
    given = {slot for step in body[:lead] if isinstance(step, CallStep) for _, slot in step.outs}
    if lead == len(body):
        raise Refused("it computes nothing but what is kept")
    host = tuple(place for place, step in enumerate(body) if place >= lead and _is_host(step))
    reader = _Reader(plan, kind)
    for place, step in enumerate(body):
        if place >= lead and place not in host:
            reader.step(step)
    devices = {plan.slots[slot].device for slot in reader.slots}
    if len(devices) != 1 or next(iter(devices)).partition(":")[0] != kind:
        raise Refused(f"it works on {' and '.join(sorted(devices)) or 'nothing'}")
    inputs = tuple(sorted(slot for slot in reader.slots if plan.slots[slot].place == "input" or slot in given))
    readers = Counter(_read_behind(plan, rest))
    outs = tuple(sorted(set(readers) & reader.made))
    kept = [slot for slot in _kept(rest) if readers[slot] == 1]
    constants = {instruction[1] for instruction in plan.numbers if instruction[0] in ("const", "real_const")}
    work = Work(
        devices.pop(),
        sum(isinstance(step, (LaunchStep, KernelStep)) for step in body),
        sum(isinstance(step, (CallStep, MatmulStep)) for step in body)
        - sum(isinstance(body[p], CallStep) for p in (*range(lead), *host)),
        tuple(inputs.index(slot) for slot in plan.written),
        tuple(sorted(outs.index(slot) for slot in kept if slot in outs)),
        reader.taped,
        tuple(sorted(inputs.index(slot) for slot in reader.tapes)),
        any(getattr(body[place], "function", None) is _native.saved_drop for place in host),
    )
    return Region(
        lead=lead,
        steps=plan.body,
        host=host,
        inputs=inputs,
        written=plan.written,
        outs=outs,
        numbers=tuple(sorted(reader.numbers - constants)),
        captures=captures(work),
    )


def _kept(rest: tuple[Step, ...]) -> Iterator[int]:
    """The slots that autograd is given to keep to itself until backward."""
    for step in rest:
        if isinstance(step, CallStep) and isinstance(step.function, _native.Attach):
            start = step.function.before_own
            for part in step.args[start : start + step.function.own]:
                yield from _slots_in(part)


def _compares(step: Step) -> bool:
    """Whether a step gives what is kept of weights that it compares in each call."""
    return isinstance(step, CallStep) and isinstance(step.function, DerivedCall)


def _is_host(step: Step) -> bool:
    return isinstance(step, ReleaseStep) or (isinstance(step, CallStep) and step.function in HOST)


def _read_behind(plan: Plan, rest: tuple[Step, ...]) -> Iterator[int]:
    """The slots that the steps behind the region and the result name."""
    for step in rest:
        if isinstance(step, CallStep):
            for part in (*step.args, *(part for _, part in step.kwargs)):
                yield from _slots_in(part)
        elif not isinstance(step, (ReleaseStep, NumbersStep)):
            raise Refused("it computes more behind what it hangs into autograd")
    yield from _slots_in(plan.result)
    for _, arguments in plan.finish:
        for part in arguments:
            yield from _slots_in(part)


def _slots_in(template: Template) -> Iterator[int]:
    """The slots that a template names; pairs of templates have no tag."""
    if not isinstance(template, tuple) or not template:
        return
    tag = template[0] if isinstance(template[0], str) else None
    if tag == "tensor":
        yield template[1]
    elif tag not in ("const", "int", "real", "register"):
        for part in template if tag is None else template[1:]:
            yield from _slots_in(part)
