"""Reads the library calls of a plan that an exported program makes by code of its own: convolutions, parts of
tensors, elements at positions, sums there, orders, and matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from framefuse.aot.own_views import MOST_DIMENSIONS, PARTS, Shown, shown_by, shown_by_index
from framefuse.ir.plan import CallStep, Plan, Template
from framefuse.ir.wrapped_calls import OnCopies

NAMES = {"conv1d": 1, "conv2d": 2}  # with how many dimensions a window has
CONVOLVED = frozenset(("float32", "float64"))
PARAMETERS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
DEFAULTS: dict[str, Template] = {
    "bias": ("const", None), "stride": ("const", 1), "padding": ("const", 0), "dilation": ("const", 1),
    "groups": ("const", 1),
}  # fmt: skip


POSITIONS = {"int64": 8, "int32": 4}  # the dtypes of positions, and their bytes
# Calls that matter for their results alone.
IDLE = frozenset(("tensor", "empty", "zeros", "ones", "versions", *PARTS, "view_as_complex", "view_as_real"))
EVERY: Template = ("const", slice(None))
NOTHING, REST = ("const", None), ("const", Ellipsis)  # of an index: a new dimension, all that are not named
SAME = -1  # as many places before and behind a picture as keep its size


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution over one or two dimensions: its slots, and of each dimension the numbers of its window."""

    out: int
    input: int
    weight: int
    bias: int | None
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    hole: tuple[int, ...]
    groups: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a tensor, or all of it, in memory of its own."""

    out: int
    input: int
    steps: tuple[Shown, ...]


@dataclass(frozen=True, slots=True)
class Elements:
    """The parts of a tensor at positions in its first dimensions, which lie in so many tensors of integers."""

    out: int
    input: int
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sorted:
    """The first elements along a dimension in order, stable, and where they were; None: nobody reads these."""

    values: int | None
    places: int | None
    input: int
    dim: int
    descending: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor with terms at positions along a dimension, and what becomes of a term and the element that it meets, by
    the name that C has for it.
    """

    met: str
    out: int
    input: int
    dim: int
    positions: int
    terms: int


@dataclass(frozen=True, slots=True)
class Matrices:
    """What is computed of each matrix of a batch, by the name that C has for it; ``right`` stands beside it in a
    system of equations, and is a vector where it has one dimension less. ``outs`` are the results, None where nobody
    reads one, of so many dimensions each as ``ranks`` says beside the batch's.
    """

    work: str
    outs: tuple[int | None, ...]
    ranks: tuple[int, ...]
    input: int
    right: int | None


@dataclass(frozen=True, slots=True)
class Exponentials:
    """The logarithms of sums of exponentials up to each place along a dimension."""

    out: int
    input: int
    dim: int


@dataclass(frozen=True, slots=True)
class Joined:
    """Complex numbers of two parts of their shape."""

    out: int
    real: int
    imag: int


@dataclass(frozen=True, slots=True)
class AtPositions:
    """Elements at positions along dimensions ``dims`` of a part of a tensor. They have the dimensions of the positions
    behind ``front`` others.
    """

    out: int
    input: int
    steps: tuple[Shown, ...]
    dims: tuple[int, ...]
    positions: tuple[int, ...]
    front: int


@dataclass(frozen=True, slots=True)
class Read(AtPositions):
    """What lies there."""


@dataclass(frozen=True, slots=True)
class Written(AtPositions):
    """The tensor with ``values`` there: a slot, or a number as its template."""

    values: Template


@dataclass(frozen=True, slots=True)
class Pieces:
    """Tensors one behind the other along a dimension."""

    out: int
    inputs: tuple[int, ...]
    dim: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """What lies where a mask is true, over the dimensions from ``axis`` on of a part of a tensor."""

    out: int
    input: int
    steps: tuple[Shown, ...]
    mask: int
    axis: int


@dataclass(frozen=True, slots=True)
class Counted:
    """What is found by looking at values, by the name that C has for it: the ``places`` of what is true, those that
    are ``repeated``, or how often integers are there, in ``least`` bins or more.
    """

    work: str
    out: int
    input: int
    least: int = 0


Moved = Written | Read | Pieces | Chosen | Counted | Part | Joined | Elements | Sorted | Placed
Called = Moved | Convolution | Matrices | Exponentials
# What C computes of matrices, with the dimensions that its results have beside the batch's.
MATRICES: dict[Any, tuple[str, tuple[int, ...]]] = {
    torch.linalg.solve: ("solve", (2,)), torch.linalg.solve_triangular: ("below", (2,)),
    torch.linalg.cholesky: ("factor", (2,)), torch.linalg.det: ("determinant", (0,)),
    torch.linalg.slogdet: ("logarithm", (0, 0)), torch.linalg.qr: ("qr", (2, 2)),
    torch.linalg.eigh: ("eigen", (1, 2)), torch.linalg.svd: ("singular", (2, 1, 2)),
    torch.linalg.matrix_exp: ("exponential", (2,)),
}  # fmt: skip
EXPONENTIALS = (torch.logcumsumexp, torch.Tensor.logcumsumexp)
SORTS = (torch.sort, torch.Tensor.sort)
FIRST = (torch.topk, torch.Tensor.topk)
PLACES = {
    getattr(home, name): name for home in (torch, torch.Tensor) for name in ("scatter_add", "scatter", "scatter_reduce")
}
MET = {"sum": "ADDED", "amax": "LARGEST", "amin": "SMALLEST"}
PUT = (torch.index_put, torch.Tensor.index_put)
NUMBERS = {"float32": "float", "float64": "double", "int64": "int64_t", "int32": "int32_t", "bool": "uint8_t"}  # in C
NONZERO = (torch.nonzero, torch.Tensor.nonzero, torch.argwhere, torch.Tensor.argwhere)
REPEATED = (torch.repeat_interleave,)
COUNTABLE = frozenset(("int64", "int32", "int16", "int8"))
BINS = (torch.bincount, torch.Tensor.bincount)
REDUCED = frozenset(("float32", "float64", "int64", "int32", "int16", "int8", "uint8"))


def read(plan: Plan, step: CallStep) -> Called | str:
    """What a call of the library computes, or why there is no code for it."""
    called: Called | str | None = None
    if step.function in SORTS and not step.binds:
        called = _sorted(plan, step)
    elif step.function in FIRST and not step.binds:
        called = _sorted(plan, step, ("k", "dim", "largest", "sorted"))
    elif step.function in PLACES and not step.binds and len(step.outs) == 1:
        called = _placed(plan, step, PLACES[step.function])
    elif step.function in MATRICES and not step.binds and step.outs:
        called = _matrices(plan, step, *MATRICES[step.function])
    elif _sets_items(step) and not step.binds:
        called = _written(plan, step)
    elif step.function in PUT and not step.binds and len(step.outs) == 1:
        called = _written(plan, step)
    elif len(step.outs) == 1 and step.outs[0][0] == () and all(dimension >= 0 for _, dimension, _ in step.binds):
        called = _found(plan, step)
    if called is None and not step.binds and len(step.outs) == 1 and step.outs[0][0] == ():
        if step.name in NAMES and step.function in _forms(step.name):
            called = _convolution(plan, step, NAMES[step.name])
        elif step.function in EXPONENTIALS:
            called = _exponentials(plan, step)
        elif step.function is torch.complex:
            called = _joined(plan, step)
        elif step.function is torch.cat:
            called = _pieces(plan, step)
        elif step.function is torch.clone:
            called = _copy(plan, step)
        elif step.function is torch.Tensor.__getitem__:
            called = _elements(plan, step)
        if called is None:
            called = _part(plan, step)
    return f"{step.name} is a call of torch's library, which is not there" if called is None else called


def _found(plan: Plan, step: CallStep) -> Called | None:
    """A call whose values say how many elements its result has."""
    slots, ((_, out),) = plan.slots, step.outs
    if step.function is torch.Tensor.__getitem__:
        return _chosen(plan, step, out)
    kind, slot, *_ = step.args[0] if step.args else ("const", None)
    if kind != "tensor":
        return None
    if step.function in NONZERO and len(step.args) == 1 and slots[slot].dtype == "bool" and not step.kwargs:
        return Counted("places", out, slot)
    if step.function in REPEATED and len(step.args) == 1 and not step.kwargs:
        return Counted("repeated", out, slot) if slots[slot].dtype in POSITIONS else None
    if step.function in BINS:
        given = {"minlength": ("const", 0), **dict(zip(("", "weights", "minlength"), step.args, strict=False))}
        given |= dict(step.kwargs)
        least = constant(given["minlength"])
        plain = constant(given.get("weights", ("const", None))) is None and "weights" not in dict(step.kwargs)
        if plain and isinstance(least, int) and slots[slot].dtype in COUNTABLE:
            return Counted("bins", out, slot, least)
    return None


def _chosen(plan: Plan, step: CallStep, out: int) -> Chosen | None:
    """What one mask chooses, beside numbers and slices."""
    (kind, slot), places = step.args
    items = places[1:] if places[0] == "tuple" else (places,)
    at = [place for place, item in enumerate(items) if item[0] == "tensor"]
    if kind != "tensor" or len(at) != 1:
        return None
    mask, before, behind = items[at[0]][1], items[: at[0]], items[at[0] + 1 :]
    rank, dims = len(plan.slots[mask].sizes), len(plan.slots[slot].sizes)
    if plan.slots[mask].dtype != "bool" or rank == 0 or dims > MOST_DIMENSIONS:
        return None
    steps = shown_by_index(("tuple", *before, *(EVERY,) * rank, *behind)) if before or behind else ()
    names = sum(item != NOTHING and item != REST for item in (*before, *behind))  # a dimension of the tensor each
    axis = sum(map(_is_shown, before))
    axis += dims - rank - names if REST in before else 0
    return None if steps is None else Chosen(out, slot, steps, mask, axis)


def _forms(name: str) -> tuple[object, object]:
    """A function of torch, and the operation that exported programs call."""
    return getattr(torch, name), getattr(torch.ops.aten, name).default


def is_idle(step: CallStep) -> bool:
    """Whether a call makes nothing that anything reads, and can neither fail nor tell, or fails only by positions that
    nothing reads at; or lays a result as its slot says, as what exported programs compute lies already.
    """
    if step.name == "layout":
        return step.args == tuple([("tensor", slot) for _, slot in step.outs])
    if step.outs:
        return False
    if step.function is torch.Tensor.__getitem__:  # as masks of packed sequences do that then ask for no position
        return True
    return step.name in IDLE or step.name in NAMES  # checks hold the sizes that a window needs


def _copy(plan: Plan, step: CallStep) -> Part | None:
    """A clone, whose format its slot has already."""
    kind, slot = step.args[0]
    if kind != "tensor" or any(name != "memory_format" for name, _ in step.kwargs):
        return None
    return Part(step.outs[0][1], slot, ())


def _pieces(plan: Plan, step: CallStep) -> Pieces | None:
    """More of them than a kernel takes."""
    ((_, out),), (pieces, dim) = step.outs, step.args
    slots, rank = plan.slots, len(plan.slots[out].sizes)
    if step.kwargs or any(piece[0] != "tensor" for piece in pieces[1:]) or dim[0] != "const":
        return None
    inputs = tuple(slot for _, slot in pieces[1:])
    if any(slots[slot].dtype != slots[out].dtype or len(slots[slot].sizes) != rank for slot in inputs):
        return None
    return Pieces(out, inputs, dim[1] % rank)


def _written(plan: Plan, step: CallStep) -> Written | None:
    """Values at positions that tensors of integers have, beside numbers and slices."""
    if len(step.args) != 3 or step.kwargs or [path for path, _ in step.outs] not in ([()], [(1,)]):
        return None
    (kind, slot), places, values = step.args
    slots, out = plan.slots, step.outs[0][1]
    items = places[1:] if places[0] in ("tuple", "list") else (places,)
    if step.function in PUT:
        items = tuple(EVERY if item == NOTHING else item for item in items)
    where = _at_positions(plan, slot, items) if kind == "tensor" else None
    if where is None:
        return None
    if values[0] == "tensor" and slots[values[1]].dtype != slots[out].dtype:
        return None
    if values[0] != "tensor" and (slots[out].dtype not in NUMBERS or values[0] not in ("const", "int", "real")):
        return None
    return Written(out, slot, *where, values)


def _at_positions(
    plan: Plan, slot: int, items: Sequence[Template]
) -> tuple[tuple[Shown, ...], tuple[int, ...], tuple[int, ...], int] | None:
    """The part of a slot that an index with tensors of integers is for, the dimensions of these, they, and how many of
    the part's other dimensions stand before theirs.
    """
    slots = plan.slots
    at = [place for place, item in enumerate(items) if item[0] == "tensor"]
    if not at or any(slots[items[place][1]].dtype not in POSITIONS for place in at):
        return None
    steps = shown_by_index(("tuple", *(EVERY if item[0] == "tensor" else item for item in items)))
    names = sum(item not in (NOTHING, REST) for item in items)  # a dimension of the tensor each
    dims, axis = [], 0
    for item in items:
        if item[0] == "tensor":
            dims.append(axis)
        axis += len(slots[slot].sizes) - names if item == REST else _is_shown(item)
    if steps is None or axis > MOST_DIMENSIONS:
        return None
    together = dims[-1] - dims[0] == len(dims) - 1
    return steps, tuple(dims), tuple(items[place][1] for place in at), dims[0] if together else 0


def _sets_items(step: CallStep) -> bool:
    """Whether it writes to positions of a copy, or of what nobody else has."""
    function: Any = step.function
    return isinstance(function, OnCopies) and function.target is torch.Tensor.__setitem__


def _is_shown(item: Template) -> bool:
    """Whether what is shown has a dimension for this item of an index."""
    return item[0] in ("slice", "tensor") or item == NOTHING or isinstance(constant(item), slice)


def _joined(plan: Plan, step: CallStep) -> Joined | None:
    ((_, out),) = step.outs
    if step.kwargs or any(kind != "tensor" for kind, _ in step.args):
        return None
    real, imag = (slot for _, slot in step.args)
    alike = all(plan.slots[slot].sizes == plan.slots[out].sizes for slot in (real, imag))
    return Joined(out, real, imag) if alike else None


def _part(plan: Plan, step: CallStep) -> Part | None:
    """A view by torch, as a copy: what reads it behind the call only reads."""
    ((_, out),) = step.outs
    shown = shown_by(step).get(out)
    if shown is None or len(plan.slots[shown[0]].sizes) > MOST_DIMENSIONS:
        return None
    return Part(out, *shown)


def _elements(plan: Plan, step: CallStep) -> Elements | Read | None:
    """What tensors of positions take, of the first dimensions or beside numbers and slices."""
    (kind, slot), places = step.args
    items = places[1:] if places[0] == "tuple" else (places,)
    where = _at_positions(plan, slot, items) if kind == "tensor" else None
    if where is None:
        return None
    ((_, out),) = step.outs
    first = all(item[0] == "tensor" for item in items)
    return Elements(out, slot, where[2]) if first else Read(out, slot, *where)


def _convolution(plan: Plan, step: CallStep, rank: int) -> Convolution | str:
    given = {**DEFAULTS, **dict(zip(PARAMETERS, step.args, strict=False)), **dict(step.kwargs)}
    ((_, out),) = step.outs
    if plan.slots[out].dtype not in CONVOLVED:
        return f"{step.name} of {plan.slots[out].dtype} has no kernel"
    numbers = [constant(given[name]) for name in PARAMETERS[3:]]
    if any(number is None for number in numbers):
        return f"{step.name} has a window that depends on its inputs"
    stride, padding, hole, groups = numbers
    pads = (SAME if padding == "same" else 0) if isinstance(padding, str) else padding
    steps, borders, holes = (_each(number, rank) for number in (stride, pads, hole))
    input, weight, bias = (given[name][1] for name in PARAMETERS[:3])
    return Convolution(out, input, weight, bias, steps, borders, holes, groups)


def _sorted(
    plan: Plan, step: CallStep, names: tuple[str, ...] = ("dim", "descending")
) -> Sorted | str | None:
    """A sort, or the first of one: its results say how many."""
    given = {"dim": ("const", -1), "descending": ("const", False), "largest": ("const", True), **dict(step.kwargs)}
    given |= dict(zip(names, step.args[1:], strict=False))
    dim, descending = constant(given["dim"]), constant(given["largest" if "k" in names else "descending"])
    if step.args[0][0] != "tensor" or not isinstance(dim, int) or not isinstance(descending, bool):
        return None
    input = step.args[0][1]
    slot = plan.slots[input]
    if slot.dtype.startswith("complex"):
        return "complex numbers have no order"
    results = {path[-1]: out for path, out in step.outs}
    return Sorted(results.get(0), results.get(1), input, dim % max(len(slot.sizes), 1), descending)


def _placed(plan: Plan, step: CallStep, name: str) -> Placed | str | None:
    given = dict(zip(("self", "dim", "index", "src", "reduce"), step.args, strict=False)) | dict(step.kwargs)
    kind = constant(given.get("reduce", ("const", None)))
    whole = constant(given.get("include_self", ("const", True)))
    met = {"scatter": "SET", "scatter_add": "ADDED"}.get(name, MET.get(kind))
    if met is None or whole is not True or (name != "scatter_reduce" and kind is not None):
        return None
    given["self"] = given.get("self", given.get("input", ("const", None)))
    dim = constant(given["dim"])
    tensors = [given[name] for name in ("self", "index", "src")]
    if not isinstance(dim, int) or any(tensor[0] != "tensor" for tensor in tensors):
        return None
    input, places, terms = (tensor[1] for tensor in tensors)
    slots, rank = plan.slots, len(plan.slots[input].sizes)
    known = met == "SET" or slots[input].dtype in REDUCED
    if not known or slots[terms].dtype != slots[input].dtype or rank == 0:
        return f"{name} of {slots[input].dtype} has no kernel"
    if slots[places].dtype not in POSITIONS or not rank == len(slots[places].sizes) == len(slots[terms].sizes):
        return f"positions of {slots[places].dtype} have no kernel"
    return Placed(met, step.outs[0][1], input, dim % rank, places, terms)


# What calls on matrices are told by name where C has it: else the form of the function made another call of it.
TOLD_OF_MATRICES = {
    "full_matrices": (True, False), "mode": ("reduced", "complete"), "upper": (True, False), "UPLO": ("L",),
    "left": (True,), "unitriangular": (False,),
}  # fmt: skip


def _matrices(plan: Plan, step: CallStep, work: str, ranks: tuple[int, ...]) -> Matrices | str | None:
    """Equations, factors and the like of matrices, given by position alone."""
    told = {name: constant(value) for name, value in step.kwargs}
    if any(value not in TOLD_OF_MATRICES.get(name, ()) for name, value in told.items()):
        return None
    if any(kind != "tensor" for kind, *_ in step.args) or (work == "factor" and told.get("upper")):
        return None
    results = {path[-1] if path else 0: out for path, out in step.outs}
    outs = tuple(results.get(place) for place in range(len(ranks)))
    slots = [arg[1] for arg in step.args]
    if any(plan.slots[slot].dtype not in CONVOLVED for slot in (*slots, *results.values())):
        return f"{step.name} of {plan.slots[slots[0]].dtype} has no kernel"
    sizes = [len(plan.slots[slot].sizes) for slot in slots]
    if work == "solve" and sizes not in ([2, 1], [sizes[0], sizes[0]]):  # else a vector may be meant as a matrix
        return None
    if work == "below":
        if sizes[0] != sizes[1]:
            return None
        work = "above" if told["upper"] else work
    if len(slots) > 1:
        ranks = (sizes[1] - sizes[0] + 2,)
    return Matrices(f"{work}_one", outs, ranks, slots[0], slots[1] if len(slots) > 1 else None)


def _exponentials(plan: Plan, step: CallStep) -> Exponentials | str | None:
    given = {"dim": ("const", None), **dict(zip(("input", "dim"), step.args, strict=False)), **dict(step.kwargs)}
    dim, input = constant(given["dim"]), given["input"]
    if not isinstance(dim, int) or input[0] != "tensor":
        return None
    slot = plan.slots[input[1]]
    if slot.dtype not in CONVOLVED:
        return f"{step.name} of {slot.dtype} has no kernel"
    return Exponentials(step.outs[0][1], input[1], dim % max(len(slot.sizes), 1))


def constant(template: Template) -> Any:
    """The value of a template that holds no number of the run; None where it does."""
    if template[0] == "const":
        return template[1]
    if template[0] in ("tuple", "list"):
        parts = tuple(constant(part) for part in template[1:])
        return None if None in parts else parts
    return None


def _each(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return numbers * rank if len(numbers) == 1 else numbers
