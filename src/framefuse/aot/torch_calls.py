"""Reads the library calls of a plan that an exported program makes by torch's own library: as operators that torch's
stable interface of C can call.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from framefuse.aot.exported_program import DLPACK, NONE, ByTorch, Value
from framefuse.capture.interp.registry import Form
from framefuse.ir.dtypes import BY_NAME
from framefuse.ir.plan import CallStep, Plan, Template

# Where a function lies that takes what the operator of its name takes.
HOLDERS = (
    torch._C._VariableFunctions, torch._C._nn, torch._C._linalg, torch._C._fft, torch._C._special,  # type: ignore[attr-defined]
    torch.Tensor,
)  # fmt: skip
SAME: dict[Any, Any] = {F.pad: torch.ops.aten.pad.default}  # functions in Python that take what an operator takes
# Functions in Python that are walked as the program's own, where what they call may be torch's.
WALKED: dict[Hashable, Form] = {
    each: Form(each, lambda args, kwargs: True)
    for each in (F.ctc_loss, F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)
}
PLAIN = {"IntType": "int", "SymIntType": "int", "FloatType": "float", "BoolType": "bool", "StringType": "str"}


def by_torch(plan: Plan, step: CallStep) -> ByTorch | str:
    """The operator that a call is of, or why torch's stable interface cannot call it."""
    refused = f"{step.name} is a call of torch's library that its stable interface of C does not take"
    if any(dimension < 0 for _, dimension, _ in step.binds):
        return f"{step.name} gives a number, which a program without Python does not read"
    fits = [found for operator in _operators(step) if (found := _bound(plan, step, operator)) is not None]
    if len(fits) != 1:
        return refused
    operator, arguments = fits[0]
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return f"{step.name} draws random numbers"
    schema = operator._schema
    kinds = [_kind(each.real_type) for each in schema.returns]
    listed = kinds == [("list", ("tensor",))]
    if not listed and any(kind != ("tensor",) for kind in kinds):
        return refused
    outs = []
    for path, slot in step.outs:
        if len(path) > 1 or (path == ()) != (not listed and len(kinds) == 1):
            return refused
        if BY_NAME[plan.slots[slot].dtype].torch not in DLPACK:
            return refused
        outs.append((path[0] if path else 0, slot))
    names = schema.name, schema.overload_name
    return ByTorch(*names, arguments, len(kinds), listed, tuple(outs), step.binds)


def _operators(step: CallStep) -> Iterator[Any]:
    """The operators that a function of torch may call."""
    function: Any = step.function
    if isinstance(function, torch._ops.OpOverload):
        if function.namespace == "aten":
            yield function
        return
    if function in SAME:
        yield SAME[function]
    name = function.__name__ if hasattr(function, "__name__") else ""
    if not any(getattr(holder, name, None) is function for holder in HOLDERS):
        return
    packet = getattr(torch.ops.aten, name, None)
    for overload in packet.overloads() if packet is not None else ():
        yield getattr(packet, overload)


def _bound(plan: Plan, step: CallStep, operator: Any) -> tuple[Any, tuple[Value, ...]] | None:
    """An operator with the arguments of a call, where it takes them and writes to none."""
    schema = operator._schema
    if any(each.is_write for each in schema.arguments):
        return None
    given = dict(step.kwargs)
    rest = list(step.args)
    values = []
    for each in schema.arguments:
        if rest and not each.kwarg_only:
            template = rest.pop(0)
            if each.name in given:
                return None
        elif each.name in given:
            template = given.pop(each.name)
        elif each.has_default_value():
            template = _template(each.default_value)
        else:
            return None
        value = _value(plan, _kind(each.real_type), template, each.N)
        if value is None:
            return None
        values.append(value)
    return None if rest or given else (operator, tuple(values))


def _template(value: object) -> Template:
    """That of a default, whose lists are lists."""
    return ("list", *map(_template, value)) if isinstance(value, (list, tuple)) else ("const", value)


def _kind(of: Any) -> tuple[Any, ...]:
    """A type of a schema in words; an empty one where the interface has none for it."""
    kind = of.kind()
    if kind in PLAIN:
        return (PLAIN[kind],)
    if kind == "TensorType":
        return ("tensor",)
    if kind in ("OptionalType", "ListType"):
        return ("optional" if kind == "OptionalType" else "list", _kind(of.getElementType()))
    return ("dtype",) if str(of) == "ScalarType" else ()


def _value(plan: Plan, kind: tuple[Any, ...], template: Template, count: int | None = None) -> Value | None:
    """A template as a value of a kind; None where it is none."""
    tag = template[0]
    if not kind or kind == ("optional", ()):
        return Value("none") if kind and template == NONE else None
    if kind[0] == "optional":
        if template == NONE:
            return Value("none")
        held = _value(plan, kind[1], template, count)
        return None if held is None else Value("optional", parts=(held,))
    if kind[0] == "list":
        items = _items(template)
        if items is None and count and kind[1] in (("int",), ("float",), ("bool",)):
            items = [template] * count  # one number for each
        if items is None:
            return None
        held_items = [_value(plan, kind[1], item) for item in items]
        found = tuple(item for item in held_items if item is not None)
        return Value("list", parts=found) if len(found) == len(items) else None
    if kind[0] == "tensor":
        known = tag == "tensor" and BY_NAME[plan.slots[template[1]].dtype].torch in DLPACK
        return Value("tensor", template) if known else None
    if kind[0] == "dtype":
        return Value("dtype", template) if tag == "const" and isinstance(template[1], torch.dtype) else None
    takes: Any = {"int": int, "float": (float, int), "bool": bool, "str": str}[kind[0]]
    if tag == "const":
        plain = isinstance(template[1], takes) and isinstance(template[1], bool) == (kind[0] == "bool")
        return Value(kind[0], template) if plain else None
    runs = {"int": ("int",), "float": ("int", "real")}.get(kind[0], ())
    return Value(kind[0], template) if tag in runs else None


def _items(template: Template) -> list[Template] | None:
    """The parts of a list or tuple."""
    if template[0] in ("tuple", "list"):
        return list(template[1:])
    if template[0] == "const" and isinstance(template[1], (tuple, list)):
        return [("const", item) for item in template[1]]
    return None
