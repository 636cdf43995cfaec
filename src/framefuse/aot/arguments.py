"""Finds the tensors of a call of an exported program among its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ITEMS = {"tuple": tuple, "list": list}


def takes_tensors(arguments: Mapping[str, Any]) -> bool:
    """Whether the arguments are tensors by position and nothing else."""
    return not arguments["keywords"] and all(each["kind"] == "tensor" for each in arguments["positional"])


def tensors_of(arguments: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The tensors in their order. Raises TypeError for arguments of another structure, ValueError for another value
    than that of the example.
    """
    structures, names = arguments["positional"], arguments["names"]
    if len(args) > len(structures):
        raise TypeError(f"the program takes {len(structures)} arguments by position, not {len(args)}")
    given: dict[int | str, Any] = dict(enumerate(args))
    given.update(kwargs)
    found: list[Any] = []
    for place, structure in enumerate(structures):
        name = names[place] if place < len(names) else place
        value = _taken(given, place, name, structure)
        found += _tensors(structure, value, f"argument {name}")
    for name, structure in arguments["keywords"].items():
        found += _tensors(structure, _taken(given, name, name, structure), f"argument {name}")
    if given:
        raise TypeError(f"the program takes no argument {next(iter(given))}")
    return tuple(found)


def _taken(given: dict[Any, Any], place: int | str, name: int | str, structure: Mapping[str, Any]) -> Any:
    """An argument by its position or its name; one that holds no tensors may be left out."""
    for key in (place, name):
        if key in given:
            return given.pop(key)
    if structure["kind"] == "value":
        return structure["value"]
    raise TypeError(f"argument {name} is missing")


def _tensors(structure: Mapping[str, Any], value: Any, place: str) -> Iterator[Any]:
    kind, parts = structure["kind"], structure.get("parts", ())
    if kind == "tensor":
        yield value
    elif kind == "value":
        _check_equal(structure["value"], value, place)
    elif kind in ITEMS:
        if not isinstance(value, ITEMS[kind]) or len(value) != len(parts):
            raise TypeError(f"{place} is to be a {kind} of {len(parts)}, as the example was")
        for at, (part, held) in enumerate(zip(parts, value, strict=True)):
            yield from _tensors(part, held, f"{place}[{at}]")
    else:
        yield from _named(structure, value, place)


def _named(structure: Mapping[str, Any], value: Any, place: str) -> Iterator[Any]:
    """Those of a dict, or of an object whose attributes were named; a dict may stand for it."""
    keys = structure["keys"]
    held = value if isinstance(value, dict) else {key: getattr(value, key, None) for key in keys}
    if isinstance(value, dict) and set(value) != set(keys):
        raise TypeError(f"{place} is to have the keys {', '.join(keys)}, as the example had")
    if structure["kind"] == "dict" and not isinstance(value, dict):
        raise TypeError(f"{place} is to be a dict, as the example was")
    for key, part in zip(keys, structure["parts"], strict=True):
        yield from _tensors(part, held[key], f"{place}.{key}")


def _check_equal(known: Any, value: Any, place: str) -> None:
    same = type(value) is type(known) and (value == known or (value != value and known != known))
    if not same:
        raise ValueError(f"{place} is {value!r:.60}, and the program was exported for {known!r:.60}")
