"""Gives functions whose every call is one of ``torch.vmap``, to be compiled: it is recorded as any transform inside."""

from __future__ import annotations

import functools

import torch
from torch.nn import Module

from framefuse.ir.values import Arguments, Function, Keywords, Value


def mapped(function: Function, dims: Value, randomness: str) -> Function:
    """``function`` over dimensions of its arguments: ``dims`` of (args, kwargs), as torch.vmap takes them."""

    def each(args: Arguments, kwargs: Keywords) -> Value:
        return function(*args, **kwargs)

    over_each = torch.vmap(each, dims, 0, randomness)

    def call(args: Arguments, kwargs: Keywords) -> Value:
        return over_each(args, kwargs)

    return functools.update_wrapper(call, function)


def mapped_with_state(module: Module, dims: Value, randomness: str) -> Function:
    """A call of ``module``, the first of its arguments, over dimensions of (args, kwargs, state), of which the state
    stands for its own.
    """

    def each(args: Arguments, kwargs: Keywords, state: Keywords) -> Value:
        return torch.func.functional_call(module, state, args[1:], kwargs)

    over_each = torch.vmap(each, dims, 0, randomness)

    def call(args: Arguments, kwargs: Keywords, state: Keywords) -> Value:
        return over_each(args, kwargs, state)

    return functools.update_wrapper(call, type(module).forward)
