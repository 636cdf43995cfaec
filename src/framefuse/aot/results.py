"""Says how the result of an exported program is built of tensors, and what memory each of these shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from framefuse.aot.exported_program import DLPACK, Result
from framefuse.aot.own_views import parts
from framefuse.aot.recording import Recorded, refused
from framefuse.aot.weights import NAMES, Weight
from framefuse.errors import UserError, kind_of
from framefuse.ir.dtypes import BY_NAME
from framefuse.runtime.templates import Rebuild

CONSTANTS = (bool, int, float, str, tuple)  # which a description can hold as they are


@dataclass(frozen=True, slots=True)
class Leaf:
    """Stands for what a run puts into the result."""

    template: tuple[Any, ...]


def structure(
    call: Recorded, examples: Sequence[torch.Tensor], weights: tuple[Weight, ...]
) -> tuple[dict[str, Any], tuple[Result, ...], tuple[Weight, ...]]:
    """How the result is built of tensors, these, and the weights with those that are only given back."""
    plan = call.stages.plan
    if plan.result[0] == "build" and isinstance(plan.result[1], Rebuild) and not plan.result[1].effects:
        _, rebuild, *leaves = plan.result
        try:
            result = rebuild(*map(Leaf, leaves))
        except Exception as error:
            raise refused(call.line, f"The result is computed of its parts: {error}") from error
    else:
        result = Leaf(plan.result)
    builder = _Builder(call, examples, weights)
    described = builder.visit(result)
    return described, tuple(builder.results), tuple(builder.weights)


class _Builder:
    """Walks a result, with leaves for what a run puts into it, and collects its tensors."""

    def __init__(self, call: Recorded, examples: Sequence[torch.Tensor], weights: tuple[Weight, ...]) -> None:
        self.call, self.plan = call, call.stages.plan
        self.results: list[Result] = []
        self.weights = list(weights)
        self.shown = parts(self.plan)
        self.given = [id(tensor) for tensor in examples]
        self.walked: list[int] = []

    def visit(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Leaf):
            return self.template(value.template)
        if value is None:
            return {"kind": "none"}
        if type(value) in CONSTANTS[:-1]:
            return {"kind": "value", "value": value}
        if id(value) in self.walked:
            raise self.refusal("an object that holds itself")
        self.walked.append(id(value))
        try:
            return self.parts(value)
        finally:
            self.walked.pop()

    def parts(self, value: Any) -> dict[str, Any]:
        if isinstance(value, (tuple, list)):
            kind = "list" if isinstance(value, list) else "tuple"
            return {"kind": kind, "parts": [self.visit(part) for part in value]}
        if isinstance(value, dict) and all(type(key) is str for key in value):
            return {"kind": "dict", "keys": list(value), "parts": [self.visit(part) for part in value.values()]}
        state = getattr(value, "__dict__", None)
        if not state or isinstance(value, (type, torch.nn.Module, FunctionType)):
            raise self.refusal(kind_of(value))
        return self.attributes(state)

    def attributes(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """An object as a dict of those attributes that a file can hold."""
        kept: dict[str, Any] = {}
        for name, part in state.items():
            count, weights = len(self.results), len(self.weights)
            try:
                kept[name] = self.visit(part)
            except UserError:
                if len(self.results) > count:
                    raise
                del self.weights[weights:]
        return {"kind": "dict", "keys": list(kept), "parts": list(kept.values())}

    def template(self, template: tuple[Any, ...]) -> dict[str, Any]:
        kind = template[0]
        if kind == "tensor":
            slot, steps = self.shown.get(template[1], (template[1], ()))
            dtype = self.plan.slots[template[1]].dtype
            if BY_NAME[dtype].torch not in DLPACK:
                raise self.refusal(f"a tensor of {dtype}")
            return self.leaf(Result(slot, steps, dtype))
        if kind == "register" and isinstance(self.call.registers[template[1]], torch.Tensor):
            return self.register(template[1])
        if kind == "const" and (template[1] is None or type(template[1]) in CONSTANTS):
            return self.visit(template[1])
        if kind in ("tuple", "list"):
            return {"kind": kind, "parts": [self.template(part) for part in template[1:]]}
        if kind == "namedtuple":
            return {"kind": "tuple", "parts": [self.template(part) for part in template[3:]]}
        if kind in ("dict", "object"):
            pairs = template[1:] if kind == "dict" else template[3]
            if all(key[0] == "const" and isinstance(key[1], str) for key, _ in pairs):
                keys = [key[1] for key, _ in pairs]
                return {"kind": "dict", "keys": keys, "parts": [self.template(part) for _, part in pairs]}
        number = kind in ("int", "real")
        raise self.refusal("a number that each run computes" if number else f"{template!r:.60}")

    def register(self, register: int) -> dict[str, Any]:
        """An input as it was given, or a weight."""
        tensor = self.call.registers[register]
        if register in self.plan.inputs:
            return self.leaf(Result(self.plan.inputs.index(register), ()))
        if id(tensor) in self.given:
            return self.leaf(Result(-1 - self.given.index(id(tensor)), ()))
        known = [k for k, weight in enumerate(self.weights) if weight.tensor is tensor]
        if not known:
            if tensor.dtype not in NAMES or tensor.device != self.call.device:
                raise self.refusal(f"a tensor of {tensor.dtype} on {tensor.device}")
            known = [len(self.weights)]
            order = sorted(range(tensor.ndim), key=lambda d: (-tensor.stride(d), d))
            self.weights.append(Weight(f"result {len(self.results)}", tensor, tuple(order)))
        return self.leaf(Result(-1 - len(self.given) - known[0], ()))

    def leaf(self, result: Result) -> dict[str, Any]:
        self.results.append(result)
        return {"kind": "tensor", "output": len(self.results) - 1}

    def refusal(self, what: str) -> UserError:
        return refused(
            self.call.line, f"The result holds more than tensors in tuples, lists, dicts and objects: {what}"
        )
