"""Follows the policy of a selective checkpoint: marks the calls of a trace whose results it saves."""

from __future__ import annotations

import builtins
import collections
import dis
import functools
import types
from dataclasses import replace

import torch
from torch.utils import checkpoint as torchs

from framefuse.capture.recording.recorder import Recorder
from framefuse.ir.own_class import is_a
from framefuse.ir.trace import refs
from framefuse.ir.values import Function, Value

SAVED = (torchs.CheckpointPolicy.MUST_SAVE, torchs.CheckpointPolicy.PREFER_SAVE, True)
# What a policy may call: whoever follows it calls it no more, so that nothing else may come of it.
CALLED = (
    torchs.create_selective_checkpoint_contexts, functools.partial, collections.defaultdict, collections.Counter,
    torchs.CheckpointPolicy, dict, list, set, tuple, str, int, bool, isinstance, len, getattr, hasattr, type, any, all,
)  # fmt: skip
METHODS = frozenset(("create_selective_checkpoint_contexts", "get", "items", "keys", "values", "size", "dim", "numel"))
DEEPEST = 4  # functions in each other


class Contexts:
    """The ``context_fn`` of a checkpoint while it is recorded: notes which calls compute what the policy saves."""

    def __init__(self, recorder: Recorder, function: Function) -> None:
        self.recorder, self.function = recorder, function
        self.saved: set[int] = set()

    def __call__(self) -> Value:
        contexts = self.function()
        first = contexts[0]
        if type(first) is torchs._CachingTorchDispatchMode:
            first.policy_fn = functools.partial(self._asked, first.policy_fn)
        elif self.function is not torchs.noop_context_fn:
            self.recorder.kill("transform", "torch.utils.checkpoint.checkpoint (a context of its own)")
        return contexts

    def _asked(self, policy: Function, ctx: Value, operator: Value, *args: Value, **kwargs: Value) -> Value:
        answer = policy(ctx, operator, *args, **kwargs)
        if answer in SAVED and not ctx.is_recompute:
            self.saved.add(len(self.recorder.calls))  # the call under way is added when it has run
        return answer

    def leave(self, outer: int) -> None:
        """The checkpoint is over: what its policy saved is kept, unless one around it computes all that again."""
        recorder, calls = self.recorder, self.recorder.calls
        for place in () if outer else sorted(self.saved):
            if place < len(calls) and calls[place].region > 0:
                call = calls[place] = replace(calls[place], region=-calls[place].region)
                recorder.entrances.checkpoints[-call.region - 1].kept += tuple(
                    recorder.tensors[number] for number in refs(call.result)
                )


def is_silent(function: Value, depth: int = 0) -> bool:
    """Whether a ``context_fn`` or policy only decides: it writes nothing but what it makes itself."""
    if type(function) is functools.partial:
        parts = (function.func, *function.args, *function.keywords.values())
        return all(is_silent(part, depth) for part in parts if callable(part) and not is_operator(part))
    if any(function is called for called in CALLED):
        return True
    if type(function) is not types.FunctionType or depth > DEEPEST:
        return False
    around = [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
    given = (*around, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if not all(is_silent(part, depth + 1) for part in given if callable(part) and not is_operator(part)):
        return False
    return _decides(function.__code__, function.__globals__, depth, inside=False)


def is_operator(part: Value) -> bool:
    """Whether this is an operator of torch, which a list or a call names."""
    return is_a(part, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))


def _is_set(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _decides(code: types.CodeType, names: dict[str, Value], depth: int, inside: bool) -> bool:
    """Whether code writes nothing but variables of its own; ``inside`` of another function, to what that made, too."""
    for step in dis.get_instructions(code):
        name = step.opname
        if name in ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "YIELD_VALUE"):
            return False
        if name in ("STORE_SUBSCR", "DELETE_SUBSCR") and not inside:
            return False
        if name in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars and not inside:
            return False
        method = name == "LOAD_METHOD" or (name == "LOAD_ATTR" and "NULL|self" in step.argrepr)
        if method and step.argval not in METHODS:
            return False
        if name == "LOAD_GLOBAL":
            value = names.get(step.argval, vars(builtins).get(step.argval))
            if callable(value) and not is_operator(value) and not is_silent(value, depth + 1):
                return False
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return all(_decides(part, names, depth, inside=True) for part in inner)

