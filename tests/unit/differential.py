"""Runs one call eagerly and compiled on equal arguments, and says how they differ: result, error, memory, writes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch


def twin(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Equal arguments in other memory: same strides and offsets, and tensors that shared memory still do."""
    memo = {} if memo is None else memo
    if isinstance(value, torch.Tensor):
        if id(value) not in memo:
            memo[id(value)] = _twin_tensor(value, memo)
        return memo[id(value)]
    if type(value) in (list, tuple):
        return type(value)(twin(part, memo) for part in value)
    if type(value) is dict:
        return {key: twin(part, memo) for key, part in value.items()}
    return value


def _twin_tensor(value: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    if value.layout is not torch.strided or value.is_conj() or value.is_neg():
        return copy.deepcopy(value)
    storage = value.untyped_storage()
    place = storage.data_ptr() or -id(value)
    if place not in memo:
        memo[place] = storage.clone()
    made = torch.empty(0, dtype=value.dtype, device=value.device)
    return made.set_(memo[place], value.storage_offset(), value.size(), value.stride())


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)


def changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The arguments with ``change`` done to each tensor."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(changed(part, change) for part in value)
    if type(value) is dict:
        return {key: changed(part, change) for key, part in value.items()}
    return value


class Outcome:
    """What a call did: its result or exception, and its arguments afterwards."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        torch.manual_seed(7)
        self.args, self.kwargs = args, kwargs
        self.versions = [value._version for value in tensors((args, kwargs))]
        self.result: Any = None
        self.error: Exception | None = None
        try:
            self.result = function(*args, **kwargs)
        except Exception as error:
            self.error = error
        self.bumps = [
            value._version - before for value, before in zip(tensors((args, kwargs)), self.versions, strict=True)
        ]

    def memory(self) -> list[tuple[Any, ...]]:
        """For each tensor of the result: which arguments and which earlier results it shares memory with, and where."""
        known = [*tensors((self.args, self.kwargs)), *tensors(self.result)]
        count = len(known) - len(list(tensors(self.result)))
        found = []
        for place, value in enumerate(known[count:], count):
            if value.layout is not torch.strided or not value.untyped_storage().nbytes():
                found.append(())
                continue
            start = value.untyped_storage().data_ptr()
            shared = tuple(
                other
                for other in range(place)
                if known[other].layout is torch.strided and known[other].untyped_storage().data_ptr() == start
            )
            same = tuple(other for other in range(place) if known[other] is value)
            # Where nobody else has the memory, whether torch made it through a view is not a property of the result.
            found.append((shared, same, value.storage_offset(), value._is_view()) if shared else ())
        return found


def difference(
    function: Callable[..., Any],
    expected: Outcome,
    args: Any,
    kwargs: Any,
    *,
    values: bool = True,
    exact: Callable[[], Any] | None = None,
) -> str:
    """How ``function`` on these arguments differs from what eager did; empty when it does not.

    ``exact`` gives the result in double precision: a 16-bit result may also be nearer to it than eager's is.
    """
    found = Outcome(function, args, kwargs)
    if (found.error is None) != (expected.error is None):
        return f"raised: {found.error!r:.300}, eager: {expected.error!r:.300}"
    if found.error is not None:
        same = type(found.error) is type(expected.error) and str(found.error) == str(expected.error)
        return "" if same else f"raised other: {found.error!r:.300}, eager: {expected.error!r:.300}"
    problem = compared(found.result, expected.result, values)
    if problem.startswith("values") and exact is not None and _nearer(found.result, expected.result, exact):
        problem = ""
    if problem:
        return f"result: {problem}"
    problem = compared((found.args, found.kwargs), (expected.args, expected.kwargs), True)
    if problem:
        return f"argument: {problem}"
    if found.bumps != expected.bumps:
        return f"versions: {found.bumps}, eager: {expected.bumps}"
    if found.memory() != expected.memory():
        return f"memory: {found.memory()}, eager: {expected.memory()}"
    return ""


def _nearer(found: Any, expected: Any, exact: Callable[[], Any]) -> bool:
    for mine, eager, truth in zip(tensors(found), tensors(expected), tensors(exact()), strict=True):
        if eager.dtype not in (torch.float16, torch.bfloat16) or mine.shape != eager.shape:
            return False
        if not (mine.double() - truth).abs().max() <= (eager.double() - truth).abs().max():
            return False
    return True


def compared(found: Any, expected: Any, values: bool) -> str:
    if type(found) is not type(expected):
        return f"type {type(found)}, eager {type(expected)}"
    if isinstance(expected, torch.Tensor):
        return _compared_tensors(found, expected, values)
    if isinstance(expected, (list, tuple)):
        if len(found) != len(expected):
            return f"length {len(found)}, eager {len(expected)}"
        pairs = zip(found, expected, strict=True)
        return next((text for a, b in pairs if (text := compared(a, b, values))), "")
    if isinstance(expected, dict):
        if list(found) != list(expected):
            return f"keys {list(found)}, eager {list(expected)}"
        return compared(list(found.values()), list(expected.values()), values)
    if isinstance(expected, (int, float, complex, str, bool, torch.dtype, torch.Size)):
        both_nan = expected != expected and found != found
        return "" if found == expected or both_nan or not values else f"{found!r}, eager {expected!r}"
    return ""


def _compared_tensors(found: torch.Tensor, expected: torch.Tensor, values: bool) -> str:
    if found.dtype is not expected.dtype or found.shape != expected.shape or found.layout is not expected.layout:
        return f"{found.dtype}{list(found.shape)}, eager {expected.dtype}{list(expected.shape)}"
    if found.requires_grad != expected.requires_grad:
        return f"requires_grad {found.requires_grad}"
    # Of an empty tensor in another memory order than rows, eager's strides depend on the operation.
    odd = not expected.numel() and 0 in expected.stride()
    if expected.layout is torch.strided and not odd and found.stride() != expected.stride():
        return f"strides {found.stride()}, eager {expected.stride()} of {tuple(expected.shape)}"
    if not values:
        return ""
    try:
        torch.testing.assert_close(found, expected, equal_nan=True)
    except AssertionError as error:
        return f"values: {str(error)[:400]}"
    return ""
