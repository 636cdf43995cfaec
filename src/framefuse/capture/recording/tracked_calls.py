"""Records what a custom autograd function gave: the results of its forward, with the function's own gradient."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress, count, pairwise
from typing import Protocol

import torch

from framefuse.capture.facts.numbers import Float, Integer
from framefuse.capture.recording.call_arguments import PLAIN_ARGUMENTS
from framefuse.capture.recording.recorder import Recorder
from framefuse.capture.recording.state import casts_now
from framefuse.ir.custom_calls import NAME, CustomCall, Nested, backward_of
from framefuse.ir.own_class import is_a
from framefuse.ir.source import Line
from framefuse.ir.trace import Call, Ref
from framefuse.ir.values import Value

Function = type[torch.autograd.Function]
LEAF = None  # in place of a container
CHANGING = {"append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "update", "setdefault"}
LEFT: set[Line | None] = set()  # the places of calls that are steps
# What torch's own ``ctx`` has and ours has not: a backward that names one of these is left to torch.
OF_NODES = frozenset(
    ("next_functions", "metadata", "register_hook", "register_prehook", "_sequence_nr", "maybe_clear_saved_tensors",
     "_raw_saved_tensors", "_set_sequence_nr", "saved_variables", "mark_shared_storage", "_forward_cls", "_autograd")
)  # fmt: skip


class Context(Protocol):
    """What forward left in ``ctx``."""

    saved_tensors: tuple[torch.Tensor | None, ...]
    needs_input_grad: tuple[bool, ...]
    materialize: bool

    def attributes(self) -> dict[str, Value]: ...


def may_record(recorder: Recorder, function: Function) -> bool:
    """Whether a call that wants gradients can be one of the trace; else torch makes it, as a step."""
    if recorder.placed() in LEFT or recorder.reentrant:
        return False
    if recorder.transformed is not None or torch._C._are_functorch_transforms_active():
        return False
    hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    if hooked and not recorder.region:  # a checkpoint has its own
        return False
    code = getattr(inspect.unwrap(backward_of(function)), "__code__", None)
    return code is not None and OF_NODES.isdisjoint(code.co_names)


def record(
    recorder: Recorder,
    function: Function,
    context: Context,
    operands: Sequence[Value],
    raw: Sequence[Value],
    results: Sequence[Value],
    known: int,
) -> bool:
    """Records the results of a call whose forward gave ``raw``; memory met before it has a number below ``known``.
    False where no graph can say what ``ctx`` keeps, or where a result shows an argument's memory.
    """
    given = [part for part in raw if is_a(part, torch.Tensor)]
    tracked = [is_a(part, torch.Tensor) and part.requires_grad for part in results]
    if any(part.dtype.is_complex or id(part) not in recorder.numbers for part in given):
        return False
    if len({id(part) for part in given}) != len(given) or not any(tracked):
        return False
    storages = [recorder.metas[recorder.numbers[id(part)]].storage for part in given]
    if len(set(storages)) != len(storages):
        return False
    leaves: list[Value] = []
    attributes = context.attributes()
    kept = _taken(recorder, attributes, leaves, {id(part) for part in given})
    saved = _taken(recorder, context.saved_tensors, leaves, set())
    if kept is None or kept is MISSING or saved is MISSING or _may_change(function, attributes):
        return False
    kept = Nested(dict, (*kept.parts, saved), (*kept.keys, "saved_tensors"))
    tensors = tuple([is_a(part, torch.Tensor) for part in operands])
    none = never_given(function)
    if _tells_beside(function) and none.issuperset(compress(count(), context.needs_input_grad)):
        return False  # the graph would have no reason to call it
    call = CustomCall(function, tensors, context.needs_input_grad, tuple(sorted(none)), kept, context.materialize)
    args = (
        tuple([recorder.arguments.of(part) if is_a(part, torch.Tensor) else None for part in raw]),
        tuple([recorder.arguments.of(part) if is_a(part, torch.Tensor) else None for part in operands]),
        tuple([recorder.arguments.of(leaf) for leaf in leaves]),
    )
    refs = [
        _result(recorder, part, known) if with_gradient else None
        for part, with_gradient in zip(results, tracked, strict=True)
    ]
    if recorder.alive:
        line, region = recorder.placed(), recorder.region
        recorder.calls.append(
            Call(call, NAME, args, {}, tuple(refs), line, grad_enabled=True, autocast=casts_now(), region=region)
        )
    return True


def _result(recorder: Recorder, result: torch.Tensor, known: int) -> Ref:
    """The value of a result: in memory of its own, which no other value of the trace has any longer."""
    address = result.untyped_storage()._cdata
    memory, storages, families = recorder.storages[address], recorder.storages, recorder.families
    if memory >= known:
        storages[~address] = storages.pop(address)  # it stays counted
        return Ref(recorder.add(result))
    number = recorder.add(result)
    storages[~number], families[~number] = len(storages), len(families)
    recorder.metas[number] = replace(
        recorder.metas[number], storage=storages[~number], family=families[~number], view=False
    )
    recorder.views.append((recorder.placed(), number, memory, len(recorder.calls)))
    return Ref(number)


def settle_views(recorder: Recorder, leaving: Sequence[int]) -> None:
    """Ends a recording in which the result of a function that shows an argument's memory leaves, or in which that
    memory is written: as a value of its own it would not be what eager gives. The next one leaves the call to torch.
    """
    for place, number, memory, index in recorder.views:
        own = recorder.metas[number].storage
        seen = any(each >= number and recorder.metas[each].storage in (own, memory) for each in leaving)
        written = {recorder.metas[each].storage for call in recorder.calls[index:] for each in call.written}
        if seen or not written.isdisjoint((own, memory)):
            LEFT.add(place)
            recorder.kill("custom-function", "A function that gives a view of its argument")
            return


MISSING = Nested(tuple, ())  # in place of containers that no graph can hold


def _taken(recorder: Recorder, value: Value, leaves: list[Value], refused: set[int]) -> Nested | None:
    """How nested containers are made of ``leaves``, which are added; MISSING where a leaf is no value of a graph, or
    one of those ``refused``.
    """
    kind = type(value)
    if kind in (tuple, list, torch.Size, dict):
        if kind is not tuple and recorder.sources.knows(value):
            return MISSING
        parts = [_taken(recorder, part, leaves, refused) for part in (value.values() if kind is dict else value)]
        keys = tuple(value) if kind is dict else ()
        if any(part is MISSING for part in parts) or any(type(key) not in PLAIN_ARGUMENTS for key in keys):
            return MISSING
        return Nested(kind, tuple(parts), keys)
    if is_a(value, torch.Tensor):
        if id(value) in refused or recorder.number(value) is None:
            return MISSING
    elif kind not in PLAIN_ARGUMENTS and kind not in (Integer, Float, torch.memory_format):
        return MISSING
    leaves.append(value)
    return LEAF


# ---- backward by its letter ------------------------------------------------------------------------------------------


def never_given(function: Function) -> set[int]:
    """The arguments of forward for which each ``return`` of backward has the word None."""
    code = getattr(backward_of(function), "__code__", None)
    places: set[int] | None = None
    instructions = [] if code is None else [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    for number, instruction in enumerate(instructions):
        if instruction.opname in ("RETURN_VALUE", "RETURN_CONST"):
            one_way = instruction.opname == "RETURN_CONST" or not instruction.is_jump_target
            here = _nones(instructions[: number + (instruction.opname == "RETURN_CONST")]) if one_way else set()
            places = here if places is None else places & here
    return places or set()


def _may_change(function: Function, attributes: dict[str, Value]) -> bool:
    """Whether backward may change what ``ctx`` has: the next backward finds it so, where a graph makes it anew."""
    code = getattr(inspect.unwrap(backward_of(function)), "__code__", None)
    if code is None:
        return True
    instructions = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    names = {each.opname for each in instructions}
    if {"STORE_ATTR", "DELETE_ATTR"} & names or {"setattr", "delattr", "__dict__"} & {*code.co_names}:
        return True
    # A global's list is no part of ``ctx``, nor one of an assertion that pytest spelled out.
    changed = [
        here
        for here, method in pairwise(instructions)
        if method.argval in CHANGING and here.opname != "LOAD_GLOBAL" and not str(here.argval).startswith("@")
    ]
    holds = any(type(value) in (list, dict) for value in attributes.values())
    return holds and bool(changed or {"STORE_SUBSCR", "DELETE_SUBSCR"} & names)


def _tells_beside(function: Function) -> bool:
    """Whether backward calls something: what that does may be seen where it gives no gradient."""
    code = getattr(backward_of(function), "__code__", None)
    return code is None or any("CALL" in each.opname or "STORE" in each.opname for each in dis.get_instructions(code))


def _nones(before: Sequence[dis.Instruction]) -> set[int]:
    """The places of None in what these instructions leave on the stack, or give."""
    if before and before[-1].opname in ("LOAD_CONST", "RETURN_CONST"):
        given = before[-1].argval
        return {place for place, part in enumerate(given if type(given) is tuple else (given,)) if part is None}
    if not before or before[-1].opname != "BUILD_TUPLE":
        return set()
    places, at = set(), len(before) - 1
    for place in reversed(range(before[-1].argval)):
        if before[at].is_jump_target:  # there are two ways to this value
            return set()
        depth, first = 0, at
        while depth < 1:
            first -= 1
            if first < 0 or "JUMP" in before[first].opname or before[first].is_jump_target:
                return set()
            depth += dis.stack_effect(before[first].opcode, before[first].arg)
        if first == at - 1 and before[first].opname == "LOAD_CONST" and before[first].argval is None:
            places.add(place)
        at = first
    return places
