"""Prints a trace as Python-like text: facts, torch calls with the user's lines, effects and the result."""

from __future__ import annotations

from framefuse.ir.dtypes import BY_TORCH
from framefuse.ir.trace import Build, Call, Ref, TensorMeta, Trace
from framefuse.ir.values import Value


def trace_text(trace: Trace) -> str:
    """The whole trace; each call stands below the user's line that made it, with the recorded metadata at its right."""
    lines = [f"# {trace.name}, recorded at {trace.line}", "# assumes:"]
    lines += [f"#   {fact}" for fact in trace.assumptions.facts]
    lines += [f"#   {symbol} = {formula}" for symbol, formula in trace.assumptions.definitions]
    lines += [f"#   {relation}" for relation in (*trace.assumptions.relations, *trace.assumptions.comparisons)]
    for entry in trace.assumptions.inputs:
        lines.append(f"v{entry.value} = {entry.source}  # {entry.spec}")
    last = None
    for call in trace.calls:
        if call.line != last and call.line is not None:
            lines.append(f"# {call.line.file.rsplit('/', 1)[-1]}:{call.line.line}  {call.line.text}")
            last = call.line
        lines.append(_call(trace, call))
    lines += [
        f"{effect.kind} {_value(effect.target)} {effect.key!r} = {_value(effect.value)}" for effect in trace.effects
    ]
    lines.append(f"return {_value(trace.result)}")
    return "\n".join(lines)


def meta_text(meta: TensorMeta) -> str:
    """dtype, sizes and device as in ``f32[4, 8] cpu``."""
    row = BY_TORCH.get(meta.dtype)
    return f"{row.short if row else meta.dtype}[{', '.join(map(str, meta.sizes))}] {meta.device}"


def _call(trace: Trace, call: Call) -> str:
    parts = [_value(arg) for arg in call.args] + [f"{name}={_value(arg)}" for name, arg in call.kwargs.items()]
    metas = ", ".join(meta_text(trace.metas[value]) for value in _refs(call.result))
    target = _value(call.result) if call.result is not None else "_"
    return f"{target} = {call.name}({', '.join(parts)})" + (f"  # {metas}" if metas else "")


def _refs(value: Value) -> list[int]:
    if isinstance(value, Ref):
        return [value.value]
    if isinstance(value, (tuple, list)):
        return [number for part in value for number in _refs(part)]
    return []


def _value(value: Value) -> str:
    if isinstance(value, Ref):
        return f"v{value.value}"
    if isinstance(value, Build):
        return _build(value)
    if isinstance(value, tuple):
        return "(" + ", ".join(_value(part) for part in value) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, list):
        return "[" + ", ".join(_value(part) for part in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_value(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (str, int, float, type(None), slice)):
        return repr(value)
    return str(value)


def _build(recipe: Build) -> str:
    if recipe.kind in ("const", "source", "same"):
        return str(recipe.value)
    if recipe.kind in ("dict", "object"):
        inside = ", ".join(f"{_value(key)}: {_value(part)}" for key, part in recipe.parts)
        name = recipe.value.__name__ if recipe.kind == "object" else ""
        base = f"{_value(recipe.base)}, " if recipe.base is not None else ""
        return f"{name}{{{base}{inside}}}"
    return f"{recipe.kind}({', '.join(_value(part) for part in recipe.parts)})"
