"""What torch has for control flow, written in Python so that the interpreter records the way that a call takes.

The branch on a tensor in one of these functions divides the graph also where ``fullgraph`` asks for one, and compiled
code goes on behind it: only the way that is taken runs, as under eager.
"""

from __future__ import annotations

import types
from collections.abc import Iterable

import torch

from framefuse.capture.callables.scans import LONGEST
from framefuse.capture.facts.settle import cell_contents
from framefuse.capture.interp.registry import NAMED_EQUIVALENTS
from framefuse.capture.program.breaks import CONTROL
from framefuse.ir.values import Arguments, Function, Keywords, Value

ROOM = "torch._higher_order_ops."
PLAIN = (int, float, str, type(None), type, types.ModuleType, types.BuiltinFunctionType)
DEEPEST = 3


def cond(pred: Value, true_fn: Function, false_fn: Function, operands: Value = ()) -> Value:
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)


def while_loop(cond_fn: Function, body_fn: Function, carried_inputs: Value) -> Value:
    if not cond_fn(*carried_inputs):
        return tuple([part.clone() for part in carried_inputs])
    carried = tuple(body_fn(*carried_inputs))
    while cond_fn(*carried):
        carried = tuple(body_fn(*carried))
    return carried


def mapped(f: Function, xs: Value, *args: Value) -> Value:
    single = isinstance(xs, torch.Tensor)
    rows = xs.unbind(0) if single else zip(*[part.unbind(0) for part in xs], strict=True)
    results = [f(row if single else type(xs)(row), *args) for row in rows]
    first = results[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(results)
    return type(first)([torch.stack(column) for column in zip(*results, strict=True)])


def scan(combine_fn: Function, init: Value, xs: Value, *, dim: int = 0, reverse: bool = False) -> Value:
    single = isinstance(xs, torch.Tensor)
    parts = [part.movedim(dim, 0).unbind(0) for part in ([xs] if single else xs)]
    steps = list(zip(*parts, strict=True))
    if reverse:
        steps.reverse()
    carry, results = init, []
    for step in steps:
        carry, result = combine_fn(carry, step[0] if single else type(xs)(step))
        results.append(result)
    if reverse:
        results.reverse()
    first = results[0]
    if isinstance(first, torch.Tensor):
        return carry, joined(results, dim)
    return carry, type(first)([joined(column, dim) for column in zip(*results, strict=True)])


def joined(column: Value, dim: int) -> Value:
    stacked = torch.stack(list(column))
    return stacked.movedim(0, dim) if dim < stacked.ndim else stacked


CONTROL.update((cond.__code__, while_loop.__code__))


def _is_cond(args: Arguments, kwargs: Keywords) -> bool:
    given = dict(zip(("pred", "true_fn", "false_fn", "operands"), args, strict=False)) | kwargs
    pred, operands = given.get("pred"), given.get("operands", ())
    if isinstance(pred, (bool, int, float)):
        return True
    if len(given) < 3 or not isinstance(pred, torch.Tensor) or not isinstance(operands, (tuple, list)):
        return False
    return pred.numel() == 1 and _without_gradients((given["true_fn"], given["false_fn"], *operands))


def _is_while_loop(args: Arguments, kwargs: Keywords) -> bool:
    given = dict(zip(("cond_fn", "body_fn", "carried_inputs"), args, strict=False)) | kwargs
    carried = given.get("carried_inputs")
    if len(given) != 3 or not isinstance(carried, (tuple, list)):
        return False
    return all(isinstance(part, torch.Tensor) for part in carried) and _without_gradients(given.values())


def _without_gradients(parts: Iterable[Value], depth: int = 0) -> bool:
    """Whether no gradient may reach any of ``parts``, or what functions among them read: one that only the other way
    reads has a gradient of zeros.
    """
    return not torch.is_grad_enabled() or all(_has_none(part, depth) for part in parts)


def _has_none(part: Value, depth: int) -> bool:
    if isinstance(part, torch.Tensor):
        return not part.requires_grad
    if isinstance(part, torch.nn.Module):
        return not any(each.requires_grad for each in part.parameters())
    if depth > DEEPEST:
        return False
    if isinstance(part, (tuple, list)):
        return all(_has_none(each, depth + 1) for each in part)
    if isinstance(part, types.FunctionType):
        if part.__module__.startswith("torch."):
            return True
        held = [content for cell in part.__closure__ or () for content in cell_contents(cell)]
        held += [part.__globals__[name] for name in part.__code__.co_names if name in part.__globals__]
        return all(_has_none(each, depth + 1) for each in (*held, *(part.__defaults__ or ())))
    return isinstance(part, PLAIN)


def _is_short(xs: Value, dim: int) -> bool:
    """Whether these are tensors with a number of elements along ``dim`` that are worth a step each."""
    parts = (xs,) if isinstance(xs, torch.Tensor) else xs if type(xs) in (tuple, list) else ()
    if not parts or not all(isinstance(part, torch.Tensor) and 0 <= dim < part.ndim for part in parts):
        return False
    with torch._C.DisableTorchFunction():
        lengths = {part.shape[dim] for part in parts}
        return len(lengths) == 1 and 0 < lengths.pop() <= LONGEST


def _is_map(args: Arguments, kwargs: Keywords) -> bool:
    return len(args) > 1 and not kwargs and _is_short(args[1], 0)


def _is_scan(args: Arguments, kwargs: Keywords) -> bool:
    given = dict(zip(("combine_fn", "init", "xs"), args, strict=False)) | kwargs
    dim = given.get("dim", 0)
    known = given.keys() <= {"combine_fn", "init", "xs", "dim", "reverse"} and {"init", "xs"} <= given.keys()
    return known and isinstance(dim, int) and _is_short(given["xs"], dim)


NAMED_EQUIVALENTS[f"{ROOM}cond", "cond"] = (_is_cond, cond)
NAMED_EQUIVALENTS[f"{ROOM}while_loop", "while_loop"] = (_is_while_loop, while_loop)
NAMED_EQUIVALENTS[f"{ROOM}map", "map"] = (_is_map, mapped)
NAMED_EQUIVALENTS[f"{ROOM}scan", "scan"] = (_is_scan, scan)
