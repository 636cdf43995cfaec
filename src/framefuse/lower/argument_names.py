"""Hands a rule by place what a program gave by a name of torch's that the rule has not (``torch.bmm(x, mat2=y)``)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache, lru_cache

import torch

from framefuse.ir.values import Arguments, Keywords
from framefuse.lower.rules import Rule


def by_place(rule: Rule, name: str, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
    """The arguments of torch's function ``name`` for a rule: by place, as far as torch's own order leads, where the
    rule has other names for them; else as they are.
    """
    known = _parameters(rule)
    if known is None or known.issuperset(kwargs):
        return args, kwargs
    for order in _orders(name):
        places, named = list(args), dict(kwargs)
        for parameter in order[len(args) :]:
            if parameter not in named:
                break
            places.append(named.pop(parameter))
        if known.issuperset(named):
            return tuple(places), named
    return args, kwargs


@lru_cache(maxsize=1024)  # some rules are made for a call
def _parameters(rule: Rule) -> frozenset[str] | None:
    """The names that a rule takes; None where it takes any."""
    found = inspect.signature(rule).parameters.values()
    return None if any(one.kind is one.VAR_KEYWORD for one in found) else frozenset(one.name for one in found)


@cache
def _orders(name: str) -> tuple[tuple[str, ...], ...]:
    """In which order the forms of a function of torch take their arguments."""
    return tuple(_order_of(name))


def _order_of(name: str) -> Iterator[tuple[str, ...]]:
    packet = getattr(torch.ops.aten, name, None)
    for overload in packet.overloads() if packet is not None else ():
        arguments = getattr(packet, overload)._schema.arguments
        yield tuple("input" if one.name == "self" else one.name for one in arguments if not one.kwarg_only)
