"""Writes the calls of torch's library of an exported program in C, over libtorch.c."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from framefuse.aot.c_words import quoted, real
from framefuse.aot.exported_program import ByTorch, Value
from framefuse.ir.dtypes import BY_NAME
from framefuse.ir.plan import Plan

Lines = Callable[[int], Iterator[str]]


def interface_version() -> int:
    """That of the interface by which calls are written, as later libraries of torch ask for it."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return major << 56 | minor << 48


def call_of_torch(plan: Plan, called: ByTorch, further: list[str], memory: Lines) -> Iterator[str]:
    """The call, the numbers that its results' sizes are, the lines of ``further`` numbers that follow from these, and
    its results where the plan has them, each in ``memory`` of the program's.
    """
    count = max(len(called.arguments), called.results, 1)
    most = max([called.results, *(place + 1 for place, _ in called.outs)])
    yield f"    {{ stable stack[{count}] = {{0}}; of_torch found[{most}] = {{0}};"
    for place, argument in enumerate(called.arguments):
        yield from (f"      {line}" for line in _put(plan, argument, f"stack[{place}]", 0))
    names = f"{quoted(called.operator)}, {quoted(called.overload)}"
    yield f"      if (call_torch(model, {names}, stack, found, {most}, {int(called.listed)})) goto failed;"
    failing = f"{{ let_go_of_torch(found, {most}); goto failed; }}"
    places = {slot: place for place, slot in called.outs}
    lines = []
    for slot, dimension, number in called.binds:
        lines.append(f"n[{number}].i = size_of_torch(&found[{places[slot]}], {dimension});")
    lines += further
    for place, slot in called.outs:
        lines += memory(slot)
        out = plan.slots[slot]
        kind = BY_NAME[out.dtype]
        lines.append(f"{{ {_numbers('sizes', out.sizes)} {_numbers('to', out.strides)}")
        shape = f"{len(out.sizes)}, sizes, p[{slot}], to, {kind.size}, {quoted(out.dtype)}"
        lines.append(f"  if (take_from_torch(model, &found[{place}], {shape})) goto failed; }}")
    yield from (f"      {line.replace('goto failed;', failing)}" for line in lines)
    yield f"      let_go_of_torch(found, {most}); }}"


def _put(plan: Plan, value: Value, to: str, depth: int) -> Iterator[str]:
    """Sets a word of the interface."""
    kind, template = value.kind, value.template
    inner = f"held_{depth}"
    if kind == "none":
        yield f"{to} = 0;"
    elif kind == "optional":
        yield f"{{ stable {inner} = 0;"
        yield from _put(plan, value.parts[0], inner, depth + 1)
        yield f"  if (some_of_torch(model, {inner}, &{to})) goto failed; }}"
    elif kind == "list":
        yield f"{{ stable {inner}[{max(1, len(value.parts))}] = {{0}};"
        for place, part in enumerate(value.parts):
            yield from _put(plan, part, f"{inner}[{place}]", depth + 1)
        yield f"  if (list_of_torch(model, {inner}, {len(value.parts)}, &{to})) goto failed; }}"
    elif kind == "tensor":
        slot = plan.slots[template[1]]
        yield f"{{ {_numbers('sizes', slot.sizes)} {_numbers('strides', slot.strides)}"
        shape = f"p[{template[1]}], {len(slot.sizes)}, sizes, strides, {quoted(slot.dtype)}"
        yield f"  if (tensor_of_torch(model, {shape}, &{to})) goto failed; }}"
    elif kind == "str":
        yield f"if (text_of_torch(model, {quoted(template[1])}, &{to})) goto failed;"
    elif kind == "dtype":
        yield f"{to} = (stable)(uint32_t)dtype_of_torch({quoted(str(template[1]).removeprefix('torch.'))});"
    elif kind == "float":
        number = {"const": lambda: real(float(template[1])), "int": lambda: f"(double)n[{template[1]}].i",
                  "real": lambda: f"n[{template[1]}].r"}[template[0]]()  # fmt: skip
        yield f"{{ const double number = {number}; memcpy(&{to}, &number, sizeof number); }}"
    else:
        number = f"n[{template[1]}].i" if template[0] == "int" else f"{int(template[1])}LL"
        yield f"{to} = (stable)(int64_t){number};"


def _numbers(name: str, numbers: tuple[int, ...]) -> str:
    values = ", ".join(f"n[{number}].i" for number in numbers) or "0"
    return f"const int64_t {name}[] = {{{values}}};"
