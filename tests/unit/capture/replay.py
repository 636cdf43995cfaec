"""Runs a trace on new arguments with eager torch: the executor of the tests, slow and plain."""

import builtins
import dataclasses
import enum
from typing import Any

import torch

from framefuse.capture.entry import bind
from framefuse.ir.elements import ELEMENT
from framefuse.ir.facts import Source
from framefuse.ir.numbers import Expr, Real, Symbol
from framefuse.ir.trace import Build, Ref
from framefuse.runtime.templates import result_template


def read(source: Source, slots: list[Any]) -> Any:
    """The object at a source."""
    if source.kind == "arg":
        return slots[source.key]
    if source.kind == "object":
        return source.key
    base, key = read(source.base, slots), source.key
    match source.kind:
        case "dict":
            return object.__getattribute__(base, "__dict__")
        case "attr":
            return object.__getattribute__(base, "__dict__")[key]
        case "item":
            return dict.__getitem__(base, key) if isinstance(base, dict) else base[key]
        case "global":
            found = base.__globals__
            return found[key] if key in found else getattr(builtins, key)
        case "cell":
            return base.__closure__[key].cell_contents
        case "type":
            return type(base)
        case "type_attr":
            return next(k.__dict__[key] for k in base.__mro__ if key in k.__dict__)
        case "func":
            return base.__func__
        case "self":
            return base.__self__
        case "grad":
            return base.grad
        case "getattr":
            return getattr(base, key)
    raise AssertionError(source.kind)


class Replay:
    """One run of a trace."""

    def __init__(self, trace: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.trace = trace
        self.slots = bind(function, args, kwargs)
        self.values: dict[int, Any] = {}
        self.ints: dict[Any, int] = {}
        self.reals: dict[str, float] = {}
        self.found: dict[Source, Any] = {}

    def bind_inputs(self) -> None:
        assumed = self.trace.assumptions
        for fact in assumed.facts:
            if fact.kind == "integer":
                self.ints[fact.value] = read(fact.source, self.slots)
            elif fact.kind == "count":
                self.ints[fact.value] = len(read(fact.source, self.slots))
            elif fact.kind == "real":
                self.reals[fact.value] = read(fact.source, self.slots)
        for given in assumed.inputs:
            value = self.values[given.value] = read(given.source, self.slots)
            for size, real in zip(given.spec.sizes, value.shape, strict=True):
                if isinstance(size, int):
                    assert size == real, f"{given.source} has a size {real}, {size} was expected"
                else:
                    self.ints[size] = real

    def define(self) -> None:
        """The derived symbols whose parts are known by now."""
        known = self.ints.keys() | self.reals.keys()
        for symbol, made in self.trace.assumptions.definitions:
            if symbol not in known and made.names <= known:
                numbers = self.ints if isinstance(symbol, Symbol) else self.reals
                numbers[symbol] = made.evaluate(self.ints, self.reals)
                known.add(symbol)

    def run(self) -> Any:
        self.bind_inputs()
        self.define()
        self.collect(self.trace.result)
        for effect in self.trace.effects:  # sources are read before the first effect
            self.collect(effect.target)
            self.collect(effect.value)
        for call in self.trace.calls:
            self.step(call)
        known = dict(self.ints)
        for relation in self.trace.assumptions.relations:
            assert relation.holds(known), f"the relation {relation} does not hold ({relation.why})"
        _, program, *leaves = result_template(self.trace.result, self.trace.effects, self.value, plain=False)
        return program(*leaves)

    def collect(self, recipe: Any) -> None:
        if isinstance(recipe, Source):
            self.found[recipe] = read(recipe, self.slots)
        elif isinstance(recipe, Build):
            if recipe.kind == "source":
                self.collect(recipe.value)
            self.collect(recipe.base)
            for part in recipe.parts:
                for piece in part if isinstance(part, tuple) else (part,):
                    self.collect(piece)

    def bind_sizes(self, number: int) -> None:
        for dim, size in enumerate(self.values[number].shape):
            symbol = self.trace.size_symbols.get((number, dim))
            if symbol is not None:
                self.ints[symbol] = size
                self.define()
        element = self.trace.size_symbols.get((number, ELEMENT))
        if element is not None:
            self.ints[element] = self.values[number].item()

    def step(self, call: Any) -> None:
        args, kwargs = self.value(call.args), self.value(call.kwargs)
        dtype = getattr(torch, dict(call.autocast)["cpu"]) if call.autocast else None
        autocast = torch.autocast("cpu", dtype=dtype, enabled=dtype is not None)
        with torch.set_grad_enabled(call.grad_enabled), autocast:
            out = call.target(*args, **kwargs)
        self.keep(call.result, out)

    def keep(self, form: Any, out: Any) -> None:
        if isinstance(form, Ref):
            self.values[form.value] = out
            self.bind_sizes(form.value)
        elif isinstance(form, (tuple, list)):
            for part, value in zip(form, out, strict=True):
                self.keep(part, value)

    def value(self, part: Any) -> Any:
        if isinstance(part, Ref):
            return self.values[part.value]
        if isinstance(part, Expr):
            return part.evaluate(self.ints)
        if isinstance(part, Real):
            return part.evaluate(self.ints, self.reals)
        if isinstance(part, Source):
            return self.found[part]
        if type(part) in (tuple, list):
            return type(part)(self.value(p) for p in part)
        if type(part) is dict:
            return {key: self.value(p) for key, p in part.items()}
        if type(part) is slice:
            return slice(self.value(part.start), self.value(part.stop), self.value(part.step))
        return part


def replay(trace: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of the trace on these arguments; effects are applied."""
    return Replay(trace, function, args, kwargs).run()


def equal(left: Any, right: Any, exact: bool = True) -> bool:
    """Whether two results are equal, tensors bit by bit (or closely)."""
    if isinstance(left, torch.Tensor):
        if not isinstance(right, torch.Tensor) or left.dtype != right.dtype or left.shape != right.shape:
            return False
        return torch.equal(left, right) if exact else torch.allclose(left, right, rtol=1e-4, atol=1e-5, equal_nan=True)
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(equal(left[k], right[k], exact) for k in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(equal(a, b, exact) for a, b in zip(left, right, strict=True))
    if dataclasses.is_dataclass(left) or (
        isinstance(getattr(left, "__dict__", None), dict) and not isinstance(left, (type, enum.Enum))
    ):
        return equal(vars(left), vars(right), exact)
    if type(left).__dict__.get("__slots__"):
        return all(equal(getattr(left, name), getattr(right, name), exact) for name in type(left).__slots__)
    if isinstance(left, float):
        return left == right or (left != left and right != right)
    return bool(left == right)
