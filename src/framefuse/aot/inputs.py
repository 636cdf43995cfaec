"""Turns a function of any arguments into one of the tensors among them, and says how a caller gives these again."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch

from framefuse.errors import UserError, kind_of

TENSORS = (torch.Tensor, torch.nn.Parameter)
PLAIN = (type(None), bool, int, float, str)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The ``tensors`` of a call in order, and its arguments as a description that a file can hold: of each position
    its ``names`` and ``positional`` structure, and the ``keywords``. ``called`` is the function of these tensors.
    """

    tensors: tuple[torch.Tensor, ...]
    names: tuple[str, ...]
    positional: tuple[dict[str, Any], ...]
    keywords: Mapping[str, dict[str, Any]]
    called: Callable[..., Any]

    def number(self, place: object) -> int | None:
        """The number of the tensor that is given as an input, by its number or the name of its parameter."""
        if type(place) is int:
            return place if 0 <= place < len(self.tensors) else None
        named = {**dict(zip(self.names, self.positional, strict=False)), **self.keywords}
        return named.get(place, {}).get("input") if isinstance(place, str) else None

    def described(self) -> dict[str, Any]:
        """What the loader reads to find the tensors of a call."""
        return {"names": self.names, "positional": self.positional, "keywords": dict(self.keywords)}


def inputs_of(f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs:
    """The inputs of ``f(*args, **kwargs)``. Raises UserError for an argument that no file can hold."""
    if isinstance(args, torch.Tensor) or not isinstance(args, Sequence) or isinstance(args, str):
        raise UserError(f"example_inputs is {kind_of(args)}. Give a tuple of the arguments")
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) and name.isidentifier() for name in kwargs):
        raise UserError(f"kwargs is {kind_of(kwargs)}. Give a dict of the arguments by their names")
    writer = _Writer()
    texts = [writer.visit(value, f"input {place}") for place, value in enumerate(args)]
    positional = tuple(description for _, description in texts)
    named = {name: writer.visit(value, f"input {name}") for name, value in kwargs.items()}
    given = [text for text, _ in texts] + [f"{name}={text}" for name, (text, _) in named.items()]
    keywords = {name: description for name, (_, description) in named.items()}
    called = f if _takes_only(f, positional, keywords) else writer.function(f, given)
    return Inputs(tuple(writer.tensors), _names(f, len(args)), positional, keywords, called)


class _Writer:
    """Walks arguments: collects their tensors, and writes each argument as the text that makes it of these."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.classes: dict[str, type] = {}
        self.walked: list[int] = []

    def visit(self, value: Any, place: str) -> tuple[str, dict[str, Any]]:
        """The text of an argument and its description."""
        if type(value) in TENSORS:
            self.tensors.append(value)
            number = len(self.tensors) - 1
            return f"tensor_{number}", {"kind": "tensor", "input": number}
        if type(value) in PLAIN:
            return self.plain(value)
        if id(value) in self.walked:
            raise UserError(f"{place} holds itself. Give tensors in tuples, lists and dicts")
        self.walked.append(id(value))
        try:
            return self.parts(value, place)
        finally:
            self.walked.pop()

    def plain(self, value: Any) -> tuple[str, dict[str, Any]]:
        text = repr(value) if type(value) is not float or math.isfinite(value) else f"float({str(value)!r})"
        return text, {"kind": "value", "value": value}

    def parts(self, value: Any, place: str) -> tuple[str, dict[str, Any]]:
        kind = type(value)
        if kind in (tuple, list):
            parts = [self.visit(part, f"{place}[{at}]") for at, part in enumerate(value)]
            texts = ", ".join(text for text, _ in parts)
            if kind is tuple:
                texts += "," if len(parts) == 1 else ""
            return f"({texts})" if kind is tuple else f"[{texts}]", _described(kind.__name__, parts)
        if kind is dict and all(type(key) is str for key in value):
            named = [(key, self.visit(part, f"{place}[{key!r}]")) for key, part in value.items()]
            texts = ", ".join(f"{key!r}: {text}" for key, (text, _) in named)
            return f"{{{texts}}}", {**_described("dict", [part for _, part in named]), "keys": list(value)}
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            parts = [self.visit(part, f"{place}.{name}") for name, part in zip(kind._fields, value, strict=True)]
            return f"{self.known(kind)}({', '.join(text for text, _ in parts)})", _described("tuple", parts)
        if is_dataclass(kind):
            return self.data(kind, value, place)
        raise UserError(
            f"{place} is {kind_of(value)}. Give tensors, numbers and texts, in tuples, lists, dicts and dataclasses, "
            f"and close over what else there is"
        )

    def data(self, kind: type, value: Any, place: str) -> tuple[str, dict[str, Any]]:
        """A dataclass by the fields that its constructor takes."""
        names = [field.name for field in fields(kind) if field.init]
        parts = [self.visit(getattr(value, name), f"{place}.{name}") for name in names]
        texts = ", ".join(f"{name}={text}" for name, (text, _) in zip(names, parts, strict=True))
        return f"{self.known(kind)}({texts})", {**_described("object", parts), "keys": names}

    def known(self, kind: type) -> str:
        name = f"class_{len(self.classes)}"
        self.classes[name] = kind
        return name

    def function(self, f: Callable[..., Any], given: Sequence[str]) -> Callable[..., Any]:
        """The function of the tensors. It stands where ``f`` does, so that messages show the line of the user's."""
        code = getattr(getattr(f, "forward", f), "__code__", None)
        file, line = (code.co_filename, code.co_firstlineno) if code is not None else ("<export>", 1)
        name = getattr(f, "__name__", type(f).__name__)
        name = name if name.isidentifier() else "program"
        taken = ", ".join(f"tensor_{number}" for number in range(len(self.tensors)))
        called = "self" if hasattr(f, "forward") else "framefuse_function"  # as what was read of it is told
        text = f"def {name}({taken}): return {called}({', '.join(given)})"
        known: dict[str, Any] = {**self.classes, called: f, "__name__": "framefuse_export"}
        exec(compile("\n" * (line - 1) + text, file, "exec"), known)  # its text is made here, of plain values alone
        function: Callable[..., Any] = known[name]
        return function


def _described(kind: str, parts: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    return {"kind": kind, "parts": [description for _, description in parts]}


def _takes_only(f: Callable[..., Any], positional: Sequence[Mapping[str, Any]], keywords: Mapping[str, Any]) -> bool:
    """Whether ``f`` is a function of these tensors already, without defaults beside them."""
    if keywords or any(each["kind"] != "tensor" for each in positional):
        return False
    parameters = _parameters(f)
    if parameters is None:  # a function of C has no code that could be recorded
        return not callable(f)
    return all(p.default is p.empty for p in parameters[len(positional) :])


def _names(f: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The names of the first parameters, by which a caller may give them as well."""
    kinds = inspect.Parameter
    named = [p.name for p in (_parameters(f) or [])[:count] if p.kind is kinds.POSITIONAL_OR_KEYWORD]
    return tuple(named)


def _parameters(f: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(f.forward if isinstance(f, torch.nn.Module) else f).parameters.values())
    except (TypeError, ValueError):  # what C has made may have none
        return None


