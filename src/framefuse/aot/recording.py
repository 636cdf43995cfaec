"""Records the call that is exported, and refuses with the user's line what cannot live outside of Python."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from framefuse import _native
from framefuse.aot.exported_program import ByTorch
from framefuse.aot.forms import forms
from framefuse.aot.own_code import Part, Pieces, is_idle, read
from framefuse.aot.own_views import parts
from framefuse.aot.scaled_convolutions import with_scaled_convolutions
from framefuse.aot.torch_calls import WALKED, by_torch
from framefuse.aot.weights import NAMES, Weight
from framefuse.api import compile
from framefuse.capture.interp.registry import FORMS, Form
from framefuse.errors import UserError
from framefuse.guards.changes import value_at
from framefuse.ir import registered
from framefuse.ir.comparisons import Relation
from framefuse.ir.facts import Fact, Source
from framefuse.ir.numbers import Symbol
from framefuse.ir.plan import AllocStep, CallStep, KernelStep, LaunchStep, MatmulStep, NumbersStep, ReleaseStep
from framefuse.ir.schedule import RunCall
from framefuse.ir.source import Line
from framefuse.runtime.compilation import Compilation
from framefuse.runtime.function import compiled_function
from framefuse.runtime.item_steps import ByLibrary

# What a trace may have asked of its arguments: each holds for all tensors of C, or is checked there.
CHECKABLE = frozenset(("tensor", "is", "type", "length", "keys", "absent", "unset", "present", "different", "distinct"))
# What is told as taken for given, of objects that are no arguments; their other facts say which code ran.
TOLD = frozenset(("int", "float", "str", "answer", "integer", "real", "count"))
CHECKS = frozenset(("tensor", "number", "relation"))
PRODUCTS = frozenset(("float32", "float64"))
ON_GPU = (Part, Pieces)  # the calls of torch that programs for GPUs have code for
FAR = 2**6 * 27720  # a multiple of the numbers that sizes are divided by: all up to 12, and powers of two
SUBMODULE = re.compile(r"\._modules\['(\w+)'\]")  # told by its name alone
OWN_FORMS = Path(__file__).parent / "forms"  # what these read is no program's
VALUES = frozenset(("real_relation", "scalar", "address", "disjoint", "apart"))  # no check in C knows them


@dataclass(frozen=True, slots=True)
class Recorded:
    """The stages of the recorded call, with what its guards read: the objects of registers and the words of numbers;
    the ``device`` of its tensors, and the steps of its plan, by their place, that are calls of torch's library.
    """

    stages: Compilation
    registers: tuple[Any, ...]
    numbers: tuple[int, ...]
    device: torch.device
    torch_calls: Mapping[int, ByTorch] = field(default_factory=dict)

    @property
    def gpu(self) -> bool:
        """Whether its kernels are launched on a GPU."""
        steps = self.stages.plan.steps
        return self.device.type != "cpu" or any(isinstance(step, LaunchStep) for step in steps)

    @property
    def line(self) -> Line:
        return self.stages.trace.line


def recorded(f: Callable[..., Any], examples: Sequence[torch.Tensor], dynamic: bool, libtorch: bool) -> Recorded:
    """One call of ``f``, without gradients, as a whole: the second where the first does what only a first call does, as
    models that install their hooks then. ``libtorch`` says whether it may call operators of torch.
    """
    known: dict[Hashable, Form] = {**(WALKED if libtorch else {}), **forms(is_on_gpu(examples))}
    with torch.no_grad():
        try:
            return _recorded(f, examples, dynamic, known)
        except UserError:
            f(*examples)
            return _recorded(f, examples, dynamic, known)


def is_on_gpu(examples: Sequence[torch.Tensor]) -> bool:
    return any(tensor.device.type == "cuda" for tensor in examples)


def _recorded(
    f: Callable[..., Any], examples: Sequence[torch.Tensor], dynamic: bool, known: Mapping[Hashable, Form]
) -> Recorded:
    options = {"cache": False, "cpu_target": "alone", "freeze": False}
    compiled = compile(f, fullgraph=True, dynamic=dynamic, options=options)
    state = compiled_function(compiled)
    if state is None:
        raise UserError(f"{f!r:.80} has no Python code that could be recorded. Export a function or an nn.Module")
    token = FORMS.set(known)
    try:
        with registered.within("forward", "scaled convolutions", with_scaled_convolutions):
            compiled(*examples)
    finally:
        FORMS.reset(token)
    if not state.products:
        raise UserError(f"the call of {f!r:.80} left nothing to compile. Export what computes with its tensors")
    stages = state.products[0].stages
    if state.resume_dispatches:
        raise refused(stages.trace.line, "The program branches on the value of a tensor")
    bound = state.dispatch.bind(*examples)
    assert bound is not None, "the call has just been made"
    checked = _native.GuardSet(stages.guards.program).check(bound)
    if isinstance(checked, int):
        fact = stages.guards.program.texts[checked] if checked >= 0 else "torch's global state"
        raise refused(stages.trace.line, f"The call itself changed what it depends on: {fact}")
    return Recorded(stages, *checked, examples[0].device if examples else torch.device("cpu"))


def taken(call: Recorded, libtorch: bool) -> Recorded:
    """The call, with the operators of torch that it takes where ``libtorch`` allows them. Raises UserError for one that
    does more than compute new tensors by kernels and products of ours, and by these.
    """
    torch_calls: dict[int, ByTorch] = {}
    stages, plan = call.stages, call.stages.plan
    assert stages.code is not None, "the native backend made it"
    shown = parts(plan)
    calls = [item.node for item in stages.code.schedule.items if isinstance(item, RunCall)]
    for place, step in enumerate(plan.steps):
        if isinstance(step, CallStep) and isinstance(step.function, ByLibrary):
            continue
        if isinstance(step, CallStep) and not is_idle(step) and not any(out in shown for _, out in step.outs):
            called: object = read(plan, step)
            if libtorch and not call.gpu and isinstance(called, str):
                called = by_torch(plan, step)
            if isinstance(called, ByTorch):
                torch_calls[place] = called
            if call.gpu and not isinstance(called, (str, *ON_GPU)):
                called = f"{step.name} has no code for GPUs"
            if isinstance(called, str):
                lines = (node.line for node in calls if node.attr("name") == step.name)
                raise refused(next(lines, None) or call.line, called)
    if stages.trace.effects or plan.finish:
        line = next((effect.line for effect in stages.trace.effects), None)
        raise refused(line or call.line, "The program changes an object that outlives the call")
    if plan.written or stages.code.schedule.writes:
        raise refused(call.line, "The program writes to its inputs or weights")
    kernel = LaunchStep if call.gpu else KernelStep
    known = (kernel, MatmulStep, AllocStep, ReleaseStep, CallStep, NumbersStep)
    if any(slot.device != str(call.device) for slot in plan.slots):
        raise refused(call.line, f"The program has tensors on other devices than {call.device}")
    for step in plan.steps:
        if not isinstance(step, known):
            raise refused(call.line, f"The step {getattr(step, 'name', type(step).__name__)} needs torch")
        if isinstance(step, MatmulStep) and (step.accumulate or plan.slots[step.out].dtype not in PRODUCTS):
            raise refused(call.line, f"A product of {plan.slots[step.out].dtype} has no kernel")
    for fact in stages.assumptions.facts:
        if fact.source.is_argument and fact.kind not in CHECKABLE:
            raise refused(fact.line or call.line, f"The program depends on more of an argument than sizes: {fact}")
    for instruction in stages.guards.program.instructions:
        if instruction[0] in VALUES:
            raise refused(call.line, f"The program depends on a value: {instruction[0]}")
    return replace(call, torch_calls=torch_calls)


def refused(line: Line, fact: str) -> UserError:
    text = f"    {line.text}\n" if line.text else ""
    return UserError(f"{line}\n{text}{fact}. Export the part of the program that computes tensors from tensors")


def told(call: Recorded) -> tuple[str, ...]:
    """What the program read of Python and what therefore stays what it was."""
    facts = (fact for fact in call.stages.assumptions.facts if _is_told(fact))
    return tuple(dict.fromkeys(SUBMODULE.sub(r".\1", str(fact)) for fact in facts))


@dataclass(frozen=True, slots=True)
class Pinned:
    """The one size that a dimension of an example has in all calls, and the line that asked for it, if one did."""

    place: int
    dim: int
    size: int
    line: Line | None

    def __str__(self) -> str:
        by = f", by {self.line.place}" if self.line is not None else ""
        return f"input {self.place} has size {self.size} in dimension {self.dim}{by}"


def pinned(call: Recorded, examples: Sequence[torch.Tensor]) -> tuple[Pinned, ...]:
    """The sizes that could differ for all that was asked, and that loops over them, weights and the like decide."""
    places = {id(tensor): place for place, tensor in enumerate(examples)}
    found: dict[tuple[int, int], Pinned] = {}
    known = [each for each in call.stages.assumptions.relations if each.op == "=="]
    for kind, *rest in call.stages.guards.program.instructions:
        place = places.get(id(call.registers[rest[0]])) if kind == "tensor" else None
        if place is None:
            continue
        for dim, size in enumerate(rest[1].sizes):
            for relation in known:
                if isinstance(size, Symbol) and _pins(relation, size, value := examples[place].shape[dim]):
                    found.setdefault((place, dim), Pinned(place, dim, value, relation.line))
    return tuple(found.values())


def _pins(relation: Relation, size: Symbol, value: int) -> bool:
    """Whether an equation holds for the size that an example has alone: no other neighbour or multiple of it does."""
    if relation.left.symbols | relation.right.symbols != {size} or not _holds(relation, size, value):
        return False
    others = {1, 2, value - 1, value + 1, 2 * value, value + FAR} - {0, value}
    return not any(_holds(relation, size, other) for other in others if other > 0)


def _holds(relation: Relation, size: Symbol, value: int) -> bool:
    """Whether a relation is true for a size; one that divides by a number that this size makes zero is not."""
    try:
        return relation.holds({size: value})
    except ZeroDivisionError:
        return False


def _is_told(fact: Fact) -> bool:
    root: Any = fact.source.root.key
    module = root.__module__ if isinstance(root, FunctionType) else ""
    name = root.__name__ if isinstance(root, ModuleType) else module or ""
    own = fact.line is not None and Path(fact.line.file).is_relative_to(OWN_FORMS)
    own |= any(root is defaults for defaults in _defaults())
    if fact.kind not in TOLD or fact.source.is_argument or own or name.partition(".")[0] == "torch":
        return False
    return not _is_setting(fact.source)


def _is_setting(source: Source) -> bool:
    """Whether a value belongs to a layer of torch's own, as its stride: nobody takes that for a variable."""
    base = source.base
    while base is not None:
        held = value_at(base, (), {})
        if isinstance(held, torch.nn.Module):
            return type(held).__module__.partition(".")[0] == "torch"
        base = base.base
    return False


@functools.cache
def _defaults() -> tuple[object, ...]:
    """What forms have for arguments that are not given."""
    functions: list[Any] = [form.function for form in forms().values()]
    return tuple(part for each in functions for part in (each.__defaults__, each.__kwdefaults__) if part)


# ---- tensors ---------------------------------------------------------------------------------------------------------


def sources(
    call: Recorded, examples: Sequence[torch.Tensor], names: Mapping[int, str]
) -> tuple[tuple[Weight, ...], tuple[int, ...]]:
    """The weights, and for each input slot of the plan the number of an example, or that of a weight behind these;
    ``names`` are those of parameters and buffers by their ids.
    """
    places = {id(tensor): place for place, tensor in enumerate(examples)}
    weights: dict[int, Weight] = {}
    order, found = list[int](), []
    plan = call.stages.plan
    for entry, register in zip(call.stages.assumptions.inputs, plan.inputs, strict=True):
        tensor = call.registers[register]
        if id(tensor) in places:
            found.append(places[id(tensor)])
            continue
        name = names.get(id(tensor), str(entry.source))
        if id(tensor) not in weights:
            if tensor.device != call.device:
                raise refused(call.line, f"The weight {name} lies on {tensor.device}, the inputs on {call.device}")
            if entry.spec.order is None or tensor.dtype not in NAMES:
                raise refused(call.line, f"The weight {name} is not dense in memory, or has a dtype that files lack")
            weights[id(tensor)] = Weight(name, tensor, entry.spec.order)
            order.append(id(tensor))
        found.append(len(examples) + order.index(id(tensor)))
    return tuple(weights.values()), tuple(found)


def checks(call: Recorded, examples: Sequence[torch.Tensor]) -> tuple[tuple[tuple[object, ...], ...], dict[int, int]]:
    """The guards that read tensors of the caller or numbers, in order, with the words of the numbers that none of them
    sets. An example that the program did not read is not looked at.
    """
    places = {id(tensor): place for place, tensor in enumerate(examples)}
    kept: list[tuple[object, ...]] = []
    bound: set[int] = set()
    for instruction in call.stages.guards.program.instructions:
        kind = instruction[0]
        if kind == "tensor":
            _, register, spec, free = instruction
            place = places.get(id(call.registers[register]))
            if place is None:
                continue
            bound.update(number for _, _, number in free)
            kept.append((kind, place, spec, free))
        elif kind in CHECKS:
            kept.append(instruction)
            if kind == "number":
                bound.add(instruction[1][1])
    fixed = {number: call.numbers[number] for number in range(call.stages.plan.bound) if number not in bound}
    return tuple(kept), fixed
