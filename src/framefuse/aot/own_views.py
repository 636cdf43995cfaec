"""Reads calls that show a part of a tensor: which functions of views.c make such a part, and of what numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from framefuse.ir.pairs import reals
from framefuse.ir.plan import CallStep, Plan, Template
from framefuse.ir.wrapped_calls import Named, part_of

FIRST, LAST = -(2**63), 2**63 - 1  # the ends of a slice that names none
PARTS = {"real": 0, "imag": 1}  # of complex numbers: attributes
AT, SLICE, NEW, REST = range(4)  # as views.c has them
MOST_DIMENSIONS = 16


@dataclass(frozen=True, slots=True)
class Word:
    """A number of the run."""

    number: int


Number = int | Word


@dataclass(frozen=True, slots=True)
class Shown:
    """One step from a tensor to a part of it: a function of views.c and its numbers."""

    function: str
    numbers: tuple[Number, ...]


TURNED = {"mT": Shown("transpose", (-2, -1)), "T": Shown("reversed", ())}  # attributes


class Unreadable(Exception):
    """A call is none of those that there is code for."""


def value(template: Template) -> Any:
    """What a template stands for, with numbers of the run as words. Raises Unreadable where it holds a tensor."""
    kind = template[0]
    if kind == "const":
        return template[1]
    if kind == "int":
        return Word(template[1])
    if kind in ("tuple", "list"):
        return tuple(value(part) for part in template[1:])
    if kind == "slice":
        return slice(*(value(part) for part in template[1:]))
    raise Unreadable


def shown_by(step: CallStep) -> dict[int, tuple[int, tuple[Shown, ...]]]:
    """Of each result of a call its slot, with the slot of which it shows a part and how; empty where the call makes
    something else.
    """
    try:
        if not step.args or step.args[0][0] != "tensor":
            return {}
        base, name = step.args[0][1], step.name
        whole = step.function is torch.Tensor.view_as and step.args[0] == step.args[1]
        if whole or isinstance(step.function, Named):
            return {out: (base, ()) for _, out in step.outs}
        if step.function is reals:  # what torch keeps as a mark, an exported program computes
            return {out: (base, (Shown("as_real", ()),)) for _, out in step.outs}
        if step.function is part_of:
            sizes, strides, offset = (value(arg) for arg in step.args[1:])
            return {out: (base, (Shown("strided", (*sizes, *strides, offset)),)) for _, out in step.outs}
        if name in PARTS and step.function == getattr(torch.Tensor, name).__get__:
            way = Shown("as_real", ()), Shown("select", (-1, PARTS[name]))
            return {out: (base, way) for _, out in step.outs}
        if name in TURNED and step.function == getattr(torch.Tensor, name).__get__:
            return {out: (base, (TURNED[name],)) for _, out in step.outs}
        if name not in READERS or not _is_torchs(step.function, name):
            return {}
        reader, names = READERS[name]
        given = dict(zip(names, (value(arg) for arg in step.args[1:]), strict=False))
        if names and names[-1] == "*":  # sizes as so many arguments, or as one
            rest = tuple(value(arg) for arg in step.args[1:])
            given = {"*": rest[0] if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else rest}
        given.update((name, value(arg)) for name, arg in step.kwargs)
        return {out: (base, reader(given, *path)) for path, out in step.outs}
    except (Unreadable, TypeError, KeyError):
        return {}


def shown_by_index(index: Template) -> tuple[Shown, ...] | None:
    """The part that numbers and slices show; None where there is more among them."""
    try:
        return _item({"key": value(index)})
    except Unreadable:
        return None


def _is_torchs(function: object, name: str) -> bool:
    """Whether it is torch's own function or method of that name."""
    homes = (torch, torch.Tensor, torch.nn.functional)
    return any(getattr(home, name, None) is function for home in homes)


def parts(plan: Plan) -> dict[int, tuple[int, tuple[Shown, ...]]]:
    """The slots that the last steps of a plan show parts of others in, with the slots that these are parts of in the
    end and the way there.
    """
    found: dict[int, tuple[int, tuple[Shown, ...]]] = {}
    for step in plan.steps[plan.body :]:
        if isinstance(step, CallStep):
            for out, (base, steps) in shown_by(step).items():
                root, way = found.get(base, (base, ()))
                found[out] = root, (*way, *steps)
    return found


def root_of(plan: Plan, slot: int) -> int:
    """The slot whose memory a view shows in the end."""
    while plan.slots[slot].place == "view":
        slot = plan.slots[slot].base
    return slot


# ---- readers: of the arguments behind the tensor by name, and of the result's place in what the call gives ----------


def _item(given: dict[str, Any]) -> tuple[Shown, ...]:
    key = given["key"]
    items = key if isinstance(key, tuple) else (key,)
    numbers: list[Number] = []
    for place, item in enumerate(items):
        if item is None:
            numbers.append(NEW)
        elif item is Ellipsis:
            numbers += REST, sum(rest is not None for rest in items[place + 1 :])
        elif isinstance(item, slice):
            numbers += SLICE, *_ends(item)
        elif type(item) is int or isinstance(item, Word):
            numbers += AT, item
        else:
            raise Unreadable
    return (Shown("item", tuple(numbers)),)


def _ends(item: slice) -> tuple[Number, Number, Number]:
    start, stop, step = item.start, item.stop, item.step
    if start is not None and isinstance(start, int) and start < -(2**62):
        raise Unreadable
    return FIRST if start is None else start, LAST if stop is None else stop, 1 if step is None else step


def _one(name: str, *wanted: str, **defaults: Number) -> Callable[[dict[str, Any]], tuple[Shown, ...]]:
    """A function of views.c that takes these arguments in order."""
    return lambda given: (Shown(name, tuple({**defaults, **given}[each] for each in wanted)),)


def _fixed(name: str, *numbers: int) -> Callable[[dict[str, Any]], tuple[Shown, ...]]:
    return lambda given: (Shown(name, numbers),)


def _all(name: str) -> Callable[[dict[str, Any]], tuple[Shown, ...]]:
    def read(given: dict[str, Any]) -> tuple[Shown, ...]:
        numbers = tuple(next(iter(given.values())))
        if any(not isinstance(number, (int, Word)) for number in numbers):
            raise Unreadable
        return (Shown(name, numbers),)

    return read


def _squeeze(given: dict[str, Any]) -> tuple[Shown, ...]:
    dim = given.get("dim")
    return (Shown("squeeze", () if dim is None else tuple(dim) if isinstance(dim, Sequence) else (dim,)),)


def _chunk(given: dict[str, Any], place: int) -> tuple[Shown, ...]:
    return (Shown("chunk", (given.get("dim", 0), given["chunks"], place)),)


def _split(given: dict[str, Any], place: int) -> tuple[Shown, ...]:
    size, dim = given["split_size"], given.get("dim", 0)
    if isinstance(size, Word) or (not isinstance(size, int) and any(isinstance(each, Word) for each in size)):
        raise Unreadable
    start, end = (place * size, (place + 1) * size) if isinstance(size, int) else (
        sum(size[:place]), sum(size[: place + 1]),
    )  # fmt: skip
    return (Shown("slice", (dim, start, end, 1)),)


def _unbind(given: dict[str, Any], place: int) -> tuple[Shown, ...]:
    return (Shown("select", (given.get("dim", 0), place)),)


def _movedim(given: dict[str, Any]) -> tuple[Shown, ...]:
    pairs = (given["source"], given["destination"])
    source, destination = (each if isinstance(each, tuple) else (each,) for each in pairs)
    return (Shown("movedim", (*source, *destination)),)


def _narrow(given: dict[str, Any]) -> tuple[Shown, ...]:
    start, length = given["start"], given["length"]
    if not isinstance(start, int) or not isinstance(length, int) or start < 0:
        raise Unreadable
    return (Shown("slice", (given["dim"], start, start + length, 1)),)


READERS: dict[str, tuple[Callable[..., tuple[Shown, ...]], tuple[str, ...]]] = {
    "__getitem__": (_item, ("key",)),
    "view": (_all("view"), ("*",)),
    "reshape": (_all("view"), ("*",)),
    "flatten": (_one("flatten", "start_dim", "end_dim", start_dim=0, end_dim=-1), ("start_dim", "end_dim")),
    "ravel": (_fixed("flatten", 0, -1), ()),
    "squeeze": (_squeeze, ("dim",)),
    "unsqueeze": (_one("unsqueeze", "dim"), ("dim",)),
    "t": (_fixed("transpose", 0, 1), ()),
    "transpose": (_one("transpose", "dim0", "dim1"), ("dim0", "dim1")),
    "swapaxes": (_one("transpose", "dim0", "dim1"), ("dim0", "dim1")),
    "swapdims": (_one("transpose", "dim0", "dim1"), ("dim0", "dim1")),
    "movedim": (_movedim, ("source", "destination")),
    "moveaxis": (_movedim, ("source", "destination")),
    "diagonal": (_one("diagonal", "offset", "dim1", "dim2", offset=0, dim1=0, dim2=1), ("offset", "dim1", "dim2")),
    "permute": (_all("permute"), ("*",)),
    "expand": (_all("expand"), ("*",)),
    "select": (_one("select", "dim", "index"), ("dim", "index")),
    "narrow": (_narrow, ("dim", "start", "length")),
    "chunk": (_chunk, ("chunks", "dim")),
    "split": (_split, ("split_size", "dim")),
    "unbind": (_unbind, ("dim",)),
    "unfold": (_one("unfold", "dimension", "size", "step"), ("dimension", "size", "step")),
    "detach": (lambda given: (), ()),
    "view_as_complex": (_fixed("as_complex"), ()),
    "view_as_real": (_fixed("as_real"), ()),
}
