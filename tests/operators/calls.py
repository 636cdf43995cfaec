"""Calls operators of torch's own database, compiled and eagerly, on fresh values; compares results and gradients."""

from __future__ import annotations

import itertools
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.unit.differential import changed, tensors, twin

import framefuse
from framefuse.api import compiled_function
from framefuse.verification.nearness import unlike

# Results whose values are not determined by the arguments.
NO_VALUES = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted")
# Operators that are left out, with the reason.
LEFT_OUT = {
    "sparse.sampled_addmm": "arguments are sparse",
    "sparse.mm": "arguments are sparse",
    "to_sparse": "the result is sparse",
    "resize_": "the memory that it grows holds no values",
    "resize_as_": "the memory that it grows holds no values",
}
# Operators whose gradients are differences of terms as large as the gradient that flows in (about 1), and cancel. Over
# 200 draws of softmin's, compiled and eager are equally far from the exact one (7.0e-6 and 7.7e-6 together).
CANCELS = {"nn.functional.softmin": 1.0}
LIMIT = 40  # samples that are looked at for a few that differ
WIDE = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
    torch.complex64: torch.complex128, torch.complex32: torch.complex128,
}  # fmt: skip


def as_users(op: Any) -> Any:
    """The lambdas of the database, as functions of a user's module."""
    if type(op) is not types.FunctionType or not op.__module__.startswith("torch.testing"):
        return op
    space = {**op.__globals__, "__name__": "user"}
    function = types.FunctionType(op.__code__, space, op.__name__, op.__defaults__, op.__closure__)
    function.__kwdefaults__ = op.__kwdefaults__
    return function


def program(op: Any) -> Callable[..., Any]:
    """A user's function that calls the operator once."""
    function = as_users(op)

    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        return function(input, *args, **kwargs)

    return call


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def signature(value: Any) -> Any:
    """What must be the same in two sets of arguments for one compilation to serve both."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.stride(), value.requires_grad)
    if isinstance(value, (list, tuple)):
        return [signature(part) for part in value]
    if isinstance(value, dict):
        return {name: signature(part) for name, part in value.items()}
    return repr(value)


def reversed_values(value: torch.Tensor) -> torch.Tensor:
    """Other values of the same kind: those of this tensor in the opposite order."""
    if value.numel() < 2 or 0 in value.stride() or value.layout is not torch.strided:
        return value
    with torch.no_grad():
        made = twin(value).copy_(value.flatten().flip(0).reshape(value.shape))
    return made.requires_grad_(value.requires_grad)


def families(op: Any, dtype: torch.dtype, grad: bool, count: int, device: str) -> Iterator[list[Arguments]]:
    """For a few samples that differ in shapes or arguments, from the whole range of them, three sets of arguments on a
    device that differ in nothing but values.
    """
    drawn = []
    for seed in range(3):
        torch.manual_seed(seed)
        # op.sample_inputs() walks the stack of the test runner for each sample; this is what it wraps.
        found = itertools.islice(op.sample_inputs_func(op, device, dtype, grad), LIMIT)
        drawn.append([((sample.input, *sample.args), dict(sample.kwargs)) for sample in found])
    distinct: dict[str, int] = {}
    for place, (args, kwargs) in enumerate(drawn[0]):
        shapes = [tuple(part.shape) for part in tensors((args, kwargs))]
        distinct.setdefault(repr((shapes, sorted(kwargs))), place)
    places = list(distinct.values())
    count = min(count, len(places))
    for place in (places[round(n * (len(places) - 1) / max(1, count - 1))] for n in range(count)):
        first = drawn[0][place]
        others = [sets[place] for sets in drawn[1:] if place < len(sets)]
        good = [other for other in others if signature(other) == signature(first)]
        while len(good) < 2:
            good.append(changed(good[-1] if good else first, reversed_values))
        yield [first, *good]


def leaves(given: Arguments) -> Arguments:
    """Equal arguments in other memory, whose tensors collect gradients where these do."""
    made = twin(given)
    for mine, theirs in zip(tensors(made), tensors(given), strict=True):
        if theirs.requires_grad and not mine.requires_grad:
            mine.requires_grad_()
    return made


def widened(given: Arguments) -> Arguments:
    """The arguments with twice the digits or more."""

    def wide(value: torch.Tensor) -> torch.Tensor:
        if value.dtype not in WIDE:
            return value
        return value.detach().to(WIDE[value.dtype]).requires_grad_(value.requires_grad)

    return changed(given, wide)


def tangents(values: list[torch.Tensor], seed: int, model: list[torch.Tensor]) -> list[torch.Tensor]:
    """Random gradients for the values, of which each has the digits that the dtype of its model has."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for value, like in zip(values, model, strict=True):
        drawn = torch.randn(value.shape, dtype=torch.promote_types(value.dtype, torch.float64), generator=generator)
        found.append(drawn.to(value.device, like.dtype).to(value.dtype))
    return found


@dataclass
class Run:
    """What one call gave: its results, then gradients of the tensors that require them, then gradients of these; or an
    error, with the stage at which it came.
    """

    stages: list[Any] = field(default_factory=list)
    error: tuple[int, str, str] | None = None
    models: list[list[torch.Tensor]] = field(default_factory=list)
    places: list[list[int]] = field(default_factory=list)  # of what was differentiated among the tensors of a stage


def ran(function: Callable[..., Any], given: Arguments, order: int, like: Run | None = None) -> Run:
    """Calls the function and differentiates ``order`` times."""
    run = Run()
    args, kwargs = given
    torch.manual_seed(7)
    try:
        result = function(*args, **kwargs)
        run.stages.append(result)
        wanted = [value for value in tensors(given) if value.requires_grad]
        for step in range(order):
            made = list(tensors(run.stages[-1]))
            if like is None:
                run.places.append([place for place, value in enumerate(made) if value.requires_grad])
            elif step < len(like.places):
                run.places.append(like.places[step])
            values = [made[place] for place in run.places[step]] if step < len(run.places) else []
            if not values or not wanted:
                break
            run.models.append(values)
            given_back = tangents(values, step, values if like is None else like.models[step])
            gradients = torch.autograd.grad(
                values, wanted, given_back, allow_unused=True, create_graph=step + 1 < order
            )
            run.stages.append(gradients)
    except Exception as error:
        run.error = (len(run.stages), type(error).__name__, str(error))
    return run


def differ(mine: Run, eager: Run, exact: Run | None, values: bool = True, flow: float = 0.0) -> str:
    """How a compiled run differs from eager's, which has the error that it has from the ``exact`` one."""
    if mine.error != eager.error:
        return f"error {mine.error}, eager {eager.error}"
    if len(mine.stages) != len(eager.stages):
        return f"{len(mine.stages)} stages, eager {len(eager.stages)}"
    usable = exact is not None and exact.error is None and len(exact.stages) == len(eager.stages)
    for place, (got, wants) in enumerate(zip(mine.stages, eager.stages, strict=True)):
        truth = exact.stages[place] if usable and exact else None
        found = unlike(got, wants, truth, values, flow if place else 0.0)
        if found:
            return f"{('result', 'gradient', 'second gradient')[place]}: {found}"
    return ""


@dataclass
class Tally:
    """What became of operators: counts of samples by kind, what stayed eager with the reason, what is wrong."""

    kinds: Counter[str] = field(default_factory=Counter)
    eager: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def hold(
    op: Any, dtype: torch.dtype, tally: Tally, *, samples: int, grad: bool, orders: int, device: str = "cpu"
) -> None:
    """Calls samples of an operator three times each for every order of gradient; what differs goes to the tally."""
    name = f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''} {str(dtype)[6:]}"
    try:
        found = list(families(op, dtype, grad, samples, device))
    except Exception as error:  # the database's own
        tally.kinds["no samples"] += 1
        tally.eager[f"{name}: no samples: {error}"[:150]] += 1
        return
    for number, sets in enumerate(found):
        try:
            problem = _held(op, name, sets, tally, min(orders, 2) if grad else 0)
        except Exception as error:
            problem = f"raised {type(error).__name__}: {str(error)[:300]}"
        if problem:
            tally.wrong.append(f"{name} [{number}]: {problem}")


def _held(op: Any, name: str, sets: list[Arguments], tally: Tally, orders: int) -> str:
    call = program(op.op)
    compiled = framefuse.compile(call)
    state = compiled_function(compiled)
    asked = range(min(1, orders), orders + 1)
    rounds = [(sets[0], min(1, orders)), *((given, order) for order in asked for given in sets[1:])]
    for turn, (given, order) in enumerate(rounds):
        before = state.dispatch.hits
        eager = ran(call, leaves(given), order)
        mine = ran(compiled, leaves(given), order, eager)
        exact = ran(call, widened(given), order, eager) if eager.error is None else None
        problem = differ(mine, eager, exact, op.name not in NO_VALUES, CANCELS.get(op.name, 0.0))
        if problem:
            return f"call {turn}, order {order}: {problem}"
        if turn and state.dispatch.hits == before:
            why = "; ".join(f"{reason.code}: {reason.fact}" for reason in state.reasons) or "no hit"
            kind = "eager raises" if eager.error is not None and eager.error[0] == 0 else "eager"
            tally.kinds[kind] += 1
            tally.eager[f"{name}: {why if kind == 'eager' else 'eager raises'}"[:200]] += 1
            return ""
    tally.kinds["compiled"] += 1
    return ""
