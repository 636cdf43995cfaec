"""Keeps which functions of torch are written in terms of simpler ones where torch's library will not be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from framefuse.capture.interp.registry import Form
from framefuse.ir.values import Arguments, Function, Keywords, Value

F = TypeVar("F", bound=Function)
Given = Mapping[str, Value]  # the operands of a call by the names that its form has for them

TABLE: dict[Hashable, Form] = {}
ON_GPU: dict[Hashable, Form] = {}  # in place of those, where a program runs on a GPU


def form(
    *functions: Function, where: Callable[[Given], bool] | None = None, table: dict[Hashable, Form] = TABLE
) -> Callable[[F], F]:
    """Registers a function as what calls of ``functions`` are made of, ``where`` that says so of their operands;
    methods take their owner first. Other calls are the library's, which exports refuse.
    """

    def register(function: F) -> F:
        signature = inspect.signature(function)

        def applies(args: Arguments, kwargs: Keywords) -> bool:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:  # torch says what is wrong
                return False
            bound.apply_defaults()
            return where is None or where(bound.arguments)

        table.update(dict.fromkeys(functions, Form(function, applies)))
        return function

    return register


def walked(*functions: Function) -> None:
    """Registers functions in Python that are walked as the program's own: what they call has forms."""
    TABLE.update((function, Form(function, lambda args, kwargs: True)) for function in functions)
