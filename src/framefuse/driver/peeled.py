"""Runs a call of a compiled function inside of ``torch.vmap`` as compiled code of the function under that map: the
level is left, what is mapped is called on the tensors below it, and the results are put on the level again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch._C._functorch import (
    CVmapInterpreterPtr,
    RandomnessType,
    TransformType,
    _add_batch_dim,
    get_interpreter_stack,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_get_bdim,
    maybe_get_level,
    pop_dynamic_layer_stack,
    push_dynamic_layer_stack,
)
from torch.nn import Module
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from framefuse import _native
from framefuse.ir.late_imports import later
from framefuse.ir.values import Arguments, Keywords, Value
from framefuse.runtime.function import CompiledFunction, Mapped

if TYPE_CHECKING:
    from framefuse.capture.callables.mapped_functions import mapped, mapped_with_state
else:
    mapped = later("framefuse.capture.callables.mapped_functions", "mapped")
    mapped_with_state = later("framefuse.capture.callables.mapped_functions", "mapped_with_state")

RANDOMNESS = {RandomnessType.Error: "error", RandomnessType.Same: "same", RandomnessType.Different: "different"}
MOST = 8  # ways to map one function that are compiled
LOST = 8  # calls without compiled code, of which so many are made freely, and one more for so many others
# What has no parts; of arguments that are these alone no tree is made, which takes longer than the rest of a call.
LEAVES = frozenset((torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None)))


def call(state: CompiledFunction, args: Arguments, kwargs: Keywords) -> Value:
    """The value of a call inside of torch.vmap; Declined where it has to run as it is.

    What the function closes over may be of the level as well: below the level it is mapped again at the same depth,
    where such a tensor means what it did.
    """
    stack = get_interpreter_stack()
    if not stack or any(each.key() != TransformType.Vmap for each in stack):
        return _native.Declined
    level = stack[-1].level()
    owner = state.owner if isinstance(state.owner, Module) else None
    holds = _state_of_levels(owner) if owner is not None else None
    leaves, spec = _leaves(args, kwargs, holds, owner)
    places = [_place(leaf, level) for leaf in leaves]
    key = (spec, places, CVmapInterpreterPtr(stack[-1]).randomness())
    known = next((each for each in state.mapped if each.key == key), None)
    if known is None:
        if len(state.mapped) == MOST or all(place is None for place in places):
            return _native.Declined
        value = state.function(*args, **kwargs)  # as what it gives has to be mapped as well
        fits = all(_place(leaf, level) is not None for leaf in tree_flatten(value)[0])
        given = _given(places, spec)
        state.mapped.append(Mapped(key, _below(state, owner, given, RANDOMNESS[key[2]]) if fits else None))
        return value
    if known.below is None or _is_vain(known.below):
        return _native.Declined
    lower = [leaf if place is None else get_unwrapped(leaf) for leaf, place in zip(leaves, places, strict=True)]
    given = _given(lower, spec)
    layer = pop_dynamic_layer_stack()
    try:
        value = known.below.dispatch(*given)
    finally:
        push_dynamic_layer_stack(layer)
    if type(value) is torch.Tensor:
        return _add_batch_dim(value, 0, level)
    results, shape = tree_flatten(value)
    return tree_unflatten([_add_batch_dim(result, 0, level) for result in results], shape)


def _is_vain(below: CompiledFunction) -> bool:
    """Whether what is called below the level mostly runs eagerly, which costs more there."""
    hits = below.dispatch.hits
    return bool(below.breaks) or below.dispatch.calls - hits > LOST + hits // LOST


def _leaves(
    args: Arguments, kwargs: Keywords, holds: Keywords | None, owner: Module | None
) -> tuple[list[Value], TreeSpec | int]:
    """What a call is given, with the tree that it forms: of arguments without parts their number."""
    if not kwargs and not holds and all(type(value) in LEAVES or value is owner for value in args):
        return list(args), len(args)
    return tree_flatten((args, kwargs, holds) if holds else (args, kwargs))


def _given(leaves: Sequence[Value], spec: TreeSpec | int) -> tuple[Value, ...]:
    """The arguments, keywords and state that are made of these leaves."""
    if isinstance(spec, int):
        return tuple(leaves), {}
    given: tuple[Value, ...] = tree_unflatten(leaves, spec)
    return given


def _place(value: Value, level: int) -> int | None:
    """The dimension over which a value is mapped at this level."""
    if isinstance(value, torch.Tensor) and is_batchedtensor(value) and maybe_get_level(value) == level:
        return int(maybe_get_bdim(value))
    return None


def _state_of_levels(module: Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers that stand for others, as ``functional_call`` puts them in."""
    named = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor for name, tensor in named if is_functorch_wrapped_tensor(tensor)}


def _below(state: CompiledFunction, owner: Module | None, dims: tuple[Value, ...], randomness: str) -> CompiledFunction:
    """What is called below the level, with these dimensions of its arguments, keywords and state."""
    if owner is not None and len(dims) == 3:
        function = mapped_with_state(owner, dims, randomness)
    else:
        function = mapped(state.function, dims, randomness)
    return CompiledFunction(function, None, state.options, state.compiler)
